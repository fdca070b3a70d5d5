"""Triton's names for compiling a kernel."""

from weft.frontends.triton.ahead import ASTSource as ASTSource
from weft.frontends.triton.ahead import compile as compile
from weft.frontends.triton.compiled import CompiledKernel as CompiledKernel
from weft.frontends.triton.errors import CompilationError as CompilationError
from weft.triton.compiler import compiler as compiler
from weft.triton.compiler import errors as errors
