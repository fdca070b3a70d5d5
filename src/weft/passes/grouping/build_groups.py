"""The last step of grouping: groups and views in place of ops, and results written straight into their memory."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from xdsl.ir import Attribute, Block, Operation, OpResult, Region, SSAValue

from weft.ir.attributes import from_attribute, to_attribute
from weft.ir.types import tensor_of
from weft.ops.base import View
from weft.ops.control import ControlOp
from weft.ops.graph import FuncOp, GroupOp, LaunchOp, OpaqueOp, YieldOp
from weft.ops.layouts import StridedLayout, contiguous, source_layout, view_layout

PARTIAL_SUMS = "weft.partial_sums"
"""How many sums a library is to make of those in a matmul, to add them up: errors grow with the longest sum."""
CLAIM = "weft.claim"
"""The attribute of an op that a library takes: it stays outside groups."""
EPILOGUE = "weft.epilogue"
"""The attribute of a matmul's group that says what its epilogue was predicted to take, fused and apart."""
SCHEDULE = "schedule"
"""The attribute of a group whose tiles have been measured: their sides."""
WIDENS = "weft.widens"
"""The attribute of a cast that a matmul does as it reads its weights: memory holds them in the narrow type."""
IN_PLACE = "in_place"
"""The attribute of a group that writes results into the memory of operands: pairs of their numbers."""
INLINED = "weft.inlined"
"""The attribute of an op that every kernel which reads its result computes by itself."""
PACKED_BEFORE = "weft.packed_before"
"""The attribute of a matmul in a loop whose weights are packed before the first turn: the loop captures them."""
OWN = "weft.own"
"""The attribute of a matmul that is faster as a generated kernel for how its operands lie in memory."""
LIES = "weft.lies"
"""The attribute of an op outside of groups that says how a kernel is to write its results: the strides of each."""
TWO_DIGITS = "weft.two_digits"
"""The attribute of a matmul with rows of i16 that two digits of 8 bits make: none is above 127 * 257."""


def is_free(op: Operation) -> bool:
    """Whether an op is computed wherever it is needed, instead of once."""
    cheap: bool | None = getattr(op, "CHEAP", None)  # which all graph ops have, and no others
    return cheap is not None and (cheap or WIDENS in op.attributes or INLINED in op.attributes)


def is_claimed(op: Operation) -> bool:
    """Whether a library carries out an op, or the matmul of a group, and writes rows as it does."""
    return CLAIM in op.attributes or (isinstance(op, GroupOp) and op.claim is not None)


def readers(value: SSAValue) -> Iterator[Operation]:
    """Who reads a value, directly or through views and what is computed wherever it is read."""
    for use in value.uses:
        if isinstance(use.operation, View) or is_free(use.operation):
            yield from readers(use.operation.results[0])
        else:
            yield use.operation


@dataclass(frozen=True)
class Target:
    """A result of the function, and the layout in which the value that it is a view of is written into its memory."""

    result: SSAValue
    result_layout: StridedLayout
    layout: StridedLayout


def result_targets(function: FuncOp) -> dict[SSAValue, Target]:
    """The values that are written straight into the memory of a result: it is the value, or a reshape or permute of it.

    Every result has memory of its own, so that no value is written for two; nor can calls to the framework be told
    where to write.
    """
    returned = list(function.returned.operands)
    strides = strides_of(function, "result_strides", len(returned))
    layouts = [
        StridedLayout(stride) if stride else contiguous(tensor_of(value.type))
        for value, stride in zip(returned, strides, strict=True)
    ]
    written = [(value, own, *_written_for(value, own)) for value, own in zip(returned, layouts, strict=True)]
    targets: dict[SSAValue, Target] = {}
    for direct in (True, False):
        for value, own, root, layout in written:
            if layout is None or (root is value) is not direct or root in targets:
                continue
            targets[root] = Target(value, own, layout)
    return targets


def _written_for(value: SSAValue, layout: StridedLayout) -> tuple[SSAValue, StridedLayout | None]:
    """What a result is a view of, and how that must lie in memory; None where it takes a copy."""
    root, inner, only_reader = value, layout, True
    while isinstance(root, OpResult) and isinstance(root.op, View):
        below = source_layout(root.op, inner)
        only_reader &= root.has_one_use()
        if below is None:
            return root, None
        root, inner = root.op.operands[0], below
    root = _accumulated_in(root)
    if isinstance(root, OpResult) and isinstance(root.op, LaunchOp):
        return _started_from(root, inner) if root is value else (root, None)
    if not isinstance(root, OpResult) or is_free(root.op) or isinstance(root.op, OpaqueOp):
        return root, None
    tensor = tensor_of(root.type)
    if isinstance(root.op, ControlOp) and inner != contiguous(tensor):
        return root, None
    if root is value:
        plain = not is_claimed(root.op) or inner.strides[-1] == 1
        return root, inner if plain else None
    repeated = any(step == 0 and size != 1 for step, size in zip(inner.strides, tensor.shape, strict=True))
    # Others expect to find it row-major, and so does BLAS.
    usual = inner == contiguous(tensor)
    if repeated or not (usual or (only_reader and root.has_one_use() and not is_claimed(root.op))):
        return root, None
    return root, inner


def _accumulated_in(value: SSAValue) -> SSAValue:
    """The first of the temporaries, each written over the one before, that become a value; itself if there is none."""
    first: SSAValue = value
    while isinstance(first, OpResult) and isinstance(group := first.op, GroupOp) and IN_PLACE in group.attributes:
        pairs = dict(cast("list[tuple[int, int]]", from_attribute(group.attributes[IN_PLACE])))
        if first.index not in pairs:
            break
        first = group.operands[pairs[first.index]]
    return first if isinstance(first, OpResult) else value  # what is written over an argument is written there


def _started_from(value: OpResult, layout: StridedLayout) -> tuple[SSAValue, StridedLayout | None]:
    """What a kernel writes its result over, if nothing else reads that: it is made in the result's memory."""
    current = value
    while isinstance(launch := current.op, LaunchOp):
        if layout != launch_layout(current):
            return value, None
        place = launch.starts_from[current.index]
        if place < 0:
            return current, layout
        operand = launch.operands[place]
        if not isinstance(operand, OpResult) or not operand.has_one_use():
            return value, None
        current = operand
    plain = not is_free(current.op) and not isinstance(current.op, OpaqueOp) and CLAIM not in current.op.attributes
    return (current, layout) if plain else (value, None)


def launch_layout(value: SSAValue) -> StridedLayout:
    """How the result of a launch lies in memory."""
    assert isinstance(value, OpResult) and isinstance(value.op, LaunchOp)
    strides = strides_of(value.op, "result_strides", len(value.op.results))[value.index]
    return StridedLayout(strides) if strides else contiguous(tensor_of(value.type))


def fitting_calls(function: FuncOp) -> set[int]:
    """The places of results that a call to the framework, or a kernel of the user's, gives as they are wanted there."""
    if "region_of" in function.attributes:
        return set()  # what a region gives has its place already
    returned = list(function.returned.operands)
    strides = strides_of(function, "result_strides", len(returned))
    places = enumerate(zip(returned, strides, strict=True))
    return {place for place, (value, wanted) in places if _called_so(value, wanted)}


def _called_so(value: SSAValue, wanted: Any) -> bool:
    if not isinstance(value, OpResult) or not isinstance(call := value.op, OpaqueOp | LaunchOp):
        return False
    return strides_of(call, "result_strides", len(call.results))[value.index] == wanted


def strides_of(op: FuncOp | GroupOp | OpaqueOp | LaunchOp, name: str, count: int) -> Sequence[Any]:
    """The strides of the arguments or results of a function, a group or a call, each None where row-major."""
    attribute = op.attributes.get(name)
    return (None,) * count if attribute is None else from_attribute(attribute)  # type: ignore[return-value]


def lies_as_operand(value: SSAValue) -> bool:
    """Whether it was said before there were kernels how one is to write a value: views of it depend on it."""
    return isinstance(value, OpResult) and LIES in value.op.attributes


def laid_out(value: SSAValue) -> StridedLayout:
    """How a kernel is to write a value of an op of which it has been said."""
    assert isinstance(value, OpResult)
    strides = from_attribute(value.op.attributes[LIES])[value.index]  # type: ignore[index]
    return StridedLayout(strides) if strides else contiguous(tensor_of(value.type))  # type: ignore[arg-type]


class ValueLayouts:
    """How the values of a function lie in memory once it is planned; views are what they make of their operands."""

    def __init__(self, function: FuncOp, targets: Mapping[SSAValue, Target] | None = None) -> None:
        """`targets` are the `result_targets`, where they have been found."""
        arguments = list(function.block.args)
        strides = strides_of(function, "arg_strides", len(arguments))
        self.known: dict[SSAValue, StridedLayout] = {}
        self.known.update((value, StridedLayout(s)) for value, s in zip(arguments, strides, strict=True) if s)
        targets = result_targets(function) if targets is None else targets
        self.known.update((root, target.layout) for root, target in targets.items())
        for op in function.block.ops:
            if isinstance(op, OpaqueOp | LaunchOp):
                given = strides_of(op, "result_strides", len(op.results))
                self.known.update((value, StridedLayout(s)) for value, s in zip(op.results, given, strict=True) if s)
            elif LIES in op.attributes:
                for value in op.results:
                    self.known.setdefault(value, laid_out(value))

    def of(self, value: SSAValue) -> StridedLayout | None:
        """The layout of a value; None where it takes a copy to have one."""
        if value in self.known:
            return self.known[value]
        layout: StridedLayout | None = None
        if not isinstance(value, OpResult) or not is_free(value.op):
            layout = contiguous(tensor_of(value.type))
        elif isinstance(value.op, View):
            source = self.of(value.op.operands[0])
            layout = None if source is None else view_layout(value.op, source)
        if layout is not None:
            self.known[value] = layout
        return layout


def emit_group(
    block: Block,
    ops: Sequence[Operation],
    made: Sequence[SSAValue],
    values: dict[SSAValue, SSAValue],
    before: Operation,
) -> GroupOp:
    """Insert a group that computes `made` by `ops`, which move into it; free ops are copied.

    `values` maps the values that ops read to those outside of groups that have them now.
    """
    members = set(ops)
    inner: dict[SSAValue, SSAValue] = {}
    inputs: list[SSAValue] = []
    body = Block()

    def bring(value: SSAValue) -> None:
        if value in inner:
            return
        if isinstance(value, OpResult) and value.op in members:
            op = value.op
            for position, operand in enumerate(list(op.operands)):
                bring(operand)
                op.operands[position] = inner[operand]
            op.detach()
            body.add_op(op)
            inner.update((result, result) for result in op.results)
            return
        if isinstance(value, OpResult) and is_free(value.op):
            for operand in value.op.operands:
                bring(operand)
            copy = value.op.clone(value_mapper=inner)
            body.add_op(copy)
            inner.update(zip(value.op.results, copy.results, strict=True))
            return
        inner[value] = body.insert_arg(value.type, len(inputs))
        inputs.append(value)

    for value in made:
        bring(value)
    body.add_op(YieldOp.create(operands=[inner[value] for value in made]))
    group = GroupOp.create(
        operands=[values[value] for value in inputs],
        result_types=[value.type for value in made],
        regions=[Region(body)],
        location=ops[-1].location if ops else None,
    )
    laid = [laid_out(value).strides if lies_as_operand(value) else None for value in made]
    if any(laid):
        group.attributes["result_strides"] = to_attribute(tuple(laid))
    block.insert_op_before(group, before)
    values.update(zip(made, group.results, strict=True))
    return group


def split_group(group: GroupOp) -> tuple[list[SSAValue], list[GroupOp]]:
    """Replace a group by groups of one op each, for when the whole cannot be lowered; also gives its new results."""
    block = group.parent
    assert block is not None
    values: dict[SSAValue, SSAValue] = dict(zip(group.block.args, group.operands, strict=True))
    parts: list[GroupOp] = []
    for op in list(group.block.ops):
        if not isinstance(op, YieldOp) and not is_free(op):
            parts.append(emit_group(block, [op], list(op.results), values, group))
    for old, value in zip(group.results, group.yielded, strict=True):
        if value not in values:
            parts.append(emit_group(block, [], [value], values, group))
        old.replace_all_uses_with(values[value])
    results = [values[value] for value in group.yielded]
    group.detach()
    group.erase()
    return results, parts


def group_key(op: GroupOp, described: Callable[[Attribute], Hashable]) -> tuple[Hashable, ...]:
    """What is equal for groups that compute the same: ops, parameters and types, with values by number.

    The types of results follow from the rest.
    """
    numbers: dict[SSAValue, int] = {}
    parts: list[Hashable] = [described(schedule)] if (schedule := op.attributes.get(SCHEDULE)) is not None else []
    for argument in op.block.args:
        numbers[argument] = len(numbers)
        parts.append(described(argument.type))
    for inner in op.block.ops:
        parts += (inner.name, *(numbers[operand] for operand in inner.operands))
        attributes = inner.attributes
        parts += [(name, described(attributes[name])) for name in sorted(attributes) if "." not in name]
        for result in inner.results:
            numbers[result] = len(numbers)
    return tuple(parts)
