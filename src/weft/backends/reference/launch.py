"""Runs a kernel that the user wrote, as it stands in a graph, on NumPy arrays: what `graph.launch` means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from weft.backends.reference.tile import run_kernel
from weft.ir.attributes import from_attribute
from weft.ir.expr import Size, evaluate
from weft.ir.types import contiguous_strides, tensor_of
from weft.ops.graph import LaunchOp
from weft.tile.dialect import KernelOp, PointerType


def run_launch(op: LaunchOp, operands: Sequence[np.ndarray], symbols: Mapping[str, int]) -> list[np.ndarray]:
    """The results: new contents of operands, and what was filled."""
    kernel = op.kernel
    assert isinstance(kernel, KernelOp), "verified"
    read = [_laid_out(array, strides, symbols) for array, strides in zip(operands, _strides(op, "arg"), strict=True)]
    made: list[tuple[np.ndarray, np.ndarray]] = []
    for result, strides, start in zip(op.results, _strides(op, "result"), op.starts_from, strict=True):
        tensor = tensor_of(result.type)
        shape = tuple(evaluate(size, symbols) for size in tensor.shape)
        array = operands[start] if start >= 0 else np.zeros(shape, tensor.dtype.numpy)
        made.append(_laid_out(array, strides, symbols))
    memory = {"operand": [flat for flat, _ in read], "result": [flat for flat, _ in made]}
    buffers: list[np.ndarray] = []
    numbers: list[int | float] = []
    for (kind, value), argument in zip(op.words, kernel.block.args, strict=True):
        if kind in memory:
            buffers.append(memory[kind][int(value)])
        elif isinstance(argument.type, PointerType):  # to a status that the kernel never writes
            buffers.append(np.zeros(1, np.int64))
        else:
            numbers.append(value if isinstance(value, float) else evaluate(cast("Size", value), symbols))
    run_kernel(kernel, buffers, numbers)
    return [np.ascontiguousarray(seen) for _, seen in made]


def _strides(op: LaunchOp, which: str) -> Sequence[Any]:
    attribute = op.attributes.get(f"{which}_strides")
    count = len(op.operands) if which == "arg" else len(op.results)
    return (None,) * count if attribute is None else from_attribute(attribute)  # type: ignore[return-value]


def _laid_out(array: np.ndarray, strides: Any, symbols: Mapping[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """New memory in which the array lies with strides, flat, and the array in it."""
    steps = [evaluate(step, symbols) for step in strides or contiguous_strides(array.shape)]
    reach = 1 + sum((size - 1) * step for size, step in zip(array.shape, steps, strict=True)) if array.size else 0
    flat = np.zeros(max(reach, 1), array.dtype)
    seen = np.lib.stride_tricks.as_strided(flat, array.shape, [step * flat.itemsize for step in steps])
    seen[...] = array
    return flat, seen
