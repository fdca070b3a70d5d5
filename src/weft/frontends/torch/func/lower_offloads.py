"""`graph.offload` and `graph.reload` as calls that begin copies and await them, apart from each other in the program.

    %y = graph.exp %x                    %y = graph.exp %x
    %z = graph.sin %y                    %h = graph.opaque "weft::offload" %y
    …                                    %z = graph.sin %y
    %h = graph.offload %y                %k = graph.opaque "weft::offloaded" %h, %y
    %r = graph.reload %h           →     …
    %g = graph.mul %r, %z                %c = graph.opaque "weft::reload" %k
                                         …
                                         %r = graph.opaque "weft::reloaded" %c, %k
                                         %g = graph.mul %r, %z

What is read itself when its copy would be back already, stays where it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

import torch
from xdsl.ir import Block, Operation, OpResult, SSAValue

from weft.backends.target import CostFacts
from weft.frontends.torch.capture.host_copies import OFFLOAD, OFFLOADED, RELOAD, RELOADED
from weft.frontends.torch.importer.encoding import TensorArgument
from weft.frontends.torch.importer.opaque import make_opaque
from weft.ir.attributes import to_attribute
from weft.ir.types import tensor_of
from weft.ops.base import View
from weft.ops.graph import FuncOp, OpaqueOp
from weft.ops.host_copies import Offload, Reload
from weft.passes.remat.transfer_schedule import CopyBack, CopyOut, starts_of_copies_back, waits_for_copies_out

_SLOW = 1e10
"""Bytes a second where a target says nothing."""


def lower_offloads(function: FuncOp, device: torch.device, costs: CostFacts, objects: dict[str, Any]) -> None:
    """Rewrite the copies of a function in place; `objects` is its table of what calls cannot write down."""
    block = function.block
    _drop_inside(block)
    if not any(isinstance(op, Offload | Reload) for op in block.ops):
        return
    _drop_idle(block)
    _Lowering(block, device, costs, objects).run()


def _drop_inside(block: Block) -> None:
    """Take out copies in regions of control flow, whose turns have no time for them."""
    for op in [op for op in block.walk() if isinstance(op, Offload | Reload) and op.parent is not block]:
        op.results[0].replace_all_uses_with(op.operands[0])
        _erase(op)


def _drop_idle(block: Block) -> None:
    """Take out copies of what is read anyway while they would be away."""
    places = {op: place for place, op in enumerate(block.ops)}
    for op in [op for op in block.ops if isinstance(op, Offload)]:
        source, uses = op.operands[0], [use.operation for use in op.results[0].uses]
        back = [user for user in uses if isinstance(user, Reload)]
        read_here = [place for reload in back for place in _read_at(reload.results[0], places)]
        others = [place for place in _read_at(source, places) if place != places[op]]
        is_away = isinstance(source, OpResult) and (not back or max(others, default=-1) < min(read_here, default=-1))
        if is_away and (not back or len(back) == len(uses)):
            continue
        for reload in back:
            reload.results[0].replace_all_uses_with(source)
            _erase(reload)
        op.results[0].replace_all_uses_with(source)
        _erase(op)


class _Lowering:
    """A block, and how long its ops take."""

    def __init__(self, block: Block, device: torch.device, costs: CostFacts, objects: dict[str, Any]) -> None:
        self.block, self.device, self.costs, self.objects = block, device, costs, objects
        self.ops = list(block.ops)
        self.places = {op: place for place, op in enumerate(self.ops)}
        self.seconds = [self._seconds(op) for op in self.ops]

    def run(self) -> None:
        offloads = [op for op in self.ops if isinstance(op, Offload)]
        reloads = [op for op in self.ops if isinstance(op, Reload)]
        firsts = [min(_read_at(op.results[0], self.places)) for op in reloads]
        awaited = self._copy_out(offloads, {op.operands[0]: first for op, first in zip(reloads, firsts, strict=True)})
        self._copy_back(reloads, firsts, awaited)
        for op in (*reloads, *offloads):
            _erase(op)

    def _copy_out(self, offloads: Sequence[Offload], back_at: Mapping[SSAValue, int]) -> dict[SSAValue, int]:
        """Begin copies and await them; gives after which op each is there."""
        copies: list[CopyOut] = []
        for op in offloads:
            made = self.places[_owner(op.operands[0])]
            others = (place for place in _read_at(op.operands[0], self.places) if place != self.places[op])
            copies.append(CopyOut(made, max(others, default=made), self._transfer(op)))
        found: dict[SSAValue, int] = {}
        waits = waits_for_copies_out(self.seconds[:-1], copies)
        for op, copy, wait in zip(offloads, copies, waits, strict=True):
            source = op.operands[0]
            wait = max(copy.last, min(wait, back_at.get(op.results[0], len(self.ops)) - 1))
            begun = self._call("transfer", OFFLOAD, (source,), source, op)
            self.block.insert_op_after(begun, self.ops[copy.made])
            there = self._call("wait", OFFLOADED, (begun.results[0], source), source, op)
            self.block.insert_op_after(there, begun if wait == copy.made else self.ops[wait])
            op.results[0].replace_all_uses_with(there.results[0])
            found[there.results[0]] = wait
        return found

    def _copy_back(self, reloads: Sequence[Reload], firsts: Sequence[int], awaited: Mapping[SSAValue, int]) -> None:
        copies = [CopyBack(first, self._transfer(op)) for op, first in zip(reloads, firsts, strict=True)]
        starts = starts_of_copies_back(self.seconds, copies)
        for op, first, start in zip(reloads, firsts, starts, strict=True):
            copy = op.operands[0]
            begun = self._call("transfer", RELOAD, (copy, self.device), copy, op)
            self.block.insert_op_before(begun, self.ops[max(start, awaited.get(copy, -1) + 1)])
            there = self._call("wait", RELOADED, (begun.results[0], copy), copy, op)
            self.block.insert_op_before(there, self.ops[first])
            op.results[0].replace_all_uses_with(there.results[0])

    def _call(
        self, claim: str, target: Any, given: Sequence[SSAValue | torch.device], like: SSAValue, op: Operation
    ) -> OpaqueOp:
        args = [each if isinstance(each, torch.device) else TensorArgument(each) for each in given]
        made = make_opaque(target, args, {}, [tensor_of(like.type)], self.objects, op.location)
        made.attributes["weft.claim"] = to_attribute(claim)
        return made

    def _seconds(self, op: Operation) -> float:
        if isinstance(op, Offload | Reload):
            return 0.0
        return sum(map(self._moved, (*op.results, *op.operands))) / (self.costs.bandwidth or _SLOW)

    def _transfer(self, op: Operation) -> float:
        return self._moved(op.operands[0]) / (self.costs.host_bandwidth or _SLOW)

    def _moved(self, value: SSAValue) -> int:
        tensor = tensor_of(value.type)
        return prod(size if isinstance(size, int) else 1 for size in tensor.shape) * tensor.dtype.bytes


def _owner(value: SSAValue) -> Operation:
    assert isinstance(value, OpResult), "others are not away"
    return value.op


def _read_at(value: SSAValue, places: Mapping[Operation, int]) -> Iterator[int]:
    """Where a value, or a view of it, is read."""
    for use in value.uses:
        yield places[use.operation]
        if isinstance(use.operation, View):
            yield from _read_at(use.operation.results[0], places)


def _erase(op: Operation) -> None:
    op.detach()
    op.erase()
