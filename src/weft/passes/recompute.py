"""Recomputation in gradients: values of checkpointed ops are made again where a gradient reads them.

`checkpoint` marks ops with the name of their region. The gradient of such an op reads copies of the region's ops, which
are made of what came into the region and of what is saved of it; a copy carries a number, so that no pass takes it for
what it is a copy of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from xdsl.dialects.builtin import StringAttr, UnitAttr
from xdsl.ir import Attribute, Operation, OpResult, SSAValue

from weft.ir.types import is_float
from weft.ops.graph import GraphBuilder

REGION = "weft.checkpoint"
"""The region of an op, whose results gradients make again."""
SAVED = "weft.saved"
"""Marks the ops of a region whose results are kept."""
OFFLOADED = "weft.offloaded"
"""Marks those whose kept results wait in the host's memory."""
COPY = "weft.recomputed"
"""Tells copies apart, from each other and from the op."""


def region_of(op: Operation) -> str | None:
    """The region whose values are made again where the gradient of this op reads them."""
    mark = op.attributes.get(REGION)
    return mark.data if isinstance(mark, StringAttr) else None


def marks_of(op: Operation) -> dict[str, Attribute]:
    """What is stated of an op's recomputation."""
    return {key: op.attributes[key] for key in (REGION, SAVED, OFFLOADED) if key in op.attributes}


def inherit_marks(marks: Mapping[str, Attribute], made: Iterator[Operation]) -> None:
    """Let what is made of an op of a region be in it, too: further derivatives treat it as they do the op."""
    if marks:
        for op in made:
            if REGION not in op.attributes:
                op.attributes |= marks


def ops_after(first: Operation | None, b: GraphBuilder) -> Iterator[Operation]:
    """The ops that a builder has appended after one; all before its place, where that is None."""
    op = b.block.last_op if b.before is None else b.before.prev_op
    while op is not None and op is not first:
        yield op
        op = op.prev_op


class Recomputed:
    """The values of regions that one derivative has made again."""

    def __init__(self, b: GraphBuilder) -> None:
        self.b = b
        self.copies: dict[str, dict[SSAValue, SSAValue]] = {}
        self.made: list[Operation] = []
        self.offloaded: dict[SSAValue, OpResult] = {}
        self.first = 0

    def of(self, value: SSAValue, region: str) -> SSAValue:
        """A value of a region, made again of what comes into it and is saved; any other value as it is."""
        copies, left = self.copies.setdefault(region, {}), [value]
        while left:
            op = left[-1].owner
            if left[-1] in copies:
                left.pop()
            elif not isinstance(op, Operation) or region_of(op) != region or SAVED in op.attributes:
                copies[left[-1]] = self._kept(left[-1])
            elif missing := [x for x in op.operands if x not in copies]:
                left += missing
            else:
                copy = op.clone(value_mapper=copies)
                copy.attributes[COPY] = StringAttr(self._name(op))
                self.made.append(self.b.insert(copy))
        return copies[value]

    def _kept(self, value: SSAValue) -> SSAValue:
        """What came into a region or is saved of it; it may have waited in the host's memory."""
        op = value.owner
        if not isinstance(op, Operation) or OFFLOADED not in op.attributes or not is_float(value):
            return value
        if value not in self.offloaded:
            copy = self.b.emit("offload", value)
            self.offloaded[value] = self.b.emit("reload", copy)
            for made in (copy.op, self.offloaded[value].op):
                made.attributes[SAVED] = UnitAttr()
                self.made.append(made)
        return self.offloaded[value]

    def _name(self, op: Operation) -> str:
        """What no other copy is called: a derivative of this one has more ops, and begins to count from there."""
        self.first = self.first or sum(1 for _ in self.b.block.ops)
        before = op.attributes.get(COPY)
        number = str(self.first + len(self.made))
        return f"{before.data}.{number}" if isinstance(before, StringAttr) else number

    def drop_unread(self) -> None:
        """Remove the copies that no rule reads."""
        for op in reversed(self.made):
            if not any(result.uses for result in op.results):
                op.detach()
                op.erase()
