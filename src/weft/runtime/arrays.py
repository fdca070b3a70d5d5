"""Runs compiled programs on NumPy arrays: for the tools and tests, which need no framework.

Only programs without calls to a framework can run here; the front ends have executors of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from weft.errors import GuardError, UnsupportedError
from weft.ir.expr import Expr
from weft.lower.plan import CallStep
from weft.runtime.executable import Executable
from weft.runtime.profile import active_profile
from weft.runtime.tape import Tape

_ALIGNMENT = 64


def run_arrays(
    executable: Executable, arrays: Sequence[np.ndarray], symbols: Mapping[str, int] | None = None, threads: int = 1
) -> list[np.ndarray]:
    """The results of a program. Symbolic sizes take their values from the arrays' shapes, and from `symbols`."""
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
    binding = executable.bind(bound)
    table = np.zeros(executable.words + executable.scratch, np.int64)
    held: dict[int, np.ndarray] = {}
    for number, array in (*zip(plan.inputs, arrays, strict=True), *constants.items()):
        held[number] = _strided(
            binding.shapes[number], binding.strides[number], plan.buffers[number].tensor.dtype.numpy
        )
        held[number][...] = array
    for number, buffer in enumerate(plan.buffers):
        if buffer.role == "output":
            held[number] = _strided(binding.shapes[number], binding.strides[number], buffer.tensor.dtype.numpy)
    for number, array in held.items():
        table[number] = array.ctypes.data
    arena = np.zeros(binding.arena.size + _ALIGNMENT, np.uint8)
    start = arena.ctypes.data + -arena.ctypes.data % _ALIGNMENT
    for number, offset in binding.arena.offsets.items():
        table[number] = start + offset
    for name in plan.symbols:
        table[executable.size_place(name)] = bound[name]

    def launch(tape: Tape) -> None:
        executable.launch(tape.address, table.ctypes.data, threads)

    if (profile := active_profile()) is not None:
        profile.run(executable, binding, launch, _refuse)
    else:
        for segment in binding.segments:
            _refuse(segment) if isinstance(segment, CallStep) else launch(segment)
    return [held[number].copy() for number in plan.outputs]


def _refuse(step: CallStep) -> None:
    raise UnsupportedError(f"{step.target} is a call to the framework that brought it")


def _strided(shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """A new array with strides in elements, which may overlap or leave gaps."""
    reach = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) + 1 if 0 not in shape else 0
    memory = np.zeros(max(reach, 1), dtype)
    return np.lib.stride_tricks.as_strided(memory, shape, [stride * dtype.itemsize for stride in strides])
