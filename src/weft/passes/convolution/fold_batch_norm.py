"""Let a convolution or matmul with frozen weights do the scaling and shifting of its channels that follows it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

from weft.ir.types import tensor_of
from weft.ops.base import GraphOp
from weft.ops.graph import FuncOp, GraphBuilder, OpaqueOp
from weft.ops.matmul.dot import Dot
from weft.ops.windows.convolution import Convolution
from weft.passes.simplify.constant_values import fixed_values, number_of

CONVOLUTION = "aten::convolution"
"""The call that stands for a convolution which a library takes; its arguments are torch's."""


@dataclass(frozen=True)
class FoldBatchNorm(ModulePass):
    """Weights take the factor, and the bias all that is added.

    %y = graph.convolution %x, %w                         %v = graph.mul %w, %scale
    %a = graph.sub %y, %mean                      →       %d = graph.sub %bias, (graph.mul %mean, %scale)
    %b = graph.mul %a, %scale                             %y = graph.convolution %x, %v
    %c = graph.add %b, %bias                              %c = graph.add %y, %d

    Only where weights, factor and shift are constants, so that `hoist_constants` computes the new weights once. Results
    are rounded otherwise than before.
    """

    name: ClassVar[str] = "fold_batch_norm"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if isinstance(function, FuncOp) and "constants" in function.attributes:
                fixed = fixed_values(function)
                for candidate in list(function.block.ops):
                    anchor = _anchor(candidate, fixed)
                    if anchor is not None:
                        _fold(function, anchor, fixed)


@dataclass
class _Anchor:
    """An op that is linear in its weights: where the channels are in its result and in its weights."""

    op: Operation
    weight: int
    channel: int
    weight_channel: int
    bias: SSAValue | None = None
    set_bias: Callable[[SSAValue], None] | None = None


def _anchor(op: Operation, fixed: set[SSAValue]) -> _Anchor | None:
    found: _Anchor | None = None
    if isinstance(op, Dot) and tensor_of(op.operands[1].type).rank == 2:
        found = _Anchor(op, 1, 1, 1)
    elif isinstance(op, Convolution) and not op.params["transposed"] and "dtype" not in op.params:
        found = _Anchor(op, 1, 1, 0)
    elif isinstance(op, OpaqueOp) and op.target.data == CONVOLUTION:
        found = _library_convolution(op)
    if found is None or op.operands[found.weight] not in fixed or (found.bias is not None and found.bias not in fixed):
        return None
    return found if tensor_of(op.results[0].type).dtype.bits >= 32 else None


def _library_convolution(op: OpaqueOp) -> _Anchor | None:
    """A convolution that a library takes: its weights are the second argument, its bias the third, if it has one."""
    call: dict[str, Any] = json.loads(op.arguments.data)
    _, weight, bias, *_, transposed, _, _ = call["args"]
    if transposed:
        return None

    def set_bias(value: SSAValue) -> None:
        if bias is not None:
            op.operands[int(bias[1:])] = value
            return
        call["args"][2] = f"#{len(op.operands)}"
        op.operands = [*op.operands, value]
        op.arguments = StringAttr(json.dumps(call, allow_nan=False, separators=(",", ":")))

    known = None if bias is None else op.operands[int(bias[1:])]
    return _Anchor(op, int(weight[1:]), 1, 0, known, set_bias)


@dataclass
class _Affine:
    """What follows an op, as `factor * y + shift` for each channel; None stands for 1 and 0."""

    b: GraphBuilder
    factor: SSAValue | None = None
    shift: SSAValue | None = None

    def follow(self, op: GraphOp, y: SSAValue, value: SSAValue) -> bool:
        """Take in an op on the scaled and shifted value and a vector over channels, or a number."""
        b, first = self.b, op.operands[0] is y
        match op.name:
            case "graph.add":
                self.shift = value if self.shift is None else b.add(self.shift, value)
            case "graph.sub" if first:
                self.shift = b.neg(value) if self.shift is None else b.sub(self.shift, value)
            case "graph.mul":
                self.factor = value if self.factor is None else b.mul(self.factor, value)
                self.shift = None if self.shift is None else b.mul(self.shift, value)
            case "graph.div" if first:
                self.factor = b.reciprocal(value) if self.factor is None else b.div(self.factor, value)
                self.shift = None if self.shift is None else b.div(self.shift, value)
            case _:
                return False
        return True


def _fold(function: FuncOp, anchor: _Anchor, fixed: set[SSAValue]) -> None:
    chain = _chain(anchor, fixed)
    scaling = [op for op, value in chain if op.name in ("graph.mul", "graph.div") and number_of(value) is None]
    if not scaling:
        return
    op, last = anchor.op, chain[-1][0]
    # All of it moves to where the last of the constants is there.
    b = GraphBuilder(function.block, op.location, before=last)
    affine = _Affine(b, shift=anchor.bias)
    y = op.results[0]
    channels = tensor_of(y.type).shape[anchor.channel]
    for step, value in chain:
        size = () if _is_scalar(value) else (channels,)
        affine.follow(step, y, b.reshape(value, shape=size) if tensor_of(value.type).shape != size else value)
        y = step.results[0]
    assert affine.factor is not None
    weight = op.operands[anchor.weight]
    places = range(tensor_of(weight.type).rank)
    shape = tuple(channels if d == anchor.weight_channel else 1 for d in places)
    factor = affine.factor if _is_scalar(affine.factor) else b.reshape(affine.factor, shape=shape)
    op.operands[anchor.weight] = b.mul(weight, factor)
    shift = affine.shift
    if shift is not None and anchor.set_bias is not None:
        anchor.set_bias(b.broadcast(shift, shape=(channels,)) if _is_scalar(shift) else shift)
    op.detach()
    b.insert(op)
    result = op.results[0]
    if shift is not None and anchor.set_bias is None:
        spatial = tensor_of(result.type).rank - anchor.channel - 1
        result = b.add(result, shift if _is_scalar(shift) else b.reshape(shift, shape=(channels, *(1,) * spatial)))
    last.results[0].replace_all_uses_with(result)
    for step, _ in reversed(chain):
        step.detach()
        step.erase()


def _chain(anchor: _Anchor, fixed: set[SSAValue]) -> list[tuple[GraphOp, SSAValue]]:
    """The ops that scale and shift channels by constants, one after the other, with these constants."""
    chain: list[tuple[GraphOp, SSAValue]] = []
    y = anchor.op.results[0]
    while y.has_one_use():
        op = next(iter(y.uses)).operation
        if op.name not in ("graph.add", "graph.sub", "graph.mul", "graph.div") or not isinstance(op, GraphOp):
            break
        first = op.operands[0] is y
        value = op.operands[1 if first else 0]
        if (
            value is y
            or value not in fixed
            or not _per_channel(value, y, anchor.channel)
            or op.results[0].type != y.type
        ):
            break
        if not first and op.name in ("graph.sub", "graph.div"):
            break
        chain.append((op, value))
        y = op.results[0]
    return chain


def _per_channel(value: SSAValue, y: SSAValue, channel: int) -> bool:
    """Whether a value varies along the channels only."""
    shape, rank = tensor_of(value.type).shape, tensor_of(y.type).rank
    return all(size == 1 or d == channel for d, size in enumerate(shape, rank - len(shape)))


def _is_scalar(value: SSAValue) -> bool:
    return all(size == 1 for size in tensor_of(value.type).shape)
