"""Writers of ops that move elements: views, slices, padding, indexing, sorting."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.frontends.onnx.export.writer import Writer, require, writes
from weft.ir.expr import Size, as_int
from weft.ir.types import i64
from weft.ops.base import GraphOp

_LEAST = -(2**63)
"""An end before the first element, counted backwards."""
_COMBINED = {"assign": "none", "add": "add", "mul": "mul", "max": "max", "min": "min"}
_EDGES = {"reflect": "reflect", "replicate": "edge", "edge": "edge", "circular": "wrap", "wrap": "wrap"}


@writes("reshape")
def reshape(w: Writer, op: GraphOp) -> str:
    shape = w.result(op).shape
    return w.add("Reshape", w.x(op), w.shape(shape), allowzero=1 if 0 in shape else None)


@writes("broadcast")
def broadcast(w: Writer, op: GraphOp) -> str:
    return w.add("Expand", w.x(op), w.shape(w.result(op).shape))


@writes("permute")
def permute(w: Writer, op: GraphOp) -> str:
    dims = list(op.params["dims"])
    return w.add("Transpose", w.x(op), perm=dims) if dims else w.add("Identity", w.x(op))


@writes("concat")
def concat(w: Writer, op: GraphOp) -> str:
    return w.add("Concat", *(w.x(op, place) for place in range(len(op.operands))), axis=op.params["dim"])


def sliced(w: Writer, name: str, starts: Sequence[Size], shape: Sequence[Size], steps: Sequence[int]) -> str:
    """A slice of so many elements of each dimension."""
    ends: list[Size] = []
    for start, size, step in zip(starts, shape, steps, strict=True):
        end = start + (size - 1) * step + (1 if step > 0 else -1)
        ends.append(_LEAST if step < 0 and end == -1 else start if size == 0 else end)
    return w.add("Slice", name, w.shape(starts), w.shape(ends), w.ints(range(len(starts))), w.ints(steps))


@writes("slice")
def slice_(w: Writer, op: GraphOp) -> str:
    steps = op.params["steps"]
    require(op, all(isinstance(step, int) for step in steps), "with steps that are symbolic")
    return sliced(w, w.x(op), op.params["starts"], w.result(op).shape, steps)


@writes("roll")
def roll(w: Writer, op: GraphOp) -> str:
    made, shape = w.x(op), list(w.tensor(op).shape)
    shifts: tuple[int, ...] = op.params["shifts"]
    dims: tuple[int, ...] = op.params["dims"]
    for shift, dim in zip(shifts, dims, strict=True):
        size = as_int(shape[dim])
        require(op, size is not None, "of symbolic sizes")
        if not size or not shift % size:
            continue
        at = size - shift % size
        parts: list[str] = []
        for start, count in ((at, size - at), (0, at)):
            starts = [start if d == dim else 0 for d in range(len(shape))]
            parts.append(
                sliced(w, made, starts, [count if d == dim else s for d, s in enumerate(shape)], [1] * len(shape))
            )
        made = w.add("Concat", *parts, axis=dim)
    return made if made != w.x(op) else w.add("Identity", made)


@writes("pad")
def pad(w: Writer, op: GraphOp) -> str:
    pads = [*op.params["low"], *op.params["high"]]
    return w.add("Pad", w.x(op), w.shape(pads), w.constant(op.params["value"], w.tensor(op).dtype), mode="constant")


@writes("pad_mode")
def pad_mode(w: Writer, op: GraphOp) -> str:
    mode = _EDGES.get(str(op.params["mode"]))
    require(op, mode is not None, f"of the mode {op.params['mode']}")
    return w.add("Pad", w.x(op), w.shape([*op.params["low"], *op.params["high"]]), mode=mode)


@writes("take")
def take(w: Writer, op: GraphOp) -> str:
    return w.add("Gather", w.x(op), w.x(op, 1), axis=op.params["dim"])


@writes("gather")
def gather(w: Writer, op: GraphOp) -> str:
    x, index = w.tensor(op).shape, w.tensor(op, 1).shape
    dim = op.params["dim"]
    source = w.x(op)
    if any(size != own for d, (size, own) in enumerate(zip(index, x, strict=True)) if d != dim):
        # The operator takes elements beside the index alone.
        kept = [own if d == dim else size for d, (size, own) in enumerate(zip(index, x, strict=True))]
        source = sliced(w, source, [0] * len(x), kept, [1] * len(x))
    return w.add("GatherElements", source, w.x(op, 1), axis=dim)


@writes("index")
def index(w: Writer, op: GraphOp) -> str:
    dims, position, rank = op.params["dims"], op.params["position"], w.tensor(op).rank
    if len(dims) == 1 and position == dims[0]:
        return w.add("Gather", w.x(op), w.x(op, 1), axis=dims[0])
    rest = [d for d in range(rank) if d not in dims]
    first = w.add("Transpose", w.x(op), perm=[*dims, *rest])
    # The dimensions of the indices come first, and go to their position.
    made = w.add("GatherND", first, _places(w, op, 1, len(op.operands), dims))
    result = w.result(op).rank
    count = result - len(rest)
    order = [*range(count, count + position), *range(count), *range(count + position, result)]
    return made if order == sorted(order) else w.add("Transpose", made, perm=order)


def _places(w: Writer, op: GraphOp, start: int, stop: int, dims: Sequence[int]) -> str:
    """Indices into several dimensions, of which each place has one, side by side."""
    tensors = [w.tensor(op, place) for place in range(start, stop)]
    rank = max(tensor.rank for tensor in tensors)
    shape: list[Size] = [1] * rank
    for tensor in tensors:
        for d, size in enumerate(tensor.shape, rank - tensor.rank):
            shape[d] = size if shape[d] == 1 else shape[d]
    number = w.element_type(i64, op)
    columns: list[str] = []
    for place, tensor in enumerate(tensors, start):
        name = w.x(op, place) if tensor.dtype == i64 else w.add("Cast", w.x(op, place), to=number)
        name = name if list(tensor.shape) == shape else w.add("Expand", name, w.shape(shape))
        columns.append(w.add("Unsqueeze", name, w.ints([rank])))
    return columns[0] if len(columns) == 1 else w.add("Concat", *columns, axis=rank)


@writes("index_put")
def index_put(w: Writer, op: GraphOp) -> str:
    dims, rank = op.params["dims"], w.tensor(op).rank
    last = len(op.operands) - 1
    require(
        op, tuple(dims) == tuple(range(len(dims))) and op.params["position"] == 0, "of other than the first dimensions"
    )
    places = _places(w, op, 1, last, dims)
    count = max(w.tensor(op, place).rank for place in range(1, last))
    shape: list[Size] = [1] * count
    for place in range(1, last):
        tensor = w.tensor(op, place)
        for d, size in enumerate(tensor.shape, count - tensor.rank):
            shape[d] = size if shape[d] == 1 else shape[d]
    updates = w.x(op, last)
    whole = [*shape, *w.tensor(op).shape[len(dims) :]]
    if list(w.tensor(op, last).shape) != whole:
        updates = w.add("Expand", updates, w.shape(whole))
    require(op, rank >= len(dims), "of fewer dimensions")
    how = "add" if op.params["accumulate"] else "none"
    return w.add("ScatterND", w.x(op), places, updates, reduction=how)


@writes("scatter")
def scatter(w: Writer, op: GraphOp) -> str:
    same = w.tensor(op, 1).shape == w.tensor(op, 2).shape
    updates = w.x(op, 2)
    if not same:
        rank = w.tensor(op, 1).rank
        updates = sliced(w, updates, [0] * rank, w.tensor(op, 1).shape, [1] * rank)
    how = _COMBINED[op.params["kind"]]
    return w.add("ScatterElements", w.x(op), w.x(op, 1), updates, axis=op.params["dim"], reduction=how)


@writes("cumsum")
def cumsum(w: Writer, op: GraphOp) -> str:
    return w.add("CumSum", w.x(op), w.constant(op.params["dim"], np.int64))


@writes("topk")
def topk(w: Writer, op: GraphOp) -> Sequence[str]:
    largest, ordered = int(op.params["largest"]), int(op.params["sorted"])
    return w.several("TopK", 2, w.x(op), w.size(op.params["k"]), axis=op.params["dim"], largest=largest, sorted=ordered)


@writes("sort")
def sort(w: Writer, op: GraphOp) -> Sequence[str]:
    dim: int = op.params["dim"]
    count = w.size(w.tensor(op).shape[dim])
    return w.several("TopK", 2, w.x(op), count, axis=dim, largest=int(op.params["descending"]), sorted=1)
