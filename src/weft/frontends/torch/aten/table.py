"""The table of converters: which function turns a call of an ATen operator into graph ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Converter = Callable[..., Any]
"""`(b, *args, **kwargs)` as the operator is called, tensors as SSA values and sizes as `Size`; returns the result, or a
tuple of them. It raises `UnsupportedError` for a call that it cannot express."""

CONVERTERS: dict[str, Converter] = {}
_NAMESPACES = ("aten.", "prims.", "weft.", "torch_attn.", "flex_lib.", "_c10d_functional.")

_Function = TypeVar("_Function", bound=Converter)


def aten(*names: str) -> Callable[[_Function], _Function]:
    """Register a converter for overloads like `sum.dim_IntList`; `.default` may be left out."""

    def decorate(function: _Function) -> _Function:
        for name in names:
            register(name, function)
        return function

    return decorate


def full_name(name: str) -> str:
    """An overload's name as it is printed: in the ATen namespace and the default one, unless it says otherwise."""
    full = name if name.startswith(_NAMESPACES) else f"aten.{name}"
    return full if full.count(".") == 2 else f"{full}.default"


def register(name: str, converter: Converter) -> None:
    """Add a converter for an overload, named as for `aten`, or `prims.sum`."""
    full = full_name(name)
    if full in CONVERTERS:
        raise ValueError(f"{full} has two converters")
    CONVERTERS[full] = converter
