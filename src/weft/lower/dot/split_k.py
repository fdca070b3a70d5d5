"""Split-K: matmuls of too few tiles to fill a GPU → programs that each sum up a part of K, and a kernel that adds them.

    %0 = graph.dot(%x, %w)        64 x 14336 times 14336 x 4096      @y_parts   sums over part p of K, in f32
    %1 = graph.add(%0, %c)                                      →    @y         what they add up to, and all that
    graph.yield %1                                                              follows the matmul

The parts are added in the same order in every run.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from weft.ir.types import Tensor, f32, tensor_of, tensor_type
from weft.lower.dispatch import try_lower
from weft.lower.lowered import Argument, KernelCall, Lowered
from weft.lower.machine import Machine
from weft.lower.refusal import Refusal
from weft.lower.regroup import regroup
from weft.ops.graph import GraphBuilder, GroupOp
from weft.ops.layouts import StridedLayout, contiguous
from weft.ops.matmul.dot import Dot
from weft.passes.grouping.build_groups import IN_PLACE


def lower_split_k(
    group: GroupOp,
    name: str,
    inputs: Sequence[StridedLayout],
    outputs: Sequence[StridedLayout],
    parts: int,
    machine: Machine,
) -> Lowered | Refusal:
    """Lower a group around matmuls [M, K] x [K, N], of which K is cut into so many equal parts."""
    sums = regroup(group, lambda b, made: [_in_parts(b, dot, parts) for dot in _dots(made)])
    sums.attributes.pop(IN_PLACE, None)  # what follows the sums alone reads what it writes over
    scratch = [tensor_of(value.type) for value in sums.yielded]
    rest = regroup(group, lambda b, made: _added(b, made, scratch))
    layouts = [contiguous(tensor) for tensor in scratch]
    given = [Argument("input", number) for number in range(len(inputs))]
    written = [Argument("output", number) for number in range(len(outputs))]
    places = [Argument("scratch", number) for number in range(len(scratch))]
    calls: list[KernelCall] = []
    for made, called, own_inputs, own_outputs, roles in (
        (sums, f"{name}_parts", inputs, layouts, {"input": given, "output": places}),
        (rest, name, [*inputs, *layouts], outputs, {"input": [*given, *places], "output": written}),
    ):
        lowered = try_lower(made, called, own_inputs, own_outputs, machine)
        if isinstance(lowered, Refusal):
            return lowered
        roles["scratch"] = [Argument("scratch", len(scratch) + number) for number in range(len(lowered.scratch))]
        scratch += lowered.scratch
        for call in lowered.calls:
            arguments = tuple(roles[argument.role][argument.number] for argument in call.arguments)
            calls.append(KernelCall(call.kernel, arguments))
    return Lowered(tuple(calls), tuple(scratch))


def _dots(group: GroupOp) -> list[Dot]:
    return [op for op in group.block.ops if isinstance(op, Dot)]


def _in_parts(b: GraphBuilder, dot: Dot, parts: int) -> SSAValue:
    """The matmul of each part of K."""
    x, y = dot.operands
    (m, k), n = tensor_of(x.type).shape, tensor_of(y.type).shape[-1]
    left = b.permute(b.reshape(x, shape=(m, parts, k // parts)), dims=(1, 0, 2))
    return b.dot(left, b.reshape(y, shape=(parts, k // parts, n)), dtype=f32)


def _added(b: GraphBuilder, made: GroupOp, sums: Sequence[Tensor]) -> list[SSAValue]:
    """What a group yields, with the sums of its matmuls in place of them."""
    values = list(made.yielded)
    for dot, tensor in zip(_dots(made), sums, strict=True):
        parts = made.block.insert_arg(tensor_type(tensor), len(made.block.args))
        before, old = GraphBuilder(made.block, before=dot), dot.results[0]
        total = before.cast(before.sum(parts, dims=(0,), keep=False), dtype=tensor_of(old.type).dtype)
        values = [total if value is old else value for value in values]
        old.replace_all_uses_with(total)
    return values
