"""Stages whose sizes are open: one program for all sizes at which the import of a model says the same.

A stage is imported with sizes that are numbers, since what a model computes of its shapes decides how it goes on. Two
imports at different sizes that differ in nothing but numbers are joined to a function of symbolic sizes:

    reshape(x: 4x7x8) to (28, 8)  and  reshape(x: 4x9x8) to (36, 8)      →      reshape(x: 4xs0x8) to (s0*4, 8)

How a number depends on sizes is a guess; whether the guess holds is asked at every new size, which is imported as well
and compared number by number. So a program is used for what was imported or for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations_with_replacement
from typing import Any, cast

import numpy as np
from xdsl.ir import SSAValue

from weft.errors import WeftError
from weft.ir.attributes import from_attribute, to_attribute
from weft.ir.expr import Expr, Size, evaluate, symbol, symbols_of
from weft.ir.types import Tensor, tensor_of
from weft.ops.base import GraphOp
from weft.ops.control import ControlOp
from weft.ops.create import Full, Iota
from weft.ops.graph import FuncOp, ReturnOp
from weft.ops.shape import Reshape
from weft.ops.windows.convolution import Convolution

_EXACT = 1 << 20
"""Numbers up to this one are exact in every type that counts."""
_LARGE = 1 << 14
"""Elements of a constant that are compared; larger ones are the same array or not the same."""


@dataclass(frozen=True)
class _Entry:
    """An op: its operands are numbers of values, arguments first."""

    op: type[GraphOp]
    params: Mapping[str, Any]
    operands: tuple[int, ...]
    results: tuple[Tensor, ...]
    location: Any = None


@dataclass(frozen=True)
class Outline:
    """What a function of one block says, apart from places in a program."""

    names: tuple[str, ...]
    arguments: tuple[Tensor, ...]
    entries: tuple[_Entry, ...]
    returned: tuple[int, ...]

    @classmethod
    def of(cls, function: FuncOp, constants: Mapping[str, np.ndarray]) -> Outline | None:
        """None where control flow has blocks of its own. Constants that count, as places do, are no arguments."""
        names = cast(tuple[str, ...], from_attribute(function.attributes["arg_names"]))
        entries: list[_Entry] = []
        numbers: dict[SSAValue, int] = {}
        kept: list[str] = []
        counted: list[tuple[SSAValue, _Entry]] = []
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
        for op in function.block.ops:
            operands = tuple(numbers[operand] for operand in op.operands)
            if isinstance(op, ReturnOp):
                return cls(tuple(kept), arguments, tuple(entries), operands)
            if not isinstance(op, GraphOp) or isinstance(op, ControlOp) or op.regions:
                return None
            results = tuple(tensor_of(result.type) for result in op.results)
            entries.append(_Entry(type(op), op.params, operands, results, op.location))
            numbers.update({result: len(numbers) + n for n, result in enumerate(op.results)})
        return None

    def built(self) -> FuncOp:
        """The function again."""
        function = FuncOp.make("stage", dict(zip(self.names, self.arguments, strict=True)))
        function.attributes["arg_names"] = to_attribute(self.names)
        values: list[SSAValue] = list(function.block.args)
        for entry in self.entries:
            params = dict(entry.params)
            if is_number := entry.op is Iota and not params["shape"]:  # which has no dimension to count along
                params["shape"] = (1,)
            operands = [values[number] for number in entry.operands]
            op: GraphOp = entry.op.make(*operands, location=entry.location, **params)
            if is_number:
                function.block.add_op(op)
                op = Reshape.make(op.results[0], location=entry.location, shape=())
            function.block.add_op(op)
            values += op.results
        function.block.add_op(ReturnOp.make([values[number] for number in self.returned]))
        return function

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


def _counted(array: np.ndarray, tensor: Tensor) -> _Entry | None:
    """The op that counts as a constant does: 0, 1, 2 … along its only dimension, or other steps."""
    if array.dtype.kind not in "iuf" or not 2 <= array.size == max(array.shape) <= _LARGE:
        return None
    line = array.reshape(-1).astype(np.float64)
    start, step = float(line[0]), float(line[1] - line[0])
    if not start.is_integer() or not step.is_integer() or not np.array_equal(line, start + step * np.arange(line.size)):
        return None
    if max(abs(line[0]), abs(line[-1])) > _EXACT:
        return None
    dim = array.shape.index(array.size)
    params = {"shape": array.shape, "dim": dim, "dtype": tensor.dtype, "start": int(start), "step": int(step)}
    return _Entry(Iota, params, (), (tensor,))


def joined(first: Outline, second: Outline) -> Outline | None:
    """The function of symbolic sizes that both are; None where there is none, or none was found."""
    if first.returned != second.returned or len(first.entries) != len(second.entries):
        return None
    if first.names != second.names:
        return None
    try:
        made = _Joining().join(first, second)
    except (_ApartError, WeftError, ValueError, ArithmeticError, LookupError, TypeError):
        return None
    if made.arguments == first.arguments or any(map(_is_laid_out, made.entries)):
        return None
    return made if made.says(first) and made.says(second) else None


def _is_laid_out(entry: _Entry) -> bool:
    """Whether an op is a convolution of images whose sides are open: their layout, and its speed, depend on them."""
    return entry.op is Convolution and not all(isinstance(size, int) for size in entry.results[0].shape[2:])


class _ApartError(Exception):
    """Two functions that differ in more than numbers."""


@dataclass
class _Joining:
    """Numbers of two imports, and the sizes that they are."""

    sizes: dict[tuple[int, int], Size] = field(default_factory=dict[tuple[int, int], Size])

    def join(self, first: Outline, second: Outline) -> Outline:
        arguments = tuple(map(self._argument, first.arguments, second.arguments))
        values = list(arguments)
        entries: list[_Entry] = []
        for a, b in zip(first.entries, second.entries, strict=True):
            if a.op is not b.op or a.operands != b.operands or a.params.keys() != b.params.keys():
                raise _ApartError
            op: type[GraphOp] = a.op
            params: dict[str, Any] = {key: self._param(value, b.params[key]) for key, value in a.params.items()}
            if op is Full and isinstance(params["value"], Expr):
                number = params.pop("value")
                op, params = Iota, {**params, "dim": 0, "start": number, "step": 0}
                made = Tensor(params["dtype"], params["shape"])
            else:
                made = op.infer(*(values[number] for number in a.operands), **params)
            results = (made,) if isinstance(made, Tensor) else tuple(made)
            entries.append(_Entry(op, params, a.operands, results, b.location))
            values += results
            for one, other, result in zip(a.results, b.results, results, strict=True):
                self._note(one, other, result)
        return Outline(first.names, arguments, tuple(entries), first.returned)

    def _argument(self, a: Tensor, b: Tensor) -> Tensor:
        if a.dtype != b.dtype or a.rank != b.rank:
            raise _ApartError
        for pair in zip(a.shape, b.shape, strict=True):
            one, other = _number(pair[0]), _number(pair[1])
            if one != other and (one, other) not in self.sizes:
                if min(one, other) < 2:
                    raise _ApartError
                self.sizes[one, other] = symbol(f"s{len(self.sizes)}")
        return Tensor(a.dtype, tuple(self._size(*pair) for pair in zip(a.shape, b.shape, strict=True)))

    def _note(self, a: Tensor, b: Tensor, made: Tensor) -> None:
        for one, other, size in zip(a.shape, b.shape, made.shape, strict=True):
            if one != other and isinstance(one, int) and isinstance(other, int):
                self.sizes.setdefault((one, other), size)

    def _param(self, a: Any, b: Any) -> Any:
        if type(a) is not type(b):
            raise _ApartError
        match a:
            case tuple():
                several = cast(tuple[Any, ...], a)
                return tuple(self._param(one, other) for one, other in zip(several, b, strict=True))
            case bool():
                return a if a == b else self._refused()
            case int():
                return self._size(a, b)
            case float() if a != b and a.is_integer() and b.is_integer():
                return self._size(int(a), int(b))
            case _:
                return a if a == b or (a != a and b != b) else self._refused()

    def _refused(self) -> Any:
        raise _ApartError

    def _size(self, a: Size, b: Size) -> Size:
        """What a number is that is `a` in one import and `b` in the other: the plainest of what is found."""
        a, b = _number(a), _number(b)
        if a == b:
            return a
        if (a, b) in self.sizes:
            return self.sizes[a, b]
        known = list(self.sizes.items())
        for (p, q), size in known:
            if p and q and a % p == 0 == b % q and a // p == b // q:
                return size * (a // p)
        for ((p, q), size), ((r, s), other) in combinations_with_replacement(known, 2):
            if p * r and q * s and a % (p * r) == 0 == b % (q * s) and a // (p * r) == b // (q * s):
                return size * other * (a // (p * r))
        for (p, q), size in known:
            if p != q and (a - b) % (p - q) == 0:
                times = (a - b) // (p - q)
                return size * times + (a - times * p)
        raise _ApartError


def _number(size: Size) -> int:
    if not isinstance(size, int):
        raise _ApartError
    return size


def _equal(own: Any, other: Any, sizes: Mapping[str, int]) -> bool:
    """Whether a value is another at some sizes."""
    match own:
        case Expr():
            return isinstance(other, int | float) and evaluate(own, sizes) == other
        case Tensor():
            return own.dtype == other.dtype and _equal(own.shape, other.shape, sizes)
        case _Entry():
            same = own.operands == other.operands and _same(own, other, sizes)
            return same and _equal(own.results, other.results, sizes)
        case tuple():
            several, others = cast(tuple[Any, ...], own), cast(tuple[Any, ...], other)
            if not isinstance(other, tuple) or len(several) != len(others):
                return False
            return all(_equal(a, b, sizes) for a, b in zip(several, others, strict=True))
        case _:
            return type(own) is type(other) and (own == other or (own != own and other != other))


def _same(own: _Entry, other: _Entry, sizes: Mapping[str, int]) -> bool:
    if own.op is Iota and other.op is Full:
        return _equal((own.params["start"], own.params["shape"]), (other.params["value"], other.params["shape"]), sizes)
    return (
        own.op is other.op
        and own.params.keys() == other.params.keys()
        and all(_equal(value, other.params[key], sizes) for key, value in own.params.items())
    )


def same_constants(own: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> bool:
    """Whether two sets of constants are one."""
    return own.keys() == other.keys() and all(_same_array(array, other[name]) for name, array in own.items())


def _same_array(a: np.ndarray, b: np.ndarray) -> bool:
    if a is b:
        return True
    if a.dtype != b.dtype or a.shape != b.shape or a.size > _LARGE:
        return False
    return a.tobytes() == b.tobytes()


@dataclass
class Family:
    """Stages that read the same constants: what was imported last, and the programs of symbolic sizes."""

    constants: Mapping[str, np.ndarray]
    imported: list[Outline] = field(default_factory=list[Outline])
    programs: list[tuple[Outline, Any, str]] = field(default_factory=list[tuple[Outline, Any, str]])
    """Each with its compiled function and its text, the one used last at the end."""

    def program_of(self, outline: Outline) -> tuple[Any, str] | None:
        """The compiled function that a stage is one size of; it is then the last to be let go."""
        for place, (known, made, text) in enumerate(self.programs):
            if known.says(outline):
                self.programs.append(self.programs.pop(place))
                return made, text
        return None

    def opened(self, outline: Outline) -> Outline | None:
        """A stage joined with one that was imported before, at other sizes."""
        for known in self.imported:
            if (found := joined(known, outline)) is not None:
                return found
        return None


def family_of(families: Sequence[Family], constants: Mapping[str, np.ndarray]) -> Family | None:
    return next((each for each in families if same_constants(each.constants, constants)), None)
