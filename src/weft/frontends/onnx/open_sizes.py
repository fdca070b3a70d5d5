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

from weft.errors import WeftError
from weft.frontends.onnx.outlines import LARGE, Entry, Outline
from weft.ir.expr import Expr, Size, symbol
from weft.ir.types import Tensor, i64
from weft.ops.control import ControlOp, IfOp
from weft.ops.create import Full, Iota
from weft.ops.windows.convolution import Convolution


def joined(first: Outline, second: Outline, symbols: Mapping[tuple[int, int], Size] | None = None) -> Outline | None:
    """The function of symbolic sizes that both are; None where there is none, or none was found.

    `symbols` are what sizes are called, by what they are in the one and in the other.
    """
    if first.returned != second.returned or len(first.entries) != len(second.entries):
        return None
    if first.names != second.names:
        return None
    try:
        made = _Joining(dict(symbols or {})).join(first, second)
    except (_ApartError, WeftError, ValueError, ArithmeticError, LookupError, TypeError):
        return None
    if made.arguments == first.arguments or any(map(_is_laid_out, made.entries)):
        return None
    return made if made.says(first) and made.says(second) else None


def _is_laid_out(entry: Entry) -> bool:
    """Whether an op is a convolution of images whose sides are open: their layout, and its speed, depend on them."""
    if any(_is_laid_out(each) for body in entry.bodies for each in body.entries):
        return True
    return entry.op is Convolution and not all(isinstance(size, int) for size in entry.results[0].shape[2:])


class _ApartError(Exception):
    """Two functions that differ in more than numbers."""


@dataclass
class _Joining:
    """Numbers of two imports, and the sizes that they are."""

    sizes: dict[tuple[int, int], Size] = field(default_factory=dict[tuple[int, int], Size])

    def join(self, first: Outline, second: Outline) -> Outline:
        return self._joined(first, second, tuple(map(self._argument, first.arguments, second.arguments)))

    def _joined(self, first: Outline, second: Outline, arguments: tuple[Tensor, ...]) -> Outline:
        values = list(arguments)
        entries: list[Entry] = []
        if first.returned != second.returned:
            raise _ApartError
        for a, b in zip(first.entries, second.entries, strict=True):
            if a.op is not b.op or a.operands != b.operands or a.params.keys() != b.params.keys():
                raise _ApartError
            op = a.op
            params: dict[str, Any] = {key: self._param(value, b.params[key]) for key, value in a.params.items()}
            bodies: tuple[Outline, ...] = ()
            if issubclass(op, ControlOp):
                bodies, made = self._control(a, b, params, [values[number] for number in a.operands])
            elif op is Full and isinstance(params["value"], Expr):
                number = params.pop("value")
                op, params = Iota, {**params, "dim": 0, "start": number, "step": 0}
                made = Tensor(params["dtype"], params["shape"])
            else:
                made = op.infer(*(values[number] for number in a.operands), **params)
            results = (made,) if isinstance(made, Tensor) else tuple(made)
            entries.append(Entry(op, params, a.operands, results, b.location, bodies))
            values += results
            for one, other, result in zip(a.results, b.results, results, strict=True):
                self._note(one, other, result)
        return Outline(first.names, arguments, tuple(entries), first.returned)

    def _control(
        self, a: Entry, b: Entry, params: Mapping[str, Any], operands: Sequence[Tensor]
    ) -> tuple[tuple[Outline, ...], tuple[Tensor, ...]]:
        """The regions of control flow, and what it gives, by what its operands are."""
        going = int(a.op is IfOp or bool(params["conditional"]))
        carried, cut = (0, 0) if a.op is IfOp else (params["carried"], len(params["scanned"]))
        starts, rest = operands[going : going + carried], operands[going + carried :]
        if any(each.shape[0] != params["trip_count"] for each in rest[:cut]):
            raise _ApartError  # guesses at one number that are not one size
        slices = [Tensor(each.dtype, each.shape[1:]) for each in rest[:cut]]
        arguments = (*starts, *slices, *rest[cut:])
        if a.op is not IfOp:
            arguments = (Tensor(i64, ()), *arguments)
        bodies = tuple(self._joined(*each, arguments) for each in zip(a.bodies, b.bodies, strict=True))
        given = [_returned(body) for body in bodies]
        if a.op is IfOp:
            if given[0] != given[1]:
                raise _ApartError
            return bodies, given[0]
        made = given[0][going:]
        if made[:carried] != tuple(starts):
            raise _ApartError
        stacks = (Tensor(each.dtype, (params["trip_count"], *each.shape)) for each in made[carried:])
        return bodies, (*made[:carried], *stacks)

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
        multiples = [(a // p, size) for (p, q), size in known if p and q and a % p == 0 == b % q and a // p == b // q]
        if not multiples:
            multiples = [
                (a // (p * r), size * other)
                for ((p, q), size), ((r, s), other) in combinations_with_replacement(known, 2)
                if p * r and q * s and a % (p * r) == 0 == b % (q * s) and a // (p * r) == b // (q * s)
            ]
        if multiples:
            times, size = min(multiples, key=lambda each: each[0])
            return size * times
        for (p, q), size in known:
            if p != q and (a - b) % (p - q) == 0:
                times = (a - b) // (p - q)
                return size * times + (a - times * p)
        raise _ApartError


def _returned(body: Outline) -> tuple[Tensor, ...]:
    """The types of what a region yields."""
    values = [*body.arguments, *(result for entry in body.entries for result in entry.results)]
    return tuple(values[number] for number in body.returned)


def _number(size: Size) -> int:
    if not isinstance(size, int):
        raise _ApartError
    return size


def same_constants(own: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> bool:
    """Whether two sets of constants are one."""
    return own.keys() == other.keys() and all(_same_array(array, other[name]) for name, array in own.items())


def _same_array(a: np.ndarray, b: np.ndarray) -> bool:
    if a is b:
        return True
    if a.dtype != b.dtype or a.shape != b.shape or a.size > LARGE:
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
