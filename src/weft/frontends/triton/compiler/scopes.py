"""The names a kernel sees: its own with their values, those around it, and the few of Python's that mean something."""

from __future__ import annotations

import builtins
import difflib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, cast

from weft.frontends.triton.errors import KernelNameError, KernelUnsupportedError
from weft.frontends.triton.language.constants import base_type, base_value, constexpr
from weft.frontends.triton.runtime.jit import JITCallable, KernelInterface

ABSENT = object()


@dataclass
class Scope:
    """The names of one function while it is evaluated. `gone` says why a name that was written has no value here."""

    values: dict[str, Any] = field(default_factory=dict[str, Any])
    gone: dict[str, str] = field(default_factory=dict[str, str])
    constants: set[str] = field(default_factory=set[str])

    def set(self, name: str, value: Any) -> None:
        self.values[name] = value
        self.gone.pop(name, None)

    def declare(self, name: str, value: Any) -> None:
        """`name: tl.constexpr = value`."""
        self.set(name, value)
        self.constants.add(name)

    def lose(self, name: str, why: str) -> None:
        """From here on the name has no value."""
        self.values.pop(name, None)
        self.constants.discard(name)
        self.gone[name] = why

    def copy(self) -> Scope:
        """A scope whose changes are not seen here. Values that can be changed in place are copied with it."""
        values = {name: _copied(value) if is_mutable(value) else value for name, value in self.values.items()}
        return Scope(values, dict(self.gone), set(self.constants))


def is_mutable(value: Any) -> bool:
    """Is this an object of an author's class? Its methods may set its fields."""
    return isinstance(value, base_value) and getattr(value, "__triton_aggregate__", False)


def _copied(value: Any) -> Any:
    handles: list[Any] = []
    value.flatten(handles)
    return value.type.unflatten(handles, 0)[0]


def visible(name: str, value: Any) -> bool:
    """May a kernel read this global? Only what cannot change behind the back of the compiled kernel."""
    module = getattr(value, "__module__", None)
    kind: type = value if isinstance(value, type) else type(value)
    return (
        value is None
        or isinstance(value, ModuleType | JITCallable | KernelInterface | constexpr | base_type)
        or (isinstance(module, str) and module.split(".")[0] in ("weft", "triton"))
        or is_named_tuple(value)
        or issubclass(kind, base_value)
        or getattr(cast(Any, value), "__triton_builtin__", False)
        or getattr(cast(Any, value), "__triton_aggregate__", False)
        or getattr(builtins, name, ABSENT) is value
        or os.environ.get("TRITON_ALLOW_NON_CONSTEXPR_GLOBALS", "0") not in ("", "0")
    )


def is_named_tuple(value: Any) -> bool:
    """A class made by `NamedTuple` or `namedtuple`, or one of its values."""
    kind: type = value if isinstance(value, type) else type(value)
    return issubclass(kind, tuple) and hasattr(cast(Any, kind), "_fields")


def look_up(name: str, scope: Scope, around: Mapping[str, Any], python: Mapping[str, Any]) -> Any:
    """The value of a name, or an error that says why it has none."""
    if name in scope.values:
        return scope.values[name]
    if name in scope.gone:
        raise KernelNameError(f"{name} is not defined here: {scope.gone[name]}", hint=_hint_of(name))
    value = around.get(name, ABSENT)
    if value is not ABSENT:
        if visible(name, value):
            return python.get(name, value) if getattr(builtins, name, ABSENT) is value else value
        if isinstance(value, Callable):  # pyright: ignore[reportArgumentType]
            raise KernelNameError(
                f"{name} is a function of the host: a kernel cannot call it",
                hint=f"decorate {name} with @triton.jit, or with @triton.constexpr_function to run it at compile time",
            )
        raise KernelNameError(
            f"Cannot access global variable {name} ({type(value).__name__}) from within a kernel: it may change after "
            "the kernel is compiled",
            hint=f"write `{name} = tl.constexpr({value!r})` where it is defined (an annotation is not enough), or pass "
            "it as an argument",
        )
    if name in python:
        return python[name]
    if hasattr(builtins, name):
        raise KernelUnsupportedError(
            f"Python's {name} has no meaning in a kernel", hint=f"of Python's functions there are: {', '.join(python)}"
        )
    raise KernelNameError(f"{name} is not defined", hint=_suggestion(name, [*scope.values, *around, *python]))


def _hint_of(name: str) -> str:
    return f"give {name} a value of the same type on every way that leads here"


def _suggestion(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {close[0]}?" if close else f"define {name} before this line, or pass it as an argument"
