"""Plans and what belongs to them as JSON, and back: frozen dataclasses of known classes, sizes and element types.

Nothing is executed on reading: a class that is not in the table given to `decode` is an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, cast

from weft.errors import ParseError
from weft.ir.expr import Expr, parse_size
from weft.ir.types import DTYPES, DType

_KIND = "$"


def encode(value: Any) -> Any:
    """JSON-able data that `decode` turns back into the value. Tuples and lists become lists."""
    match value:
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
        case {"$": "size", "text": str(text)}:
            return parse_size(text)
        case {"$": str(kind), **members} if kind in classes:
            values = {str(key): decode(item, classes) for key, item in members.items()}
            try:
                return classes[kind](**values)
            except TypeError as error:
                raise ParseError(f"a stored {kind} does not fit: {error}") from error
        case _:
            raise ParseError(f"stored data of an unknown kind: {str(data)[:80]}")
