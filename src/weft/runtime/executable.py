"""A program that can be called: machine code in this process, and its memory.

The framework's front end allocates: inputs and outputs are its tensors, and so are the arenas. This module speaks
addresses and sizes only.
"""

# llvmlite has no types.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias

import llvmlite.binding as llvm
import numpy as np

from weft.backends.cpu.launcher import LAUNCHER, launcher_module
from weft.backends.cpu.target import compile_object, host_target
from weft.errors import CompilationError
from weft.forks import COMPILING
from weft.ir.expr import evaluate
from weft.lower.steps import CallStep, KernelStep, LaunchStep, Plan
from weft.ops.graph import FuncOp
from weft.runtime.constants import prepared
from weft.runtime.memory import Arena, plan_arena
from weft.runtime.openmp import SYMBOLS, blas_symbols, pool_symbols
from weft.runtime.record import note_arena
from weft.runtime.tape import Tape, numbers_of, scratch_words, segments, size_place, table_words, write_tape

_counter = 0

_MOST_BINDINGS = 256
"""Sets of sizes that a program keeps its layout of memory for."""

Launch: TypeAlias = Callable[[int, int, int], None]
"""The launcher: tape, table, threads."""


@dataclass(frozen=True)
class Binding:
    """A program with its sizes known: where temporaries lie, the shape and strides of every buffer, and its tapes."""

    sizes: Mapping[str, int]
    arena: Arena
    shapes: tuple[tuple[int, ...], ...]
    strides: tuple[tuple[int, ...], ...]
    segments: tuple[Tape | CallStep, ...]
    numbers: Mapping[int, int]
    """Numbers that kernels take, by their places in the table: sizes, and what the user's kernels are given."""


@dataclass
class Executable:
    """Loaded code, and a binding for each set of sizes it was called with."""

    plan: Plan
    code: bytes
    prepare: FuncOp | None = None
    bindings: dict[tuple[int, ...], Binding] = field(default_factory=dict[tuple[int, ...], Binding])

    def __post_init__(self) -> None:
        names = sorted({step.function for step in self.plan.steps if isinstance(step, KernelStep | LaunchStep)})
        self._library = link(self.code, names) if names else {}
        if names:
            weakref.finalize(self, _unload, self._library).atexit = False
        self.addresses: dict[str, int] = {name: self._library[name] for name in names} | blas_symbols()
        self.launch = launcher()
        self.words = table_words(self.plan)
        self.scratch = scratch_words(self.plan)

    def constants(self, given: Sequence[np.ndarray]) -> dict[int, np.ndarray]:
        """The arrays of constant buffers, made of the program's constant arguments."""
        return prepared(self.plan, self.prepare, given)

    def bind(self, sizes: Mapping[str, int]) -> Binding:
        """The layout of memory for these sizes, planned once for each set of them."""
        key = tuple(sizes[name] for name in self.plan.symbols)
        binding = self.bindings.get(key)
        if binding is None:
            buffers = self.plan.buffers
            binding = Binding(
                dict(sizes),
                plan_arena(self.plan, sizes),
                tuple(tuple(evaluate(size, sizes) for size in buffer.tensor.shape) for buffer in buffers),
                tuple(tuple(evaluate(s, sizes) for s in buffer.layout.strides) for buffer in buffers),
                tuple(
                    steps[0] if isinstance(steps[0], CallStep) else write_tape(self.plan, steps, sizes, self.addresses)
                    for steps in segments(self.plan)
                ),
                {size_place(self.plan, name): sizes[name] for name in self.plan.symbols} | numbers_of(self.plan, sizes),
            )
            while len(self.bindings) >= _MOST_BINDINGS:
                self.bindings.pop(next(iter(self.bindings)), None)
            self.bindings[key] = binding
            note_arena(self.plan, sizes, binding.arena.size)
        return binding


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
