"""What is a kernel of Weft's own where a vendor's library comes first, in terms that no framework has a part in."""

from __future__ import annotations

import pytest

from weft.ir.types import DType, Tensor, bf16, f32
from weft.ops.graph import FuncOp, GraphBuilder
from weft.passes.own_kernels import (
    Operand,
    needs_library,
    owns_attention,
    owns_attention_gradients,
    owns_grouped_product,
    owns_packed_attention,
    owns_product,
)


def lying(*shape: int, dtype: DType = bf16, turned: bool = False) -> Operand:
    """A tensor whose last dimension runs through memory, or the one before it."""
    strides = [1]
    sizes = shape[:-2] + shape[:-3:-1] if turned else shape
    for size in reversed(sizes[1:]):
        strides.insert(0, strides[0] * size)
    if turned:
        strides[-2:] = strides[:-3:-1]
    return Operand(dtype, dtype.bytes, shape, tuple(strides))


@pytest.mark.parametrize(
    ("m", "dtype", "turned", "own"),
    [
        (4096, bf16, False, True),  # many tiles
        (4096, f32, False, False),  # no matrix unit takes f32
        (256, bf16, False, False),  # too few tiles for all of a GPU
        (8, bf16, True, True),  # few rows: weights that run along K are read once
        (8, bf16, False, False),
    ],
)
def test_products(m: int, dtype: DType, turned: bool, own: bool) -> None:
    a, b = lying(m, 1024, dtype=dtype), lying(1024, 2048, dtype=dtype, turned=turned)
    assert owns_product(lying(m, 2048, dtype=dtype), a, b) == own


@pytest.mark.parametrize(
    ("sides", "own"), [((345, 8139, 582), True), ((67, 23, 41), True), ((7311, 6071, 17), False), ((16, 19, 20), False)]
)
def test_products_of_rows_that_begin_anywhere(sides: tuple[int, int, int], own: bool) -> None:
    m, n, k = sides
    assert owns_product(lying(m, n), lying(m, k), lying(k, n)) == own
    few = (lying(48, 96), lying(48, 128), lying(128, 96))  # rows that TMA reads, and few tiles
    assert not owns_product(*few)


def test_products_of_bytes_lie_along_k() -> None:
    result, a = lying(4096, 4096), Operand(None, 1, (4096, 4096), (4096, 1))
    for strides, own in (((1, 4096), True), ((4096, 1), False)):
        assert owns_product(result, a, Operand(None, 1, (4096, 4096), strides), of_bytes=True) == own


def test_attention_is_long_narrow_and_aligned() -> None:
    long, short, odd = lying(2, 8, 2048, 64), lying(2, 8, 128, 64), lying(2, 8, 2048, 72)
    assert owns_attention(long, long, long, masks_are_small=True)
    assert not owns_attention(short, short, short, masks_are_small=True)
    least = lying(2, 8, 192, 64)
    assert owns_attention(least, least, least, masks_are_small=True)
    assert not owns_attention(odd, odd, odd, masks_are_small=True)
    assert not owns_attention(long, long, long, masks_are_small=False)
    assert owns_attention(lying(2, 8, 1, 64), long, long, masks_are_small=False)
    wide = lying(2, 8, 2048, 64, dtype=f32)
    assert not owns_attention(wide, wide, wide, masks_are_small=True)


def test_packed_attention_has_three_dimensions() -> None:
    packed, batched = lying(4096, 8, 64), lying(2, 2048, 8, 64)
    assert owns_packed_attention(packed, packed, packed) and not owns_packed_attention(batched, batched, batched)


def test_gradients_are_own_kernels_from_the_same_length_on_as_attention() -> None:
    tensor, short, kept = lying(2, 8, 192, 64), lying(2, 8, 191, 64), lying(2, 8, 192, dtype=f32)
    for fast in (False, True):
        assert owns_attention_gradients((tensor,) * 4, kept, library_is_fast=fast)
        assert not owns_attention_gradients((short,) * 4, lying(2, 8, 191, dtype=f32), library_is_fast=fast)
    assert not owns_attention_gradients((tensor,) * 4, lying(2, 8, 193, dtype=f32), library_is_fast=False)


@pytest.mark.parametrize(("fast", "least"), [(False, 512), (True, 1024)])
def test_a_library_keeps_gradients_of_short_sequences_in_narrow_heads(fast: bool, least: int) -> None:
    for length in (least - 1, least):
        given, kept = (lying(2, 8, length, 48),) * 4, lying(2, 8, length, dtype=f32)
        assert owns_attention_gradients(given, kept, library_is_fast=fast) == (length == least)


@pytest.mark.parametrize("width", [144, 192, 256])
def test_gradients_of_wide_heads_are_own_kernels_from_the_same_length_on(width: int) -> None:
    long, short, kept = lying(2, 8, 192, width), lying(2, 8, 191, width), lying(2, 8, 192, dtype=f32)
    assert owns_attention_gradients((long, long, long, long), kept, library_is_fast=True)
    fewer = lying(2, 8, 191, dtype=f32)
    assert not owns_attention_gradients((short, short, short, short), fewer, library_is_fast=True)
    wider = lying(2, 8, 512, 272)
    assert not owns_attention_gradients((wider, wider, wider, wider), kept, library_is_fast=False)


def test_grouped_products_have_a_matrix_for_each_group() -> None:
    assert owns_grouped_product(lying(64, 1024), lying(8, 1024, 2048))
    assert not owns_grouped_product(lying(64, 1024), lying(1024, 2048))


def test_scans_are_a_librarys() -> None:
    function = FuncOp.make("f", {"x": Tensor(f32, (8,))})
    builder = GraphBuilder(function.block)
    builder.exp(function.block.args[0])
    assert not needs_library(function.block.ops)
    builder.cumsum(function.block.args[0], dim=0)
    assert needs_library(function.block.ops)
