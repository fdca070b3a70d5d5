"""Triton's names for compiling a kernel."""

from weft.frontends.triton.errors import CompilationError as CompilationError
