"""Object code into this process: what is linked, and where its calls to OpenMP and libm go."""

# llvmlite has no types.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false

from __future__ import annotations

import ctypes
from typing import Any

import llvmlite.binding as llvm

from weft.backends.cpu.archive import objects_of
from weft.backends.cpu.target import require_memory
from weft.errors import CompilationError
from weft.forks import COMPILING
from weft.runtime.openmp import SYMBOLS, pool_symbols

_counter = 0


def link(code: bytes, names: list[str]) -> Any:
    """Load an object file, or an archive of them, into this process; its calls to OpenMP and libm are resolved here."""
    global _counter
    require_memory(len(code))
    with COMPILING:
        _counter += 1
        builder = llvm.JITLibraryBuilder()
        for each in objects_of(code):
            builder.add_object_img(each)
        builder.add_current_process()
        for name, address in {**_refusing_pool(), **pool_symbols()}.items():
            builder.import_symbol(name, address)
        for name in names:
            builder.export_symbol(name)
        try:
            return builder.link(_jit(), f"weft{_counter}")
        except RuntimeError as error:
            raise CompilationError(f"a program could not be linked: {error}", hint="run `weft doctor`") from error


def unload(library: Any) -> None:
    """Give back the memory of linked code."""
    with COMPILING:
        library.close()


_jit_instance: Any = None


def _jit() -> Any:
    global _jit_instance
    if _jit_instance is None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        _jit_instance = llvm.create_lljit_compiler()
    return _jit_instance


def _refusing_pool() -> dict[str, int]:
    """Addresses for OpenMP's names where there is no pool: never called, since programs then run in one thread."""
    address = ctypes.cast(ctypes.pythonapi.Py_FatalError, ctypes.c_void_p).value
    assert address is not None
    return dict.fromkeys(SYMBOLS, address)
