"""What authors define themselves: classes of values (`tl.core._aggregate`) and functions of single elements."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, cast

from weft.frontends.triton.builders.builder import Handle
from weft.frontends.triton.language.constants import base_type, base_value


class aggregate_type(base_type):
    """The type of an object of an author's class: the types of its fields."""

    def __init__(self, base_cls: type, fields: list[tuple[str, Any]]) -> None:
        self.base_cls = base_cls
        self.fields = fields
        self.name = f"{base_cls.__module__}.{base_cls.__qualname__}"

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, aggregate_type)
        return same and self.base_cls is other.base_cls and self.fields == other.fields

    def __hash__(self) -> int:
        return hash((self.base_cls, tuple(name for name, _ in self.fields)))

    def __str__(self) -> str:
        return f"{self.name}<{', '.join(str(kind) for _, kind in self.fields)}>"

    def mangle(self) -> str:
        return f"{self.name}<{', '.join(kind.mangle() for _, kind in self.fields)}>"

    def unflatten(self, handles: list[Handle], cursor: int) -> tuple[base_value, int]:
        instance = cast(Any, object.__new__(self.base_cls))
        for name, kind in self.fields:
            value, cursor = kind.unflatten(handles, cursor)
            object.__setattr__(instance, name, value)
        return instance, cursor


def aggregate(cls: Any) -> Any:
    """Make a class with annotated fields a kind of value. Only these fields can be set, to values of their types."""
    fields: dict[str, Any] = inspect.get_annotations(cls, eval_str=True)

    class aggregate_value(base_value):
        __triton_aggregate__ = True

        def __init__(self, *args: Any, **keywords: Any) -> None:
            cls.__init__(self, *args, **keywords)
            for name in fields:
                if not hasattr(self, name):
                    raise AttributeError(f"constructor for {cls.__name__} did not initialize attribute '{name}'")

        def __setattr__(self, name: str, value: Any) -> None:
            if name not in fields:
                raise AttributeError(f"{cls.__name__} has no attribute '{name}'")
            if not isinstance(value, fields[name]):
                raise TypeError(f"Expected {fields[name]} for attribute '{name}', got {type(value)}")
            object.__setattr__(self, name, value)

        @property
        def type(self) -> aggregate_type:  # pyright: ignore[reportIncompatibleVariableOverride]
            return aggregate_type(aggregate_value, [(name, getattr(self, name).type) for name in fields])

        def flatten(self, handles: list[Handle]) -> None:
            for name in fields:
                getattr(self, name).flatten(handles)

    for name, method in inspect.getmembers(cls, _is_method):
        if name != "__init__" and not (name.startswith("__") and getattr(object, name, None) is method):
            setattr(aggregate_value, name, method)
    for name in ("__name__", "__module__", "__qualname__", "__doc__"):
        setattr(aggregate_value, name, getattr(cls, name))
    return aggregate_value


def _is_method(member: Any) -> bool:
    # A jit function is an object with the Python function inside.
    return inspect.isfunction(member) or isinstance(getattr(member, "fn", None), Callable)
