"""What the function of a stage says, without places in a program: what imports at different sizes are compared by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from xdsl.ir import Block, Region, SSAValue

from weft.ir.attributes import from_attribute, to_attribute
from weft.ir.expr import Expr, evaluate, symbols_of
from weft.ir.types import Tensor, tensor_of, tensor_type
from weft.ops.base import GraphOp
from weft.ops.control import ControlOp
from weft.ops.create import Full, Iota
from weft.ops.graph import FuncOp, ReturnOp, YieldOp
from weft.ops.shape import Reshape

_EXACT = 1 << 20
"""Numbers up to this one are exact in every type that counts."""
LARGE = 1 << 14
"""Elements of a constant that are compared; larger ones are the same array or not the same."""


@dataclass(frozen=True)
class Entry:
    """An op: its operands are numbers of values, arguments first."""

    op: type[GraphOp] | type[ControlOp]
    params: Mapping[str, Any]
    operands: tuple[int, ...]
    results: tuple[Tensor, ...]
    location: Any = None
    bodies: tuple[Outline, ...] = ()
    """The regions of control flow, which read nothing but their own arguments."""


@dataclass(frozen=True)
class Outline:
    """What a function of one block, or a region, says, apart from places in a program."""

    names: tuple[str, ...]
    arguments: tuple[Tensor, ...]
    entries: tuple[Entry, ...]
    returned: tuple[int, ...]

    @classmethod
    def of(cls, function: FuncOp, constants: Mapping[str, np.ndarray]) -> Outline | None:
        """None where there are ops of other dialects. Constants that count, as places do, are no arguments."""
        names = cast(tuple[str, ...], from_attribute(function.attributes["arg_names"]))
        entries: list[Entry] = []
        numbers: dict[SSAValue, int] = {}
        kept: list[str] = []
        counted: list[tuple[SSAValue, Entry]] = []
        for name, value in zip(names, function.block.args, strict=True):
            entry = _counted(constants[name], tensor_of(value.type)) if name in constants else None
            if entry is None:
                numbers[value] = len(kept)
                kept.append(name)
            else:
                counted.append((value, entry))
        arguments = tuple(tensor_of(value.type) for value in numbers)
        for value, entry in counted:
            numbers[value] = len(numbers)
            entries.append(entry)
        return cls._of_ops(function.block, tuple(kept), arguments, entries, numbers)

    @classmethod
    def _of_ops(
        cls,
        block: Block,
        names: tuple[str, ...],
        arguments: tuple[Tensor, ...],
        entries: list[Entry],
        numbers: dict[SSAValue, int],
    ) -> Outline | None:
        for op in block.ops:
            operands = tuple(numbers[operand] for operand in op.operands)
            if isinstance(op, ReturnOp | YieldOp):
                return cls(names, arguments, tuple(entries), operands)
            results = tuple(tensor_of(result.type) for result in op.results)
            if isinstance(op, ControlOp) and not op.names:
                bodies = [cls._of_region(region.block) for region in op.bodies]
                found = tuple(body for body in bodies if body is not None)
                if len(found) < len(bodies):
                    return None
                params = {key: from_attribute(each) for key, each in op.attributes.items()}
                entries.append(Entry(type(op), params, operands, results, op.location, found))
            elif isinstance(op, GraphOp) and not op.regions:
                entries.append(Entry(type(op), op.params, operands, results, op.location))
            else:
                return None
            numbers.update({result: len(numbers) + n for n, result in enumerate(op.results)})
        return None

    @classmethod
    def _of_region(cls, block: Block) -> Outline | None:
        numbers: dict[SSAValue, int] = {value: number for number, value in enumerate(block.args)}
        return cls._of_ops(block, (), tuple(tensor_of(value.type) for value in block.args), [], numbers)

    def built(self) -> FuncOp:
        """The function again."""
        function = FuncOp.make("stage", dict(zip(self.names, self.arguments, strict=True)))
        function.attributes["arg_names"] = to_attribute(self.names)
        function.block.add_op(ReturnOp.make(self._fill(function.block)))
        return function

    def _fill(self, block: Block) -> list[SSAValue]:
        """Append the ops to a block that has the arguments: what it gives."""
        values: list[SSAValue] = list(block.args)
        for entry in self.entries:
            params = dict(entry.params)
            operands = [values[number] for number in entry.operands]
            if issubclass(entry.op, ControlOp):
                control = entry.op.create(
                    operands=operands,
                    result_types=[tensor_type(each) for each in entry.results],
                    attributes={key: to_attribute(value) for key, value in params.items()},
                    regions=[each._region() for each in entry.bodies],
                    location=entry.location,
                )
                block.add_op(control)
                values += control.results
                continue
            if is_number := entry.op is Iota and not params["shape"]:  # which has no dimension to count along
                params["shape"] = (1,)
            op: GraphOp = entry.op.make(*operands, location=entry.location, **params)
            if is_number:
                block.add_op(op)
                op = Reshape.make(op.results[0], location=entry.location, shape=())
            block.add_op(op)
            values += op.results
        return [values[number] for number in self.returned]

    def _region(self) -> Region:
        block = Block(arg_types=[tensor_type(each) for each in self.arguments])
        block.add_op(YieldOp.create(operands=self._fill(block)))
        return Region(block)

    def says(self, other: Outline) -> bool:
        """Whether this is the other at the sizes of its arguments."""
        sizes: dict[str, int] = {}
        if self.names != other.names:
            return False
        for own, given in zip(self.arguments, other.arguments, strict=True):
            for size, number in zip(own.shape, given.shape, strict=False):
                if isinstance(size, Expr) and isinstance(number, int):
                    (name,) = symbols_of(size)
                    if number < 2:  # what is 0 or 1 is broadcast, or nothing
                        return False
                    sizes.setdefault(name, number)
        values = (self.arguments, self.entries), (other.arguments, other.entries)
        return self.returned == other.returned and _equal(*values, sizes)


def _counted(array: np.ndarray, tensor: Tensor) -> Entry | None:
    """The op that counts as a constant does: 0, 1, 2 … along its only dimension, or other steps."""
    if array.dtype.kind not in "iuf" or not 2 <= array.size == max(array.shape) <= LARGE:
        return None
    line = array.reshape(-1).astype(np.float64)
    if not np.isfinite(line).all():
        return None
    start, step = float(line[0]), float(line[1] - line[0])
    if not start.is_integer() or not step.is_integer() or not np.array_equal(line, start + step * np.arange(line.size)):
        return None
    if max(abs(line[0]), abs(line[-1])) > _EXACT:
        return None
    dim = array.shape.index(array.size)
    params = {"shape": array.shape, "dim": dim, "dtype": tensor.dtype, "start": int(start), "step": int(step)}
    return Entry(Iota, params, (), (tensor,))


def _equal(own: Any, other: Any, sizes: Mapping[str, int]) -> bool:
    """Whether a value is another at some sizes."""
    match own:
        case Expr():
            return isinstance(other, int | float) and evaluate(own, sizes) == other
        case Tensor():
            return own.dtype == other.dtype and _equal(own.shape, other.shape, sizes)
        case Entry():
            same = own.operands == other.operands and _same(own, other, sizes)
            return same and _equal((own.results, own.bodies), (other.results, other.bodies), sizes)
        case Outline():
            same = own.returned == other.returned and _equal(own.arguments, other.arguments, sizes)
            return same and _equal(own.entries, other.entries, sizes)
        case tuple():
            several, others = cast(tuple[Any, ...], own), cast(tuple[Any, ...], other)
            if not isinstance(other, tuple) or len(several) != len(others):
                return False
            return all(_equal(a, b, sizes) for a, b in zip(several, others, strict=True))
        case _:
            return type(own) is type(other) and (own == other or (own != own and other != other))


def _same(own: Entry, other: Entry, sizes: Mapping[str, int]) -> bool:
    if own.op is Iota and other.op is Full:
        return _equal((own.params["start"], own.params["shape"]), (other.params["value"], other.params["shape"]), sizes)
    return (
        own.op is other.op
        and own.params.keys() == other.params.keys()
        and all(_equal(value, other.params[key], sizes) for key, value in own.params.items())
    )
