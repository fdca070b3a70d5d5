"""Runs compiled programs on NumPy arrays: for the tools and tests, which need no framework.

Only programs without calls to a framework can run here; the front ends have executors of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from weft.errors import GuardError, UnsupportedError
from weft.ir.expr import Expr
from weft.runtime.constants import strided_zeros
from weft.runtime.executable import Executable
from weft.runtime.profile import active_profile
from weft.runtime.program import Apart, ControlSegment
from weft.runtime.tape import Tape

_ALIGNMENT = 64


def run_arrays(
    executable: Executable, arrays: Sequence[np.ndarray], symbols: Mapping[str, int] | None = None, threads: int = 1
) -> list[np.ndarray]:
    """The results of a program. Symbolic sizes take their values from the arrays' shapes, and from `symbols`."""
    call = ArrayCall(executable, arrays, symbols)
    call.run(threads)
    return [call.held[number].copy() for number in executable.plan.outputs]


class ArrayCall:
    """A program with its arguments and its memory in place; each `run` computes the results anew."""

    def __init__(
        self, executable: Executable, arrays: Sequence[np.ndarray], symbols: Mapping[str, int] | None = None
    ) -> None:
        self.executable = executable
        plan = executable.plan
        if len(arrays) != len(plan.inputs) + len(plan.fixed):
            raise GuardError(f"the program takes {len(plan.inputs) + len(plan.fixed)} arguments, got {len(arrays)}")
        constants = executable.constants([arrays[place] for place in plan.fixed])
        arrays = [array for place, array in enumerate(arrays) if place not in plan.fixed]
        bound = dict(symbols or {})
        for number, array in zip(plan.inputs, arrays, strict=True):
            for size, actual in zip(plan.buffers[number].tensor.shape, array.shape, strict=True):
                if isinstance(size, Expr) and str(size) in size.symbols:
                    bound.setdefault(str(size), actual)
        self.binding = binding = executable.bind(bound)
        self.table = np.zeros(executable.words + executable.scratch, np.int64)
        self.held: dict[int, np.ndarray] = {}
        for number, array in (*zip(plan.inputs, arrays, strict=True), *constants.items()):
            dtype = plan.buffers[number].tensor.dtype.numpy
            self.held[number] = strided_zeros(binding.shapes[number], binding.strides[number], dtype)
            self.held[number][...] = array
        for number, buffer in enumerate(plan.buffers):
            if buffer.role == "output":
                dtype = buffer.tensor.dtype.numpy
                self.held[number] = strided_zeros(binding.shapes[number], binding.strides[number], dtype)
        for number, array in self.held.items():
            self.table[number] = array.ctypes.data
        self.arena = np.zeros(binding.arena.size + _ALIGNMENT, np.uint8)
        start = self.arena.ctypes.data + -self.arena.ctypes.data % _ALIGNMENT
        for number, offset in binding.arena.offsets.items():
            self.table[number] = start + offset
        for place, number in binding.numbers.items():
            self.table[place] = number

    def run(self, threads: int = 1) -> None:
        """Run the program."""

        def launch(tape: Tape) -> None:
            self.executable.launch(tape.address, self.table.ctypes.data, threads)

        if (profile := active_profile()) is not None:
            profile.run(self.executable, self.binding, launch, _refuse)
            return
        for segment in self.binding.segments:
            launch(segment) if isinstance(segment, Tape) else _refuse(segment)


def _refuse(step: Apart) -> None:
    if isinstance(step, ControlSegment):
        raise UnsupportedError(f"{step.step.label} has calls inside to the framework that brought them")
    raise UnsupportedError(f"{step.label} is a call to the framework that brought it")
