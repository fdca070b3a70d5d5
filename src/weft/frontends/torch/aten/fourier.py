"""Fourier transforms, where no library takes them (`Capabilities.library_transforms`)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from xdsl.ir import SSAValue

from weft.errors import UnsupportedError
from weft.frontends.torch.aten.complex import complex_aten
from weft.frontends.torch.importer.builder import ImportBuilder, normal_dim
from weft.frontends.torch.importer.complex_numbers import Complex
from weft.ir.expr import Size
from weft.ops.fourier import dft, irfft, rfft


def _scale(sizes: Sequence[Size], normalization: int) -> float:
    """The factor of a transform: 1, by the root of the number of elements, or by the number."""
    if not normalization:
        return 1.0
    known = [size for size in sizes if isinstance(size, int)]
    if len(known) < len(sizes):
        raise UnsupportedError("a normalized transform of unknown size")
    count = math.prod(known)
    return 1.0 if not count else 1 / count if normalization == 2 else 1 / math.sqrt(count)


def _dims(b: ImportBuilder, x: SSAValue, dims: Sequence[int]) -> list[int]:
    return [normal_dim(dim, b.rank(x)) for dim in dims]


@complex_aten("_fft_r2c")
def fft_r2c(b: ImportBuilder, x: SSAValue, dim: Sequence[int], normalization: int, onesided: bool) -> Complex:
    dims = _dims(b, x, dim)
    scale = _scale([b.shape(x)[d] for d in dims], normalization)
    if onesided:
        return Complex(b, rfft(b, x, dims, scale))
    real, imag = dft(b, (x, None), dims, scale=scale)
    return Complex(b, (real, b.expand(b.number(0.0, b.dtype(real)), b.shape(real)) if imag is None else imag))


@complex_aten("_fft_c2c")
def fft_c2c(b: ImportBuilder, x: Complex, dim: Sequence[int], normalization: int, forward: bool) -> Complex:
    dims = _dims(b, x.real, dim)
    scale = _scale([b.shape(x.real)[d] for d in dims], normalization)
    real, imag = dft(b, (x.real, x.imag), dims, inverse=not forward, scale=scale)
    assert imag is not None, "both parts are given"
    return Complex(b, (real, imag))


@complex_aten("_fft_c2r")
def fft_c2r(b: ImportBuilder, x: Complex, dim: Sequence[int], normalization: int, last_dim_size: Size) -> SSAValue:
    dims = _dims(b, x.real, dim)
    sizes = [*(b.shape(x.real)[d] for d in dims[:-1]), last_dim_size]
    return irfft(b, (x.real, x.imag), last_dim_size, dims, _scale(sizes, normalization))
