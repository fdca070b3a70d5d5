"""Combine collectives: several sums that are ready before any of them is needed travel as one message."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass

from weft.ir.expr import product
from weft.ir.types import tensor_of
from weft.ops.collectives import AllReduce, Wait
from weft.ops.graph import FuncOp


@dataclass(frozen=True)
class CombineCollectives(ModulePass):
    """%a = graph.all_reduce %x ; %b = graph.all_reduce %y   →   %a, %b = graph.all_reduce %x, %y

    They are over the same axes, of one kind and type, and nobody reads the first before the last is started. Messages
    grow to `bytes`: one that waits for all would leave nothing to overlap with.
    """

    name: ClassVar[str] = "combine_collectives"
    bytes: int = 25 << 20

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if isinstance(function, FuncOp):
                self._combine(function)

    def _combine(self, function: FuncOp) -> None:
        places = {op: place for place, op in enumerate(function.block.ops)}
        open_: dict[object, _Message] = {}
        found: list[_Message] = []
        for op in function.block.ops:
            if not isinstance(op, AllReduce):
                continue
            size = sum(_bytes(value.type) for value in op.operands)
            key = (op.attributes["kind"], op.attributes["axes"], tensor_of(op.operands[0].type).dtype)
            message = open_.get(key)
            if message is None or message.needed < places[op] or message.size + size > self.bytes:
                message = open_[key] = _Message()
                found.append(message)
            message.ops.append(op)
            message.size += size
            message.needed = min(message.needed, _needed(op, places))
        for message in found:
            if len(message.ops) > 1:
                _merge(function, message.ops)


@dataclass
class _Message:
    ops: list[AllReduce] = field(default_factory=list[AllReduce])
    size: int = 0
    needed: int = 1 << 62
    """Where in the program one of the results is read first."""


def _bytes(type_: object) -> int:
    tensor = tensor_of(type_)  # type: ignore[arg-type]
    count = product(tensor.shape)
    return (count if isinstance(count, int) else 0) * tensor.dtype.bytes


def _needed(op: AllReduce, places: dict[Operation, int]) -> int:
    waits = [use.operation for result in op.results for use in result.uses]
    readers = [use.operation for wait in waits for result in wait.results for use in result.uses]
    return min((places[reader] for reader in readers), default=1 << 62)


def _merge(function: FuncOp, ops: list[AllReduce]) -> None:
    last = ops[-1]
    operands = [value for op in ops for value in op.operands]
    made = AllReduce.make(*operands, location=last.location, **last.params)
    function.block.insert_op_before(made, last)
    old = [value for op in ops for value in op.results]
    for before, after in zip(old, made.results, strict=True):
        waits = [use.operation for use in before.uses]
        before.replace_all_uses_with(after)
        for wait in waits:
            if isinstance(wait, Wait):  # it may stand before the last of them
                wait.detach()
                function.block.insert_op_after(wait, made)
    for op in ops:
        op.detach()
        op.erase()
