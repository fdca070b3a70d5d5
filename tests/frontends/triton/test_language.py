"""The functions of Triton's language on tiles, interpreted: what they compute, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import weft.triton.language as tl
from weft.frontends.triton.builders import builder
from weft.frontends.triton.builders.numpy_builder import NumpyBuilder
from weft.frontends.triton.errors import KernelShapeError, KernelTypeError, KernelValueError
from weft.frontends.triton.language.promotion import common_type
from weft.frontends.triton.language.types import OF_STORED, block_type
from weft.frontends.triton.language.values import tensor
from weft.ir.types import dtype_of_numpy
from weft.triton.language.extra import libdevice

RANDOM = np.random.default_rng(5)


@pytest.fixture(autouse=True)
def numpy_builder() -> Iterator[None]:
    token = builder.current.set(NumpyBuilder())
    yield
    builder.current.reset(token)


def tile(values: Any, dtype: Any = None) -> tensor:
    array = np.asarray(values, dtype)
    element = OF_STORED[dtype_of_numpy(array.dtype)]
    return tensor(array, block_type(element, array.shape) if array.shape else element)


def floats(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


# -- types ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (tl.int8, tl.int16, tl.int16),
        (tl.int32, tl.uint32, tl.uint32),
        (tl.int64, tl.uint32, tl.int64),
        (tl.float16, tl.int64, tl.float16),
        (tl.bfloat16, tl.float16, tl.float16),
        (tl.bfloat16, tl.bfloat16, tl.bfloat16),
        (tl.float8e5, tl.float8e4nv, tl.float16),
        (tl.int1, tl.int8, tl.int8),
    ],
)
def test_two_tensors_meet_in_the_wider_type(a: tl.dtype, b: tl.dtype, expected: tl.dtype) -> None:
    assert common_type(a, False, b, False, False) == expected


def test_a_number_takes_the_type_of_the_tensor_unless_its_kind_is_higher() -> None:
    assert (tile([1, 2], np.int8) + 1).dtype == tl.int8
    assert (tile([1, 2], np.int8) + 1.0).dtype == tl.float32
    assert (tile([1, 2], np.float16) * 2).dtype == tl.float16
    assert (tile([1, 2], np.float16) / 2).dtype == tl.float32


def test_a_number_that_does_not_fit_is_refused() -> None:
    with pytest.raises(KernelValueError, match="out of range for type int8"):
        tile([1], np.int8) + 300
    with pytest.raises(KernelValueError, match="negative scalar"):
        tile([1], np.uint8) + -1


def test_division_is_that_of_c() -> None:
    a, b = tile([-7, 7, -7], np.int32), tile([2, -2, -2], np.int32)
    assert (a // b).handle.tolist() == [-3, -3, 3]
    assert (a % b).handle.tolist() == [-1, 1, -1]


# -- shapes --------------------------------------------------------------------------------------------------------


def test_shapes() -> None:
    x = floats(4, 6)
    value = tile(x)
    np.testing.assert_array_equal(tl.trans(value).handle, x.T)
    np.testing.assert_array_equal(tl.reshape(value, 3, 8).handle, x.reshape(3, 8))
    np.testing.assert_array_equal(tl.flip(value, 0).handle, x[::-1])
    np.testing.assert_array_equal(value[:, None, :].handle, x[:, None, :])
    np.testing.assert_array_equal(tl.broadcast_to(value[None], [2, 4, 6]).handle, np.broadcast_to(x, (2, 4, 6)))


def test_join_split_interleave_cat() -> None:
    a, b = floats(3, 4), floats(3, 4)
    joined = tl.join(tile(a), tile(b))
    np.testing.assert_array_equal(joined.handle, np.stack([a, b], -1))
    left, right = tl.split(joined)
    np.testing.assert_array_equal(left.handle, a)
    np.testing.assert_array_equal(right.handle, b)
    np.testing.assert_array_equal(tl.interleave(tile(a), tile(b)).handle, np.stack([a, b], -1).reshape(3, 8))
    for axis, other in ((0, floats(5, 4)), (1, floats(3, 2)), (1, b)):
        expected = np.concatenate([a, other], axis)
        np.testing.assert_array_equal(tl.cat(tile(a), tile(other), dim=axis).handle, expected)


def test_shapes_that_do_not_fit_say_so() -> None:
    with pytest.raises(KernelShapeError, match=r"incompatible dimensions at index 0: 3 and 4"):
        tile(floats(3)) + tile(floats(4))
    with pytest.raises(KernelShapeError, match="cannot change total number of elements"):
        tl.reshape(tile(floats(4)), 3)


# -- reductions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [0, 1, None])
def test_reductions(axis: int | None) -> None:
    x = floats(5, 7)
    value = tile(x)
    np.testing.assert_allclose(tl.sum(value, axis).handle, x.sum(axis), rtol=1e-5)
    np.testing.assert_array_equal(tl.max(value, axis).handle, x.max(axis))
    np.testing.assert_array_equal(tl.min(value, axis).handle, x.min(axis))
    np.testing.assert_allclose(tl.reduce(value, axis, lambda a, b: a + b).handle, x.sum(axis), rtol=1e-5)
    if axis is not None:
        np.testing.assert_array_equal(tl.argmax(value, axis).handle, x.argmax(axis))
        best, index = tl.min(value, axis, return_indices=True)
        np.testing.assert_array_equal(best.handle, x.min(axis))
        np.testing.assert_array_equal(index.handle, x.argmin(axis))


def test_reduction_in_order_with_any_function() -> None:
    """Affine maps are associative but do not commute."""
    a, b = floats(9), floats(9)

    def then(a1: Any, b1: Any, a2: Any, b2: Any) -> Any:
        return a1 * a2, b1 * a2 + b2

    scale, shift = 1.0, 0.0
    scales, shifts = [], []
    for p, q in zip(a.tolist(), b.tolist(), strict=True):
        scale, shift = scale * p, shift * p + q
        scales.append(scale)
        shifts.append(shift)
    got = tl.reduce((tile(a), tile(b)), 0, then)
    np.testing.assert_allclose([float(v.handle) for v in got], [scale, shift], rtol=1e-4, atol=1e-5)
    first, second = tl.associative_scan((tile(a), tile(b)), 0, then)
    np.testing.assert_allclose(first.handle, scales, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(second.handle, shifts, rtol=1e-4, atol=1e-5)


def test_scans_and_sorts() -> None:
    x = floats(4, 8)
    np.testing.assert_allclose(tl.cumsum(tile(x), 1).handle, x.cumsum(1), rtol=1e-5, atol=1e-6)
    reverse = x[:, ::-1].cumprod(1)[:, ::-1]
    np.testing.assert_allclose(tl.cumprod(tile(x), 1, reverse=True).handle, reverse, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(tl.sort(tile(x)).handle, np.sort(x))
    np.testing.assert_array_equal(tl.sort(tile(x), descending=True).handle, np.sort(x)[:, ::-1])
    np.testing.assert_array_equal(tl.topk(tile(x), 2).handle, np.sort(x)[:, ::-1][:, :2])
    counted = tl.histogram(tile([0, 1, 1, 3], np.int32), 4, mask=tile([True, True, False, True]))
    assert counted.handle.tolist() == [1, 1, 0, 1]


def test_bits_are_reduced() -> None:
    x = RANDOM.integers(0, 1 << 30, (3, 8)).astype(np.int32)
    np.testing.assert_array_equal(tl.xor_sum(tile(x), 1).handle, np.bitwise_xor.reduce(x, 1))
    np.testing.assert_array_equal(tl.reduce_or(tile(x), 0).handle, np.bitwise_or.reduce(x, 0))


def test_a_combine_function_of_the_wrong_type_is_refused() -> None:
    with pytest.raises(KernelTypeError, match="gives int1 where it was given fp32"):
        tl.reduce(tile(floats(4)), 0, lambda a, b: a < b)


# -- casts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("element", "reference"),
    [(tl.float8e4b8, ml_dtypes.float8_e4m3fnuz), (tl.float8e5b16, ml_dtypes.float8_e5m2fnuz)],
)
def test_eight_bit_floats_of_other_machines(element: tl.dtype, reference: Any) -> None:
    codes = np.arange(256, dtype=np.uint8)
    decoded = tile(codes).to(element, bitcast=True).to(tl.float32).handle
    np.testing.assert_array_equal(decoded, codes.view(reference).astype(np.float32))
    x = (RANDOM.standard_normal(2000) * 2.0 ** RANDOM.integers(-14, 6, 2000)).astype(np.float32)
    encoded = tile(x).to(element).to(tl.uint8, bitcast=True).handle
    np.testing.assert_array_equal(encoded, x.astype(reference).view(np.uint8))


def test_casts_to_eight_bits_stay_finite() -> None:
    x = tile([1000.0, -1e9, float("inf"), 3.0], np.float32)
    assert x.to(tl.float8e4nv).to(tl.float32).handle.tolist() == [448.0, -448.0, 448.0, 3.0]
    assert np.isnan(tile([float("nan")], np.float32).to(tl.float8e5).to(tl.float32).handle).all()


def test_rounding_towards_zero() -> None:
    x = floats(1000)
    cut = tile(x).to(tl.bfloat16, fp_downcast_rounding="rtz").to(tl.float32).handle
    np.testing.assert_array_equal(cut, (x.view(np.uint32) & 0xFFFF0000).view(np.float32))
    with pytest.raises(KernelValueError, match="truncating fp conversions"):
        tile(x).to(tl.float64, fp_downcast_rounding="rtz")


def test_bits_of_another_width_are_refused() -> None:
    with pytest.raises(KernelValueError, match="size 32 to data-type of size 16"):
        tile(floats(4)).to(tl.int16, bitcast=True)


# -- products ------------------------------------------------------------------------------------------------------


def test_dot_adds_to_its_accumulator() -> None:
    a, b, c = floats(4, 6), floats(6, 5), floats(4, 5)
    np.testing.assert_allclose(tl.dot(tile(a), tile(b), tile(c)).handle, a @ b + c, rtol=1e-5, atol=1e-5)
    with pytest.raises(KernelShapeError, match="equal reduction dimensions"):
        tl.dot(tile(a), tile(a))
    with pytest.raises(KernelTypeError, match="Both operands must be same dtype"):
        tl.dot(tile(a), tile(b.astype(np.float16)))


FOUR_BITS = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


@pytest.mark.parametrize("block", [16, 32])
def test_dot_scaled_of_four_bit_floats(block: int) -> None:
    m, n, k = 8, 4, 64
    codes_a, codes_b = RANDOM.integers(0, 16, (m, k)), RANDOM.integers(0, 16, (k, n))
    packed_a = (codes_a[:, ::2] | codes_a[:, 1::2] << 4).astype(np.uint8)
    packed_b = (codes_b[::2] | codes_b[1::2] << 4).astype(np.uint8)
    if block == 32:
        scale_a, scale_b = (RANDOM.integers(120, 134, (rows, k // 32)).astype(np.uint8) for rows in (m, n))
        factor_a, factor_b = 2.0 ** (scale_a - 127.0), 2.0 ** (scale_b - 127.0)
    else:
        scale_a, scale_b = (np.abs(floats(rows, k // 16)).astype(ml_dtypes.float8_e4m3fn) for rows in (m, n))
        factor_a, factor_b = scale_a.astype(np.float64), scale_b.astype(np.float64)
    a = FOUR_BITS[codes_a] * np.repeat(factor_a, block, 1)
    b = FOUR_BITS[codes_b] * np.repeat(factor_b, block, 1).T
    got = tl.dot_scaled(tile(packed_a), tile(scale_a), "e2m1", tile(packed_b), tile(scale_b), "e2m1")
    np.testing.assert_allclose(got.handle, a @ b, rtol=1e-5, atol=1e-5)


# -- random numbers ------------------------------------------------------------------------------------------------


def test_philox_is_philox() -> None:
    """The first known answers of Random123's own tests."""
    zero = tile(np.zeros(1, np.uint32))
    words = [int(word.handle[0]) for word in tl.philox(0, zero, zero, zero, zero)]
    assert words == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    ones = tile(np.full(1, 0xFFFFFFFF, np.uint32))
    words = [int(word.handle[0]) for word in tl.philox(tile(np.uint64(2**64 - 1)), ones, ones, ones, ones)]
    assert words == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]


def test_uniform_numbers_lie_between_zero_and_one() -> None:
    values = tl.rand(7, tl.arange(0, 4096)).handle
    assert values.min() >= 0 and values.max() < 1
    assert abs(float(values.mean()) - 0.5) < 0.02
    assert abs(float(tl.randn(7, tl.arange(0, 4096)).handle.std()) - 1) < 0.05


# -- elementary functions ------------------------------------------------------------------------------------------


def test_math_takes_wide_floats_only() -> None:
    with pytest.raises(KernelTypeError, match=r"Expected dtype \['fp32', 'fp64'\] but got fp16"):
        tl.exp(tile(floats(4).astype(np.float16)))


@pytest.mark.parametrize("width", [32, 64])
def test_umulhi(width: int) -> None:
    a, b = (RANDOM.integers(0, 1 << width, 100, np.uint64) if width == 64 else None for _ in range(2))
    if width == 32:
        a, b = (RANDOM.integers(0, 1 << 32, 100).astype(np.uint32) for _ in range(2))
    assert a is not None and b is not None
    expected = [p * q >> width for p, q in zip(a.tolist(), b.tolist(), strict=True)]
    assert tl.umulhi(tile(a), tile(b)).handle.tolist() == expected


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (libdevice.cbrt, np.cbrt),
        (libdevice.exp10, lambda x: 10.0**x),
        (libdevice.round, lambda x: np.trunc(x + np.copysign(0.5, x))),
        (libdevice.rint, np.rint),
        (libdevice.signbit, np.signbit),
        (libdevice.logb, lambda x: np.floor(np.log2(np.abs(x)))),
        (libdevice.fast_tanhf, np.tanh),
        (libdevice.float2int_rd, np.floor),
    ],
)
def test_libdevice(function: Callable[..., tensor], expected: Callable[..., np.ndarray]) -> None:
    x = floats(200) * 3
    np.testing.assert_allclose(function(tile(x)).handle, expected(x.astype(np.float64)), rtol=2e-6)


def test_map_elementwise_of_a_function_with_branches() -> None:
    def compare(x: Any, y: Any) -> Any:
        if x < y:
            return -1
        return 1 if x > y else 0

    a, b = RANDOM.integers(0, 3, 50).astype(np.int32), RANDOM.integers(0, 3, 50).astype(np.int32)
    assert tl.map_elementwise(compare, tile(a), tile(b)).handle.tolist() == np.sign(a - b).tolist()


def test_map_elementwise_of_neighbours() -> None:
    def swap(first: Any, second: Any) -> Any:
        return second, first

    x = np.arange(8, dtype=np.int32)
    assert tl.map_elementwise(swap, tile(x), pack=2).handle.tolist() == [1, 0, 3, 2, 5, 4, 7, 6]
