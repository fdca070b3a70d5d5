"""A program as machine code in this process, and what links it."""

# llvmlite has no types.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import llvmlite.binding as llvm

from weft.backends.cpu.launcher import LAUNCHER, launcher_module
from weft.backends.cpu.target import compile_object, host_target
from weft.errors import CompilationError
from weft.forks import COMPILING
from weft.lower.steps import KernelStep, LaunchStep, Step
from weft.runtime.openmp import SYMBOLS, blas_symbols, pool_symbols
from weft.runtime.program import Program
from weft.runtime.tape import Tape, write_tape

_counter = 0

Launch: TypeAlias = Callable[[int, int, int], None]
"""The launcher: tape, table, threads."""


@dataclass
class Executable(Program):
    """A program for the processor that it runs on."""

    def __post_init__(self) -> None:
        super().__post_init__()
        names = sorted({step.function for step in self.plan.steps if isinstance(step, KernelStep | LaunchStep)})
        self._library = link(self.code, names) if names else {}
        if names:
            weakref.finalize(self, _unload, self._library).atexit = False
        self.addresses: dict[str, int] = {name: self._library[name] for name in names} | blas_symbols()
        self.launch = launcher()

    def write_tape(self, steps: Sequence[Step], sizes: Mapping[str, int]) -> Tape:
        return write_tape(self.plan, steps, sizes, self.addresses)


@lru_cache(maxsize=1)
def launcher() -> Launch:
    """The function that runs tapes, compiled once in a process."""
    target = host_target()
    library = link(compile_object(launcher_module(target.triple), target), [LAUNCHER])
    word = ctypes.c_int64
    function: Any = ctypes.CFUNCTYPE(None, word, word, word)(library[LAUNCHER])
    # The function lives as long as the library that holds it.
    function.library = library
    return function


def link(code: bytes, names: list[str]) -> Any:
    """Load an object file into this process; its calls to OpenMP, BLAS and libm are resolved here."""
    global _counter
    with COMPILING:
        _counter += 1
        builder = llvm.JITLibraryBuilder().add_object_img(code).add_current_process()
        symbols = {**_refusing_pool(), **pool_symbols(), **blas_symbols()}
        for name, address in symbols.items():
            builder.import_symbol(name, address)
        for name in names:
            builder.export_symbol(name)
        try:
            return builder.link(_jit(), f"weft{_counter}")
        except RuntimeError as error:
            raise CompilationError(f"a program could not be linked: {error}", hint="run `weft doctor`") from error


def _unload(library: Any) -> None:
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
