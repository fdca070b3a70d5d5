"""Reductions, scans and what sorts: along an axis of a tile, with the language's combine functions or the author's."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import Any, cast

from weft.frontends.triton.builders import builder
from weft.frontends.triton.builders.builder import Combine, Handle
from weft.frontends.triton.errors import KernelShapeError, KernelTypeError, KernelValueError
from weft.frontends.triton.language import types
from weft.frontends.triton.language.arithmetic import widened
from weft.frontends.triton.language.casting import converted
from weft.frontends.triton.language.constants import unwrap
from weft.frontends.triton.language.promotion import row_major, spread, to_tensor, typed, viewed
from weft.frontends.triton.language.shapes import expand_dims, ravel, wrapped_axis
from weft.frontends.triton.language.types import block_type, dtype
from weft.frontends.triton.language.values import member, tensor, tuple


def _results(value: Any) -> list[Any]:
    return list(cast("Sequence[Any]", value)) if isinstance(value, (tuple, builtins.tuple, list)) else [value]


def combiner(function: Callable[..., Any], elements: Sequence[dtype]) -> Combine:
    """The author's combine function, which takes and gives tensors, as one of handles."""

    def combine(left: Sequence[Handle], right: Sequence[Handle]) -> list[Handle]:
        primitives = builder.current.get()
        given = [
            typed(handle, element, primitives.shape_of(handle))
            for handle, element in zip([*left, *right], [*elements, *elements], strict=True)
        ]
        sides = given[0].sides
        results = [to_tensor(result) for result in _results(function(*given))]
        if len(results) != len(elements):
            raise KernelTypeError(
                f"the combine function gives {len(results)} values, but it joins {len(elements)} with as many"
            )
        for result, element in zip(results, elements, strict=True):
            if result.dtype != element:
                raise KernelTypeError(
                    f"the combine function gives {result.dtype} where it was given {element}",
                    hint=f"cast its result with .to(tl.{element.codegen_name()})",
                )
        return [spread(result, sides).handle for result in results]

    return combine


def _inputs(input: Any) -> list[tensor]:
    values = [to_tensor(value) for value in _results(input)]
    if any(value.sides != values[0].sides for value in values):
        raise KernelShapeError(f"all reduction inputs must have the same shape, got {', '.join(map(str, values))}")
    if not values[0].sides:
        raise KernelShapeError(f"there is no axis along which to reduce or scan {values[0]}", hint="it is a scalar")
    return values


def _reduced(values: Sequence[tensor], axis: Any, combine: Combine | str, keep_dims: Any) -> list[tensor]:
    """Combine along an axis, or, if it is None, along all of them."""
    axis, rank = unwrap(axis), len(values[0].sides)
    if axis is None:
        values = [ravel(value) for value in values]
    place = 0 if axis is None else wrapped_axis(axis, rank)
    stored = [value.dtype.stored for value in values]
    handles = builder.current.get().reduce([value.handle for value in values], stored, place, combine)
    sides = [side for i, side in enumerate(values[0].sides) if i != place]
    # An indexed combiner gives indices.
    elements = [types.int64] if combine in ("argmax", "argmin") else [value.dtype for value in values]
    results = [typed(handle, element, sides) for handle, element in zip(handles, elements, strict=True)]
    if not unwrap(keep_dims):
        return results
    return [expand_dims(result, list(range(rank)) if axis is None else place) for result in results]


@member
def reduce(input: Any, axis: Any, combine_fn: Any, keep_dims: Any = False) -> Any:
    """Combine all elements along an axis with a function of two elements (or of two tuples of elements)."""
    values = _inputs(input)
    results = _reduced(values, axis, combiner(unwrap(combine_fn), [value.dtype for value in values]), keep_dims)
    return results[0] if isinstance(input, tensor) else builtins.tuple(results)


@member
def associative_scan(input: Any, axis: Any, combine_fn: Any, reverse: Any = False) -> Any:
    """All partial combinations along an axis."""
    values = _inputs(input)
    results = _scanned(values, axis, combiner(unwrap(combine_fn), [value.dtype for value in values]), reverse)
    return results[0] if isinstance(input, tensor) else builtins.tuple(results)


def _scanned(values: Sequence[tensor], axis: Any, combine: Combine | str, reverse: Any) -> list[tensor]:
    place = wrapped_axis(axis, len(values[0].sides))
    stored = [value.dtype.stored for value in values]
    handles = [value.handle for value in values]
    scanned = builder.current.get().scan(handles, stored, place, combine, bool(unwrap(reverse)))
    return [tensor(handle, value.type) for handle, value in zip(scanned, values, strict=True)]


def sum_type(element: dtype, wanted: Any) -> dtype:
    """The type in which elements are summed: integers in at least 32 bits."""
    wanted = unwrap(wanted)
    if wanted is not None:
        return wanted
    if element.is_int() and element.int_bitwidth < 32:
        return types.int32 if element.is_int_signed() else types.uint32
    return element


@member
def sum(input: Any, axis: Any = None, keep_dims: Any = False, dtype: Any = None) -> tensor:
    """The sum along an axis, or of all elements."""
    (value,) = _inputs(input)
    return _reduced([converted(value, sum_type(value.dtype, dtype), None)], axis, "sum", keep_dims)[0]


def _extreme(kind: str, input: Any, axis: Any, indices: Any, keep_dims: Any) -> Any:
    (value,) = _inputs(input)
    value = widened(value)
    if unwrap(indices):
        if unwrap(axis) is None:
            raise KernelValueError(f"tl.{kind} with indices takes an axis", hint="flatten with tl.ravel and use axis=0")
        (best,) = _reduced([_comparable(value)], axis, kind, keep_dims)
        (index,) = _reduced([_comparable(value)], axis, f"arg{kind}", keep_dims)
        return converted(best, value.dtype, None), converted(index, types.int32, None)
    if value.dtype.primitive_bitwidth < 32:
        value = converted(value, types.float32 if value.dtype.is_floating() else types.int32, None)
    name = f"f{kind}" if value.dtype.is_floating() else kind
    return _reduced([value], axis, name, keep_dims)[0]


def _comparable(value: tensor) -> tensor:
    """8-bit floats and booleans as types in which they compare."""
    if value.dtype.is_fp8():
        return converted(value, types.float32, None)
    return converted(value, types.int32, None) if value.dtype.is_bool() else value


@member
def max(
    input: Any,
    axis: Any = None,
    return_indices: Any = False,
    return_indices_tie_break_left: Any = True,
    keep_dims: Any = False,
) -> Any:
    """The greatest element along an axis, or of all; with `return_indices` also where it is, the first of equals."""
    return _extreme("max", input, axis, return_indices, keep_dims)


@member
def min(
    input: Any,
    axis: Any = None,
    return_indices: Any = False,
    return_indices_tie_break_left: Any = True,
    keep_dims: Any = False,
) -> Any:
    """The least element along an axis, or of all; with `return_indices` also where it is, the first of equals."""
    return _extreme("min", input, axis, return_indices, keep_dims)


@member
def argmax(input: Any, axis: Any, tie_break_left: Any = True, keep_dims: Any = False) -> tensor:
    """Where the greatest element along an axis is."""
    return _extreme("max", input, axis, True, keep_dims)[1]


@member
def argmin(input: Any, axis: Any, tie_break_left: Any = True, keep_dims: Any = False) -> tensor:
    """Where the least element along an axis is."""
    return _extreme("min", input, axis, True, keep_dims)[1]


def _of_bits(name: str, function: str, input: Any, axis: Any, keep_dims: Any) -> tensor:
    (value,) = _inputs(input)
    if not value.dtype.is_int():
        raise KernelTypeError(f"{name} only supported for integers, got {value}")
    return _reduced([value], axis, function, keep_dims)[0]


@member
def xor_sum(input: Any, axis: Any = None, keep_dims: Any = False) -> tensor:
    """The exclusive or along an axis."""
    return _of_bits("xor_sum", "xor", input, axis, keep_dims)


@member
def reduce_or(input: Any, axis: Any, keep_dims: Any = False) -> tensor:
    """The bits that any element along an axis has set."""
    return _of_bits("reduce_or", "or", input, axis, keep_dims)


@member
def cumsum(input: Any, axis: Any = 0, reverse: Any = False, dtype: Any = None) -> tensor:
    """Partial sums along an axis."""
    (value,) = _inputs(input)
    value = widened(value)
    return _scanned([converted(value, sum_type(value.dtype, dtype), None)], axis, "sum", reverse)[0]


@member
def cumprod(input: Any, axis: Any = 0, reverse: Any = False, dtype: Any = None) -> tensor:
    """Partial products along an axis."""
    (value,) = _inputs(input)
    value = widened(value)
    value = value if unwrap(dtype) is None else converted(value, unwrap(dtype), None)
    return _scanned([value], axis, "prod", reverse)[0]


def _last_axis(x: tensor, dim: Any) -> None:
    if unwrap(dim) is not None and wrapped_axis(dim, len(x.sides)) != len(x.sides) - 1:
        raise KernelValueError("only minor dimension is currently supported", hint="permute the axes first")


@member
def sort(x: tensor, dim: Any = None, descending: Any = False) -> tensor:
    """The elements of the last axis in order."""
    _last_axis(x, dim)
    value = _comparable(x)
    handle = builder.current.get().sort(value.handle, value.dtype.stored, bool(unwrap(descending)))
    return converted(tensor(handle, value.type), x.dtype, None)


def topk(x: tensor, k: Any, dim: Any = None, descending: Any = True) -> tensor:
    """The k greatest elements of the last axis, the greatest first; or the k smallest, the smallest first."""
    count = unwrap(k)
    if not isinstance(count, int) or not 1 <= count <= x.sides[-1]:
        raise KernelValueError(f"tl.topk takes 1 to {x.sides[-1]} elements of {x}, got {count}")
    ordered = sort(x, dim, descending)
    sides = [*x.sides[:-1], count]
    return viewed(ordered, sides, 0, row_major(x.sides))


def bitonic_merge(x: tensor, dim: Any = None, descending: Any = False) -> tensor:
    """The elements of the last axis, which rise and then fall, in order."""
    return sort(x, dim, descending)


@member
def histogram(input: tensor, num_bins: Any, mask: Any = None) -> tensor:
    """How often 0, 1, ..., num_bins - 1 occur in a tile of one axis."""
    bins, chosen = unwrap(num_bins), unwrap(mask)
    if len(input.sides) != 1:
        raise KernelShapeError(f"histogram only supports 1D input, got {input}")
    if not input.dtype.is_int():
        raise KernelTypeError(f"histogram only supports integer input, got {input}")
    if not isinstance(bins, int):
        raise KernelTypeError(f"num_bins is a number known at compile time, got {bins}")
    if chosen is not None:
        chosen = to_tensor(chosen)
        if not chosen.dtype.is_bool():
            raise KernelTypeError(f"Mask must have boolean scalar type, got {chosen}")
        chosen = spread(chosen, input.sides).handle
    handle = builder.current.get().histogram(input.handle, input.dtype.stored, bins, chosen)
    return tensor(handle, block_type(types.int32, [bins]))
