"""Gradients of resizing: one dimension after the other, the first before the last, along which memory lies.

What the first leaves for the next is in f32; sums of whole windows, where each element was repeated, are made at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from weft.errors import UnsupportedError
from weft.frontends.torch.aten.table import aten
from weft.frontends.torch.importer.builder import ImportBuilder
from weft.ir.expr import Size, mod, product


@aten(
    *(f"upsample_nearest{rank}d_backward" for rank in (1, 2, 3)),
    *(f"_upsample_nearest_exact{rank}d_backward" for rank in (1, 2, 3)),
)
def nearest_backward(
    b: ImportBuilder, grad: SSAValue, shape: Sequence[Size], sizes: Sequence[Size], *scales: float | None
) -> SSAValue:
    ratios = _are_ratios(shape, sizes, scales)
    doubled = all(count in (size, product((2, size))) for count, size in zip(shape, sizes[2:], strict=True))
    if doubled and not ratios and b.node.meta["val"].device.type == "cpu":
        raise UnsupportedError("gradients of resizing to twice the size by another factor, which torch takes for two")
    if ratios and all(mod(count, size) == 0 for count, size in zip(shape, sizes[2:], strict=True)):
        wide = b.wide(grad)
        return b.to(b.emit("adaptive_sum_pool", wide, shape=tuple(sizes[2:])), b.dtype(grad))
    exact = "exact" in str(b.node.target)
    return _gathered(b, grad, sizes, scales, "nearest", "half_pixel" if exact else "asymmetric")


@aten("upsample_linear1d_backward", "upsample_bilinear2d_backward", "upsample_trilinear3d_backward")
def linear_backward(
    b: ImportBuilder,
    grad: SSAValue,
    shape: Sequence[Size],
    sizes: Sequence[Size],
    align_corners: bool,
    *scales: float | None,
) -> SSAValue:
    return _gathered(b, grad, sizes, scales, "linear", "align_corners" if align_corners else "half_pixel")


@aten("upsample_bicubic2d_backward")
def cubic_backward(
    b: ImportBuilder,
    grad: SSAValue,
    shape: Sequence[Size],
    sizes: Sequence[Size],
    align_corners: bool,
    *scales: float | None,
) -> SSAValue:
    return _gathered(b, grad, sizes, scales, "cubic", "align_corners" if align_corners else "half_pixel")


def _gathered(
    b: ImportBuilder,
    grad: SSAValue,
    sizes: Sequence[Size],
    scales: Sequence[float | None],
    kind: str,
    coordinates: str,
) -> SSAValue:
    made = b.wide(grad)
    given = [*scales, *[None] * (len(sizes) - 2 - len(scales))]
    for dim, scale in enumerate(given, 2):
        if b.shape(grad)[dim] != sizes[dim] or scale is not None:
            kept = scale if scale is not None and scale > 0 else None
            made = b.emit(
                "resize_gradient", made, dim=dim, size=sizes[dim], scale=kept, kind=kind, coordinates=coordinates
            )
    return b.to(made, b.dtype(grad))


def _are_ratios(shape: Sequence[Size], sizes: Sequence[Size], scales: Sequence[float | None]) -> bool:
    """Whether places move by the ratio of the sizes, one over a whole number."""
    given = [scale for scale in scales if scale is not None]
    whole = all(
        isinstance(count, int) and isinstance(size, int) and count == size * scale
        for count, size, scale in zip(shape, sizes[2:], scales, strict=False)
        if scale is not None
    )
    return not given or whole
