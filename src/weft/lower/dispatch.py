"""What lowering a group gives, and which lowering a group takes.

Most groups become one kernel; some (scatters, sorts) become several that run in order and share scratch memory.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from xdsl.dialects.builtin import LocationAttr

from weft.errors import LoweringError
from weft.ir.locations import file_line, made_of
from weft.lower.groups.kernels import prepare_group
from weft.lower.lowered import (
    Lowered,
    Lowering,
    anchor_of,
    clash_of_anchors,
    concat_of,
    slice_written_by,
    sums_columns,
    whole,
)
from weft.lower.machine import CPU, Machine
from weft.lower.refusal import Refusal, accepted
from weft.ops.base import GraphOp, Scan, Scatter, Structured
from weft.ops.graph import GroupOp
from weft.ops.layouts import StridedLayout
from weft.passes.update_in_place import in_place_of


def origin_of(group: GroupOp) -> LocationAttr:
    """Where a group's kernels come from, as far as no op of it has said so: what shapes them, or what ends it."""
    ops = [op for op in group.block.ops if file_line(op.location) is not None and isinstance(op, GraphOp)]
    shaping = [op for op in ops if isinstance(op, Structured | Scatter | Scan)]
    return made_of((shaping or ops)[-1]) if ops else group.location


def lower(
    group: GroupOp, name: str, inputs: Sequence[StridedLayout], outputs: Sequence[StridedLayout], machine: Machine = CPU
) -> Lowered:
    """Lower a group whose operands and results have the given layouts. `name` prefixes its kernels' names."""
    return accepted(try_lower(group, name, inputs, outputs, machine))


def try_lower(
    group: GroupOp, name: str, inputs: Sequence[StridedLayout], outputs: Sequence[StridedLayout], machine: Machine = CPU
) -> Lowered | Refusal:
    """As `lower`, or why the group has no kernels as a whole."""
    if (clash := clash_of_anchors(group)) is not None:
        return clash
    anchor = anchor_of(group)
    if anchor is not None:
        return _lowering_of(anchor)(group, name, inputs, outputs, machine)
    if any(op.name == "graph.convolution" for op in group.block.ops):
        return _lowering_named("convolution")(group, name, inputs, outputs, machine)
    if machine.capabilities.thread_blocks and sums_columns(group):
        return _lowering_named("column_sums")(group, name, inputs, outputs, machine)
    if concat_of(group) is not None:
        return _lowering_named("concat")(group, name, inputs, outputs, machine)
    if slice_written_by(group) is not None:
        return _lowering_named("update")(group, name, inputs, outputs, machine)
    in_place = in_place_of(group)
    prepared = prepare_group(group, name, inputs, outputs, in_place, machine)
    if isinstance(prepared, Refusal):
        return prepared
    if prepared.schedule.split is not None:
        from weft.lower.groups.split_reduction import lower_split  # it uses the classes above

        return lower_split(prepared, inputs, machine, lower)
    return whole(prepared.kernel(), len(inputs), len(outputs), in_place)


def _lowering_of(anchor: GraphOp) -> Lowering:
    match anchor:
        case Scatter():
            name = "scatter"
        case Scan():
            name = "scan"
        case _:
            others = {"graph.scaled_dot": "dot", "graph.tiled_dot": "dot", "graph.topk": "sort"}
            others |= {f"graph.attention_with_{what}": "attention" for what in ("lse", "tangent", "dropout")}
            name = others.get(anchor.name, anchor.name.removeprefix("graph."))
    if name not in _HOMES:
        raise LoweringError(f"{anchor.name} has no lowering to tiles")
    return _lowering_named(name)


def _lowering_named(name: str) -> Lowering:
    # Found by name, when needed: these modules use the classes above.
    module = importlib.import_module(f"weft.lower.{_HOMES[name]}")
    return getattr(module, f"lower_{name}")


_HOMES = {
    "attention": "attention.lower_attention",
    "attention_gradients": "attention.attention_gradients",
    "column_sums": "groups.column_sums",
    "concat": "groups.concat",
    "convolution": "dot.convolution",
    "dot": "dot.dot",
    "scan": "indexing.scan",
    "scatter": "indexing.scatter",
    "sort": "indexing.sort",
    "sum_segments": "indexing.sum_segments",
    "update": "groups.update",
}
