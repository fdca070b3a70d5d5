"""Arithmetic of kernels that people write as Triton compiles it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import UnitAttr

from weft.backends.nvidia.ir.kernel_passes import KernelPass, Match, Refused
from weft.backends.nvidia.target import NvidiaTarget
from weft.ir.types import f32
from weft.tile import dialect as tile
from weft.tile.memory_groups import MemoryGroups


@dataclass(frozen=True)
class RelaxArithmetic(KernelPass):
    """Arithmetic of kernels that people write as Triton compiles it: a product and a sum may be rounded once, powers of
    two below the normal numbers may be zero, and quotients and roots may be 2 ulp away unless they are asked to be
    exact.

    %p = tile.map mul(%x, %scale)                  %p = tile.map mul(%x, %scale) {contracts}
    %d = tile.map sub(%p, %m)               →      %d = tile.map sub(%p, %m)
    %e = tile.map exp2(%d)                         %e = tile.map exp2(%d) {flushes}

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
            elif op.function.data in ("div", "sqrt") and tile.EXACT not in op.attributes:
                op.attributes[tile.ROUGH] = UnitAttr()
            elif op.function.data == "mul" and all(_adds(use.operation) for use in op.out.uses):
                op.attributes[tile.CONTRACTS] = UnitAttr()
            elif _adds(op):
                _contract_narrow(op)


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
