"""Triton's names for compiling a kernel."""

from weft.frontends.triton.errors import CompilationError as CompilationError
from weft.frontends.triton.runtime.ahead import ASTSource as ASTSource
from weft.frontends.triton.runtime.ahead import compile as compile
from weft.frontends.triton.runtime.compiled import CompiledKernel as CompiledKernel
from weft.triton.compiler import compiler as compiler
from weft.triton.compiler import errors as errors
