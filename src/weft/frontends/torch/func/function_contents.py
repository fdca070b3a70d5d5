"""What a function reads that is not an argument: its closure, globals, defaults, and those of functions it may call.

A function that is transformed in each turn of a loop is traced once while all of this stays what it was. What cannot be
told, as attributes of objects that anything may change, says that it is not known.
"""

# Whatever a user's function reads has no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportPrivateUsage=false

from __future__ import annotations

import functools
import os
import sysconfig
from collections.abc import Iterable, Sequence
from types import BuiltinFunctionType, CodeType, EllipsisType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

KEPT = "_weft_func"
"""The attribute under which functions, and modules, keep what was made of them."""
_MOST = 20_000
"""Values of a function beyond which they are not looked at."""
_LIBRARIES = tuple(
    os.path.realpath(path) + os.sep for path in {sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}
)
_WEFT = os.path.dirname(os.path.abspath(__file__)).partition(os.path.join("weft", "frontends"))[0]
_VALUES = (
    int,
    float,
    complex,
    str,
    bytes,
    bool,
    type(None),
    EllipsisType,
    torch.dtype,
    torch.device,
    torch.Size,
    slice,
)
_FIXED = (torch.Tensor, type, BuiltinFunctionType, torch._ops.OpOverload, torch._ops.OpOverloadPacket)


def contents_of(function: Any) -> list[Any] | None:
    """All that a function reads, in order: tensors and classes as they are, numbers with their types; None: unknown."""
    reader = _Reader()
    return reader.found if reader.read(function) else None


def are_same(contents: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether a function still reads what it read: objects are the same ones, and values are equal."""
    if len(contents) != len(others):
        return False
    return all(a is b or _is_equal(a, b) for a, b in zip(contents, others, strict=True))


def _is_equal(a: Any, b: Any) -> bool:
    return isinstance(a, _Value) and isinstance(b, _Value) and a.key == b.key


class _Value:
    """A number, a string, or the like."""

    __slots__ = ("key",)

    def __init__(self, value: Any) -> None:
        self.key = (
            type(value),
            repr(value) if isinstance(value, float | complex) else value,
        )  # NaN is the same, -0 not 0


class _Reader:
    """Reads values one by one; functions and containers once each."""

    def __init__(self) -> None:
        self.found: list[Any] = []
        self._seen: set[int] = set()

    def read(self, value: Any) -> bool:
        """Note a value, and what it reads; False where that is not known."""
        if isinstance(value, _VALUES):
            self.found.append(_Value(value))
            return True
        self.found.append(value)
        if id(value) in self._seen or isinstance(value, _FIXED):
            return True
        self._seen.add(id(value))
        if len(self.found) > _MOST:
            return False
        if isinstance(value, ModuleType):
            return _is_library(getattr(value, "__file__", None))
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, MethodType):
            return self.read(value.__func__) and self.read(value.__self__)
        if isinstance(value, functools.partial):
            return self._all((value.func, value.args, value.keywords))
        if isinstance(value, nn.Module):
            return self._module(value)
        if isinstance(value, list | tuple | set | frozenset):
            self.found.append(_Value(len(value)))
            return self._all(value)
        if isinstance(value, dict):
            return self._all(list(value)) and self._all(list(value.values()))
        parts = getattr(type(value), "weft_reads", None)  # what is transformed, or has rules
        return parts is not None and self._all(parts(value))

    def _all(self, values: Iterable[Any]) -> bool:
        return all(self.read(each) for each in values)

    def _function(self, function: FunctionType) -> bool:
        cells = [each.cell_contents for each in function.__closure__ or () if _is_filled(each)]
        self.found += [function.__code__, _Value(len(cells))]
        if _is_library(function.__code__.co_filename):  # what it closes over may be the user's
            return self._all(cells)
        names = [name for name in _names(function.__code__) if name in function.__globals__]
        given = (function.__defaults__, function.__kwdefaults__)
        return self._all([function.__globals__[name] for name in names]) and self._all(cells) and self._all(given)

    def _module(self, module: nn.Module) -> bool:
        for each in type(module).__mro__:
            if each is nn.Module:
                break
            if id(each) in self._seen:
                continue
            self._seen.add(id(each))
            functions = [member for member in vars(each).values() if isinstance(member, FunctionType)]
            if not self._all(functions):
                return False
        # Most attributes of a module are tables of hooks, which are empty.
        own = {
            name: value
            for name, value in vars(module).items()
            if name != KEPT and (value or not isinstance(value, dict))
        }
        self.found.append(_Value(tuple(own)))
        return self._all(own.values())


@functools.lru_cache(maxsize=4096)
def _names(code: CodeType) -> list[str]:
    """The names that code reads, and code inside of it."""
    inner = [name for each in code.co_consts if isinstance(each, CodeType) for name in _names(each)]
    return [*code.co_names, *inner]


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


@functools.cache
def _is_library(file: str | None) -> bool:
    """Whether code is a library's, which nobody changes while a program runs."""
    return file is None or file.startswith("<frozen") or os.path.realpath(file).startswith((*_LIBRARIES, _WEFT))
