"""The programs that a model on many ranks has compiled, by what they were compiled for; the last used are kept."""

# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false

from __future__ import annotations

import dis
import functools
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from types import CodeType, FunctionType, MethodType
from typing import Any, Generic, TypeVar

from torch import nn

from weft.diagnostics import warn

_Program = TypeVar("_Program")

_MOST = 64
"""Programs of one model, at most: shapes, modes and losses that are used by turns."""
_DEPTH = 8
"""How deep the functions of a closure are looked into; below it is an object itself that counts."""
_LONG = 64
"""Collections of more elements are not looked into at every call."""


@dataclass
class KeptPrograms(Generic[_Program]):
    """Programs by their keys. All ranks use them in the same order, so that they keep and drop the same ones."""

    most: int = _MOST
    programs: OrderedDict[Hashable, _Program] = field(default_factory=OrderedDict[Hashable, _Program])

    def get(self, key: Hashable, compiled: Callable[[], _Program]) -> _Program:
        """The program of a key, compiled if there is none; of more than are kept, the longest unused goes."""
        if key in self.programs:
            self.programs.move_to_end(key)
            return self.programs[key]
        program = self.programs[key] = compiled()
        if len(self.programs) > self.most:
            self.programs.popitem(last=False)
            warn(
                "cache",
                f"a model on many ranks was compiled for more than {self.most} kinds of calls",
                "and the longest unused is dropped",
                "pad batches to few shapes, and give tensors that change as targets= in place of a loss's closure",
            )
        return program

    def __len__(self) -> int:
        return len(self.programs)


@dataclass(frozen=True, eq=False)
class _Itself:
    """An object that is equal to itself alone; it is held, so that no other gets its address."""

    held: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and other.held is self.held

    def __hash__(self) -> int:
        return id(self.held)


def content_of(value: Any, depth: int = _DEPTH) -> Hashable:
    """What a function computes by, so that one written at the call is the same at every call.

        step(lambda y: scale * y.mean())        # the code, scale's value, and what its globals are now

    Functions, their closures, defaults and the globals that they name, partial functions and modules without state are
    compared by content; tensors, modules with parameters and other objects are themselves.
    """
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return type(value), repr(value)
    if depth == 0 or _is_long(value):
        return _Itself(value)
    below = functools.partial(content_of, depth=depth - 1)
    match value:
        case tuple() | list():
            return type(value), tuple(below(each) for each in value)
        case dict():
            return dict, tuple((below(name), below(each)) for name, each in value.items())
        case set() | frozenset():
            return set, frozenset(below(each) for each in value)
        case functools.partial():
            return functools.partial, below(value.func), below(value.args), below(value.keywords)
        case MethodType():
            return MethodType, below(value.__func__), below(value.__self__)
        case FunctionType():
            return _function(value, below, depth - 1)
        case nn.Module() if not any(True for _ in (*value.parameters(), *value.buffers())):
            return type(value), tuple((name, below(each)) for name, each in vars(value).items())
        case _:
            return _Itself(value)


def described_function(function: Any) -> str:
    """A function in words that are the same on every rank that has the same one."""
    code = getattr(function, "__code__", None)
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{name} {hashlib.sha256(code.co_code).hexdigest()[:8]}" if isinstance(code, CodeType) else name


def _is_long(value: Any) -> bool:
    return isinstance(value, tuple | list | dict | set | frozenset) and len(value) > _LONG


def _function(function: FunctionType, below: Callable[[Any], Hashable], depth: int) -> Hashable:
    cells = tuple(_cell(each, below) for each in function.__closure__ or ())
    # Globals are looked at once: what a function of another place names is taken to stay.
    known = [(name, function.__globals__[name]) for name in _names(function.__code__) if name in function.__globals__]
    used = tuple((name, content_of(each, min(depth, int(isinstance(each, FunctionType))))) for name, each in known)
    return function.__code__, cells, below(function.__defaults__), below(function.__kwdefaults__), used


def _cell(cell: Any, below: Callable[[Any], Hashable]) -> Hashable:
    try:
        return below(cell.cell_contents)
    except ValueError:  # a variable that has no value yet
        return "empty"


@functools.lru_cache
def _names(code: CodeType) -> tuple[str, ...]:
    """The globals that a function and those inside it may look up."""
    own = {each.argval for each in dis.get_instructions(code) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return tuple(sorted(own.union(*(_names(each) for each in code.co_consts if isinstance(each, CodeType)))))
