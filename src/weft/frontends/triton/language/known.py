"""Values known at compile time, as opposed to those that a kernel computes."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from weft.frontends.triton.errors import KernelTypeError
from weft.frontends.triton.language import values
from weft.frontends.triton.language.constants import base_type, base_value, constexpr, unwrap


def known(value: Any) -> Any:
    """What Python computed, as a value of the language: a number or a text is a constexpr, a tuple one of ours."""
    if isinstance(value, (base_value, base_type, ModuleType, type, slice)) or callable(value):
        return value  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, tuple):
        items: list[Any] = [known(item) for item in iter(value)]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        fields: Any = getattr(value, "_fields", None)  # pyright: ignore[reportUnknownArgumentType]
        return values.tuple(items, values.type_of_items(items, fields))
    return constexpr(value)


def is_known(value: Any) -> bool:
    """Is all of a value known at compile time?"""
    if isinstance(value, values.tuple):
        return all(map(is_known, value.values))
    return isinstance(value, constexpr) or not isinstance(value, base_value)


def static_condition(value: Any) -> bool:
    """The truth of a value that is known at compile time."""
    if isinstance(value, values.tuple):
        return len(value) > 0
    if not is_known(value):
        raise KernelTypeError(f"{value.type} is neither true nor false", hint="compare it with something")
    return bool(unwrap(value))
