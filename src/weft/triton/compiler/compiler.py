"""Triton's names for compiling a kernel without a launch."""

from weft.frontends.triton.runtime.ahead import ASTSource as ASTSource
from weft.frontends.triton.runtime.ahead import compile as compile
from weft.frontends.triton.runtime.compiled import CompiledKernel as CompiledKernel
from weft.frontends.triton.target import GPUTarget as GPUTarget
