"""Copies in another memory: what a device computes now and reads much later may wait where there is more room."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from weft.ops.base import op
from weft.ops.graph import GraphBuilder
from weft.ops.movement import Copy
from weft.ops.rules import Values
from weft.ops.samples import MOVED, Input, Sample

_SAMPLES = [Sample((Input((2, 3)),), {}, MOVED), Sample((Input((0, 3)),), {}, MOVED), Sample((Input(()),), {}, MOVED)]


@op("offload", samples=_SAMPLES)
class Offload(Copy):
    """The operand in the host's memory, which nothing reads but `reload`."""

    @staticmethod
    def batch(b: GraphBuilder, operands: Values, batched: Sequence[bool]) -> SSAValue:
        return b.emit("offload", operands[0])


@op("reload", samples=_SAMPLES)
class Reload(Copy):
    """What was offloaded, in the device's memory again."""

    @staticmethod
    def batch(b: GraphBuilder, operands: Values, batched: Sequence[bool]) -> SSAValue:
        return b.emit("reload", operands[0])
