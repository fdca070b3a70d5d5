"""What a function computes by: a program that was traced of it is good for as long as this stays the same.

    step(lambda y: config.alpha * y.mean())     # the code, and what config.alpha is now

From the function everything is looked at that its code can reach: closures, defaults, globals, and of objects, classes
and modules the attributes that some code on the way names, so that a counter which no loss reads does not count. Torch,
Python's own library, Weft and other installed packages than the function's own are taken to stay as they are. Where
something cannot be compared (an iterator, an object of a C extension, more than is looked through at every call),
nothing is said of the whole.
"""

# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false

from __future__ import annotations

import array
import contextvars
import dis
import enum
import functools
import io
import sys
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MappingProxyType, MemberDescriptorType, MethodType
from types import ModuleType as Module
from typing import Any

import numpy as np
import torch
from torch import nn

from weft.frontends.torch.distributed.numbered_values import NumberedValues

_MOST = 1 << 14
"""Values that are looked at in one call, at most: a few milliseconds."""
_MOST_BYTES = 1 << 16
"""Bytes of an array that are compared, at most."""
LIBRARIES = frozenset(sys.stdlib_module_names) | {"torch", "numpy", "weft"}
"""Packages whose objects are not the user's, and stay as they are."""
_ATOMS = frozenset({bool, int, float, complex, str, bytes, range, slice, torch.device, torch.dtype})
_DATA = (bool, int, float, complex, str, bytes, tuple, list, dict, set, frozenset, np.ndarray, np.generic)
_ANY_ATTRIBUTE = frozenset(
    {"getattr", "hasattr", "vars", "__dict__", "__getattribute__", "attrgetter", "asdict", "astuple", "fields"}
    | {"dir", "getmembers", "eval", "exec", "globals", "deepcopy", "__match_args__"}
)
"""Code that names these may read attributes that it does not name."""
_MAKING = frozenset({"__init__", "__new__", "__post_init__", "__del__", "__repr__", "__str__", "__init_subclass__"})
"""What is called of a class, but not of an object that is there."""
_COMPARING = frozenset({"__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__"})
"""Those of a dataclass read all of its fields, and are called by code that compares."""
_READING = frozenset({"tolist", "numpy", "asarray", "array"})
"""Code that names these reads elements of tensors while it is traced."""
_CALLED_OF_MODULES = frozenset({"forward", "training", "_forward_hooks", "_forward_pre_hooks"})


@dataclass(frozen=True)
class Unknown:
    """Nothing can be said of what a function computes by."""

    why: str


@dataclass(frozen=True, eq=False)
class Itself:
    """An object that is equal to itself alone; it is held, so that no other gets its address."""

    held: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Itself) and other.held is self.held

    def __hash__(self) -> int:
        return id(self.held)


class _UnknownError(Exception):
    """Something that cannot be compared was met."""


def content_of(value: Any) -> Hashable:
    """What a value computes by, so that functions written at the call are the same at every call; or `Unknown`.

    Tensors are themselves, and those of one element what they are until they are written to.
    """
    names, every = frozenset[str](), False
    try:
        while True:
            walk = _Walk(names, every, _home(value))
            walk.look_from(value)
            if walk.met <= names and walk.met_any <= every:
                return tuple(walk.contents)
            names, every = names | walk.met, every or walk.met_any
    except _UnknownError as error:
        return Unknown(str(error))


class _Walk(NumberedValues):
    """Values in the order in which they are met, each with what it has."""

    def __init__(self, names: frozenset[str], every: bool, home: str) -> None:
        super().__init__()
        self.names, self.every, self.home = names, every, home
        self.met, self.met_any = set[str](), False
        self.contents: list[Hashable] = []
        self.looked = 0

    def look_from(self, value: Any) -> None:
        self.contents.append(self.told(value))
        for each in self.values:  # grows
            self.contents.append(self._content(each))

    def is_atom(self, value: object) -> bool:
        return value is None or type(value) in _ATOMS or isinstance(value, np.generic)

    def told(self, value: object) -> Hashable:
        self.looked += 1
        if self.looked > _MOST:
            raise _UnknownError(f"it reaches more than {_MOST:,} values")
        return super().told(value)

    def _content(self, value: Any) -> Hashable:
        match value:
            case torch.Tensor():
                return self._tensor(value)
            case enum.Enum() | torch.Generator() | io.IOBase():
                return Itself(value)
            case np.ndarray():
                return self._array(value)
            case array.array() | bytearray():
                return type(value), bytes(value)
            case functools.partial():
                return *self.all_told((value.func, value.args, value.keywords)), self._object(value, seen=True)
            case MethodType():
                return MethodType, *self.all_told((value.__func__, value.__self__))
            case FunctionType():
                return self._function(value)
            case BuiltinFunctionType():
                return BuiltinFunctionType, value.__name__, self.told(value.__self__)
            case Module():
                return self._module(value)
            case type():
                return self._class(value)
            case contextvars.ContextVar():
                return Itself(value), self.told(value.get(None))
            case tuple() | list() | deque() | set() | frozenset():
                return self.all_told(value), self._object(value, seen=True)
            case dict() | MappingProxyType():
                return self.all_told(value.keys()), self.all_told(value.values()), self._object(value, seen=True)
            case str() | int() | float() | complex() | bytes():  # of a class of its own
                return repr(value), self._object(value, seen=True)
            case Iterator():
                raise _UnknownError(f"it takes from an iterator, a {type(value).__name__}")
            case _:
                return self._object(value)

    def _tensor(self, value: torch.Tensor) -> Hashable:
        """Programs read tensors at every call, but for those whose elements tracing takes for numbers."""
        if value.numel() > 1 and self.names.isdisjoint(_READING):
            return Itself(value), value.requires_grad
        try:
            return Itself(value), value.requires_grad, value._version  # pyright: ignore[reportPrivateUsage]
        except RuntimeError as error:
            what = "it reads a tensor of inference mode, which does not tell when it is written"
            raise _UnknownError(what) from error

    def _array(self, value: np.ndarray[Any, Any]) -> Hashable:
        if value.dtype.hasobject or value.nbytes > _MOST_BYTES:
            raise _UnknownError(f"it reads an array of {value.nbytes:,} bytes, {value.dtype}")
        return np.ndarray, value.dtype.str, value.shape, value.tobytes()

    def _function(self, function: FunctionType) -> Hashable:
        code, own = function.__code__, not self._is_library(function.__globals__.get("__name__"))
        named, attributes = _names(code)
        self.met |= attributes if own else attributes - _COMPARING
        used: list[Hashable] = []
        if own:
            self.met_any |= not _ANY_ATTRIBUTE.isdisjoint(attributes | named)
            known = function.__globals__
            used = [(name, self.told(known[name])) for name in sorted(named) if name in known]
            used += self.all_told(_imported(named, known.get("__package__")))
        cells = tuple(self._cell(each) for each in function.__closure__ or ())
        defaults = self.told(function.__defaults__), self.told(function.__kwdefaults__)
        return code, cells, defaults, tuple(used), self._attributes(vars(function))

    def _cell(self, cell: Any) -> Hashable:
        try:
            return self.told(cell.cell_contents)
        except ValueError:  # a variable that has no value yet
            return "empty"

    def _module(self, module: Module) -> Hashable:
        if self._is_library(module.__name__):
            return Itself(module)
        held = vars(module)
        wanted = {name: held[name] for name in (self.names | {"__getattr__"}) & held.keys()}
        if self.every:
            wanted |= {name: each for name, each in held.items() if isinstance(each, _DATA) and name[:2] != "__"}
        return Itself(module), tuple((name, self.told(each)) for name, each in sorted(wanted.items(), key=_name))

    def _class(self, found: type) -> Hashable:
        if self._is_library(found.__module__):
            return Itself(found)
        meta: type = type(found)
        kinds = *found.__mro__, *meta.__mro__
        return Itself(found), *(self._members(each, self.names, _MAKING) for each in kinds)

    def _is_library(self, name: object) -> bool:
        root = _root(name)
        return root in LIBRARIES or (root != self.home and _is_installed(root))

    def _attributes(self, held: Mapping[str, Any]) -> Hashable:
        """Those that some code names."""
        return tuple((name, self.told(held[name])) for name in sorted(self.names & held.keys()))

    def _object(self, value: Any, seen: bool = False) -> Hashable:
        """An object by its class and the attributes that it has and some code names; `seen`, what else it has is."""
        kind = type(value)
        if kind.__module__ == "builtins" or _is_kept(kind):
            return Itself(kind if seen else value)
        held, wanted = _held_by(value, seen), self.names
        found: list[tuple[str, Any]] = []
        if isinstance(value, nn.Module):
            wanted |= _CALLED_OF_MODULES
            below = [each for name in ("_parameters", "_buffers", "_modules") for each in held.get(name, {}).items()]
            found += [(name, each) for name, each in below if name in wanted]
        found += [(name, held[name]) for name in sorted(held.keys() if self.every else wanted & held.keys())]
        members = tuple(self._members(each, wanted, frozenset()) for each in kind.__mro__)
        # What an object of Python's library keeps besides attributes is not seen.
        by_kind = seen or kind.__module__.startswith("torch.") or not self._is_library(kind.__module__)
        own = tuple((name, self.told(each)) for name, each in found)
        return Itself(kind if by_kind else value), own, members

    def _members(self, kind: type, names: frozenset[str], making: frozenset[str]) -> Hashable:
        """What a class has of these names, and what Python calls by itself: operators, calls, attribute access."""
        if kind.__module__ == "builtins":
            return ()
        protocol = frozenset[str]() if kind is nn.Module else _protocol(kind) | (making & vars(kind).keys())
        found: list[Hashable] = []
        for name in sorted((names & vars(kind).keys()) | protocol):
            member = vars(kind)[name]
            match member:
                case property():
                    found.append((name, self.told(member.fget)))
                case functools.cached_property():
                    found.append((name, self.told(member.func)))
                case staticmethod() | classmethod():
                    found.append((name, self.told(member.__func__)))
                case _ if type(member).__name__.endswith(("_descriptor", "slot wrapper")):
                    pass  # of C
                case _:
                    found.append((name, self.told(member)))
        return tuple(found)


@functools.lru_cache(maxsize=1024)
def _slots(kind: type) -> dict[str, Any]:
    every = [each for one in kind.__mro__ for each in vars(one).items()]
    return {name: each for name, each in every if type(each) is MemberDescriptorType}


def _held_by(value: Any, seen: bool) -> dict[str, Any]:
    """The attributes of an object itself."""
    held: dict[str, Any] = {}
    slots = _slots(type(value))
    for name, slot in slots.items():
        try:
            held[name] = slot.__get__(value)
        except AttributeError:  # has no value yet
            continue
    try:
        held |= object.__getattribute__(value, "__dict__")
    except AttributeError:
        if not slots and not seen and "__slots__" not in vars(type(value)):
            what = f"{type(value).__module__}.{type(value).__qualname__}"
            raise _UnknownError(f"it reads a {what}, whose contents are not seen") from None
    return held


def _imported(names: Iterable[str], package: Any) -> list[Any]:
    """Modules that a function imports by itself."""
    every = [each for name in sorted(names) for each in (name, f"{package}.{name}".rstrip("."))]
    return [sys.modules[each] for each in every if each in sys.modules]


def _name(item: tuple[str, Any]) -> str:
    return item[0]


def _root(name: object) -> str:
    return name.partition(".")[0] if isinstance(name, str) else ""


def _home(value: Any) -> str:
    """The package that a function is of."""
    while isinstance(value, functools.partial | MethodType):
        value = value.func if isinstance(value, functools.partial) else value.__func__
    return _root(value.__globals__.get("__name__") if isinstance(value, FunctionType) else type(value).__module__)


@functools.lru_cache(maxsize=1024)
def _is_installed(root: str) -> bool:
    """Whether a package is where installers put packages."""
    module = sys.modules.get(root)
    places = [str(getattr(module, "__file__", None) or ""), *map(str, getattr(module, "__path__", ()))]
    return any(part in Path(place).parts for place in places for part in ("site-packages", "dist-packages"))


def _is_kept(kind: type) -> bool:
    """Whether objects of a class are taken to stay as they are: those of Weft, and those that are made in C."""
    root = _root(kind.__module__)
    if root in ("weft", "logging", "threading", "weakref", "typing", "re", "pathlib", "random"):
        return True
    return root in LIBRARIES and not kind.__dictoffset__


@functools.lru_cache(maxsize=1024)
def _protocol(kind: type) -> frozenset[str]:
    """The functions of a class that Python calls of an object by itself."""
    functions = [name for name, each in vars(kind).items() if isinstance(each, FunctionType)]
    return frozenset(each for each in functions if each[:2] == each[-2:] == "__") - _MAKING - _COMPARING


@functools.lru_cache(maxsize=4096)
def _names(code: CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """The globals that a function and those inside it may look up, and the attributes that they name."""
    named, attributes = set[str](), set[str]()
    for each in dis.get_instructions(code):
        if each.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            named.add(each.argval)
        elif each.opname in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM"):
            attributes.add(each.argval)
        elif each.opname == "IMPORT_NAME":
            named.add(each.argval)
        elif each.opname in ("COMPARE_OP", "CONTAINS_OP"):
            attributes |= _COMPARING
        elif each.opname == "MATCH_CLASS":
            attributes.add("__match_args__")
    for each in code.co_consts:
        if isinstance(each, CodeType):
            below = _names(each)
            named |= below[0]
            attributes |= below[1]
    return frozenset(named), frozenset(attributes)
