"""The values a kernel computes with: `tensor` (a handle and its type), `tuple`, `slice`; `constexpr` is in constants.

Operators and methods of `tensor` are the functions of the language: the modules that define these register them here
with `@operator` and `@member`, so that this module needs none of them.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, cast

from weft.frontends.triton.builders import builder
from weft.frontends.triton.builders.builder import Handle
from weft.frontends.triton.errors import KernelTypeError, KernelValueError
from weft.frontends.triton.language.constants import base_value, constexpr, constexpr_type, unwrap
from weft.frontends.triton.language.types import dtype, slice_type, tuple_type

_F = TypeVar("_F", bound=Callable[..., Any])
_OPERATORS: dict[str, Callable[..., Any]] = {}


def operator(name: str) -> Callable[[_F], _F]:
    """Register the function behind an operator of `tensor`, which has it by this name."""

    def register(function: _F) -> _F:
        _OPERATORS[name] = function
        return function

    return register


def member(function: _F) -> _F:
    """Make a function of the language a method of `tensor` as well."""
    setattr(tensor, function.__name__, function)
    return function


def _binary(name: str) -> Callable[[Any, Any], tensor]:
    def apply(self: Any, other: Any) -> tensor:
        return _OPERATORS[name](self, other)

    return apply


def _reflected(name: str) -> Callable[[Any, Any], tensor]:
    def apply(self: Any, other: Any) -> tensor:
        return _OPERATORS[name](other, self)

    return apply


def _unary(name: str) -> Callable[[Any], tensor]:
    def apply(self: Any) -> tensor:
        return _OPERATORS[name](self)

    return apply


class tensor(base_value):
    """A tile of numbers or pointers, or one of them: what a handle of the builder stands for, with its type."""

    handle: Handle
    type: dtype
    dtype: dtype

    def __init__(self, handle: Handle, type: Any) -> None:
        self.handle = handle
        self.type = type
        self.dtype = type.scalar
        self.sides: builtins.tuple[int, ...] = type.shape if type.is_block() else ()

    @property
    def shape(self) -> tuple:
        """The sides, as constexprs."""
        return tuple([constexpr(side) for side in self.sides])

    @property
    def numel(self) -> constexpr:
        return constexpr(math.prod(self.sides))

    @property
    def T(self) -> tensor:
        return _OPERATORS["trans"](self)

    def flatten(self, handles: list[Handle]) -> None:
        handles.append(self.handle)

    def to(self, dtype: Any, fp_downcast_rounding: str | None = None, bitcast: bool = False) -> tensor:
        return _OPERATORS["cast"](self, dtype, fp_downcast_rounding, bitcast)

    __add__, __radd__ = _binary("add"), _reflected("add")
    __sub__, __rsub__ = _binary("sub"), _reflected("sub")
    __mul__, __rmul__ = _binary("mul"), _reflected("mul")
    __truediv__, __rtruediv__ = _binary("truediv"), _reflected("truediv")
    __floordiv__, __rfloordiv__ = _binary("floordiv"), _reflected("floordiv")
    __mod__, __rmod__ = _binary("mod"), _reflected("mod")
    __and__, __rand__ = _binary("and"), _reflected("and")
    __or__, __ror__ = _binary("or"), _reflected("or")
    __xor__, __rxor__ = _binary("xor"), _reflected("xor")
    __lshift__, __rlshift__ = _binary("shl"), _reflected("shl")
    __rshift__, __rrshift__ = _binary("shr"), _reflected("shr")
    __lt__, __le__, __gt__, __ge__ = _binary("lt"), _binary("le"), _binary("gt"), _binary("ge")
    __eq__ = cast(Any, _binary("eq"))
    __ne__ = cast(Any, _binary("ne"))
    __neg__, __invert__, __not__ = _unary("neg"), _unary("invert"), _unary("not")
    __getitem__ = _binary("index")
    __hash__ = object.__hash__
    logical_and, logical_or = _binary("logical_and"), _binary("logical_or")

    def _known(self, wanted: str) -> Any:
        """This scalar as a Python number, which only a builder that computes at once can tell."""
        single = math.prod(self.sides) == 1
        number = builder.current.get().known(self.handle) if single else None
        if number is None:
            what = "a tile" if not single else "a value that is not known at compile time"
            hint = {
                "bool": "reduce it to one condition (tl.max, tl.sum); by element, write &, |, ~ for and, or, not, each"
                " comparison in brackets, and tl.where for if",
                "int": "make the argument a tl.constexpr, or loop with range() and tl.range()",
            }
            raise KernelTypeError(f"{self} is {what}: it cannot serve as a Python {wanted}", hint=hint.get(wanted))
        return number

    def __bool__(self) -> bool:
        return bool(self._known("bool"))

    def __int__(self) -> int:
        return int(self._known("int"))

    def __index__(self) -> int:
        number = self._known("int")
        if isinstance(number, float):
            raise KernelTypeError(f"{self} is no integer")
        return int(number)

    def __float__(self) -> float:
        return float(self._known("float"))

    def __format__(self, spec: str) -> str:
        """The type, in the text of a message."""
        return format(f"{self.dtype}[{', '.join(map(str, self.sides))}]", spec)

    def __repr__(self) -> str:
        """The type and, where it is known already, the value: what `print` and a debugger show."""
        running = builder.current.get(None)
        shown = None if running is None else running.show(self.handle)
        return f"{self}" if shown is None else f"{self}({shown})"

    __str__ = __repr__


def type_of_items(values: Sequence[Any], fields: Sequence[str] | None = None) -> tuple_type:
    """The type of a tuple of values; Python's numbers and types count as constexpr."""
    types = [value.type if isinstance(value, base_value) else constexpr_type(value) for value in values]
    return tuple_type(types, fields)


class tuple(base_value):
    """Several values; with names if it was made from a named tuple."""

    def __init__(self, args: Sequence[Any] | Iterator[Any], type: Any = None) -> None:
        self.values: list[Any] = list(args)
        if type is not None and not isinstance(type, tuple_type):
            type = tuple_type(type)
        self._type = type

    @property
    def type(self) -> tuple_type:  # pyright: ignore[reportIncompatibleVariableOverride]
        if self._type is None:
            self._type = type_of_items(self.values)
        return self._type

    def flatten(self, handles: list[Handle]) -> None:
        for value in self.values:
            if isinstance(value, base_value):
                value.flatten(handles)

    def __getitem__(self, index: Any) -> Any:
        index = unwrap(index)
        if isinstance(index, (slice, builtins.slice)):
            part = cast(slice, index)
            bounds = (unwrap(part.start), unwrap(part.stop), unwrap(part.step))
            return tuple(self.values[builtins.slice(*bounds)])
        if not isinstance(index, int):
            raise KernelTypeError(
                f"a tuple is indexed by a number known at compile time, not by {index}",
                hint="loop over it with tl.static_range",
            )
        if not -len(self.values) <= index < len(self.values):
            raise KernelValueError(f"index {index} is outside of a tuple of {len(self.values)} items")
        return self.values[index]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        fields = self.type.fields
        if name not in fields:
            named = ", ".join(field for field in fields if field)
            raise AttributeError(f"a tuple has no item {name!r}; it has {named or 'no names'}")
        return self.values[fields.index(name)]

    def replaced(self, index: Any, value: Any) -> tuple:
        """The tuple with another item at an index."""
        values = [*self.values]
        values[unwrap(index)] = value
        return tuple(values, type_of_items(values, self.type.fields))

    def __add__(self, other: Any) -> tuple:
        return tuple([*self.values, *other])

    def __radd__(self, other: Any) -> tuple:
        return tuple([*other, *self.values])

    def __mul__(self, times: Any) -> tuple:
        return tuple(self.values * unwrap(times))

    __rmul__ = __mul__

    def __eq__(self, other: object) -> Any:
        others = list(cast(Any, other)) if isinstance(other, (tuple, list, builtins.tuple)) else None
        if others is None or len(others) != len(self.values):
            return constexpr(False)
        return constexpr(all(bool(a == b) for a, b in zip(self.values, others, strict=True)))

    def __ne__(self, other: object) -> Any:
        return constexpr(not self == other)

    def __hash__(self) -> int:
        return hash(builtins.tuple(self.values))

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def __len__(self) -> int:
        return len(self.values)

    def __str__(self) -> str:
        return str([str(value) for value in self.values])

    def __repr__(self) -> str:
        return f"({', '.join(map(repr, self.values))})"


def tuple_of(values: Sequence[Any], fields: Sequence[str] | None = None) -> tuple:
    """A tuple of values, with names if it has any."""
    return tuple(values, type_of_items(values, fields))


class slice:
    """`start:stop:step` inside of square brackets."""

    def __init__(self, start: Any, stop: Any, step: Any) -> None:
        self.start = start
        self.stop = stop
        self.step = step
        self.type = slice_type()
