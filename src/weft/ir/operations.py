"""The base of Weft's operations, and who reads what they make."""

# What xDSL keeps of an op is set here without the checks that it makes when others do.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Self

from xdsl.dialects.builtin import UNKNOWN_LOC, LocationAttr
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue, Use
from xdsl.irdl import IRDLOperation
from xdsl.irdl.operations import OptionalDef

from weft.ir.locations import CURRENT
from weft.ir.op_accessors import OpClass, Operands, operands_of, results_of


class WeftOp(IRDLOperation, metaclass=OpClass):
    """An operation of one of Weft's dialects. Made without a location, it comes from where `sourced` says.

    It is made, walked and cloned as xDSL's operations are, in a fraction of the time.
    """

    __hash__ = object.__hash__
    __eq__ = object.__eq__  # pyright: ignore[reportAssignmentType]  by place, as it is called

    def __post_init__(self) -> None:
        if _has_defaults(type(self)):
            super().__post_init__()
        if self.location is UNKNOWN_LOC and CURRENT.location is not None:
            self.location = CURRENT.location

    @classmethod
    def create(
        cls,
        *,
        operands: Sequence[SSAValue] = (),
        result_types: Sequence[Attribute] = (),
        properties: Mapping[str, Attribute] = {},
        attributes: Mapping[str, Attribute] = {},
        location: LocationAttr | None = None,
        successors: Sequence[Block] = (),
        regions: Sequence[Region] = (),
    ) -> Self:
        op = cls.__new__(cls)
        op.operands = operands
        op.results = results_of(op, result_types)
        op.properties = dict(properties)
        op.attributes = dict(attributes)
        op.location = UNKNOWN_LOC if location is None else location
        if successors:
            op.successors = successors
        for region in regions:
            op.add_region(region)
        op.__post_init__()
        return op

    @property
    def operands(self) -> Operands:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._operands  # pyright: ignore[reportReturnType]  whose class the setter sees to

    @operands.setter
    def operands(self, new: Sequence[SSAValue]) -> None:
        for operand, use in zip(self._operands, self._operand_uses, strict=False):
            operand.remove_use(use)
        self._operands = made = operands_of(self, new)
        self._operand_uses = uses = tuple([Use(self, place) for place in range(len(made))])
        for operand, use in zip(made, uses, strict=True):
            operand.add_use(use)

    @property
    def result_types(self) -> Sequence[Attribute]:
        return tuple([result._type for result in self.results])

    def walk(self, *, reverse: bool = False, region_first: bool = False) -> Iterator[Operation]:
        return super().walk(reverse=reverse, region_first=region_first) if reverse or region_first else _walk(self)

    def clone(
        self,
        value_mapper: dict[SSAValue, SSAValue] | None = None,
        block_mapper: dict[Block, Block] | None = None,
        *,
        clone_name_hints: bool = True,
        clone_operands: bool = True,
    ) -> Self:
        if block_mapper is not None or not clone_operands or not clone_name_hints:
            named = {"clone_name_hints": clone_name_hints, "clone_operands": clone_operands}
            return super().clone(value_mapper, block_mapper, **named)
        values = {} if value_mapper is None else value_mapper
        early: list[tuple[Operation, Operation]] = []
        copied = _copied(self, values, early)
        for op, copy in early:
            read = [values.get(operand, operand) for operand in op._operands]
            if any(new is not old for new, old in zip(read, copy._operands, strict=True)):
                copy.operands = read
        return copied


@cache
def _has_defaults(kind: type[WeftOp]) -> bool:
    """Whether an op's definition says what attributes are that an op is made without."""
    definition = kind.get_irdl_definition()
    stated = (*definition.properties.values(), *definition.attributes.values())
    return any(not isinstance(each, OptionalDef) and each.default_value is not None for each in stated)


def _walk(op: Operation) -> Iterator[Operation]:
    """An op and all inside; the one that is handed out may be erased, and what is put after it is not seen."""
    yield op
    for region in op.regions:
        block = region._first_block
        while block is not None:
            following, inner = block._next_block, block._first_op
            while inner is not None:
                after = inner._next_op
                if inner.regions:
                    yield from _walk(inner)
                else:
                    yield inner
                inner = after
            block = following


def _copied(op: Operation, values: dict[SSAValue, SSAValue], early: list[tuple[Operation, Operation]]) -> Any:
    """A copy of an op, whose values are entered in `values`, of which it reads what there is of its operands.

    Those that read more are in `early`: whether that comes from outside, or only stands after them, is seen at the end.
    """
    if not isinstance(op, WeftOp):
        return op.clone(values)
    operands = op._operands
    copy = op.create(
        operands=[values.get(operand, operand) for operand in operands],
        result_types=op.result_types,
        properties=op.properties,
        attributes=op.attributes,
        location=op.location,
    )
    if any(operand not in values for operand in operands):
        early.append((op, copy))
    for result, made in zip(op.results, copy.results, strict=True):
        values[result] = made
        made._name = result._name
    for region in op.regions:
        copy.add_region(Region([_copied_block(block, values, early) for block in region.blocks]))
    return copy


def _copied_block(block: Block, values: dict[SSAValue, SSAValue], early: list[tuple[Operation, Operation]]) -> Block:
    copy = Block(arg_types=block.arg_types)
    for argument, own in zip(block.args, copy.args, strict=True):
        values[argument] = own
        own._name, own.location = argument._name, argument.location
    last: Operation | None = None
    for op in block.ops:
        made: Operation = _copied(op, values, early)
        made.parent, made._prev_op = copy, last
        if last is None:
            copy._first_op = made
        else:
            last._next_op = made
        copy._last_op = last = made
    return copy


def users_of(value: SSAValue) -> list[Operation]:
    """The operations that read a value, each once."""
    return list(dict.fromkeys(use.operation for use in value.uses))
