"""What is known of values when a program is compiled: the number that fills a tensor, or all its elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, cast

import numpy as np
from xdsl.ir import BlockArgument, OpResult, SSAValue

from weft.ir.attributes import from_attribute
from weft.ir.expr import Expr, product
from weft.ir.types import DType, tensor_of
from weft.ops.base import GraphOp
from weft.ops.graph import FuncOp

Number: TypeAlias = float | int | bool

# Views that show every element of their operand, and nothing else.
_SPREADING = ("graph.broadcast", "graph.reshape", "graph.permute")


def made_by(value: SSAValue, *names: str) -> GraphOp | None:
    """The op that makes the value, if it has one of the names."""
    return (
        value.op if isinstance(value, OpResult) and value.op.name in names and isinstance(value.op, GraphOp) else None
    )


def number_of(value: SSAValue) -> Number | None:
    """The number that fills a tensor, as its type holds it; None where there is none, or it is not known."""
    while (view := made_by(value, *_SPREADING)) is not None:
        value = view.operands[0]
    full = made_by(value, "graph.full")
    return None if full is None else as_held(full.params["value"], tensor_of(value.type).dtype)


def as_held(number: Number, dtype: DType) -> Number:
    """A number rounded to what an element of the type can hold."""
    return np.asarray(number).astype(dtype.numpy).item()


def evaluated(op: GraphOp, operands: list[np.ndarray]) -> list[np.ndarray] | None:
    """An op's results by its reference; None where it has none, or a parameter depends on a symbolic size."""
    reference: Callable[..., Any] | None = getattr(type(op), "reference", None)
    params = op.params
    if reference is None or any(map(_is_symbolic, params.values())):
        return None
    with np.errstate(all="ignore"):
        found: Any = reference(*operands, **params)
    several = cast("tuple[Any, ...]", found if isinstance(found, tuple) else (found,))
    return [np.asarray(each) for each in several]


def _is_symbolic(value: Any) -> bool:
    if isinstance(value, tuple):
        return any(map(_is_symbolic, cast("tuple[Any, ...]", value)))
    return isinstance(value, Expr)


def number_in(array: np.ndarray) -> Number | None:
    """The number that all elements are, bit for bit; 0 where there are no elements."""
    if array.size == 0:
        return np.zeros((), array.dtype).item()
    elements = np.ascontiguousarray(array).reshape(-1)
    bits = elements.view(f"u{array.itemsize}")
    return elements[:1].item() if (bits == bits[0]).all() else None


def progression_in(array: np.ndarray) -> tuple[int, int, int] | None:
    """`(dim, start, step)` where integers count along one dimension and are the same along all others."""
    if array.dtype.kind not in "iu" or array.size < 2:
        return None
    along = [
        d for d, size in enumerate(array.shape) if size > 1 and (np.take(array, 0, d) != np.take(array, 1, d)).any()
    ]
    if len(along) != 1:
        return None
    (dim,) = along
    line = np.moveaxis(array, dim, -1)
    start, step = int(line.flat[0]), int(line.flat[1]) - int(line.flat[0])
    expected = (np.arange(array.shape[dim], dtype=np.int64) * step + start).astype(array.dtype)
    return (dim, start, step) if (line == expected).all() else None


def array_of(value: SSAValue, most_elements: int = 1 << 20) -> np.ndarray | None:
    """All elements of a tensor that depends on no argument, if they are not too many."""
    tensor = tensor_of(value.type)
    size = product(tensor.shape)
    if not isinstance(value, OpResult) or not isinstance(value.op, GraphOp):
        return None
    if not isinstance(size, int) or size > most_elements:
        return None
    operands: list[np.ndarray] = []
    for operand in value.op.operands:
        array = array_of(operand, most_elements)
        if array is None:
            return None
        operands.append(array)
    found = evaluated(value.op, operands)
    return None if found is None else found[value.index]


def constant_arguments(function: FuncOp) -> list[BlockArgument]:
    """The arguments whose values are the same in every call: the function's attribute `constants` has their places."""
    attribute = function.attributes.get("constants")
    places: Any = () if attribute is None else from_attribute(attribute)
    return [function.block.args[place] for place in places]


def fixed_values(function: FuncOp) -> set[SSAValue]:
    """All values that are the same in every call, and of known size: what depends on nothing but constants."""
    fixed: set[SSAValue] = set(constant_arguments(function))
    for op in function.block.ops:
        if not isinstance(op, GraphOp) or not all(operand in fixed for operand in op.operands):
            continue
        static = all(tensor_of(result.type).is_static for result in op.results)
        if static and not any(map(_is_symbolic, op.params.values())):
            fixed.update(op.results)
    return fixed
