"""Rules of `simplify` for elementwise ops: numbers that change nothing, casts that undo each other, exact shortcuts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from xdsl.ir import SSAValue

from weft.ir.expr import Size
from weft.ir.types import DType, bf16, boolean, f8e4m3, f8e5m2, f16, f32, f64, tensor_of
from weft.ops.base import GraphOp
from weft.ops.graph import GraphBuilder
from weft.passes.simplify.constant_values import Number, made_by, number_of
from weft.passes.simplify.padding_rules import side_by_side

Rule: TypeAlias = Callable[[GraphBuilder, GraphOp], SSAValue | None]


def first_of(*rules: Rule) -> Rule:
    """The rule that tries these in order."""

    def rule(b: GraphBuilder, op: GraphOp) -> SSAValue | None:
        return next((found for each in rules if (found := each(b, op)) is not None), None)

    return rule


def _spread(b: GraphBuilder, x: SSAValue, shape: Sequence[Size]) -> SSAValue:
    """The operand in the shape of the result that it stands for."""
    return x if b.tensor(x).shape == tuple(shape) else b.broadcast(x, shape=tuple(shape))


def neutral(number: Number, *, commutes: bool, floats: bool = True) -> Rule:
    """`x * 1`, `x - 0` and the like are x."""

    def rule(b: GraphBuilder, op: GraphOp) -> SSAValue | None:
        x, y = op.operands
        result = tensor_of(op.results[0].type)
        if result.dtype.is_float and not floats:
            return None
        if _is(y, number):
            return _spread(b, x, result.shape)
        return _spread(b, y, result.shape) if commutes and _is(x, number) else None

    return rule


def _is(value: SSAValue, number: Number) -> bool:
    """Whether the value is filled with the number; x - (-0.0) is not x where x is -0.0."""
    found = number_of(value)
    return found is not None and found == number and math.copysign(1, found) == math.copysign(1, number)


def absorbing(number: bool) -> Rule:
    """`x and False` is False, `x or True` is True."""

    def rule(b: GraphBuilder, op: GraphOp) -> SSAValue | None:
        result = tensor_of(op.results[0].type)
        if result.dtype != boolean or all(number_of(x) is not number for x in op.operands):
            return None
        return b.full(value=number, shape=result.shape, dtype=boolean)

    return rule


def _logic(b: GraphBuilder, op: GraphOp) -> SSAValue | None:
    """`x and True` and `x or False` of booleans are x."""
    x, y = op.operands
    if b.tensor(x).dtype != boolean:
        return None
    wanted = op.name in ("graph.bitwise_and", "graph.logical_and")
    for value, other in ((x, y), (y, x)):
        if number_of(value) is wanted:
            return _spread(b, other, tensor_of(op.results[0].type).shape)
    return None


def _twice(b: GraphBuilder, op: GraphOp) -> SSAValue | None:
    """An op that undoes itself."""
    inner = made_by(op.operands[0], op.name)
    return None if inner is None or inner.operands[0].type != op.results[0].type else inner.operands[0]


def _where(b: GraphBuilder, op: GraphOp) -> SSAValue | None:
    condition, yes, no = op.operands
    known = number_of(condition)
    if known is None and yes is not no:
        return None
    return _spread(b, no if known is False else yes, tensor_of(op.results[0].type).shape)


def _cast(b: GraphBuilder, op: GraphOp) -> SSAValue | None:
    (x,) = op.operands
    target: DType = op.params["dtype"]
    if b.tensor(x).dtype == target:
        return x
    inner = made_by(x, "graph.cast")
    if inner is None:
        return None
    source, between = b.tensor(inner.operands[0]).dtype, b.tensor(x).dtype
    # A float too large for an integer type gives some value: which one may depend on the width it comes from.
    if not holds(between, source) or (source.is_float and not target.is_float and target != boolean):
        return None
    return inner.operands[0] if source == target else b.cast(inner.operands[0], dtype=target)


# The widest integer, in bits with its sign, that each float type holds exactly.
_INTEGER_BITS = {f64: 54, f32: 25, f16: 12, bf16: 9, f8e4m3: 5, f8e5m2: 4}
_NARROWER_FLOATS = {
    f64: (f32, f16, bf16, f8e4m3, f8e5m2),
    f32: (f16, bf16, f8e4m3, f8e5m2),
    f16: (f8e4m3, f8e5m2),
    bf16: (f8e4m3, f8e5m2),
}


def holds(wide: DType, narrow: DType) -> bool:
    """Whether every value of one type is a value of the other."""
    if wide == narrow or narrow == boolean:
        return True
    if wide.is_float:
        if narrow.is_float:
            return narrow in _NARROWER_FLOATS.get(wide, ())
        return narrow.is_integer and narrow.bits + (narrow.kind == "uint") <= _INTEGER_BITS[wide]
    if not wide.is_integer or not narrow.is_integer or (wide.kind, narrow.kind) == ("uint", "int"):
        return False
    return wide.bits >= narrow.bits + (wide.kind != narrow.kind)


def _power(b: GraphBuilder, op: GraphOp) -> SSAValue | None:
    """Small whole powers as products: what torch does too. Those of narrow floats are rounded once, at the end."""
    x, exponent = op.operands
    result = tensor_of(op.results[0].type)
    power = number_of(exponent)
    if power == 1:
        return _spread(b, x, result.shape)
    if power == 2:
        return _spread(b, b.mul(x, x), result.shape)
    if power == 3 and result.dtype.is_float and result.dtype.bits < 32:
        wide = b.cast(x, dtype=f32)
        return _spread(b, b.cast(b.mul(b.mul(wide, wide), wide), dtype=result.dtype), result.shape)
    if power == 3 and (result.dtype.is_float or result.dtype.is_integer):
        return _spread(b, b.mul(b.mul(x, x), x), result.shape)
    return None


_LEAST_EXPONENT = {f64: -1022, f32: -126, bf16: -126, f16: -14}


def _quotient(b: GraphBuilder, op: GraphOp) -> SSAValue | None:
    """A division by a power of two is a product with its reciprocal, exactly."""
    x, divisor = op.operands
    number, dtype = number_of(divisor), b.tensor(x).dtype
    if number is None or not math.isfinite(number) or math.frexp(number)[0] not in (0.5, -0.5):
        return None
    exponent = math.frexp(number)[1] - 1
    if not _LEAST_EXPONENT.get(dtype, 0) <= -exponent <= -_LEAST_EXPONENT.get(dtype, 0):
        return None
    reciprocal = b.full(value=1 / number, shape=b.tensor(divisor).shape, dtype=dtype)
    return b.mul(x, reciprocal)


def _joined(b: GraphBuilder, op: GraphOp) -> SSAValue | None:
    """(x + 1) + 2 is x + 3 and (x * 2) * 3 is x * 6, where x is an integer: those wrap around all alike."""
    result = tensor_of(op.results[0].type)
    inner = made_by(op.operands[0], op.name)
    if inner is None or not result.dtype.is_integer:
        return None
    outer_number, inner_number = number_of(op.operands[1]), number_of(inner.operands[1])
    if outer_number is None or inner_number is None or b.tensor(inner.operands[0]).shape != result.shape:
        return None
    total = outer_number + inner_number if op.name == "graph.add" else outer_number * inner_number
    return b.emit(
        op.name.removeprefix("graph."), inner.operands[0], b.full_like(op.results[0], wrapped(total, result.dtype))
    )


def wrapped(number: Number, dtype: DType) -> int:
    """The integer that the type's bits hold."""
    value = int(number) & ((1 << dtype.bits) - 1)
    return value - (1 << dtype.bits) if dtype.kind == "int" and value >> (dtype.bits - 1) else value


RULES: dict[str, Rule] = {
    # -0.0 + 0.0 is 0.0: adding zero to a float changes it.
    "graph.add": first_of(neutral(0, commutes=True, floats=False), neutral(-0.0, commutes=True), _joined, side_by_side),
    "graph.sub": neutral(0, commutes=False),
    "graph.mul": first_of(neutral(1, commutes=True), _joined),
    "graph.div": first_of(neutral(1, commutes=False), _quotient),
    "graph.floordiv": neutral(1, commutes=False, floats=False),
    "graph.pow": _power,
    "graph.cast": _cast,
    "graph.where": _where,
    "graph.neg": _twice,
    "graph.bitwise_not": _twice,
    "graph.logical_not": _twice,
    **dict.fromkeys(("graph.bitwise_and", "graph.logical_and"), first_of(_logic, absorbing(False))),
    **dict.fromkeys(("graph.bitwise_or", "graph.logical_or"), first_of(_logic, absorbing(True))),
}
