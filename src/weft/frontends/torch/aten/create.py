"""Operators that make tensors: constants, ranges, copies in another type."""

from __future__ import annotations

from typing import Any

import torch
from xdsl.ir import SSAValue

from weft.errors import UnsupportedError
from weft.frontends.torch.aten.table import aten
from weft.frontends.torch.dtypes import Operand
from weft.frontends.torch.importer.builder import ImportBuilder
from weft.ir.expr import Expr
from weft.ir.types import boolean


def filled(b: ImportBuilder, value: Operand | Expr) -> SSAValue:
    """The node's result, every element the same."""
    result = b.result
    if isinstance(value, SSAValue | Expr):
        return b.expand(b.operand(value, result.dtype), result.shape)
    number = bool(value) if result.dtype == boolean else float(value) if result.dtype.is_float else int(value)
    return b.emit("full", value=number, shape=result.shape, dtype=result.dtype)


@aten("full", "full_like", "new_full", "fill.Scalar", "fill.Tensor")
def full(b: ImportBuilder, _like: Any, *values: Any, **options: Any) -> SSAValue:
    # new_full has the shape before the value, full_like the tensor, fill too.
    return filled(b, options["fill_value"] if "fill_value" in options else values[-1])


@aten("scalar_tensor")
def scalar_tensor(b: ImportBuilder, value: Operand, **options: Any) -> SSAValue:
    return filled(b, value)


@aten("zeros", "zeros_like", "new_zeros", "_efficientzerotensor")
def zeros(b: ImportBuilder, *_shape: Any, **options: Any) -> SSAValue:
    return filled(b, 0)


@aten("ones", "ones_like", "new_ones")
def ones(b: ImportBuilder, *_shape: Any, **options: Any) -> SSAValue:
    return filled(b, 1)


@aten(
    "empty.memory_format",
    "empty_like",
    "new_empty",
    "empty_strided",
    "new_empty_strided",
    "empty_permuted",
)
def empty(b: ImportBuilder, *_shape: Any, **options: Any) -> SSAValue:
    # Any value will do; a constant needs no memory.
    return filled(b, 0)


@aten("arange.start_step")
def arange(b: ImportBuilder, start: Any, end: Any, step: Any = 1, **options: Any) -> SSAValue:
    if not b.result.dtype.is_float and any(isinstance(x, float) for x in (start, step)):
        # Torch truncates each of the numbers to the type first.
        start, step = int(start), int(step)
    return b.emit("iota", shape=b.result.shape, dim=0, dtype=b.result.dtype, start=start, step=step)


@aten("arange.default")
def arange_to(b: ImportBuilder, end: Any, **options: Any) -> SSAValue:
    return arange(b, 0, end, 1)


@aten("arange.start")
def arange_from(b: ImportBuilder, start: Any, end: Any, **options: Any) -> SSAValue:
    return arange(b, start, end, 1)


@aten("prims.iota")
def iota(b: ImportBuilder, length: Any, *, start: Any, step: Any, **options: Any) -> SSAValue:
    return b.emit("iota", shape=b.result.shape, dim=0, dtype=b.result.dtype, start=start, step=step)


@aten("_to_copy", "prims.convert_element_type", "to.dtype")
def to_copy(b: ImportBuilder, x: SSAValue | int | float, *_dtype: Any, **options: Any) -> SSAValue:
    # Traces of functions that compute with plain numbers convert these, too.
    return b.number(x, b.result.dtype) if isinstance(x, int | float) else b.to(x, b.result.dtype)


@aten(
    "clone",
    "alias",
    "alias_copy",
    "detach",
    "detach_copy",
    "lift_fresh",
    "lift_fresh_copy",
    "positive",
    "contiguous",
    "prims.view_of",
    "_conj_physical",
    "conj_physical",
    "_conj",
    "resolve_conj",
    "resolve_neg",
    "real",
)
def same(b: ImportBuilder, x: SSAValue, **options: Any) -> SSAValue:
    return x


@aten("copy")
def copy(b: ImportBuilder, x: SSAValue, source: SSAValue, *_non_blocking: Any, **options: Any) -> SSAValue:
    return b.expand(b.to(source, b.result.dtype), b.result.shape)


@aten("view.dtype")
def view_dtype(b: ImportBuilder, x: SSAValue, dtype: torch.dtype) -> SSAValue:
    result = b.result
    if b.dtype(x) == result.dtype:
        return x
    if b.dtype(x).bits != result.dtype.bits:
        raise UnsupportedError("reading elements as ones of another width")
    return b.emit("bitcast", x, dtype=result.dtype)
