"""Plans and what belongs to them as JSON, and back: frozen dataclasses of known classes, sizes and element types.

Nothing is executed on reading: a class that is not in the table given to `decode` is an error, and so is a member that
has another type than its class says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from weft.errors import ParseError
from weft.ir.expr import Expr
from weft.ir.size_text import parse_size
from weft.ir.types import DTYPES, DType

_KIND = "$"


def encode(value: Any) -> Any:
    """JSON-able data that `decode` turns back into the value. Tuples and lists become lists."""
    match value:
        case float() if not math.isfinite(value):  # JSON has no words for these
            return {_KIND: "number", "text": str(value)}
        case None | bool() | int() | float() | str():
            return value
        case DType():
            return {_KIND: "dtype", "name": value.name}
        case Expr():
            return {_KIND: "size", "text": str(value)}
        case tuple() | list():
            return [encode(item) for item in cast("Sequence[Any]", value)]
        case _ if is_dataclass(value):
            members = {field.name: encode(getattr(value, field.name)) for field in fields(value)}
            return {_KIND: type(value).__name__, **members}
        case _:
            raise TypeError(f"{type(value).__name__} cannot be stored")


def table(*classes: type) -> Mapping[str, type]:
    """The classes that `decode` may build, by name."""
    return {cls.__name__: cls for cls in classes}


def decode(data: Any, classes: Mapping[str, type]) -> Any:
    """The value that `encode` made the data of. Lists become tuples."""
    match data:
        case None | bool() | int() | float() | str():
            return data
        case list():
            return tuple(decode(item, classes) for item in cast("Sequence[Any]", data))
        case {"$": "dtype", "name": str(name)} if name in DTYPES:
            return DTYPES[name]
        case {"$": "number", "text": "inf" | "-inf" | "nan" as text}:
            return float(text)
        case {"$": "size", "text": str(text)}:
            return parse_size(text)
        case {"$": str(kind), **members} if kind in classes:
            values = {str(key): decode(item, classes) for key, item in members.items()}
            for name, wanted in _members(classes[kind]).items():
                if name in values and not _fits(values[name], wanted):
                    raise ParseError(f"a stored {kind} does not fit: {name} is {str(values[name])[:80]}")
            try:
                return classes[kind](**values)
            except TypeError as error:
                raise ParseError(f"a stored {kind} does not fit: {error}") from error
        case _:
            raise ParseError(f"stored data of an unknown kind: {str(data)[:80]}")


@cache
def _members(cls: type) -> Mapping[str, Any]:
    return get_type_hints(cls)


def _fits(value: Any, wanted: Any) -> bool:
    """Whether a value is of the type that an annotation states."""
    return _checker(wanted)(value)


@cache
def _checker(wanted: Any) -> Callable[[Any], bool]:
    """What tells whether a value is of the type that an annotation states."""
    if wanted is Any:
        return lambda value: True
    if isinstance(wanted, type) and get_origin(wanted) is None:
        if wanted is bool:
            return lambda value: isinstance(value, bool)
        return lambda value: isinstance(value, wanted) and not isinstance(value, bool)
    checks = [_checker(each) for each in get_args(wanted) if each is not Ellipsis]
    if get_origin(wanted) in (Union, UnionType):
        return lambda value: any(check(value) for check in checks)
    if get_origin(wanted) is not tuple:
        return lambda value: False
    if get_args(wanted)[-1] is Ellipsis:
        (every,) = checks
        return lambda value: isinstance(value, tuple) and all(map(every, cast("tuple[Any, ...]", value)))

    def each_by_its_own(value: Any) -> bool:
        if not isinstance(value, tuple):
            return False
        items = cast("tuple[Any, ...]", value)
        return len(items) == len(checks) and all(check(item) for check, item in zip(checks, items, strict=True))

    return each_by_its_own
