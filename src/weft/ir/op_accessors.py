"""The class of op classes: what a definition names of an op is found without the calls that xDSL makes for it.

Compiling a model asks for some hundred thousand operands and results by name. xDSL goes by the kind of what is asked
for, and makes a view of all operands first; here each is one look into a tuple.
"""

# An op's operands and results are xDSL's own tuples, which it has no quicker names for.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar, overload

from xdsl.ir import Attribute, Operation, OpResult, SSAValue
from xdsl.ir.core import SSAValues
from xdsl.irdl.operations import BaseAccessor, BeforeVariadicSingleAccessor, UniqueVariadicAccessor, VarIRConstruct

from weft.ir.quick_identity import PlainClass

item: Callable[[tuple[Any, ...], Any], Any] = tuple.__getitem__  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
"""An element of a tuple, whatever its class makes of brackets."""


_Value = TypeVar("_Value", bound=SSAValue[Attribute])


class Values(SSAValues[_Value]):
    """As xDSL's tuple of values, whose brackets ask two functions more."""

    @overload
    def __getitem__(self, idx: int) -> _Value: ...

    @overload
    def __getitem__(self, idx: slice) -> Values[_Value]: ...

    def __getitem__(self, idx: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return item(self, idx) if idx.__class__ is int else Values(item(self, idx))


class Operands(Values[SSAValue]):
    """The operands of an op, which takes another in place of one of them."""

    op: Operation

    def __setitem__(self, place: int, operand: SSAValue) -> None:
        op = self.op
        before, use = op._operands, op._operand_uses[place]
        before[place].remove_use(use)
        operand.add_use(use)
        op._operands = operands_of(op, (*before[:place], operand, *before[place + 1 :]))


def operands_of(op: Operation, values: Iterable[SSAValue]) -> Operands:
    """The operands that an op has from now on; who uses them is said elsewhere."""
    made = Operands(values)
    made.op = op
    return made


def results_of(op: Operation, types: Iterable[Any]) -> Values[OpResult]:
    """The results of an op."""
    return Values([OpResult(each, op, place) for place, each in enumerate(types)])


class OpClass(PlainClass):
    """The class of op classes: what an op's definition names is found by `quick_accessor`."""

    def __setattr__(cls, name: str, value: Any) -> None:
        super().__setattr__(name, quick_accessor(value) if isinstance(value, BaseAccessor) else value)


def quick_accessor(accessor: BaseAccessor) -> Any:
    """What finds the same as an accessor of xDSL's, or that one where it has to look at more than a place."""
    place = accessor.idx
    match accessor, accessor.construct:
        case BeforeVariadicSingleAccessor(), VarIRConstruct.OPERAND:
            return property(lambda op: item(op._operands, place))
        case BeforeVariadicSingleAccessor(), VarIRConstruct.RESULT:
            return property(lambda op: item(op.results, place))
        case BeforeVariadicSingleAccessor(), VarIRConstruct.REGION:
            return property(lambda op: op.regions[place])
        case UniqueVariadicAccessor(num_defs=1), VarIRConstruct.OPERAND:
            return property(lambda op: op._operands)
        case UniqueVariadicAccessor(num_defs=1), VarIRConstruct.RESULT:
            return property(lambda op: op.results)
        case UniqueVariadicAccessor(num_defs=count), VarIRConstruct.OPERAND:
            return property(lambda op: op._operands[place : len(op._operands) + place + 1 - count])
        case _:
            return accessor
