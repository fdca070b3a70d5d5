"""Triton's names for what is wrong with a kernel."""

from weft.frontends.triton.errors import CompilationError as CompilationError
from weft.frontends.triton.errors import CompileTimeAssertionFailure as CompileTimeAssertionFailure
from weft.frontends.triton.errors import UnsupportedLanguageConstruct as UnsupportedLanguageConstruct
