"""Operators over lists of tensors, as optimizers call them: the operator on one tensor, for each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

from xdsl.ir import SSAValue

from weft.errors import UnsupportedError
from weft.frontends.torch.aten.pointwise import apply
from weft.frontends.torch.aten.table import CONVERTERS, Converter, full_name, register
from weft.frontends.torch.dtypes import HALF
from weft.frontends.torch.importer.builder import ImportBuilder
from weft.ir.types import f32


def _addcmul(b: ImportBuilder, x: Any, first: Any, second: Any, value: Any = 1) -> SSAValue:
    return _add_scaled(b, "mul", x, first, second, value)


def _addcdiv(b: ImportBuilder, x: Any, first: Any, second: Any, value: Any = 1) -> SSAValue:
    return _add_scaled(b, "div", x, first, second, value)


def _add_scaled(b: ImportBuilder, name: str, x: Any, first: Any, second: Any, value: Any) -> SSAValue:
    """x + value · first · second, or with a quotient, in the order in which torch computes it."""
    if isinstance(value, SSAValue):
        raise UnsupportedError("factors that a tensor holds")
    dtype = f32 if b.result.dtype in HALF else b.result.dtype
    scaled = first if value == 1 else apply(b, "mul", value, first, dtype=dtype)
    return apply(b, "add", x, apply(b, name, scaled, second, dtype=dtype), dtype=dtype)


def _lerp(b: ImportBuilder, start: Any, end: Any, weight: Any) -> SSAValue:
    """From start to end, computed from the nearer one."""
    dtype = f32 if b.result.dtype in HALF else b.result.dtype
    way = apply(b, "sub", end, start, dtype=dtype)
    near = apply(b, "add", start, apply(b, "mul", weight, way, dtype=dtype), dtype=dtype)
    if not isinstance(weight, SSAValue) and abs(weight) < 0.5:
        return near
    rest = apply(b, "sub", 1, weight, dtype=dtype)  # pyright: ignore[reportUnknownArgumentType]
    far = apply(b, "sub", end, apply(b, "mul", way, rest, dtype=dtype), dtype=dtype)
    if not isinstance(weight, SSAValue):
        return far
    size = b.emit("abs", b.operand(weight, dtype))  # pyright: ignore[reportUnknownArgumentType]
    return b.emit("where", b.emit("lt", size, b.number(0.5, dtype)), near, far)


def _zero(b: ImportBuilder, x: Any) -> SSAValue:
    return b.expand(b.number(0, b.result.dtype), b.shape(x))


def _clone(b: ImportBuilder, x: Any, *_: Any) -> SSAValue:
    return x


_OWN: dict[str, Converter] = {
    "addcmul": _addcmul,
    "addcdiv": _addcdiv,
    "lerp": _lerp,
    "zero": _zero,
    "clone": _clone,
}

_UNARY = [
    "abs",
    "acos",
    "asin",
    "atan",
    "ceil",
    "cos",
    "cosh",
    "erf",
    "erfc",
    "exp",
    "expm1",
    "floor",
    "lgamma",
    "log",
    "log10",
    "log1p",
    "log2",
    "neg",
    "reciprocal",
    "round",
    "rsqrt",
    "sigmoid",
    "sign",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
    "trunc",
]

_ARITHMETIC = ("add", "sub", "mul", "div")
_NUMBERS = ("Scalar", "ScalarList")

_LISTS: dict[str, str] = {
    **{f"{name}.default": f"{name}.default" for name in _UNARY},
    **{f"{name}.{kind}": f"{name}.Tensor" for name in _ARITHMETIC for kind in ("List", "Tensor")},
    **{f"{name}.{kind}": f"{name}.Scalar" for name in _ARITHMETIC for kind in _NUMBERS},
    **{f"{name}.{kind}": f"{name}.default" for name in ("maximum", "minimum") for kind in ("List", *_NUMBERS)},
    **{f"{name}.{kind}": f"{name}.default" for name in ("clamp_min", "clamp_max") for kind in _NUMBERS},
    **{f"{name}.List": f"{name}.Tensor" for name in ("clamp_min", "clamp_max")},
    **{f"{name}.{kind}": name for name in ("addcmul", "addcdiv") for kind in ("Tensor", *_NUMBERS)},
    **{f"lerp.{kind}": "lerp" for kind in ("List", *_NUMBERS)},
    "pow.List": "pow.Tensor_Tensor",
    "pow.Scalar": "pow.Tensor_Scalar",
    "pow.ScalarList": "pow.Tensor_Scalar",
    "pow.ScalarAndTensor": "pow.Scalar",
    "norm.Scalar": "linalg_vector_norm.default",
    "zero.default": "zero",
    "clone.default": "clone",
    "copy.default": "copy.default",
}
"""Operators over lists, and the operator on one tensor that each stands for."""


def _each(name: str, b: ImportBuilder, *args: Any, **kwargs: Any) -> tuple[SSAValue, ...]:
    """Convert the operator for every tensor of the lists; what is no list is the same for all."""
    convert = _OWN[name] if name in _OWN else CONVERTERS[full_name(name)]
    results: list[SSAValue] = []
    for position, result in enumerate(b.results):
        own = replace(b, results=(result,))
        given = [_item(argument, position) for argument in args]
        options = {key: _item(argument, position) for key, argument in kwargs.items()}
        results.append(convert(own, *given, **options))
    return tuple(results)


def _item(argument: Any, position: int) -> Any:
    return cast("Sequence[Any]", argument)[position] if isinstance(argument, list | tuple) else argument


for _name, _single in _LISTS.items():
    register(f"_foreach_{_name}", partial(_each, _single))
