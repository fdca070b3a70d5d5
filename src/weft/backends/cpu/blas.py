"""What the BLAS library can take: layouts of matrices, and the routine for an element type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.backends.cpu.launcher import PRODUCT
from weft.errors import GuardError
from weft.ir.expr import Size, evaluate
from weft.ir.types import f32, f64
from weft.lower.steps import DotStep, Place
from weft.ops.layouts import BLAS_LARGEST

_PLAIN, _TRANSPOSED = 111, 112
ROUTINES = {f32: "cblas_sgemm", f64: "cblas_dgemm"}


def blas_layout(place: Place) -> tuple[bool, Size] | None:
    """Whether BLAS sees the last two dimensions transposed, and the leading dimension; None if it cannot take them."""
    rows, columns = place.tensor.shape[-2:]
    row_stride, column_stride = place.layout.strides[-2:]
    if column_stride == 1 or columns == 1:
        if columns == 1 and column_stride != 1 and rows != 1 and row_stride == 1:
            return True, rows
        return False, (columns if rows == 1 else row_stride)
    if row_stride == 1 or rows == 1:
        return True, (rows if columns == 1 else column_stride)
    return None


def product_words(step: DotStep, sizes: Mapping[str, int], routines: Mapping[str, int]) -> list[list[int]]:
    """The steps of a tape that carry out a product: one for each run of batches that are evenly spaced."""
    dtype = step.out.tensor.dtype
    m, n = (evaluate(size, sizes) for size in step.out.tensor.shape[-2:])
    k = evaluate(step.a.tensor.shape[-1], sizes)
    batch = [evaluate(size, sizes) for size in step.out.tensor.shape[:-2]]
    if m == 0 or n == 0 or 0 in batch:
        return []
    # A sum of long sums of their own: errors grow with the longest.
    count = evaluate(step.partial_sums, sizes)
    parts = count if count > 0 and k % count == 0 else 1
    head = [PRODUCT, routines[ROUTINES[dtype]], int(dtype == f64), m, n, k // parts]
    transposes: list[int] = []
    leading: list[int] = []
    for place in (step.a, step.b, step.out):
        layout = blas_layout(place)
        assert layout is not None, "only such products are given to BLAS"
        assert not (layout[0] and place is step.out), "BLAS writes rows"
        transposes.append(_TRANSPOSED if layout[0] else _PLAIN)
        rows, columns = (evaluate(size, sizes) for size in place.tensor.shape[-2:])
        # The strides of an empty matrix mean nothing, but the library checks them.
        leading.append(max(1, rows if layout[0] else columns, evaluate(layout[1], sizes)))
    head += [*transposes[:2], *leading]
    if max(m, n, k, *leading) > BLAS_LARGEST:
        raise GuardError(
            f"a product of {m} x {k} and {k} x {n} elements is too large for the BLAS library",
            hint="compile it with `strict`, so that Weft's own kernels carry it out",
        )
    strides = [
        [evaluate(s, sizes) * dtype.bytes for s in place.layout.strides[:-2]] for place in (step.a, step.b, step.out)
    ]
    starts = [evaluate(place.layout.offset, sizes) * dtype.bytes for place in (step.a, step.b, step.out)]
    places = [place.buffer for place in (step.a, step.b, step.out)]
    if parts > 1:
        along = (step.a.layout.strides[-1], step.b.layout.strides[-2], 0)
        for each, stride in zip(strides, along, strict=True):
            each.append(evaluate(stride, sizes) * dtype.bytes * (k // parts))
        batch.append(parts)
    *outer, inner = batch or [1]
    steps = [s[-1] if s else 0 for s in strides]
    tapes: list[list[int]] = []
    for offsets in _offsets(outer, [s[:-1] for s in strides]):
        words = list(head)
        for place, start, offset in zip(places, starts, offsets, strict=True):
            words += [place, start + offset]
        tapes.append([*words, inner, *steps, int(step.accumulates)])
    return tapes


def _offsets(sizes: Sequence[int], strides: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """The offsets of all outer batch indices, one tuple of offsets each."""
    result = [tuple(0 for _ in strides)]
    for dim, size in enumerate(sizes):
        result = [
            tuple(base + i * s[dim] for base, s in zip(bases, strides, strict=True))
            for bases in result
            for i in range(size)
        ]
    return result
