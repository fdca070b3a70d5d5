"""What a rank's program costs, counted from its IR: floating-point operations, bytes, and what collectives send.

Products, convolutions and attention are counted as torch's FlopCounterMode counts them, two operations for each
multiplication and addition of a product, and nothing else. Bytes are those of every op's operands and results, views
apart: what a program without fusion reads and writes. A collective's volume is that of what it is given, of an
all-gather what it gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

from xdsl.ir import Operation, SSAValue

from weft.errors import ShardingError
from weft.ir.types import Tensor, tensor_of
from weft.ops.base import GraphOp, View
from weft.ops.collectives import AllGather, Collective, Recv, Send, Wait
from weft.ops.graph import FuncOp, OpaqueOp
from weft.ops.matmul.attention import AnyAttention


@dataclass(frozen=True)
class CollectiveCount:
    """Collectives of one kind over one set of axes: how many calls, and how many bytes they carry on each rank."""

    kind: str
    axes: tuple[str, ...]
    ranks: int
    calls: int
    bytes: int


@dataclass(frozen=True)
class ProgramCounts:
    """The counts of one rank's program."""

    flops: int
    bytes: int
    argument_bytes: int
    flops_by_op: Mapping[str, int] = field(default_factory=dict[str, int])
    collectives: tuple[CollectiveCount, ...] = ()
    unknown: tuple[str, ...] = ()
    """Calls that Weft does not look into, of which nothing is counted but bytes."""

    def calls(self, kind: str) -> int:
        """How many collectives of a kind there are, over whatever axes."""
        return sum(each.calls for each in self.collectives if each.kind == kind)


def count_program(function: FuncOp) -> ProgramCounts:
    """Count a program whose sizes are known: of one rank, or a whole one."""
    flops: dict[str, int] = {}
    moved = 0
    found: dict[tuple[str, tuple[str, ...], int], list[int]] = {}
    unknown: list[str] = []
    for op in function.block.ops:
        if isinstance(op, Collective | Send | Recv):
            axes = op.params.get("axes", (op.params.get("axis"),))
            key = (op.name.removeprefix("graph."), axes, op.params.get("ranks", 2))
            calls = found.setdefault(key, [0, 0])
            calls[0] += 1
            calls[1] += sum(map(_bytes, op.results if isinstance(op, AllGather | Recv) else op.operands))
            continue
        if isinstance(op, OpaqueOp):
            unknown.append(op.target.data)
        if (count := flops_of(op)) > 0:
            name = op.name.removeprefix("graph.")
            flops[name] = flops.get(name, 0) + count
        if not isinstance(op, View | Wait):
            moved += sum(map(_bytes, (*op.operands, *op.results)))
    collectives = tuple(CollectiveCount(*key, *calls) for key, calls in found.items())
    arguments = sum(map(_bytes, function.block.args))
    return ProgramCounts(sum(flops.values()), moved, arguments, flops, collectives, tuple(unknown))


def flops_of(op: Operation) -> int:
    """The floating-point operations of an op."""
    if not isinstance(op, GraphOp):
        return 0
    match op.name:
        case "graph.dot" | "graph.scaled_dot":
            x, result = _tensor(op.operands[0]), _tensor(op.results[0])
            return 2 * prod(_shape(result)) * _shape(x)[-1]
        case "graph.convolution":
            x, w, result = (_shape(_tensor(value)) for value in (*op.operands, *op.results))
            return 2 * w[0] * prod(w[1:]) * x[0] * prod((x if op.params["transposed"] else result)[2:])
        case "graph.attention_gradients":
            _, q, k, v = (_shape(_tensor(value)) for value in op.operands[:4])
            scores = prod(q[:-1]) * k[-2]
            return 2 * scores * (3 * q[-1] + 2 * v[-1])
        case "graph.attention_with_tangent":
            q, k, v = (_shape(_tensor(value)) for value in op.operands[:3])
            moved: str = op.params["moved"]
            scores, values = 1 + ("q" in moved) + ("k" in moved), 1 + (moved != "v") + ("v" in moved)
            return 2 * prod(q[:-1]) * k[-2] * (scores * q[-1] + values * v[-1])
        case _:
            if not isinstance(op, AnyAttention):
                return 0
            q, k, v = (_shape(_tensor(value)) for value in op.operands[:3])
            return 2 * prod(q[:-1]) * k[-2] * (q[-1] + v[-1])


def _tensor(value: SSAValue) -> Tensor:
    return tensor_of(value.type)


def _shape(tensor: Tensor) -> tuple[int, ...]:
    sizes = tuple(size for size in tensor.shape if isinstance(size, int))
    if len(sizes) < tensor.rank:
        raise ShardingError(f"{tensor} has a size that is not known", hint="trace the program with sizes that are")
    return sizes


def _bytes(value: SSAValue) -> int:
    tensor = _tensor(value)
    return prod(_shape(tensor)) * tensor.dtype.bytes
