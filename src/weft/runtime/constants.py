"""The constants of a loaded program: frozen weights as it was given them, prepared and packed as its plan says.

Programs know nothing of torch, so neither does this: arrays in, arrays out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from typing import Any, cast

import numpy as np
from xdsl.dialects.builtin import UnitAttr

from weft.backends.reference.graph import run
from weft.errors import GuardError
from weft.ir.attributes import from_attribute
from weft.ir.types import Tensor
from weft.lower.constants import Constant
from weft.lower.preparation import Preparation
from weft.lower.steps import Plan
from weft.ops.base import REGISTRY
from weft.ops.dialect import parse_module
from weft.ops.graph import FuncOp
from weft.passes.hoist_constants import RUNS_ONCE
from weft.runtime.cores import available_cores
from weft.runtime.owned_memory import OwnedMemory
from weft.runtime.strides import lowest, span

_MOST_THREADS, _ALIGNMENT = 8, 64


def prepared(plan: Plan, prepare: FuncOp | None, given: Sequence[np.ndarray]) -> dict[int, np.ndarray]:
    """The array of every constant buffer, from the constant arguments. `prepare` is read from the plan if not given."""
    sources = sources_of(plan, prepare, given)

    def made(constant: Constant, zeros: np.ndarray | None) -> np.ndarray:
        array = sources[constant.source]
        return array if constant.packing is None else constant.packing.pack(array, zeros)

    # Packing is copying, which NumPy does without holding the interpreter.
    with ThreadPoolExecutor(min(_MOST_THREADS, available_cores())) as pool:
        arrays = pool.map(made, plan.constants, _memory(plan.constants))
        return dict(zip((constant.buffer for constant in plan.constants), arrays, strict=True))


def _memory(constants: Sequence[Constant]) -> list[np.ndarray | None]:
    """Memory for what is packed, in one block: where it is large, pages of it cost more than what is copied to them."""
    sizes = [0 if constant.packing is None else constant.packing.size for constant in constants]
    padded = [-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes]
    block = np.frombuffer(OwnedMemory.of(sum(padded)), np.uint8)
    starts = accumulate(padded, initial=0)
    return [block[start : start + size] if size else None for start, size in zip(starts, sizes, strict=False)]


def sources_of(plan: Plan, prepare: FuncOp | None, given: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What constants are made of: the constant arguments, then what the program's `prepare` computes of them."""
    if len(given) != len(plan.fixed):
        raise GuardError(f"the program has {len(plan.fixed)} constant arguments, got {len(given)}")
    if prepare is None and plan.preparation is not None:
        return [*given, *_prepared(plan.preparation, given)]
    prepare = prepared_by(plan, prepare)
    return [*given, *([] if prepare is None else _results(prepare, given))]


def prepared_by(plan: Plan, prepare: FuncOp | None) -> FuncOp | None:
    """The function that computes a program's constants, which its plan has as text."""
    if prepare is None and plan.prepare:
        (prepare,) = (op for op in parse_module(plan.prepare).body.block.ops if isinstance(op, FuncOp))
    return prepare


def as_program(prepare: FuncOp) -> FuncOp:
    """The function that computes constants as one that can be compiled: nothing of it is taken out in its turn."""
    program = prepare.clone()
    del program.attributes["prepares"]
    program.attributes[RUNS_ONCE] = UnitAttr()
    return program


def _prepared(preparation: Preparation, given: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What `_results` makes, by data; an array of another type than is stated is an error before code reads it."""
    values = list(given)
    for array, tensor in zip(values, preparation.arguments, strict=True):
        _require_type(array, tensor)
    with np.errstate(all="ignore"):
        for op in preparation.ops:
            reference = cast("Callable[..., Any]", getattr(REGISTRY.specs[op.op].cls, "reference"))  # noqa: B009
            made = reference(*(values[number] for number in op.operands), **dict(op.params))
            several = cast(tuple[Any, ...], made) if isinstance(made, tuple) else (made,)
            arrays: list[np.ndarray] = [np.asarray(each) for each in several]
            for array, tensor in zip(arrays, op.results, strict=True):
                _require_type(array, tensor)
            values += arrays
    results = [values[number] for number in preparation.results]
    strides = preparation.strides or (None,) * len(results)
    return [_strided(array, each) for array, each in zip(results, strides, strict=True)]


def _require_type(array: np.ndarray, tensor: Tensor) -> None:
    if array.shape != tensor.shape or array.dtype != tensor.dtype.numpy:
        raise GuardError(f"a constant is {array.dtype}{list(array.shape)}, the program takes {tensor}")


def _results(prepare: FuncOp, given: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What the function makes of the constants, in the strides it states."""
    results = run(prepare, given)
    attribute = prepare.attributes.get("result_strides")
    strides = (None,) * len(results) if attribute is None else from_attribute(attribute)
    assert isinstance(strides, tuple)
    return [_strided(array, each) for array, each in zip(results, strides, strict=True)]


def _strided(array: np.ndarray, strides: object) -> np.ndarray:
    """The array in memory of its own, with strides in elements; where a stride is 0, all elements are one."""
    if not isinstance(strides, tuple) or not array.size:
        return np.array(array, order="C")
    steps = [int(step) for step in cast(tuple[Any, ...], strides)]
    made = strided_zeros(array.shape, steps, array.dtype)
    made[...] = array
    return made


def strided_zeros(shape: Sequence[int], strides: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """A new array with strides in elements, which may overlap, leave gaps, or go backwards."""
    # NumPy cannot stride over some of the types that it has from elsewhere, but over bytes.
    memory = np.zeros((max(span(shape, strides), 1), dtype.itemsize), np.uint8)
    steps = [*(stride * dtype.itemsize for stride in strides), 1]
    first = memory[-lowest(shape, strides) :]
    return np.lib.stride_tricks.as_strided(first, (*shape, dtype.itemsize), steps).view(dtype)[..., 0]
