"""What lowering a group gives, and which lowering a group takes.

Most groups become one kernel; some (scatters, sorts) become several that run in order and share scratch memory.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from xdsl.dialects.builtin import LocationAttr
from xdsl.ir import OpResult

from weft.errors import LoweringError
from weft.ir.locations import file_line, made_of
from weft.ir.types import Tensor
from weft.lower.groups.kernels import Kernel, prepare_group
from weft.lower.machine import CPU, Machine
from weft.ops.base import GraphOp, Scan, Scatter, Structured
from weft.ops.graph import GroupOp
from weft.ops.layouts import Layout
from weft.ops.movement import Concat
from weft.ops.scatter import UpdateSlice
from weft.passes.tensor_slices import updated_slice
from weft.passes.update_in_place import in_place_of


@dataclass(frozen=True)
class Argument:
    """A pointer argument of a kernel: the group's n-th `input` or `output`, or the n-th `scratch` tensor."""

    role: str
    number: int


@dataclass(frozen=True)
class KernelCall:
    """A kernel and what its pointer arguments are; its sizes follow them, as `kernel.symbols` names them."""

    kernel: Kernel
    arguments: tuple[Argument, ...]


@dataclass(frozen=True)
class Lowered:
    """The kernels of a group, in the order in which they run, and the scratch memory they need."""

    calls: tuple[KernelCall, ...]
    scratch: tuple[Tensor, ...] = ()


Lowering: TypeAlias = Callable[[GroupOp, str, Sequence[Layout], Sequence[Layout], Machine], Lowered]


def anchor_of(group: GroupOp) -> GraphOp | None:
    """The op that decides how a group is lowered: its one structured op, scatter or scan."""
    anchors = [op for op in group.block.ops if isinstance(op, Structured | Scatter | Scan)]
    if len(anchors) > 1 and {op.name for op in anchors} not in ({"graph.dot"}, {"graph.tiled_dot"}):
        raise LoweringError(
            f"a group holds {' and '.join(op.name for op in anchors)}: at most one can shape the kernel"
        )
    return anchors[0] if anchors else None


def origin_of(group: GroupOp) -> LocationAttr:
    """Where a group's kernels come from, as far as no op of it has said so: what shapes them, or what ends it."""
    ops = [op for op in group.block.ops if file_line(op.location) is not None and isinstance(op, GraphOp)]
    shaping = [op for op in ops if isinstance(op, Structured | Scatter | Scan)]
    return made_of((shaping or ops)[-1]) if ops else group.location


def concat_of(group: GroupOp) -> Concat | None:
    """The concatenation that is all that leaves a group."""
    if len(group.yielded) != 1:
        return None
    (value,) = group.yielded
    return value.op if isinstance(value, OpResult) and isinstance(value.op, Concat) else None


def slice_written_by(group: GroupOp) -> UpdateSlice | None:
    """The update of a slice that is all that leaves a group, if it is made in the memory of what it updates."""
    in_place, update = in_place_of(group), updated_slice(group)
    if update is None or not in_place:
        return None
    return update if update.operands[0] is group.block.args[in_place[0]] else None


def lower(
    group: GroupOp, name: str, inputs: Sequence[Layout], outputs: Sequence[Layout], machine: Machine = CPU
) -> Lowered:
    """Lower a group whose operands and results have the given layouts. `name` prefixes its kernels' names."""
    anchor = anchor_of(group)
    if anchor is not None:
        return _lowering_of(anchor)(group, name, inputs, outputs, machine)
    if any(op.name == "graph.convolution" for op in group.block.ops):
        return _lowering_named("convolution")(group, name, inputs, outputs, machine)
    if concat_of(group) is not None:
        return _lowering_named("concat")(group, name, inputs, outputs, machine)
    if slice_written_by(group) is not None:
        return _lowering_named("update")(group, name, inputs, outputs, machine)
    in_place = in_place_of(group)
    prepared = prepare_group(group, name, inputs, outputs, in_place, machine)
    if prepared.schedule.split is not None:
        from weft.lower.groups.split_reduction import lower_split  # it uses the classes above

        return lower_split(prepared, inputs, machine, lower)
    return whole(prepared.kernel(), len(inputs), len(outputs), in_place)


def whole(kernel: Kernel, inputs: int, outputs: int, in_place: Collection[int] = ()) -> Lowered:
    """One kernel that takes all inputs and then all outputs that do not lie in the memory of an input."""
    arguments = [Argument("input", i) for i in range(inputs)]
    arguments += [Argument("output", i) for i in range(outputs) if i not in in_place]
    return Lowered((KernelCall(kernel, tuple(arguments)),))


def _lowering_of(anchor: GraphOp) -> Lowering:
    match anchor:
        case Scatter():
            name = "scatter"
        case Scan():
            name = "scan"
        case _:
            others = {"graph.scaled_dot": "dot", "graph.tiled_dot": "dot", "graph.topk": "sort"}
            others |= {"graph.attention_with_lse": "attention"}
            name = others.get(anchor.name, anchor.name.removeprefix("graph."))
    if name not in ("attention", "attention_gradients", "dot", "scan", "scatter", "sort"):
        raise LoweringError(f"{anchor.name} has no lowering to tiles")
    return _lowering_named(name)


def _lowering_named(name: str) -> Lowering:
    # Found by name, when needed: these modules use the classes above.
    module = importlib.import_module(f"weft.lower.{_HOMES[name]}")
    return getattr(module, f"lower_{name}")


_HOMES = {
    "attention": "attention.attention",
    "attention_gradients": "attention.attention_gradients",
    "concat": "groups.concat",
    "convolution": "dot.convolution",
    "dot": "dot.dot",
    "scan": "indexing.scan",
    "scatter": "indexing.scatter",
    "sort": "indexing.sort",
    "update": "groups.update",
}
