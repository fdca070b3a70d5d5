"""A program that can be called: machine code in this process, and its memory.

The framework's front end allocates: inputs and outputs are its tensors, and so are the arenas. This module speaks
addresses and sizes only.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import llvmlite.binding as llvm

from weft.backends.cpu.compile import launcher_name, segments
from weft.backends.cpu.launcher import table_index, threads_index
from weft.errors import CompilationError
from weft.ir.expr import evaluate
from weft.lower.plan import CallStep, Plan
from weft.runtime.memory import Arena, plan_arena
from weft.runtime.openmp import SYMBOLS, blas_symbols, pool_symbols
from weft.runtime.record import note_arena

_LINK_LOCK = threading.Lock()
_counter = 0


@dataclass(frozen=True)
class Binding:
    """A program with its sizes known: where temporaries lie, and the shape and strides of every buffer."""

    sizes: Mapping[str, int]
    arena: Arena
    shapes: tuple[tuple[int, ...], ...]
    strides: tuple[tuple[int, ...], ...]


@dataclass
class Executable:
    """Loaded code: the plan's segments as functions to call, in order."""

    plan: Plan
    code: bytes
    segments: list[Callable[[int], None] | CallStep] = field(init=False)
    bindings: dict[tuple[int, ...], Binding] = field(default_factory=dict[tuple[int, ...], Binding])

    def __post_init__(self) -> None:
        self._library = _link(self.code, [launcher_name(n) for n, s in enumerate(segments(self.plan)) if not isinstance(s[0], CallStep)])
        prototype = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        self.segments = []
        for number, steps in enumerate(segments(self.plan)):
            first = steps[0]
            if isinstance(first, CallStep):
                self.segments.append(first)
            else:
                self.segments.append(prototype(self._library[launcher_name(number)]))

    @property
    def words(self) -> int:
        """The length of the table that the launchers read."""
        return threads_index(self.plan) + 1

    @property
    def threads_index(self) -> int:
        """Where in the table the number of threads stands."""
        return threads_index(self.plan)

    def symbol_index(self, name: str) -> int:
        return table_index(self.plan, name)

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
            )
            self.bindings[key] = binding
            note_arena(self.plan, sizes, binding.arena.size)
        return binding


def _link(code: bytes, names: list[str]) -> Any:
    """Load an object file into this process; its calls to OpenMP, BLAS and libm are resolved here."""
    global _counter
    with _LINK_LOCK:
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
