"""The table of converters: which function turns a call of an ONNX operator into graph ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from weft.frontends.onnx.call import Call

Converter = Callable[[Call], Any]
"""Gives the result, or a tuple of them: graph values, arrays that are known, or `Value`s."""

CONVERTERS: dict[tuple[str, str], list[tuple[int, Converter]]] = {}
"""By domain and operator, the converters with the version of the operator set from which on each holds."""

_Function = TypeVar("_Function", bound=Converter)


def onnx_op(*names: str, since: int = 1, domain: str = "") -> Callable[[_Function], _Function]:
    """Register a converter for operators of a domain, from a version of its operator set on."""

    def decorate(function: _Function) -> _Function:
        for name in names:
            register(name, function, since, domain)
        return function

    return decorate


def register(name: str, function: Converter, since: int = 1, domain: str = "") -> None:
    known = CONVERTERS.setdefault((domain, name), [])
    if any(version == since for version, _ in known):
        raise ValueError(f"{name} has two converters from version {since} on")
    known.append((since, function))
    known.sort(key=lambda entry: entry[0])


def converter_of(domain: str, name: str, version: int) -> Converter | None:
    """The converter that holds for a version, if there is one."""
    found = [function for since, function in CONVERTERS.get((domain, name), []) if since <= version]
    return found[-1] if found else None
