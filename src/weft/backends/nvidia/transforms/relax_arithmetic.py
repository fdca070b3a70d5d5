"""Arithmetic of kernels that people write as Triton compiles it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import UnitAttr
from xdsl.ir import SSAValue

from weft.backends.nvidia.ir.kernel_passes import KernelPass, Match, Refused
from weft.backends.nvidia.target import NvidiaTarget
from weft.ir.attributes import from_attribute
from weft.ir.types import f32
from weft.tile import dialect as tile
from weft.tile.memory_groups import MemoryGroups


@dataclass(frozen=True)
class RelaxArithmetic(KernelPass):
    """Arithmetic of kernels that people write as Triton compiles it: a product and a sum may be rounded once, powers of
    two below the normal numbers may be zero, exponentials are powers of two of a rounded product, and quotients and
    roots may be 2 ulp away unless they are asked to be exact.

    %p = tile.map mul(%x, %scale)                  %p = tile.map mul(%x, %scale) {contracts}
    %d = tile.map sub(%p, %m)               →      %d = tile.map sub(%p, %m)
    %e = tile.map exp2(%d)                         %e = tile.map exp2(%d) {flushes}

    A reciprocal of what is 1 or more needs no tests for divisors that have none, as in a sigmoid:

    %e = tile.map exp(%x)                          %e = tile.map exp(%x) {rough}
    %d = tile.map add(%e, 1)                →      %d = tile.map add(%e, 1)
    %s = tile.map div(1, %d)                       %s = tile.map div(1, %d) {rough, flushes}

    In narrow floats too, where the rounding between them is a cast that nobody wrote:

    %p = tile.map mul(%x, %y)                      %p = tile.map mul(%x, %y) {contracts}
    %r = tile.map cast(%p) {f16, implied}   →
    %s = tile.map add(%r, %z)                      %s = tile.map add(%p, %z)
    %t = tile.map cast(%s) {f16, implied}          %t = tile.map cast(%s) {f16, implied}
    """

    name: ClassVar[str] = "relax_arithmetic"

    def matches(self, kernel: tile.KernelOp, target: NvidiaTarget) -> Match:
        written = MemoryGroups.of_kernel(kernel).written
        return True if written else Refused("arithmetic of graphs is exact")

    def apply(self, kernel: tile.KernelOp, target: NvidiaTarget) -> None:
        maps = [op for op in kernel.walk() if isinstance(op, tile.MapOp) and tile.tile_type(op.out).dtype == f32]
        for op in maps:
            if op.function.data == "exp2":
                op.attributes[tile.FLUSHES] = UnitAttr()
            elif op.function.data in ("div", "sqrt", "exp") and tile.EXACT not in op.attributes:
                op.attributes[tile.ROUGH] = UnitAttr()
                if op.function.data == "div" and _is_small(op.args[0]) and _is_at_least_one(op.args[1]):
                    op.attributes[tile.FLUSHES] = UnitAttr()
            elif op.function.data == "mul" and all(_adds(use.operation) for use in op.out.uses):
                op.attributes[tile.CONTRACTS] = UnitAttr()
            elif _adds(op):
                _contract_narrow(op)


_NEVER_NEGATIVE = frozenset(["exp", "exp2", "abs", "sqrt", "sigmoid"])


def _is_small(value: SSAValue) -> bool:
    """Whether it is a constant that a large divisor leaves below the normal numbers."""
    number = from_attribute(value.owner.value) if isinstance(value.owner, tile.ConstantOp) else None
    return isinstance(number, int | float) and abs(number) <= 1


def _is_at_least_one(value: SSAValue) -> bool:
    """Whether it is the sum of such a constant and of what is never negative."""
    added = value.owner
    if not isinstance(added, tile.MapOp) or added.function.data != "add":
        return False
    constants = [from_attribute(arg.owner.value) for arg in added.args if isinstance(arg.owner, tile.ConstantOp)]
    others = [arg.owner for arg in added.args if isinstance(arg.owner, tile.MapOp)]
    return any(isinstance(number, int | float) and number >= 1 for number in constants) and any(
        op.function.data in _NEVER_NEGATIVE for op in others
    )


def _adds(op: object) -> bool:
    return isinstance(op, tile.MapOp) and op.function.data in ("add", "sub")


def _contract_narrow(op: tile.MapOp) -> None:
    """Let a sum of narrow floats read a product that is not rounded: one of its operands."""
    if any(_implied_by(use.operation) is None for use in op.out.uses):
        return
    for number, rounded in enumerate(op.args):
        product = _implied_by(rounded.owner)
        if product is None or product.function.data != "mul":
            continue
        if all(
            _adds(use.operation) or isinstance(use.operation, tile.StoreOp | tile.ScatterOp) for use in rounded.uses
        ):
            product.attributes[tile.CONTRACTS] = UnitAttr()
            op.operands[number] = product.out
            return


def _implied_by(cast: object) -> tile.MapOp | None:
    """The arithmetic in narrow floats of which a cast is the rounding."""
    if not isinstance(cast, tile.MapOp) or tile.IMPLIED not in cast.attributes:
        return None
    owner = cast.args[0].owner
    return owner if isinstance(owner, tile.MapOp) else None
