"""Discrete Fourier transforms of any length, as products with small matrices: front ends call these with a builder.

A complex tensor is a pair of real ones. A length n = a·b is transformed in two steps (Cooley and Tukey): all columns of
a [a, b] matrix by a product with the matrix of length a, a turn of each element, then all rows in the same way. Lengths
without a small factor become a convolution of a length that has (Bluestein). The tables are constants, which are made
when a program is loaded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from xdsl.ir import SSAValue

from weft.errors import ShapeError
from weft.ir.expr import Size, product
from weft.ir.types import DType, f64, i64
from weft.ops.composites import narrowed, widened
from weft.ops.graph import GraphBuilder
from weft.ops.rules import flip, size_value

Pair: TypeAlias = tuple[SSAValue, SSAValue | None]
"""The real and the imaginary part; None for one that is 0."""
Transform: TypeAlias = Callable[[SSAValue], SSAValue]

_DIRECT = 64
"""The longest transform that is one product, unless it is shorter than `_WORTH` and has no factor below."""
_WORTH = 256
"""From here on, a convolution is less work than one product."""


def dft(b: GraphBuilder, x: Pair, dims: Sequence[int], *, inverse: bool = False, scale: float = 1.0) -> Pair:
    """The transform along `dims`, `Σ x exp(∓2πi jk/n)`, times `scale`: 1/n where an inverse undoes a transform."""
    dtype = b.tensor(x[0]).dtype
    real, imag = (None if part is None else widened(b, part) for part in x)
    assert real is not None
    for dim in dims:
        real, imag = _along(b, (real, imag), dim, 1 if inverse else -1)
    if scale != 1.0:
        real, imag = (part if part is None else b.mul(part, b.full_like(part, scale)) for part in (real, imag))
        assert real is not None
    return narrowed(b, real, dtype), None if imag is None else narrowed(b, imag, dtype)


def rfft(b: GraphBuilder, x: SSAValue, dims: Sequence[int], scale: float = 1.0) -> tuple[SSAValue, SSAValue]:
    """The transform of real numbers; of the last of `dims` only the half that says all: n // 2 + 1 elements."""
    *others, last = dims
    half = dft(b, (x, None), [last])
    shape = b.tensor(x).shape
    kept = shape[last] // 2 + 1
    real, imag = dft(b, (resized(b, half[0], last, kept), resized(b, _given(b, half), last, kept)), others, scale=scale)
    return real, _given(b, (real, imag))


def irfft(b: GraphBuilder, x: Pair, size: Size, dims: Sequence[int], scale: float = 1.0) -> SSAValue:
    """What `rfft` is the transform of, if that has `size` elements along the last of `dims`."""
    *others, last = dims
    real, imag = dft(b, x, others, inverse=True)
    imag = _given(b, (real, imag))
    # The other half mirrors this one, with the opposite sign of the imaginary part.
    mirrored = (size - 1) // 2
    real, imag = (resized(b, part, last, size // 2 + 1) for part in (real, imag))
    if mirrored != 0:
        starts = [int(d == last) for d in range(len(b.tensor(real).shape))]
        ones = (1,) * len(starts)
        shape = [mirrored if d == last else n for d, n in enumerate(b.tensor(real).shape)]
        first, second = (
            flip(b, b.slice(part, starts=tuple(starts), shape=tuple(shape), steps=ones), last) for part in (real, imag)
        )
        real, imag = b.concat(real, first, dim=last), b.concat(imag, b.neg(second), dim=last)
    return dft(b, (real, imag), [last], inverse=True, scale=scale)[0]


def norm_scale(norm: str | None, size: int, *, inverse: bool) -> float:
    """The factor of a transform of so many elements by NumPy's names: `backward`, `ortho` or `forward`."""
    match norm or "backward":
        case "ortho":
            return 1 / math.sqrt(size) if size else 1.0
        case "backward" | "forward" as name:
            return 1 / size if size and (name == "backward") is inverse else 1.0
        case other:
            raise ShapeError(f"no norm is called {other}", hint="there are backward, ortho and forward")


def resized(b: GraphBuilder, x: SSAValue, dim: int, size: Size) -> SSAValue:
    """A tensor cut off at `size` elements along a dimension, or filled up with zeros."""
    shape = b.tensor(x).shape
    rest = size - shape[dim]
    if rest == 0:
        return x
    places = range(len(shape))
    if not isinstance(rest, int) and not isinstance(size, int) and not _is_shorter(size, shape[dim]):
        raise ShapeError(f"a transform of {size} elements of {shape[dim]}", hint="one of them must be known")
    # Where only a call tells whether the tensor is long enough, zeros behind it make it so.
    missing = rest if isinstance(rest, int) else size if isinstance(size, int) else 0
    if missing > 0:
        high = tuple(missing if d == dim else 0 for d in places)
        x = b.pad(x, low=(0,) * len(shape), high=high, value=0.0)
        if missing == rest:
            return x
    kept = tuple(size if d == dim else n for d, n in enumerate(shape))
    return b.slice(x, starts=(0,) * len(shape), shape=kept, steps=(1,) * len(shape))


def _is_shorter(size: Size, whole: Size) -> bool:
    """Whether a size is the half of another that is kept."""
    return size == whole // 2 + 1


def frames(b: GraphBuilder, x: SSAValue, length: int, step: int) -> SSAValue:
    """Frames of a signal [..., N] that begin every `step` elements: [..., count, length]."""
    shape = b.tensor(x).shape
    count = (shape[-1] - length) // step + 1
    whole = b.reshape(x, shape=(product(shape[:-1]), shape[-1], 1))
    rows = b.windows(whole, window=(length,), strides=(step,), dilation=(1,))
    return b.reshape(rows, shape=(*shape[:-1], count, length))


def _given(b: GraphBuilder, x: Pair) -> SSAValue:
    """The imaginary part, also where it is 0."""
    return b.broadcast(b.full_like(x[0], 0), shape=b.tensor(x[0]).shape) if x[1] is None else x[1]


def _along(b: GraphBuilder, x: Pair, dim: int, sign: int) -> Pair:
    """The transform along one dimension, which is brought to the end and back."""
    shape = b.tensor(x[0]).shape
    rank = len(shape)
    dim %= rank
    if shape[dim] == 0 or 0 in shape:
        return x
    order = tuple([d for d in range(rank) if d != dim] + [dim])
    back = tuple(sorted(range(rank), key=order.__getitem__))
    rows = (product([n for d, n in enumerate(shape) if d != dim]), shape[dim])
    flat = _each(x, lambda part: b.reshape(b.permute(part, dims=order), shape=rows))
    made = _rows(b, flat, sign)
    moved = tuple(shape[d] for d in order)
    return _each(made, lambda part: b.permute(b.reshape(part, shape=moved), dims=back))


def _each(x: Pair, change: Transform) -> Pair:
    return change(x[0]), None if x[1] is None else change(x[1])


def _rows(b: GraphBuilder, x: Pair, sign: int) -> Pair:
    """The transform of each row of [R, n]."""
    rows, n = b.tensor(x[0]).shape
    if not isinstance(n, int) or n <= _DIRECT:
        return _direct(b, x, sign)
    first = next((a for a in range(_DIRECT, 1, -1) if n % a == 0), 1)
    if first == 1:
        return _direct(b, x, sign) if n < _WORTH else _convolved(b, x, sign)
    second = n // first
    columns = _each(x, lambda p: _reordered(b, p, (rows, first, second), (rows * second, first)))
    made = _direct(b, columns, sign)
    # Element k of column j is turned by jk / n of a circle.
    cos, sin = _circle(b, (second, first), n, b.tensor(x[0]).dtype, sign)
    shaped = _each(made, lambda p: b.reshape(p, shape=(rows, second, first)))
    turned = _times(b, shaped, (cos, sin))
    inner = _each(turned, lambda p: _reordered(b, p, (rows, second, first), (rows * first, second)))
    done = _rows(b, inner, sign)
    return _each(done, lambda p: _reordered(b, p, (rows, first, second), (rows, n)))


def _reordered(b: GraphBuilder, x: SSAValue, shape: tuple[Size, ...], flat: tuple[Size, ...]) -> SSAValue:
    """The last two dimensions of a tensor of three exchanged."""
    return b.reshape(b.permute(b.reshape(x, shape=shape), dims=(0, 2, 1)), shape=flat)


def _direct(b: GraphBuilder, x: Pair, sign: int) -> Pair:
    """One product with the matrix of all turns; real and imaginary parts stand beside each other."""
    rows, n = b.tensor(x[0]).shape
    cos, sin = _circle(b, (n, n), n, b.tensor(x[0]).dtype, sign)
    if x[1] is None:
        both = b.dot(x[0], b.concat(cos, sin, dim=1))
    else:
        matrix = b.concat(b.concat(cos, sin, dim=1), b.concat(b.neg(sin), cos, dim=1), dim=0)
        both = b.dot(b.concat(x[0], x[1], dim=1), matrix)
    real, imag = (b.slice(both, starts=(0, start), shape=(rows, n), steps=(1, 1)) for start in (0, n))
    return real, imag


def _circle(b: GraphBuilder, shape: tuple[Size, Size], n: Size, dtype: DType, sign: int) -> tuple[SSAValue, SSAValue]:
    """The cosine and sine of `sign · 2π jk / n`, of row j and column k. Products are reduced as integers first."""
    places = [b.iota(shape=shape, dim=dim, dtype=i64) for dim in (0, 1)]
    return _turned(b, b.mul(*places), n, 2.0 * sign, dtype)


def _turned(b: GraphBuilder, places: SSAValue, n: Size, halves: float, dtype: DType) -> tuple[SSAValue, SSAValue]:
    """The cosine and sine of `halves · π · (places mod n) / n`."""
    rest = b.cast(b.remainder(places, size_value(b, n, i64)), dtype=f64)
    angle = b.div(b.mul(rest, b.full_like(rest, halves * math.pi)), b.cast(size_value(b, n, i64), dtype=f64))
    cos, sin = (narrowed(b, each, dtype) for each in (b.cos(angle), b.sin(angle)))
    return cos, sin


def _times(b: GraphBuilder, x: Pair, y: tuple[SSAValue, SSAValue]) -> tuple[SSAValue, SSAValue]:
    """The complex product."""
    (real, imag), (cos, sin) = x, y
    if imag is None:
        return b.mul(real, cos), b.mul(real, sin)
    return b.sub(b.mul(real, cos), b.mul(imag, sin)), b.add(b.mul(real, sin), b.mul(imag, cos))


def _convolved(b: GraphBuilder, x: Pair, sign: int) -> Pair:
    """Bluestein: with jk = (j² + k² - (k - j)²) / 2 the sum is a convolution, of a length that is a power of two."""
    n = b.tensor(x[0]).shape[1]
    assert isinstance(n, int)
    length = 1 << (2 * n - 2).bit_length()
    dtype = b.tensor(x[0]).dtype
    index = b.iota(shape=(n,), dim=0, dtype=i64)
    # A chirp repeats after 2n squares: half turns, modulo 2n.
    chirp = _turned(b, b.mul(index, index), 2 * n, 2.0 * sign, dtype)
    given = _each(_times(b, x, chirp), lambda part: resized(b, part, 1, length))
    around = b.iota(shape=(length,), dim=0, dtype=i64)
    distance = b.minimum(around, b.sub(b.full(value=length, shape=(), dtype=i64), around))
    cos, sin = _turned(b, b.mul(distance, distance), 2 * n, -2.0 * sign, dtype)
    near = b.lt(distance, b.full(value=n, shape=(), dtype=i64))
    filter_ = [b.reshape(b.where(near, each, b.full_like(each, 0)), shape=(1, length)) for each in (cos, sin)]
    real, imag = _rows(b, (filter_[0], filter_[1]), -1)
    assert imag is not None
    made = _rows(b, _times(b, _rows(b, given, -1), (real, imag)), 1)
    kept = _each(made, lambda part: resized(b, part, 1, n))
    scaled = _times(b, kept, chirp)
    factor = b.full(value=1 / length, shape=(), dtype=dtype)
    return b.mul(scaled[0], factor), b.mul(scaled[1], factor)
