"""Code for sums of exponentials below a maximum: each thread sees its own from the largest that it has."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from xdsl.ir import SSAValue

from weft.backends.llvm.builder import Function
from weft.backends.llvm.values import V, const
from weft.backends.nvidia.emit.emitters import EMITTERS
from weft.backends.nvidia.emit.math import emit_map, reciprocal, rough_exp, rough_powers
from weft.backends.nvidia.emit.reduce.across_threads import Exchange, Parts, groups, reduce_axis, tree
from weft.backends.nvidia.ir.dialect import SHARED, integer, layout_of
from weft.backends.nvidia.ir.fused_reductions import OnlineSoftmaxOp
from weft.backends.nvidia.ir.op_facts import loses_digits
from weft.backends.nvidia.ir.row_streams import CROSSES
from weft.backends.nvidia.ir.shared_bytes import part_bytes
from weft.ir.types import f32
from weft.tile import dialect as tile

if TYPE_CHECKING:
    from weft.backends.nvidia.emit.codegen import KernelCodegen

_NOTHING = const(float("-inf"), "float")
_ZERO = const(0.0, "float")


@dataclass(frozen=True)
class _Floats:
    """Functions of f32; `exact` exponentials where all digits count."""

    b: Function
    exact: bool

    def of(self, name: str, *args: V) -> V:
        return emit_map(self.b, name, args, f32)

    def power(self, value: V, base: V) -> V:
        shift = self.of("sub", value, base)
        return self.of("exp", shift) if self.exact else rough_exp(self.b, shift)

    def powers(self, values: list[V], base: V) -> tuple[list[V], V]:
        """Of many from the same base, and what is left to multiply them with."""
        if self.exact:
            return [self.power(value, base) for value in values], const(1.0, "float")
        return rough_powers(self.b, values, base)

    def times(self, value: V, rest: V) -> V:
        return value if self.exact else self.of("mul", value, rest)

    def base(self, largest: V) -> V:
        """What sums are seen from: from 0, -inf counts for nothing, also where there is nothing else, and inf for
        all."""
        return self.b.select(self.of("isinf", largest), _ZERO, largest)

    def larger(self, x: Parts, y: Parts) -> Parts:
        return (self.of("max", x[0], y[0]),)

    def added(self, x: Parts, y: Parts) -> Parts:
        return (self.of("add", x[0], y[0]),)

    def seen(self, largest: V) -> V:
        """What a sum below a maximum was seen from, so that it may be seen from another one."""
        return self.b.select(self.of("eq", largest, const(float("inf"), "float")), _ZERO, largest)

    def joined(self, x: Parts, y: Parts) -> Parts:
        """Of two pairs of a maximum and a sum, both."""
        largest = self.of("max", x[0], y[0])
        base = self.base(largest)
        first, second = (self.of("mul", total, self.power(self.seen(own), base)) for own, total in (x, y))
        return largest, self.of("add", first, second)


@EMITTERS.register(tile.AddExponentialsOp)
def emit_added_exponentials(codegen: KernelCodegen, op: tile.AddExponentialsOp) -> None:
    """A thread takes what it holds into its pair: one exponential an element, and one for what there was."""
    floats = _Floats(codegen.b, exact=False)
    (largest,), (total,) = codegen.tiles[op.largest], codegen.tiles[op.total]
    values = _existing(codegen, op.value)
    (larger,) = tree([(value,) for value in (largest, *values)], floats.larger)
    base = floats.base(larger)
    powers, rest = rough_powers(codegen.b, values, base)
    (added,) = tree([(power,) for power in powers], floats.added)
    before = floats.of("mul", total, floats.power(largest, base))
    codegen.tiles[op.larger] = [larger]
    codegen.tiles[op.sum] = [codegen.b.intrinsic("fma", added, rest, before)]


@EMITTERS.register(OnlineSoftmaxOp)
def emit_online_softmax(codegen: KernelCodegen, op: OnlineSoftmaxOp) -> None:
    b, layout, axis = codegen.b, layout_of(op.value), op.axis.value.data
    floats = _Floats(b, exact=not loses_digits(op.powers, summed=True))
    values = _existing(codegen, op.value)
    lines = groups(layout, axis, list(range(layout.count)))
    powers: dict[int, V] = {}
    mine: list[Parts] = []
    rests: list[V] = []
    for line in lines:
        (largest,) = tree([(values[r],) for r in line], floats.larger)
        made, rest = floats.powers([values[r] for r in line], floats.base(largest))
        powers |= dict(zip(line, made, strict=True))
        (total,) = tree([(power,) for power in made], floats.added)
        mine.append((largest, floats.times(total, rest)))
        rests.append(rest)
    alone = replace(layout, registers=tuple(mode for mode in layout.registers if mode.axis != axis))
    via = Exchange(integer(op, SHARED), part_bytes(op), codegen.crossing if CROSSES in op.attributes else None)
    whole = reduce_axis(b, codegen.threads, alone, axis, mine, floats.joined, via)
    nan = const(float("nan"), "float")
    totals = [b.select(floats.of("isinf", largest), nan, total) for largest, total in whole]
    scales = [
        floats.times(floats.power(floats.seen(own), largest), rest)
        for (own, _), (largest, _), rest in zip(mine, whole, rests, strict=True)
    ]
    codegen.tiles[op.largest] = [largest for largest, _ in whole]
    codegen.tiles[op.sum] = totals
    shares = [] if floats.exact else _shares(op)
    if shares:  # one factor for all that a thread has of a row
        scales = [floats.of("mul", scale, reciprocal(b, total)) for scale, total in zip(scales, totals, strict=True)]
    for line, scale in zip(lines, scales, strict=True):
        powers |= {r: floats.of("mul", powers[r], scale) for r in line}
    codegen.made.update(shares)
    for out in shares or [op.powers]:
        codegen.tiles[out] = [powers[r] for r in range(layout.count)]


def _shares(op: OnlineSoftmaxOp) -> list[SSAValue]:
    """The quotients of exponentials and their sum, if there is nothing else that needs the exponentials."""
    quotients: list[SSAValue] = []
    for use in op.powers.uses:
        user = use.operation
        if not isinstance(user, tile.MapOp) or user.function.data != "div" or list(user.args) != [op.powers, op.sum]:
            return []
        if layout_of(user.out) != layout_of(op.powers):
            return []
        quotients.append(user.out)
    return quotients


def _existing(codegen: KernelCodegen, value: SSAValue) -> list[V]:
    """The registers of a tile; what does not exist counts for nothing."""
    exists = codegen.existing(value, layout_of(value))
    pairs = zip(exists, codegen.tiles[value], strict=True)
    return [each if there is None else codegen.b.select(there, each, _NOTHING) for there, each in pairs]
