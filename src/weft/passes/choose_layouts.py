"""Decide how values lie in memory: as a call to the framework or a matmul reads them, without a copy between.

A call over channels that lie innermost gives such a result, and the importer says so (`result_strides` of the call).
Kernels read any strides, but matmuls are quick where the rows that they multiply lie from end to end: what kernels
write for them, and all between a network's convolutions, has its channels innermost.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue
from xdsl.passes import ModulePass

from weft.ir.attributes import to_attribute
from weft.ir.expr import Size
from weft.ir.size_text import parse_size
from weft.ir.types import tensor_of
from weft.ops.base import Elementwise, View
from weft.ops.graph import FuncOp, GroupOp, LaunchOp, OpaqueOp
from weft.ops.indexing.index import Index
from weft.ops.layouts import StridedLayout, contiguous, is_dense, order_of, ordered, source_layout, view_layout
from weft.ops.matmul.dot import Dot
from weft.ops.shape import Windows
from weft.ops.windows.adaptive_pool import AdaptivePool
from weft.ops.windows.convolution import Convolution
from weft.ops.windows.pool import Pool
from weft.ops.windows.resize import Resize
from weft.ops.windows.resize_gradient import ResizeGradient
from weft.ops.windows.unpool import MaxUnpool
from weft.passes.grouping.build_groups import lies_as_operand, result_targets, strides_of
from weft.passes.place_launches import wanted_layouts


@dataclass(frozen=True)
class ChooseLayouts(ModulePass):
    """A group writes its result in the strides that a call or a matmul reads it in.

    %y = graph.group(%x) { ... }                          %y = graph.group(%x) { ... }
    %z = graph.opaque %y (strides 48, 1, 12, 3)     →         {result_strides = [[48, 1, 12, 3]]}
                                                          %z = graph.opaque %y (strides 48, 1, 12, 3)

    Only where all calls that read the value want it so; matmuls by a library and results want it row-major. Values
    that only kernels read lie as what they are computed from does.
    """

    name: ClassVar[str] = "choose_layouts"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if isinstance(function, FuncOp):
                choice = _Choice(function)
                choice.follow_readers()
                choice.follow_operands()


class _Choice:
    """The choice of layouts for one function; `strides` has those that are not row-major."""

    def __init__(self, function: FuncOp) -> None:
        self.function = function
        self.targets = result_targets(function)
        arguments = list(function.block.args)
        given = strides_of(function, "arg_strides", len(arguments))
        self.strides: dict[SSAValue, tuple[Size, ...]] = {
            value: each for value, each in zip(arguments, given, strict=True) if each
        }

    def follow_readers(self) -> None:
        """Let groups write what calls and matmuls read as they read it."""
        readers = [op for op in self.function.block.ops if isinstance(op, OpaqueOp | GroupOp | LaunchOp)]
        self.wanted: dict[Operation, dict[int, StridedLayout]] = {op: _wanted(op) for op in readers}
        for reader, wanted in self.wanted.items():
            for place, layout in wanted.items():
                root, below = _below_views(reader.operands[place], layout)
                if below is not None and (not isinstance(reader, GroupOp) or below != contiguous(tensor_of(root.type))):
                    self._write(root, below)

    def follow_operands(self) -> None:
        """Let groups write in the order in which they read, where nobody minds."""
        for op in self.function.block.ops:
            if isinstance(op, OpaqueOp | GroupOp | LaunchOp):
                given = strides_of(op, "result_strides", len(op.results))
                self.strides.update((value, each) for value, each in zip(op.results, given, strict=True) if each)
            if not isinstance(op, GroupOp) or op.claim is not None:
                continue
            inner = _followed(op, [self.strides.get(operand) for operand in op.operands])
            for result, value in zip(op.results, op.yielded, strict=True):
                layout = inner.get(value)
                if result not in self.strides and layout is not None and layout != contiguous(tensor_of(value.type)):
                    self._write(result, layout)

    def _write(self, value: SSAValue, layout: StridedLayout) -> None:
        if not isinstance(value, OpResult) or not isinstance(group := value.op, GroupOp) or group.claim is not None:
            return
        if (
            value in self.targets
            or lies_as_operand(group.yielded[value.index])
            or not is_dense(tensor_of(value.type), layout)
            or not self._is_wanted_so(value, layout)
        ):
            return
        known = list(strides_of(group, "result_strides", len(group.results)))
        known[value.index] = self.strides[value] = layout.strides
        group.attributes["result_strides"] = to_attribute(tuple(known))

    def _is_wanted_so(self, root: SSAValue, layout: StridedLayout) -> bool:
        """Whether everyone who cares wants a value in this layout: calls do, and matmuls of what they multiply."""
        pending = [root]
        while pending:
            value = pending.pop()
            for use in value.uses:
                reader = use.operation
                if isinstance(reader, View):
                    pending.append(reader.results[0])
                    continue
                wanted = self.wanted.get(reader, {}).get(use.index)
                indifferent = wanted is None and isinstance(reader, GroupOp) and reader.claim is None
                if not indifferent and (wanted is None or _below_views(value, wanted) != (root, layout)):
                    return False
        return True


def _followed(group: GroupOp, given: Sequence[tuple[Size, ...] | None]) -> dict[SSAValue, StridedLayout]:
    """How the values of a group lie if they follow what they are computed from, for those of which that can be said.

    Elementwise ops follow operands of their shape, if these agree; windows, indices, concatenation and padding keep the
    order.
    """
    layouts: dict[SSAValue, StridedLayout] = {}
    for argument, strides in zip(group.block.args, given, strict=True):
        layouts[argument] = StridedLayout(strides) if strides else contiguous(tensor_of(argument.type))
    for op in group.block.ops:
        if isinstance(op, View):
            source = layouts.get(op.operands[0])
            found = None if source is None else view_layout(op, source)
        else:
            found = _in_order_of(_leading(op), layouts, op)
        if found is not None:
            layouts[op.results[0]] = found
    return layouts


def _leading(op: Operation) -> list[SSAValue]:
    """The operands whose order of dimensions an op keeps."""
    if isinstance(op, Elementwise):
        shape = tensor_of(op.results[0].type).shape
        return [operand for operand in op.operands if tensor_of(operand.type).shape == shape]
    if isinstance(op, Pool | AdaptivePool | MaxUnpool | Convolution | Resize | ResizeGradient):
        return [op.operands[0]]
    if isinstance(op, Index):
        return [op.operands[0]] if _keeps_dimensions(op) else []
    return list(op.operands) if op.name in ("graph.concat", "graph.pad") else []


def _keeps_dimensions(op: Index) -> bool:
    """Whether the dimensions of what an index chooses from stand where they stood, each as long as it is asked for."""
    dims, position = op.params["dims"], op.params["position"]
    rank = max(tensor_of(index.type).rank for index in op.operands[1:])
    return rank == len(dims) and tuple(dims) == tuple(range(position, position + rank))


def _in_order_of(
    operands: Sequence[SSAValue], layouts: dict[SSAValue, StridedLayout], op: Operation
) -> StridedLayout | None:
    """A dense layout in the one order of dimensions that all operands have."""
    orders: set[tuple[int, ...]] = set()
    for operand in operands:
        order = order_of(tensor_of(operand.type).shape, layouts.get(operand))
        if order is None:
            return None
        orders.add(order)
    if len(orders) != 1:
        return None
    return ordered(tensor_of(op.results[0].type).shape, orders.pop())


def wanted_strides(call: OpaqueOp) -> dict[int, tuple[Size, ...]]:
    """The strides in which a call reads its operands, where these are not row-major, by their places."""
    given: dict[str, list[str]] = json.loads(call.arguments.data).get("strides", {})
    return {int(place): tuple(map(parse_size, strides)) for place, strides in given.items()}


def _wanted(reader: OpaqueOp | GroupOp | LaunchOp) -> dict[int, StridedLayout]:
    """How a call or a matmul reads its operands, by their places: what it says of the others, it does not say."""
    if isinstance(reader, OpaqueOp):
        return {place: StridedLayout(strides) for place, strides in wanted_strides(reader).items()}
    if isinstance(reader, LaunchOp):
        return dict(enumerate(wanted_layouts(reader)))
    if reader.claim is not None:
        return {}
    dot = next((op for op in reader.block.ops if isinstance(op, Dot)), None)
    if dot is None:
        return {}
    # The rows that are multiplied lie one after the other, each from end to end.
    value, layout = dot.operands[0], contiguous(tensor_of(dot.operands[0].type))
    while isinstance(value, OpResult) and isinstance(value.op, View):
        source = value.op.operands[0]
        below = contiguous(tensor_of(source.type)) if isinstance(value.op, Windows) else source_layout(value.op, layout)
        if below is None:
            return {}
        value, layout = source, below
    return {value.index: layout} if isinstance(value, BlockArgument) else {}


def _below_views(value: SSAValue, layout: StridedLayout) -> tuple[SSAValue, StridedLayout | None]:
    """What a value is a view of, and how that must lie for the value to lie as given."""
    below: StridedLayout | None = layout
    while below is not None and isinstance(value, OpResult) and isinstance(value.op, View):
        below = source_layout(value.op, below)
        value = value.op.operands[0]
    return value, below
