"""Masks that let every row see the key of its own place: such rows see a key, so that lowest numbers hide others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xdsl.ir import SSAValue

from weft.ir.expr import Size
from weft.ir.types import boolean, tensor_of
from weft.passes.simplify.constant_values import made_by, number_of

_COMPARED: dict[str, Callable[[int], bool]] = {
    "graph.eq": lambda ahead: ahead == 0,
    "graph.le": lambda ahead: ahead <= 0,
    "graph.lt": lambda ahead: ahead < 0,
    "graph.ge": lambda ahead: ahead >= 0,
    "graph.gt": lambda ahead: ahead > 0,
}
"""What comparisons say of two numbers of which the first is so much ahead of the second."""


def sees_own_place(condition: SSAValue, shape: tuple[Size, ...]) -> bool:
    """Whether a condition on scores of a shape surely holds where rows and keys have the same number."""
    if shape[-1] != shape[-2]:
        return False
    if number_of(condition) is True:
        return True
    view = made_by(condition, "graph.broadcast", "graph.reshape")
    if view is not None and tensor_of(view.operands[0].type).shape[-2:] == shape[-2:]:
        return sees_own_place(view.operands[0], shape)
    both = made_by(condition, "graph.bitwise_and", "graph.logical_and")
    if both is not None and tensor_of(both.operands[0].type).dtype == boolean:
        return all(sees_own_place(operand, shape) for operand in both.operands)
    comparison = made_by(condition, *_COMPARED)
    if comparison is None or tensor_of(condition.type).shape[-2:] != shape[-2:]:
        return False
    if any(not tensor_of(operand.type).dtype.is_integer for operand in comparison.operands):
        return False
    ahead = _ahead(*comparison.operands)
    return ahead is not None and _COMPARED[comparison.name](ahead)


def _ahead(one: SSAValue, other: SSAValue) -> int | None:
    """By how much a value of rows is greater than one of keys, or the other way round, at the same place; if known."""
    shapes = [tensor_of(value.type).shape for value in (one, other)]
    if one is other:
        return 0 if shapes[0][-2:] == (1, 1) else None
    if min(map(len, shapes)) < 2 or shapes[0] != (*shapes[1][:-2], shapes[1][-1], shapes[1][-2]):
        return None
    if 1 not in shapes[0][-2:]:
        return None
    lines = [made_by(value, "graph.iota") for value in (one, other)]
    if lines[0] is not None and lines[1] is not None:
        return _lines_apart([line.params for line in lines if line is not None], [len(shape) for shape in shapes])
    ops = [made_by(value, "graph.reshape", "graph.index", "graph.cast") for value in (one, other)]
    if ops[0] is None or ops[1] is None or ops[0].name != ops[1].name:
        return None
    if ops[0].name == "graph.reshape":  # of the same line, once along the rows and once along the keys
        return 0 if ops[0].operands[0] is ops[1].operands[0] else None
    pairs = zip(ops[0].operands, ops[1].operands, strict=False)
    alike = ops[0].params == ops[1].params and len(ops[0].operands) == len(ops[1].operands)
    return 0 if alike and all(a is b or _ahead(a, b) == 0 for a, b in pairs) else None


def _lines_apart(params: list[dict[str, Any]], ranks: list[int]) -> int | None:
    """The difference of two lines of integers, one along the rows and one along the keys."""
    along = [rank - each["dim"] for rank, each in zip(ranks, params, strict=True)]
    (start, step), (begin, pace) = ((each.get("start", 0), each.get("step", 1)) for each in params)
    known = isinstance(start, int) and isinstance(begin, int)
    return start - begin if known and sorted(along) == [1, 2] and step == pace else None
