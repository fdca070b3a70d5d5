"""Convolution and its gradients: torch's shorthand for strides and paddings, and the bias."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xdsl.ir import SSAValue

from weft.frontends.torch.aten.table import aten
from weft.frontends.torch.importer.builder import ImportBuilder
from weft.ir.expr import Size
from weft.ops.windows.convolution import Convolution

Sizes = Sequence[Size]


def convolution_params(
    rank: int, strides: Sizes, padding: Sizes, dilation: Sizes, transposed: bool, output_padding: Sizes, groups: Size
) -> dict[str, Any]:
    """The parameters of the op; one number stands for all dimensions."""

    def every(sizes: Sizes) -> tuple[Size, ...]:
        return tuple(sizes) * rank if len(sizes) == 1 else tuple(sizes)

    return {
        "strides": every(strides),
        "padding": tuple((size, size) for size in every(padding)),
        "dilation": every(dilation),
        "groups": groups,
        "transposed": transposed,
        "output_padding": every(output_padding) if transposed else (0,) * rank,
    }


@aten("convolution", "_convolution")
def convolution(
    b: ImportBuilder,
    x: SSAValue,
    weight: SSAValue,
    bias: SSAValue | None,
    strides: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,
    groups: Size,
    *_backend_flags: bool,
) -> SSAValue:
    rank = b.rank(x) - 2
    params = convolution_params(rank, strides, padding, dilation, transposed, output_padding, groups)
    out = b.emit("convolution", x, weight, **params)
    if bias is None:
        return out
    return b.emit("add", out, b.view(bias, (*b.shape(bias), *(1 for _ in range(rank)))))


@aten("convolution_backward")
def convolution_backward(
    b: ImportBuilder,
    grad: SSAValue,
    x: SSAValue,
    weight: SSAValue,
    bias_sizes: Sizes | None,
    strides: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,
    groups: Size,
    wanted: Sequence[bool],
) -> tuple[SSAValue | None, ...]:
    params = convolution_params(b.rank(x) - 2, strides, padding, dilation, transposed, output_padding, groups)
    on_x, on_weight = Convolution.vjp(b, (grad,), (x, weight), (), **params)
    on_bias = b.emit("sum", grad, dims=(0, *range(2, b.rank(grad))), keep=False) if wanted[2] else None
    return on_x if wanted[0] else None, on_weight if wanted[1] else None, on_bias
