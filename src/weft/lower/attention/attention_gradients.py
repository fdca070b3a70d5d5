"""The gradients of attention → a kernel for keys and values, and one for queries. None of them holds all weights.

    tile.kernel grid [blocks of keys] {                 tile.kernel grid [blocks of queries] {
      %k, %v = tile.load ..                               %q, %g = tile.load ..
      tile.for blocks of queries {                        tile.for blocks of keys {
        %s = tile.dot %k, transposed queries                %s = tile.dot %q, transposed keys
        %d = tile.dot %v, transposed gradients              %d = tile.dot %g, transposed values
        %p = 2^%s                                           %p = 2^%s
        %dv += tile.dot %p, gradients                       %ds = %p * %d
        %dk += tile.dot (%p * %d), queries }                %dq += tile.dot %ds, keys }
      tile.store %dk, %dv }                               tile.store %dq }

Both make the weights again, from the scores and what the forward pass has kept of each row. Scores are laid down so
that the weights come out of one matmul just as the next one takes them. Each sum has one program, and one order:
results are the same in every run. For keys, slopes begin with what is subtracted from them. What is subtracted, an
iteration reads for the next one while its own matmuls run. Of heads wider than 128, keys and values have a kernel each:
registers hold the sums of one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from xdsl.ir import SSAValue

from weft.ir.expr import ceildiv
from weft.ir.types import Tensor, f32, tensor_of, u32
from weft.lower.attention.attention_tiles import LOG2_E
from weft.lower.attention.gradient_kernels import GradientKernel, OfKeys, OfKeysAndValues, OfQueries, OfValues
from weft.lower.attention.gradient_parts import gradient_parts
from weft.lower.groups.kernels import lower_group
from weft.lower.lowered import Argument, KernelCall, Lowered
from weft.lower.machine import Machine
from weft.lower.refusal import Refusal
from weft.lower.regroup import new_group, regroup
from weft.lower.schedule.schedule import are_gradients_apart
from weft.ops.graph import GraphBuilder, GroupOp
from weft.ops.layouts import StridedLayout, contiguous
from weft.ops.matmul.attention_gradients import AttentionGradients

_LONGEST, _UNIT = 192, 64
"""The longest block of queries, and what rows of numbers in memory are aligned to."""
_OF = {1: "keys", 2: "values"}
"""What the gradients are of that may be in parts, by the numbers of results."""


def lower_attention_gradients(
    group: GroupOp, name: str, inputs: Sequence[StridedLayout], outputs: Sequence[StridedLayout], machine: Machine
) -> Lowered | Refusal:
    """Lower a group that holds nothing but views and the gradients of one attention."""
    op = next(op for op in group.block.ops if isinstance(op, AttentionGradients))
    if any(value not in op.results for value in group.yielded):
        return Refusal("nothing can be computed after attention_gradients in its kernels")
    layouts: dict[SSAValue, StridedLayout] = dict(zip(group.block.args, inputs, strict=True))
    rows = [_padded(tensor_of(value.type)) for value in op.operands[4:6]]
    if op.params.get("dropout"):
        rows.append(replace(rows[0], dtype=u32))
    parts = gradient_parts(op, machine)
    partial = {n: _partial(op, n, parts) for n in (1, 2) if parts > 1 and op.results[n] in group.yielded}
    read = [Argument("input", number) for number in range(len(inputs))]
    beside = [Argument("scratch", number) for number in range(len(rows))]
    summed = {n: Argument("scratch", len(rows) + place) for place, n in enumerate(partial)}
    written = [Argument("output", number) for number in range(len(outputs))]
    made = lower_group(_subtracted(group), f"{name}_rows", inputs, [*map(contiguous, rows)], machine=machine)
    calls = [KernelCall(made, (*read, *beside))]
    for construction in _constructions(op, machine):
        if any(op.results[number] in group.yielded for number in construction.RESULTS):
            own = {n: tensor for n, tensor in partial.items() if n in construction.RESULTS}
            kernel = construction(group, f"{name}_{construction.OF}", layouts, outputs, op, machine, rows, own).kernel()
            calls.append(KernelCall(kernel, (*read, *written, *beside, *(summed[n] for n in own))))
    together = [tuple(partial)] if len(set(partial.values())) == 1 else [(each,) for each in partial]
    for which in together:  # a kernel has results of one shape
        found, places = [partial[n] for n in which], [group.yielded.index(op.results[n]) for n in which]
        layouts_of = [*map(contiguous, found)], [outputs[place] for place in places]
        own = name if len(together) == 1 else f"{name}_{_OF[which[0]]}"
        kernel = lower_group(_added_up(found, op), f"{own}_sums", *layouts_of, machine=machine)
        calls.append(KernelCall(kernel, (*(summed[n] for n in which), *(written[place] for place in places))))
    return Lowered(tuple(calls), (*rows, *partial.values()))


def _partial(op: AttentionGradients, result: int, parts: int) -> Tensor:
    *lead, keys, width = tensor_of(op.results[result].type).shape
    return Tensor(f32, (*lead, parts, keys, width))


def _added_up(partial: Sequence[Tensor], op: AttentionGradients) -> GroupOp:
    """A group that adds up parts of sums, and gives what they are together in the type of the gradients."""
    dtype = tensor_of(op.results[0].type).dtype

    def sums(b: GraphBuilder, *parts: SSAValue) -> list[SSAValue]:
        return [b.cast(b.sum(each, dims=(b.tensor(each).rank - 3,), keep=False), dtype=dtype) for each in parts]

    return new_group(partial, sums)


def _constructions(op: AttentionGradients, machine: Machine) -> Sequence[type[GradientKernel]]:
    """The kernels: keys and values apart where the registers of a block do not hold the sums of both."""
    _, on_keys, on_values = (tensor_of(value.type) for value in op.results)
    apart = are_gradients_apart((on_keys.shape[-1], on_values.shape[-1]), machine)
    return (OfValues, OfKeys, OfQueries) if apart else (OfKeysAndValues, OfQueries)


def _padded(rows: Tensor) -> Tensor:
    """Numbers of rows in memory of their own, where all blocks of them are whole."""
    *lead, length = rows.shape
    return Tensor(rows.dtype, (*lead, ceildiv(length, _UNIT) * _UNIT + _LONGEST))


def _subtracted(group: GroupOp) -> GroupOp:
    """A group that gives what is added to matmuls: less the logarithms of sums, in powers of two, and less the means.

    Of rows that do not exist it is zero: their weights are ones, and what they weigh is nothing. Where weights were
    dropped, the others count more, by a factor that sums have last: means are divided by it. A word for each row then
    says which these are.
    """

    def rows(b: GraphBuilder, made: GroupOp) -> list[SSAValue]:
        op = next(op for op in made.block.ops if isinstance(op, AttentionGradients))
        found: list[SSAValue] = []
        dropout: float = op.params.get("dropout", 0.0)
        for value, factor in zip(op.operands[4:6], (-LOG2_E, dropout - 1.0), strict=True):
            *lead, length = b.tensor(value).shape
            high = (*(0 for _ in lead), _padded(b.tensor(value)).shape[-1] - length)
            scaled = b.mul(value, b.full_like(value, factor))
            found.append(b.pad(scaled, low=(0,) * len(high), high=high, value=0.0))
        if dropout:
            found.append(b.dropout_rows(op.operands[6], shape=b.tensor(found[0]).shape))
        return found

    return regroup(group, rows)
