"""Collectives of a rank's program as calls of torch's functional collectives, which run on NCCL, gloo or `fake`.

Those gather and scatter along the first dimension; what the program asks for along others is moved there.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from xdsl.ir import SSAValue

from weft.errors import UnsupportedError
from weft.frontends.torch.collectives.transfers import operators
from weft.frontends.torch.dtypes import to_torch
from weft.frontends.torch.importer.encoding import TensorArgument
from weft.frontends.torch.importer.opaque import make_opaque
from weft.ir.attributes import to_attribute
from weft.ir.types import Tensor, boolean, u8
from weft.ops.base import GraphOp
from weft.ops.collectives import AllGather, AllReduce, AllToAll, Collective, Recv, ReduceScatter, Send, Wait
from weft.ops.graph import FuncOp, GraphBuilder, OpaqueOp
from weft.ops.rules import move_dim

_REDUCTIONS = {"sum": "sum", "avg": "sum", "max": "max", "min": "min", "prod": "product", "any": "max", "all": "min"}
_ops: Any = torch.ops._c10d_functional  # pyright: ignore[reportPrivateUsage]


@dataclass
class _Started:
    """A call that has been started: what it gives, and what is left to do to that once it is there."""

    value: SSAValue
    finish: Callable[[GraphBuilder, SSAValue], SSAValue]


@dataclass
class CollectiveLowering:
    """Rewrites a function in place; `groups` names the process group of each set of axes.

    `pairs` names, for a message along an axis from one place to another, the group that it goes through, and the rank
    at the other end.
    """

    function: FuncOp
    groups: Mapping[tuple[str, ...], str]
    objects: dict[str, Any]
    pairs: Callable[[GraphOp], tuple[str, int]] | None = None
    device: torch.device | None = None
    started: dict[SSAValue, _Started] = field(default_factory=dict[SSAValue, _Started])

    def run(self) -> None:
        for op in list(self.function.block.ops):
            if isinstance(op, Collective):
                self._start(op)
            elif isinstance(op, Wait):
                self._wait(op)
            elif isinstance(op, Send | Recv):
                self._transfer(op)
        self._wait_at_the_end()
        for op in reversed(list(self.function.block.ops)):
            if isinstance(op, Collective):
                op.detach()
                op.erase()

    def _wait_at_the_end(self) -> None:
        """What is started here and awaited elsewhere, a backward for example, is given once it is there."""
        returned = self.function.returned
        b = GraphBuilder(self.function.block, before=returned)
        for number, operand in enumerate(returned.operands):
            if (started := self.started.get(operand)) is None or not isinstance(operand.owner, GraphOp):
                continue
            made = self._call(
                b,
                "wait",
                _ops.wait_tensor.default,
                (TensorArgument(started.value),),
                [b.tensor(started.value)],
                operand.owner,
            )
            returned.operands[number] = started.finish(b, made.results[0])

    def _transfer(self, op: Send | Recv) -> None:
        if self.pairs is None:
            raise UnsupportedError(
                f"{op.name} in a program that is no stage of a pipeline", hint="give the plan a Pipeline"
            )
        b = GraphBuilder(self.function.block, op.location, before=op)
        group, peer = self.pairs(op)
        rest = (group, peer, op.params["channel"])
        if isinstance(op, Send):
            self._call(b, "collective", operators.send.default, (TensorArgument(op.operands[0]), *rest), [], op)
        else:
            tensor = b.tensor(op.results[0])
            what = (list(tensor.shape), to_torch(tensor.dtype), self.device or torch.device("cpu"))
            made = self._call(b, "collective", operators.recv.default, (*what, *rest), [tensor], op)
            made.attributes["pure"] = to_attribute(False)  # the message comes whether somebody reads it or not
            op.results[0].replace_all_uses_with(made.results[0])
        op.detach()
        op.erase()

    def _start(self, op: Collective) -> None:
        b = GraphBuilder(self.function.block, op.location, before=op)
        params, group = op.params, self.groups[op.params["axes"]]
        kind = _REDUCTIONS[params["kind"]] if "kind" in params else ""
        if len(op.operands) > 1:
            self._start_together(b, op, kind, group)
            return
        value, restore = _as_sent(b, op, op.operands[0])
        match op:
            case AllReduce():
                finish = _same
                call = (_ops.all_reduce.default, value, (kind, group), b.tensor(value))
            case AllGather():
                finish = _joined(params["dim"], params["ranks"])
                tensor = b.tensor(value)
                if tensor.rank == 0:
                    raise UnsupportedError("a number is gathered", hint="reshape it")
                gathered = Tensor(tensor.dtype, (tensor.shape[0] * params["ranks"], *tensor.shape[1:]))
                call = (_ops.all_gather_into_tensor.default, value, (params["ranks"], group), gathered)
            case ReduceScatter():
                value = _cut(b, value, params["dim"], params["ranks"])
                finish, call = (
                    _same,
                    (
                        _ops.reduce_scatter_tensor.default,
                        value,
                        (kind, params["ranks"], group),
                        Tensor(b.tensor(value).dtype, b.tensor(op.results[0]).shape),
                    ),
                )
            case AllToAll():
                value = _cut(b, value, params["split_dim"], params["ranks"])
                size = b.tensor(value).shape[0] // params["ranks"]
                finish = _joined(params["dim"], params["ranks"])
                parts = [size] * params["ranks"]
                call = (_ops.all_to_all_single.default, value, (parts, parts, group), b.tensor(value))
            case _:
                raise UnsupportedError(f"{op.name} has no form in torch.distributed")
        target, value, rest, result = call
        made = self._call(b, "collective", target, (TensorArgument(value), *rest), [result], op)
        self.started[op.results[0]] = _Started(made.results[0], lambda b, value: restore(b, finish(b, value)))

    def _start_together(self, b: GraphBuilder, op: Collective, kind: str, group: str) -> None:
        params = op.params
        match op:
            case AllReduce():
                target, rest = _ops.all_reduce_coalesced.default, (kind, group)
            case AllGather() if params["dim"] == 0:
                target, rest = _ops.all_gather_into_tensor_coalesced.default, (params["ranks"], group)
            case ReduceScatter() if params["dim"] == 0:
                target, rest = _ops.reduce_scatter_tensor_coalesced.default, (kind, params["ranks"], group)
            case _:
                raise UnsupportedError(f"{op.name} of several tensors along another dimension than the first")
        given = [_as_sent(b, op, value) for value in op.operands]
        arguments = [TensorArgument(value) for value, _ in given]
        results = [
            Tensor(b.tensor(value).dtype, b.tensor(result).shape)
            for (value, _), result in zip(given, op.results, strict=True)
        ]
        made = self._call(b, "collective", target, (arguments, *rest), results, op)
        for value, result, (_, finish) in zip(op.results, made.results, given, strict=True):
            self.started[value] = _Started(result, finish)

    def _wait(self, op: Wait) -> None:
        b = GraphBuilder(self.function.block, op.location, before=op)
        for operand, result in zip(op.operands, op.results, strict=True):
            # What comes from elsewhere, an argument for example, may be under way, too.
            started = self.started.get(operand) or _Started(operand, _same)
            target = _ops.wait_tensor.default
            made = self._call(b, "wait", target, (TensorArgument(started.value),), [b.tensor(started.value)], op)
            result.replace_all_uses_with(started.finish(b, made.results[0]))
        op.detach()
        op.erase()

    def _call(
        self, b: GraphBuilder, claim: str, target: Any, args: tuple[Any, ...], results: Sequence[Tensor], op: GraphOp
    ) -> OpaqueOp:
        made = make_opaque(target, args, {}, results, self.objects, op.location)
        made.attributes["weft.claim"] = to_attribute(claim)
        b.insert(made)
        return made


def _same(b: GraphBuilder, value: SSAValue) -> SSAValue:
    return value


def _as_sent(
    b: GraphBuilder, op: Collective, value: SSAValue
) -> tuple[SSAValue, Callable[[GraphBuilder, SSAValue], SSAValue]]:
    """What travels, and what is to be done to what comes: booleans go as bytes, and gloo has no means."""
    if b.tensor(value).dtype == boolean:
        return b.cast(value, dtype=u8), lambda b, result: b.cast(result, dtype=boolean)
    if op.params.get("kind") == "avg":
        return value, lambda b, result: b.div(result, b.full_like(result, float(op.params["ranks"])))
    return value, _same


def _cut(b: GraphBuilder, value: SSAValue, dim: int, ranks: int) -> SSAValue:
    """The parts along a dimension one behind the other: [A, n*B] → [n*A, B]."""
    if dim == 0:
        return value
    shape = b.tensor(value).shape
    parts = b.reshape(value, shape=(*shape[:dim], ranks, shape[dim] // ranks, *shape[dim + 1 :]))
    first = move_dim(b, parts, dim, 0)
    count, size, *rest = b.tensor(first).shape
    return b.reshape(first, shape=(count * size, *rest))


def _joined(dim: int, ranks: int) -> Callable[[GraphBuilder, SSAValue], SSAValue]:
    """What lies one behind the other joined along a dimension: [n*A, B] → [A, n*B]."""

    def finish(b: GraphBuilder, value: SSAValue) -> SSAValue:
        if dim == 0:
            return value
        size, *rest = b.tensor(value).shape
        moved = move_dim(b, b.reshape(value, shape=(ranks, size // ranks, *rest)), 0, dim)
        shape = b.tensor(moved).shape
        return b.reshape(moved, shape=(*shape[:dim], ranks * shape[dim + 1], *shape[dim + 2 :]))

    return finish
