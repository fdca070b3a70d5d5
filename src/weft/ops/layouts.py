"""Views as layouts: where the elements of a view lie in the memory of what it looks at.

A view whose result is a strided picture of its operand's memory costs nothing: whoever reads it gets a `StridedLayout`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from weft.ir.expr import Size, is_nonnegative, substitute, symbol
from weft.ir.types import Tensor, contiguous_strides, tensor_of
from weft.ops.base import GraphOp
from weft.ops.reshaping import matching_runs


@dataclass(frozen=True)
class StridedLayout:
    """Where the elements of a group's input or output lie: strides in elements from its first one."""

    strides: tuple[Size, ...]
    offset: Size = 0

    def address(self, index: Sequence[Size]) -> Size:
        total: Size = self.offset
        for stride, position in zip(self.strides, index, strict=True):
            total = stride * position + total
        return total


def contiguous(tensor: Tensor) -> StridedLayout:
    """Row-major from the start of a buffer."""
    return StridedLayout(contiguous_strides(tensor.shape))


def ordered(shape: Sequence[Size], order: Sequence[int]) -> StridedLayout:
    """Dense, with the dimensions in this order from the outermost to the innermost."""
    strides = dict(zip(order, contiguous_strides([shape[d] for d in order]), strict=True))
    return StridedLayout(tuple(strides[d] for d in range(len(shape))))


def order_of(shape: Sequence[Size], layout: StridedLayout | None) -> tuple[int, ...] | None:
    """The dimensions from the outermost to the innermost; those of one element, and of unknown strides, come first."""
    if layout is None or any(stride == 0 and size != 1 for stride, size in zip(layout.strides, shape, strict=True)):
        return None
    free = [d for d, size in enumerate(shape) if size == 1]
    unknown = [d for d, stride in enumerate(layout.strides) if d not in free and not isinstance(stride, int)]
    known = [(-stride, d) for d, stride in enumerate(layout.strides) if d not in free and isinstance(stride, int)]
    return None if len(unknown) > 1 else (*free, *unknown, *(d for _, d in sorted(known)))


def view_layout(op: GraphOp, layout: StridedLayout) -> StridedLayout | None:
    """The layout of a view of a tensor that has the given layout, or None if it takes a copy."""
    source, result = tensor_of(op.operands[0].type), tensor_of(op.results[0].type)
    params = op.params
    match op.name:
        case "graph.permute":
            dims: tuple[int, ...] = params["dims"]
            return StridedLayout(tuple(layout.strides[d] for d in dims), layout.offset)
        case "graph.broadcast":
            lead = result.rank - source.rank
            pairs = zip(source.shape, layout.strides, strict=True)
            strides: list[Size] = [0 if size == 1 else stride for size, stride in pairs]
            return StridedLayout((*((0,) * lead), *strides), layout.offset)
        case "graph.slice":
            return slice_layout(layout, params["starts"], params["steps"])
        case "graph.windows":
            row, *spatial, channel = layout.strides
            steps = [s * step for s, step in zip(spatial, params["strides"], strict=True)]
            within = [s * step for s, step in zip(spatial, params["dilation"], strict=True)]
            return StridedLayout((row, *steps, *within, channel), layout.offset)
        case "graph.reshape":
            reshaped = reshaped_strides(source.shape, layout.strides, result.shape)
            return None if reshaped is None else StridedLayout(reshaped, layout.offset)
        case _:
            return None


def slice_layout(layout: StridedLayout, starts: Sequence[Size], steps: Sequence[int]) -> StridedLayout:
    """The layout of a slice of a tensor that has the given layout."""
    offset = layout.offset
    for start, stride in zip(starts, layout.strides, strict=True):
        offset = offset + stride * start
    return StridedLayout(tuple(stride * step for stride, step in zip(layout.strides, steps, strict=True)), offset)


def same_places(shape: Sequence[Size], one: StridedLayout, other: StridedLayout) -> bool:
    """Whether two layouts put every element of a shape into the same place."""
    pairs = zip(shape, one.strides, other.strides, strict=True)
    return one.offset == other.offset and all(size == 1 or a == b for size, a, b in pairs)


def source_layout(op: GraphOp, layout: StridedLayout) -> StridedLayout | None:
    """The layout that a view's operand must have for the view to have the given one; None where none does that."""
    source, result = tensor_of(op.operands[0].type), tensor_of(op.results[0].type)
    match op.name:
        case "graph.permute":
            dims: tuple[int, ...] = op.params["dims"]
            return StridedLayout(tuple(layout.strides[dims.index(d)] for d in range(source.rank)), layout.offset)
        case "graph.reshape":
            strides = reshaped_strides(result.shape, layout.strides, source.shape)
            return None if strides is None else StridedLayout(strides, layout.offset)
        case _:
            return None


def reshaped_strides(shape: Sequence[Size], strides: Sequence[Size], target: Sequence[Size]) -> tuple[Size, ...] | None:
    """Strides of a reshape without a copy, or None: every run of merged dimensions must be evenly spaced."""
    return _reshaped_strides(tuple(shape), tuple(strides), tuple(target))


@lru_cache(maxsize=4096)  # layers repeat the same reshapes
def _reshaped_strides(
    shape: tuple[Size, ...], strides: tuple[Size, ...], target: tuple[Size, ...]
) -> tuple[Size, ...] | None:
    if any(size == 0 for size in target):
        return contiguous_strides(target)
    result: list[Size] = []
    for new, old in matching_runs(target, shape):
        kept = [d for d in old if shape[d] != 1]
        for outer, inner in pairwise(kept):
            if strides[outer] != strides[inner] * shape[inner]:
                return None
        step: Size = strides[kept[-1]] if kept else 1
        run: list[Size] = []
        for d in reversed(new):
            run.append(step)
            step = step * target[d]
        result += reversed(run)
    return tuple(result)


BLAS_LARGEST = 2**31 - 1
"""BLAS counts in 32 bits."""


def goes_forward(layout: StridedLayout) -> bool:
    """Whether no dimension runs backwards: the framework's tensors have no negative strides."""
    return not any(map(_is_backward, layout.strides))


def _is_backward(stride: Size) -> bool:
    """Whether a stride is negative, where sizes are large: a stride of `2 - n` is, one of `n - 2` is not."""
    if isinstance(stride, int):
        return stride < 0
    degree = max(len(monomial) for monomial, _ in stride.terms)
    return all(coefficient < 0 for monomial, coefficient in stride.terms if len(monomial) == degree)


def blas_takes(tensor: Tensor, layout: StridedLayout) -> bool:
    """Whether the last two dimensions are a matrix as BLAS knows it: rows or columns dense, the others apart."""
    if not goes_forward(layout):
        return False
    rows, columns = tensor.shape[-2:]
    row_step, column_step = layout.strides[-2:]
    if any(isinstance(size, int) and size > BLAS_LARGEST for size in (rows, columns, row_step, column_step)):
        return False
    plain = (column_step == 1 or columns == 1) and (rows == 1 or is_nonnegative(row_step - columns))
    turned = (row_step == 1 or rows == 1) and (columns == 1 or is_nonnegative(column_step - rows))
    return plain or turned


def blas_writes(tensor: Tensor, layout: StridedLayout) -> bool:
    """Whether BLAS can write a matrix that lies so: its rows are dense, and none lies in another."""
    rows, columns = tensor.shape[-2:]
    row_step, column_step = layout.strides[-2:]
    apart = rows == 1 or is_nonnegative(row_step - columns)
    return column_step == 1 and apart and blas_takes(tensor, layout)


def is_dense(tensor: Tensor, layout: StridedLayout) -> bool:
    """Whether a layout is row-major for some order of the dimensions: no gaps, nothing twice."""
    left = [(size, stride) for size, stride in zip(tensor.shape, layout.strides, strict=True) if size != 1]
    step: Size = 1
    while left:
        innermost = next((each for each in left if each[1] == step), None)
        if innermost is None:
            return False
        left.remove(innermost)
        step = step * innermost[0]
    return layout.offset == 0


def lies_apart(tensor: Tensor, layout: StridedLayout) -> bool:
    """Whether no two elements share memory, as far as can be told: each stride leaves room for all that lies within."""
    # Symbols that are sizes are at least 1 here: a tensor without elements has none that share memory.
    counts = {name: symbol(name) + 1 for size in tensor.shape for name in _factors(size)}
    pairs = zip(tensor.shape, layout.strides, strict=True)
    left = [(substitute(size, counts), substitute(stride, counts)) for size, stride in pairs if size != 1]
    room: Size = 1
    while left:
        inner = next((each for each in left if all(is_nonnegative(other[1] - each[1]) for other in left)), None)
        if inner is None or not is_nonnegative(inner[1] - room):
            return False
        left.remove(inner)
        room = inner[1] * inner[0]
    return True


def _factors(size: Size) -> list[str]:
    """The symbols of which a size is a multiple: it is 0 if one of them is."""
    if isinstance(size, int) or len(size.terms) != 1:
        return []
    ((factors, _),) = size.terms
    return [each.name for each in factors if each.kind == "symbol"]
