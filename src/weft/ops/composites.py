"""Operations that are not ops but short programs of ops: front ends call them with a builder.

Statistics of narrow floats are computed in f32; only the result is rounded.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from weft.ir.expr import Size, floordiv, mod, product
from weft.ir.types import DType, f32
from weft.ops.graph import GraphBuilder
from weft.ops.rules import size_value
from weft.ops.windows.window import Padding, ceil_extension


def widened(b: GraphBuilder, x: SSAValue) -> SSAValue:
    """`x` in f32 if its type is a narrower float."""
    dtype = b.tensor(x).dtype
    return b.cast(x, dtype=f32) if dtype.is_float and dtype.bits < 32 else x


def narrowed(b: GraphBuilder, x: SSAValue, dtype: DType) -> SSAValue:
    """`x` in the type that it had before `widened`."""
    return x if b.tensor(x).dtype == dtype else b.cast(x, dtype=dtype)


def _count(b: GraphBuilder, x: SSAValue, dims: Sequence[int]) -> Size:
    return product(b.tensor(x).shape[d] for d in dims)


def softmax(b: GraphBuilder, x: SSAValue, dim: int) -> SSAValue:
    """`exp(x) / Σ exp(x)` along `dim`."""
    wide = widened(b, x)
    powers = b.exp(b.sub(wide, b.max(wide, dims=(dim,), keep=True)))
    return narrowed(b, b.div(powers, b.sum(powers, dims=(dim,), keep=True)), b.tensor(x).dtype)


def log_softmax(b: GraphBuilder, x: SSAValue, dim: int) -> SSAValue:
    """`log(softmax(x))` along `dim`, without leaving the range of the type."""
    wide = widened(b, x)
    shifted = b.sub(wide, b.max(wide, dims=(dim,), keep=True))
    total = b.log(b.sum(b.exp(shifted), dims=(dim,), keep=True))
    return narrowed(b, b.sub(shifted, total), b.tensor(x).dtype)


def logsumexp(b: GraphBuilder, x: SSAValue, dims: tuple[int, ...], keep: bool) -> SSAValue:
    """`log(Σ exp(x))` over `dims`."""
    wide = widened(b, x)
    greatest = b.max(wide, dims=dims, keep=True)
    # Infinity minus infinity is not a number; an infinite maximum decides the sum without being taken away.
    shift = b.where(b.isinf(greatest), b.full_like(greatest, 0), greatest)
    total = b.add(b.log(b.sum(b.exp(b.sub(wide, shift)), dims=dims, keep=True)), shift)
    if not keep:
        total = b.reshape(total, shape=tuple(size for d, size in enumerate(b.tensor(x).shape) if d not in dims))
    return narrowed(b, total, b.tensor(x).dtype)


def mean(b: GraphBuilder, x: SSAValue, dims: tuple[int, ...], keep: bool) -> SSAValue:
    """The arithmetic mean over `dims`."""
    total = b.sum(widened(b, x), dims=dims, keep=keep)
    return narrowed(b, b.div(total, size_value(b, _count(b, x, dims), b.tensor(total).dtype)), b.tensor(x).dtype)


def _moments(
    b: GraphBuilder, x: SSAValue, dims: tuple[int, ...], correction: float = 0
) -> tuple[SSAValue, SSAValue, SSAValue]:
    """The deviations from the mean, the mean and the variance of a wide operand; `dims` are kept."""
    center = mean(b, x, dims, keep=True)
    deviation = b.sub(x, center)
    squares = b.sum(b.mul(deviation, deviation), dims=dims, keep=True)
    size = _count(b, x, dims)
    freedom = b.full_like(x, max(float(size - correction), 0.0)) if isinstance(size, int) else None
    if freedom is None:
        count = size_value(b, size, b.tensor(x).dtype)
        freedom = b.maximum(b.sub(count, b.full_like(x, correction)), b.full_like(x, 0))
    return deviation, center, b.div(squares, freedom)


def var_mean(
    b: GraphBuilder, x: SSAValue, dims: tuple[int, ...], keep: bool, correction: float = 1
) -> tuple[SSAValue, SSAValue]:
    """The variance and the mean over `dims`; squares are divided by the number of elements less `correction`."""
    dtype = b.tensor(x).dtype
    _, center, spread = _moments(b, widened(b, x), dims, correction)
    if not keep:
        shape = tuple(size for d, size in enumerate(b.tensor(x).shape) if d not in dims)
        center, spread = b.reshape(center, shape=shape), b.reshape(spread, shape=shape)
    return narrowed(b, spread, dtype), narrowed(b, center, dtype)


def var(b: GraphBuilder, x: SSAValue, dims: tuple[int, ...], keep: bool, correction: float = 1) -> SSAValue:
    """The variance over `dims`."""
    return var_mean(b, x, dims, keep, correction)[0]


def std(b: GraphBuilder, x: SSAValue, dims: tuple[int, ...], keep: bool, correction: float = 1) -> SSAValue:
    """The standard deviation over `dims`."""
    return narrowed(b, b.sqrt(var(b, widened(b, x), dims, keep, correction)), b.tensor(x).dtype)


def _scaled(b: GraphBuilder, x: SSAValue, weight: SSAValue | None, bias: SSAValue | None, spatial: int = 0) -> SSAValue:
    """`x * weight + bias` in the type of `x`; both broadcast, after `spatial` dimensions of size 1 behind them."""
    dtype = b.tensor(x).dtype
    if weight is not None:
        x = b.mul(x, narrowed(b, _columns(b, weight, spatial), dtype))
    return x if bias is None else b.add(x, narrowed(b, _columns(b, bias, spatial), dtype))


def _columns(b: GraphBuilder, value: SSAValue, spatial: int) -> SSAValue:
    shape = b.tensor(value).shape
    return b.reshape(value, shape=(*shape, *(1 for _ in range(spatial)))) if spatial else value


def _standardized(
    b: GraphBuilder, x: SSAValue, dims: tuple[int, ...], eps: float
) -> tuple[SSAValue, SSAValue, SSAValue]:
    """A wide `x` with mean 0 and variance 1 over `dims`; the mean that it had; one over its standard deviation."""
    deviation, center, spread = _moments(b, x, dims)
    rstd = b.rsqrt(b.add(spread, b.full_like(spread, eps)))
    return b.mul(deviation, rstd), center, rstd


def layer_norm(
    b: GraphBuilder,
    x: SSAValue,
    weight: SSAValue | None,
    bias: SSAValue | None,
    dims: tuple[int, ...],
    eps: float,
) -> tuple[SSAValue, SSAValue, SSAValue]:
    """Normalize over the last dimensions `dims`, then scale and shift.

    Also gives the mean and 1 / standard deviation, with `dims` of size 1, in the type they were computed in.
    """
    normal, center, rstd = _standardized(b, widened(b, x), dims, eps)
    return narrowed(b, _scaled(b, normal, weight, bias), b.tensor(x).dtype), center, rstd


def rms_norm(
    b: GraphBuilder, x: SSAValue, weight: SSAValue | None, dims: tuple[int, ...], eps: float
) -> tuple[SSAValue, SSAValue]:
    """Divide by the root of the mean square over `dims`, then scale.

    Also gives 1 / that root, with `dims` of size 1, in the type it was computed in.
    """
    wide = widened(b, x)
    square = mean(b, b.mul(wide, wide), dims, keep=True)
    rstd = b.rsqrt(b.add(square, b.full_like(square, eps)))
    return narrowed(b, _scaled(b, b.mul(wide, rstd), weight, None), b.tensor(x).dtype), rstd


def group_norm(
    b: GraphBuilder, x: SSAValue, weight: SSAValue | None, bias: SSAValue | None, groups: int, eps: float
) -> tuple[SSAValue, SSAValue, SSAValue]:
    """Normalize [N, C, ...] over each of `groups` runs of channels, then scale and shift each channel.

    Also gives the mean and 1 / standard deviation [N, groups].
    """
    rows, channels, *spatial = b.tensor(x).shape
    # Each run is dimensions of its own to the end, so that all of it is one kernel over the runs.
    shape = (groups, channels // groups)
    grouped = b.reshape(widened(b, x), shape=(rows, *shape, *spatial))
    normal, center, rstd = _standardized(b, grouped, tuple(range(2, 3 + len(spatial))), eps)
    factor, shift = (None if value is None else b.reshape(value, shape=shape) for value in (weight, bias))
    result = narrowed(b, _scaled(b, normal, factor, shift, len(spatial)), b.tensor(x).dtype)
    statistics = (b.reshape(value, shape=(rows, groups)) for value in (center, rstd))
    return b.reshape(result, shape=b.tensor(x).shape), *statistics


def batch_norm(
    b: GraphBuilder,
    x: SSAValue,
    weight: SSAValue | None,
    bias: SSAValue | None,
    center: SSAValue,
    variance: SSAValue,
    eps: float,
) -> SSAValue:
    """Normalize each channel of [N, C, ...] by the given mean and variance, then scale and shift."""
    wide = widened(b, x)
    spatial = b.tensor(x).rank - 2
    spread = widened(b, variance)
    rstd = b.rsqrt(b.add(spread, b.full_like(spread, eps)))
    factor = rstd if weight is None else b.mul(rstd, narrowed(b, weight, b.tensor(rstd).dtype))
    shifted = b.sub(wide, narrowed(b, _columns(b, center, spatial), b.tensor(wide).dtype))
    result = _scaled(b, shifted, factor, bias, spatial)
    return narrowed(b, result, b.tensor(x).dtype)


def batch_norm_training(
    b: GraphBuilder, x: SSAValue, weight: SSAValue | None, bias: SSAValue | None, eps: float
) -> tuple[SSAValue, SSAValue, SSAValue]:
    """Normalize each channel of [N, C, ...] by its own mean and variance, then scale and shift.

    Also gives the mean and 1 / standard deviation of each channel.
    """
    spatial = b.tensor(x).rank - 2
    dims = (0, *range(2, spatial + 2))
    normal, center, rstd = _standardized(b, widened(b, x), dims, eps)
    result = _scaled(b, normal, weight, bias, spatial)
    statistics = (b.reshape(value, shape=b.tensor(x).shape[1:2]) for value in (center, rstd))
    return narrowed(b, result, b.tensor(x).dtype), *statistics


def avg_pool(
    b: GraphBuilder,
    x: SSAValue,
    window: tuple[Size, ...],
    strides: tuple[Size, ...],
    padding: Padding,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor: int | None = None,
) -> SSAValue:
    """The mean of each window over the last dimensions.

    The sum is divided by `divisor`, or by the number of elements of the window: all but those that only `ceil_mode`
    reaches, and without the padding unless `count_include_pad`.
    """
    sizes = b.tensor(x).shape[b.tensor(x).rank - len(window) :]
    ones = (1,) * len(window)
    extra: Sequence[Size] = (0,) * len(window)
    if ceil_mode:
        extra = [ceil_extension(*place) for place in zip(sizes, window, strides, padding, strict=True)]
    reach = tuple((low, high + more) for (low, high), more in zip(padding, extra, strict=True))
    total = b.sum_pool(widened(b, x), window=window, strides=strides, padding=reach, dilation=ones)
    dtype = b.tensor(total).dtype
    if divisor is not None:
        count = size_value(b, divisor, dtype)
    elif all(more == 0 and (count_include_pad or pair == (0, 0)) for more, pair in zip(extra, padding, strict=True)):
        count = size_value(b, product(window), dtype)
    else:
        if count_include_pad:
            sizes = tuple(low + size + high for size, (low, high) in zip(sizes, padding, strict=True))
            reach = tuple((0, more) for more in extra)
        every = b.full(value=1, shape=sizes, dtype=dtype)
        count = b.sum_pool(every, window=window, strides=strides, padding=reach, dilation=ones)
    return narrowed(b, b.div(total, count), b.tensor(x).dtype)


def adaptive_avg_pool(b: GraphBuilder, x: SSAValue, shape: tuple[Size, ...]) -> SSAValue:
    """The means of windows of nearly equal size that cover the last dimensions, `shape` of them."""
    sizes = b.tensor(x).shape[b.tensor(x).rank - len(shape) :]
    total = b.adaptive_sum_pool(widened(b, x), shape=shape)
    dtype = b.tensor(total).dtype
    if all(mod(size, count) == 0 for size, count in zip(sizes, shape, strict=True)):
        count = size_value(b, product(map(floordiv, sizes, shape)), dtype)
    else:
        count = b.adaptive_sum_pool(b.full(value=1, shape=sizes, dtype=dtype), shape=shape)
    return narrowed(b, b.div(total, count), b.tensor(x).dtype)
