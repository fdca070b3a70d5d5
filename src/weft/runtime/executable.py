"""A program as machine code in this process."""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from weft.backends.cpu.blas import ROUTINES
from weft.backends.cpu.launcher import LAUNCHER, launcher_module
from weft.backends.cpu.target import compile_object, host_target
from weft.backends.cpu.thread_pool import RESET
from weft.errors import CompilationError
from weft.forks import compiled_once
from weft.lower.steps import CallStep, DotStep, KernelStep, LaunchStep, Plan, Step, all_steps, inner_steps
from weft.runtime.blas import blas_symbols
from weft.runtime.linking import link, unload
from weft.runtime.memory import Phase, least_phases
from weft.runtime.openmp import uses_own_pool
from weft.runtime.program import Program
from weft.runtime.tape import Tape, segments, write_tape

Launch: TypeAlias = Callable[[int, int, int], None]
"""The launcher: tape, table, threads."""


@dataclass
class Executable(Program):
    """A program for the processor that it runs on."""

    def __post_init__(self) -> None:
        super().__post_init__()
        steps = list(all_steps(self.plan.steps))
        names = sorted({step.function for step in steps if isinstance(step, KernelStep | LaunchStep)})
        self._library: Any = link(self.code, names) if names else {}
        if names:
            weakref.finalize(self, unload, self._library).atexit = False
        routines = blas_symbols()
        if not routines and any(isinstance(step, DotStep) and not is_foreign(step) for step in steps):
            raise CompilationError("a program calls BLAS, and this process has none", hint="compile it anew")
        self.addresses: dict[str, int] = {name: self._library[name] for name in names} | routines
        self.launch = launcher()

    def is_apart(self, step: Step) -> bool:
        return is_apart(step)

    def write_tape(self, steps: Sequence[Step], sizes: Mapping[str, int]) -> Tape:
        return write_tape(self.plan, steps, sizes, self.addresses)


@dataclass
class FrugalExecutable(Executable):
    """A program for which there is a budget: memory is had when it is needed and given back after that."""

    def parts(self, sizes: Mapping[str, int]) -> tuple[list[tuple[Step, ...]], tuple[Phase, ...]]:
        return frugal_parts(self.plan, sizes)


def frugal_parts(plan: Plan, sizes: Mapping[str, int]) -> tuple[list[tuple[Step, ...]], tuple[Phase, ...]]:
    """The segments of a program for which there is a budget, and its phases: known before there is code."""
    return least_phases(plan, sizes, segments(plan, is_apart))


def is_apart(step: Step) -> bool:
    """Calls, and products of types that BLAS has no routine for, which are the framework's, and what has such
    inside."""
    return isinstance(step, CallStep) or is_foreign(step) or any(map(is_apart, inner_steps(step)))


def is_foreign(step: Step) -> bool:
    """Whether a step is a product of a type that BLAS does not have."""
    return isinstance(step, DotStep) and step.out.tensor.dtype not in ROUTINES


@compiled_once
def launcher() -> Launch:
    """The function that runs tapes, compiled once in a process."""
    target, own_pool = host_target(), uses_own_pool()
    names = [LAUNCHER, *([RESET] if own_pool else [])]
    library = link(compile_object(launcher_module(target.triple, own_pool=own_pool), target), names)
    word = ctypes.c_int64
    function: Any = ctypes.CFUNCTYPE(None, word, word, word)(library[LAUNCHER])
    # The function lives as long as the library that holds it.
    function.library = library
    if own_pool:
        # Its threads run this code until the process ends, longer than the interpreter lives.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(library))
        os.register_at_fork(after_in_child=ctypes.CFUNCTYPE(None)(library[RESET]))
    return function
