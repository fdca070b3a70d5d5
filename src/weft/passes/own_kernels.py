"""Which calls are kernels of Weft's own where a vendor's library comes first: rules on types, sizes and strides.

A front end reads the calls of its program into these terms, and leaves to the library what no rule takes; which
framework a call comes from does not matter here. Sizes are known: what depends on symbols is the library's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from xdsl.ir import Operation

from weft.ir.types import DType, Tensor, bf16, f16
from weft.ops.base import Scan, Scatter, Structured
from weft.ops.indexing.segments import SumSegments
from weft.ops.matmul.attention import WIDEST_HEAD
from weft.ops.windows.convolution import Convolution
from weft.passes.claim_libraries import (
    fills_tensor_cores,
    worth_odd_rows,
    worth_reading_once,
    worth_streaming,
    worth_tensor_cores,
)
from weft.passes.convolution.convolve_by_matmul import geometry_of
from weft.passes.convolution.convolve_trained import is_product
from weft.passes.dot.align_operands import worth_aligning
from weft.passes.dot.sum_small_dots import worth_summing

_COPIED_BYTES = 16
"""What bulk copies take multiples of."""
_LEAST_LENGTH, _FEW_QUERIES = 192, 64
"""Keys from which on attention of Weft's own beats a library's, and queries with which any mask is read quickly."""
_LEAST_WIDTH = 64
"""Heads for which that was measured."""
_LONG, _LONG_BESIDE_THE_FASTEST = 512, 1024
"""Keys from which on gradients in heads that are narrower are kernels, and where the library is the fastest one."""
_LEAST_PACKED = 512
"""Rows of sequences one after the other from which on their attention beats a library's."""


@dataclass(frozen=True)
class Operand:
    """A tensor as it lies in memory; strides count elements."""

    dtype: DType | None
    """None for types that Weft does not have."""
    element_bytes: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def has_aligned_lines(self) -> bool:
        """Whether one of the last two dimensions runs through memory, and all others in steps that bulk copies take."""
        *outer, rows, columns = self.strides
        steps = [*outer, rows if columns == 1 else columns]
        return 1 in (rows, columns) and all(step * self.element_bytes % _COPIED_BYTES == 0 for step in steps)


def owns_product(result: Operand, a: Operand, b: Operand, *, of_bytes: bool = False) -> bool:
    """Whether matrix units multiply a matmul's factors in a kernel, as they lie in memory or after a copy."""
    apart = [factor for factor in (a, b) if not factor.has_aligned_lines]
    copied = sum(factor.elements * factor.element_bytes for factor in apart)
    steps = [step * factor.element_bytes for factor in apart for step in factor.strides if step != 1]
    sides = result.shape, a.shape[-1]
    if apart and not of_bytes and worth_odd_rows(result.dtype, *sides):
        return True
    if apart and (of_bytes or not worth_aligning(*sides, copied, steps)):
        return False
    along = a.strides[-1] == 1 and b.strides[-2] == 1  # K runs through memory
    if of_bytes:
        return along and fills_tensor_cores(*sides)
    if result.dtype is None:
        return False
    few = any(worth(result.dtype, *sides) for worth in (worth_streaming, worth_summing, worth_reading_once))
    return worth_tensor_cores(result.dtype, *sides) or (along and not apart and few)


def owns_pointwise_convolution(x: Operand, weight: Operand, result: Operand) -> bool:
    """Whether a convolution of single places is a matmul that the matrix units are worth."""
    outputs, channels = weight.shape[:2]
    rows = result.elements // max(outputs, 1)
    aligned = all(size * x.element_bytes % _COPIED_BYTES == 0 for size in (outputs, channels))
    return x.dtype is not None and aligned and worth_tensor_cores(x.dtype, (rows, outputs), channels)


def owns_convolution(
    x: Tensor, weight: Tensor, result: Tensor, *, params: Mapping[str, Any], frozen: bool, library: bool
) -> bool:
    """Whether matmuls and sums are faster for a convolution, or its gradients, than a library that makes code for
    convolutions, or none; `frozen` weights are constants."""
    if frozen and geometry_of(x, weight, result, **params) is not None:
        return True
    return not library and is_product(x, weight, result, **params)


def owns_grouped_product(x: Operand, weights: Operand) -> bool:
    """Whether rows in groups are multiplied with their groups' matrices in one kernel."""
    if (len(x.shape), len(weights.shape)) != (2, 3) or x.dtype is None:
        return False
    worth = x.shape[0] > 0 and worth_streaming(x.dtype, (1, weights.shape[2]), weights.shape[1])
    return worth and x.strides[1] == 1 and x.has_aligned_lines and weights.has_aligned_lines


def owns_attention(query: Operand, key: Operand, value: Operand, *, masks_are_small: bool) -> bool:
    """Whether attention is a kernel; `masks_are_small` where masks are computed of what all heads share, or less."""
    width = query.shape[-1]
    fits = width % 16 == 0 and _LEAST_WIDTH <= width <= WIDEST_HEAD and value.shape[-1] == width
    wins = key.shape[-2] >= _LEAST_LENGTH and (query.shape[-2] <= _FEW_QUERIES or masks_are_small)
    return _is_narrow(query) and fits and wins and _are_aligned((query, key, value))


def owns_attention_with_dropout(query: Operand, key: Operand, value: Operand, *, at_any_length: bool) -> bool:
    """Whether attention whose weights are dropped is a kernel, and so are its gradients; `at_any_length` where a
    library's, which differ from run to run, are not asked for."""
    width, members = query.shape[-1], query.shape[1] // max(key.shape[1], 1)
    fits = width % 16 == 0 and (at_any_length or width >= _LEAST_WIDTH) and width <= WIDEST_HEAD
    alike = value.shape == key.shape and key.shape[-1] == width and key.shape[1] * members == query.shape[1]
    length = min(query.shape[-2], key.shape[-2])
    long = length > 1 if at_any_length else length >= _LEAST_LENGTH
    return len(query.shape) == 4 and _is_narrow(query) and fits and alike and long and _are_aligned((query, key, value))


def owns_packed_attention(query: Operand, key: Operand, value: Operand) -> bool:
    """Whether attention over sequences that lie one after the other is a kernel."""
    widths = query.shape[-1], value.shape[-1]
    fits = len(query.shape) == 3 and all(width % 16 == 0 and _LEAST_WIDTH <= width <= WIDEST_HEAD for width in widths)
    long = min(query.shape[0], key.shape[0]) >= _LEAST_PACKED
    through = all(each.strides[-1] == 1 for each in (query, key, value))
    return _is_narrow(query) and fits and long and through and _are_aligned((query, key, value))


def owns_attention_gradients(
    tensors: tuple[Operand, Operand, Operand, Operand], kept: Operand, *, library_is_fast: bool
) -> bool:
    """Whether gradients of attention are kernels: of what is given for its result, and of query, key and value; `kept`
    is a number for each row. It counts in narrow heads how fast the library is."""
    _, query, key, value = tensors
    widths, length = (query.shape[-1], value.shape[-1]), min(query.shape[-2], key.shape[-2])
    least = _LEAST_LENGTH
    if min(widths) < _LEAST_WIDTH:
        least = _LONG_BESIDE_THE_FASTEST if library_is_fast else _LONG
    fits = all(width % 16 == 0 and width <= WIDEST_HEAD for width in widths) and length >= least
    whole = kept.elements * query.shape[-1] == query.elements
    return _is_narrow(query) and fits and whole and _are_aligned(tensors)


def needs_library(ops: Iterable[Operation]) -> bool:
    """Whether among the ops that stand for a call are such as a GPU has no kernel for but a library's.

    Nothing that is generated combines updates of one place in a fixed order; those that overwrite each other are in no
    order on a GPU anyway.
    """
    kinds = Structured | Scan | Convolution
    return any((isinstance(op, kinds) and not isinstance(op, SumSegments)) or _combines(op) for op in ops)


def _combines(op: Operation) -> bool:
    return isinstance(op, Scatter) and (
        op.params.get("kind", "assign") != "assign" or bool(op.params.get("accumulate"))
    )


def _is_narrow(operand: Operand) -> bool:
    return operand.dtype in (f16, bf16)


def _are_aligned(operands: Sequence[Operand]) -> bool:
    return all(operand.has_aligned_lines for operand in operands)
