"""Pooling and its gradients: torch's defaults, windows that reach over the edge, and what a mean divides by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from xdsl.ir import SSAValue

from weft.errors import UnsupportedError
from weft.frontends.torch.aten.table import aten
from weft.frontends.torch.importer.builder import ImportBuilder
from weft.ir.expr import Size, as_int
from weft.ir.types import DType, i64
from weft.ops.windows.pool import SumPool, max_unpool
from weft.ops.windows.unpool import places_of_taps

Sizes = Sequence[int]


@dataclass(frozen=True)
class Windows:
    """Windows over the last dimensions; `high` is how far they reach beyond the end, which `ceil_mode` may extend."""

    window: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    high: tuple[Size, ...]

    @property
    def params(self) -> dict[str, Any]:
        return {
            "window": self.window,
            "strides": self.strides,
            "padding": tuple(zip(self.padding, self.high, strict=True)),
            "dilation": self.dilation,
        }


def windows_of(
    rank: int,
    sizes: Sequence[Size],
    counts: Sequence[Size],
    window: Sizes,
    strides: Sizes,
    padding: Sizes,
    dilation: Sizes,
    ceil_mode: bool,
) -> Windows:
    """The windows, where one number stands for all dimensions and no strides for those of the window."""
    window = _every(window, rank)
    strides = _every(strides, rank) if strides else window
    padding, dilation = _every(padding, rank), _every(dilation, rank)
    high: list[Size] = list(padding)
    if ceil_mode:
        for d in range(rank):
            reach = (counts[d] - 1) * strides[d] + dilation[d] * (window[d] - 1) + 1 - sizes[d] - padding[d]
            if as_int(reach) is None:
                raise UnsupportedError("pooling in ceil mode over symbolic sizes")
            high[d] = max(reach, 0)  # pyright: ignore[reportArgumentType]
    return Windows(window, strides, padding, dilation, tuple(high))


def _every(sizes: Sizes | int, rank: int) -> tuple[int, ...]:
    given = (sizes,) if isinstance(sizes, int) else tuple(sizes)
    return given * rank if len(given) == 1 else given


def _max_pool(rank: int) -> Any:
    def convert(
        b: ImportBuilder,
        x: SSAValue,
        window: Sizes,
        strides: Sizes = (),
        padding: Sizes = (0,),
        dilation: Sizes = (1,),
        ceil_mode: bool = False,
    ) -> tuple[SSAValue, SSAValue]:
        sizes, counts = b.shape(x)[-rank:], b.result.shape[-rank:]
        params = windows_of(rank, sizes, counts, window, strides, padding, dilation, ceil_mode).params
        return b.emit("max_pool", x, **params), b.emit("max_pool_indices", x, **params)

    return convert


def _max_pool_backward(rank: int) -> Any:
    def convert(b: ImportBuilder, grad: SSAValue, x: SSAValue, *geometry: Any) -> SSAValue:
        places = geometry[-1]
        return max_unpool(b, grad, places, b.shape(x), rank)

    return convert


def _avg_pool(rank: int) -> Any:
    def convert(
        b: ImportBuilder,
        x: SSAValue,
        window: Sizes,
        strides: Sizes = (),
        padding: Sizes = (0,),
        ceil_mode: bool = False,
        include_padding: bool = True,
        divisor: int | None = None,
    ) -> SSAValue:
        sizes, counts = b.shape(x)[-rank:], b.result.shape[-rank:]
        where = windows_of(rank, sizes, counts, window, strides, padding, (1,), ceil_mode)
        total = b.emit("sum_pool", b.wide(x), **where.params)
        return b.emit("div", total, _divisor(b, where, sizes, counts, include_padding, divisor, b.dtype(total)))

    return convert


def _avg_pool_backward(rank: int) -> Any:
    def convert(
        b: ImportBuilder,
        grad: SSAValue,
        x: SSAValue,
        window: Sizes,
        strides: Sizes,
        padding: Sizes,
        ceil_mode: bool,
        include_padding: bool,
        divisor: int | None,
    ) -> SSAValue | None:
        sizes, counts = b.shape(x)[-rank:], b.shape(grad)[-rank:]
        where = windows_of(rank, sizes, counts, window, strides, padding, (1,), ceil_mode)
        wide = b.wide(grad)
        share = b.emit("div", wide, _divisor(b, where, sizes, counts, include_padding, divisor, b.dtype(wide)))
        return SumPool.vjp(b, (share,), (x,), (), **where.params)[0]

    return convert


def _divisor(
    b: ImportBuilder,
    where: Windows,
    sizes: Sequence[Size],
    counts: Sequence[Size],
    include_padding: bool,
    divisor: int | None,
    dtype: DType,
) -> SSAValue:
    """By what the sum of each window is divided: a number, or the count of elements that are there."""
    if not dtype.is_float:
        raise UnsupportedError("the mean of windows of integers")
    if divisor is not None:
        return b.number(divisor, dtype)
    result: SSAValue | None = None
    rank = len(sizes)
    for d, (size, extent, stride, low, high) in enumerate(
        zip(sizes, where.window, where.strides, where.padding, where.high, strict=True)
    ):
        whole = (low == 0 and high == 0) or (include_padding and high == low)
        count = (
            b.number(extent, dtype)
            if whole
            else b.to(_counted(b, counts[d], size, extent, stride, low, include_padding), dtype)
        )
        if not whole:
            count = b.unsqueeze(count, *range(1, rank - d))
        result = count if result is None else b.emit("mul", result, count)
    assert result is not None, "windows have dimensions"
    return result


def _counted(
    b: ImportBuilder, count: Size, size: Size, extent: int, stride: int, low: int, include_padding: bool
) -> SSAValue:
    """How many elements of each window along one dimension count."""
    start = b.emit("iota", shape=(count,), dim=0, dtype=i64, start=-low, step=stride)
    end = b.emit("minimum", b.emit("add", start, b.number(extent, i64)), b.number(size + low, i64))
    if not include_padding:
        start = b.emit("maximum", start, b.number(0, i64))
        end = b.emit("minimum", end, b.number(size, i64))
    return b.emit("sub", end, start)


for _rank in (2, 3):
    aten(f"max_pool{_rank}d_with_indices")(_max_pool(_rank))
    aten(f"max_pool{_rank}d_with_indices_backward")(_max_pool_backward(_rank))
    aten(f"avg_pool{_rank}d")(_avg_pool(_rank))
    aten(f"avg_pool{_rank}d_backward")(_avg_pool_backward(_rank))


@aten("avg_pool1d")
def avg_pool1d(b: ImportBuilder, x: SSAValue, window: Sizes, *geometry: Any) -> SSAValue:
    return _avg_pool(1)(b, x, window, *geometry)


@aten("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_avg_pool1d")
def adaptive_avg_pool(b: ImportBuilder, x: SSAValue, shape: Sequence[Size]) -> SSAValue:
    total = b.emit("adaptive_sum_pool", b.wide(x), shape=tuple(shape))
    return b.emit("div", total, _adaptive_counts(b, b.shape(x)[-len(shape) :], shape, b.dtype(total)))


@aten("_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward")
def adaptive_avg_pool_backward(b: ImportBuilder, grad: SSAValue, x: SSAValue) -> SSAValue:
    rank = 3 if "3d" in str(b.node.target) else 2
    sizes, counts = b.shape(x)[-rank:], b.shape(grad)[-rank:]
    wide = b.wide(grad)
    share = b.emit("div", wide, _adaptive_counts(b, sizes, counts, b.dtype(wide)))
    # The windows that an element lies in are those of pooling the other way.
    return b.emit("adaptive_sum_pool", share, shape=sizes)


@aten("weft.max_pool_backward")
def max_pool_backward(
    b: ImportBuilder, grad: SSAValue, offsets: SSAValue, sizes: Sequence[Size], channels_last: bool, *geometry: Any
) -> SSAValue:
    rank = len(geometry[0])
    shape = tuple(sizes[len(sizes) - rank :])
    params: dict[str, Any] = {"shape": shape, **windows_of(rank, shape, b.shape(grad)[-rank:], *geometry).params}
    if channels_last or b.capabilities.thread_blocks:
        return b.emit("max_unpool", grad, offsets, **params)
    # A row of an image is no vector of windows: a processor adds each window's value to its place.
    return max_unpool(b, grad, places_of_taps(b, offsets, **params)[0], tuple(sizes), rank)


@aten("adaptive_max_pool2d", "adaptive_max_pool3d")
def adaptive_max_pool(b: ImportBuilder, x: SSAValue, shape: Sequence[Size]) -> tuple[SSAValue, SSAValue]:
    params = {"shape": tuple(shape)}
    return b.emit("adaptive_max_pool", x, **params), b.emit("adaptive_max_pool_indices", x, **params)


@aten("adaptive_max_pool2d_backward", "adaptive_max_pool3d_backward")
def adaptive_max_pool_backward(b: ImportBuilder, grad: SSAValue, x: SSAValue, places: SSAValue) -> SSAValue:
    return max_unpool(b, grad, places, b.shape(x), 3 if "3d" in str(b.node.target) else 2)


def _adaptive_counts(b: ImportBuilder, sizes: Sequence[Size], counts: Sequence[Size], dtype: DType) -> SSAValue:
    """The number of elements in each window when `sizes` are covered by `counts` windows of nearly equal size."""
    rank = len(sizes)
    result: SSAValue | None = None
    for d, (size, count) in enumerate(zip(sizes, counts, strict=True)):
        place = b.iota_of(count)
        extent, number = b.number(size, i64), b.number(count, i64)
        first = b.emit("floordiv", b.emit("mul", place, extent), number)
        last = b.emit("mul", b.emit("add", place, b.number(1, i64)), extent)
        end = b.emit("floordiv", b.emit("add", last, b.number(count - 1, i64)), number)
        along = b.unsqueeze(b.to(b.emit("sub", end, first), dtype), *range(1, rank - d))
        result = along if result is None else b.emit("mul", result, along)
    assert result is not None, "windows have dimensions"
    return result
