"""Triton's names for compiling a kernel without a launch."""

from weft.frontends.triton.ahead import ASTSource as ASTSource
from weft.frontends.triton.ahead import compile as compile
from weft.frontends.triton.compiled import CompiledKernel as CompiledKernel
