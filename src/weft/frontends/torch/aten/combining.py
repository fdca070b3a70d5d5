"""Rows that were sorted, added up where they came from: each result reads its own rows, and nothing is added in memory.

Tokens are sorted by expert this way: k of a token's rows stand side by side, are put in order, and their results are
added up with `index_add` at the numbers of the tokens.
"""

from __future__ import annotations

from xdsl.ir import OpResult, SSAValue

from weft.frontends.torch.importer.builder import ImportBuilder
from weft.ir.types import Tensor, i64
from weft.ops.graph import OpaqueOp
from weft.ops.indexing.sort import Sort
from weft.passes.simplify.constant_values import made_by, number_of

_SORTS = ("aten::sort", "aten::sort.stable", "aten::argsort", "aten::argsort.stable")


def added_by_token(b: ImportBuilder, x: SSAValue, place: SSAValue, rows: SSAValue) -> SSAValue | None:
    """`x` with rows added at places that are those of a sort, each divided by a number: None where they are not."""
    order = _sorted_places(b, x, place)
    if order is None:
        return None
    (tokens, *rest), (count, *_) = b.shape(x), b.shape(place)
    inverse = inverse_of(b, order)
    assert isinstance(count, int) and isinstance(tokens, int)
    own = b.view(b.emit("take", rows, inverse, dim=0), (tokens, count // tokens, *rest))
    total = b.emit("sum", own, dims=(1,), keep=False)
    return total if number_of(x) == 0 else b.emit("add", x, total)


def inverse_of(b: ImportBuilder, order: SSAValue) -> SSAValue:
    """Where each element of a line has gone that was put in order."""
    (count,) = b.shape(order)
    target = b.zeros(Tensor(i64, (count,)))
    return b.emit("index_put", target, order, b.iota_of(count), dims=(0,), position=0, accumulate=False)


def _sorted_places(b: ImportBuilder, x: SSAValue, place: SSAValue) -> SSAValue | None:
    """What numbers of tokens were made of, if they are the places of a sort by how many rows each token has."""
    if not b.rank(x) or b.rank(place) != 1:
        return None
    tokens, count = b.shape(x)[0], b.shape(place)[0]
    if not isinstance(tokens, int) or not isinstance(count, int) or not tokens or count % tokens:
        return None
    if (quotient := made_by(place, "graph.floordiv")) is not None:
        order, divisor = quotient.operands
        return order if number_of(divisor) == count // tokens and is_order(order) else None
    taken = made_by(place, "graph.take")
    if taken is None or taken.params["dim"] != 0 or not is_order(taken.operands[1]):
        return None
    return taken.operands[1] if _repeats(b, taken.operands[0], tokens) else None


def _repeats(b: ImportBuilder, value: SSAValue, tokens: int) -> bool:
    """Whether a value is 0, 0, … 1, 1, … as long as there are tokens."""
    flat = made_by(value, "graph.reshape")
    spread = None if flat is None else made_by(flat.operands[0], "graph.broadcast")
    if spread is None or b.rank(spread.results[0]) != 2 or b.shape(spread.operands[0]) != (tokens, 1):
        return False
    numbers = spread.operands[0]
    while (view := made_by(numbers, "graph.reshape")) is not None:
        numbers = view.operands[0]
    made = made_by(numbers, "graph.iota")
    return made is not None and (made.params.get("start", 0), made.params.get("step", 1)) == (0, 1)


def is_order(value: SSAValue) -> bool:
    """Whether a value is where the elements of a line stood before they were sorted."""
    if not isinstance(value, OpResult):
        return False
    if isinstance(value.op, OpaqueOp):
        return value.op.target.data in _SORTS and value.index == len(value.op.results) - 1
    return isinstance(value.op, Sort) and value.index == 1
