"""The runs of memory that a matrix behind views consists of: what tiles of a matmul can be rows and columns of.

%v = graph.reshape %x : 64x2x7x2x7x384            rows: 64 windows' rows by 2, by 2, by 7, by 7
%p = graph.permute %v [0, 1, 3, 2, 4, 5]     →    the longest run: 128 apart, the others 2, 7, 7
%w = graph.reshape %p : 12544x384                 columns: one run of 384
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from xdsl.ir import SSAValue

from weft.ir.expr import Size
from weft.ir.types import tensor_of
from weft.ops.base import GraphOp, View
from weft.ops.layouts import StridedLayout

Run = tuple[int, int]
"""A size and a stride."""
Runs = list[list[Run]]
"""Those of every dimension, outermost first."""


def runs_of(root: SSAValue, layout: StridedLayout, views: Sequence[View]) -> Runs | None:
    """The runs of each dimension of what views, the last one first, make of what lies so; None if sizes are not known,
    or there are others than reshapes, permutes and slices."""
    shape = tensor_of(root.type).shape
    known = [(size, step) for size, step in zip(shape, layout.strides, strict=True)]
    if not all(isinstance(size, int) and isinstance(step, int) for size, step in known):
        return None
    runs: Runs | None = [[(int(size), int(step))] for size, step in known]  # type: ignore[arg-type]
    for view in reversed(views):
        runs = None if runs is None else _viewed(view, runs)
    return None if runs is None else [_joined(each) for each in runs]


def _viewed(view: GraphOp, runs: Runs) -> Runs | None:
    match view.name:
        case "graph.permute":
            return [runs[d] for d in view.params["dims"]]
        case "graph.reshape":
            return _reshaped(_joined(run for each in runs for run in each), view.params["shape"])
        case "graph.slice":
            return _sliced(runs, view.params["shape"], view.params["steps"])
        case _:
            return None


def _reshaped(runs: list[Run], shape: Sequence[Size]) -> Runs | None:
    """Runs dealt out to dimensions, the last ones first; one that is several dimensions is cut."""
    found: Runs = []
    left = list(runs)
    for wanted in reversed(shape):
        if not isinstance(wanted, int):
            return None
        taken: list[Run] = []
        while wanted > 1:
            if not left:
                return None
            size, step = left.pop()
            if wanted % size == 0:
                taken.insert(0, (size, step))
                wanted //= size
            elif size % wanted == 0:
                left.append((size // wanted, step * wanted))
                taken.insert(0, (wanted, step))
                wanted = 1
            else:
                return None
        found.insert(0, taken)
    return None if left else found


def _sliced(runs: Runs, shape: Sequence[Size], steps: Sequence[int]) -> Runs | None:
    found: Runs = []
    for each, size, step in zip(runs, shape, steps, strict=True):
        if size == prod(count for count, _ in each) and step == 1:
            found.append(each)
        elif len(each) == 1 and isinstance(size, int):
            found.append([(size, each[0][1] * step)])
        else:
            return None
    return found


def _joined(runs: Iterable[Run]) -> list[Run]:
    """The same, those in one where one goes on as the other does, and none of a single element."""
    found: list[Run] = []
    for size, step in runs:
        if size == 1:
            continue
        if found and found[-1][1] == size * step:
            found[-1] = found[-1][0] * size, step
        else:
            found.append((size, step))
    return found


def pieces(runs: Sequence[Run], side: int) -> int:
    """How many pieces, each of a part of one run of so many elements at most, a dimension is done in."""
    longest = max((size for size, _ in runs), default=1)
    return prod(size for size, _ in runs) // longest * -(-longest // side)
