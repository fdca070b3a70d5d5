"""Matrix products, with torch's scaled additions to them."""

from __future__ import annotations

from typing import Any

from xdsl.ir import SSAValue

from weft.frontends.torch.aten.pointwise import apply
from weft.frontends.torch.aten.table import aten
from weft.frontends.torch.builder import ImportBuilder


@aten("mm", "bmm")
def mm(b: ImportBuilder, x: SSAValue, y: SSAValue) -> SSAValue:
    return b.emit("dot", x, y)


@aten("mv")
def mv(b: ImportBuilder, x: SSAValue, y: SSAValue) -> SSAValue:
    return _vector_product(b, x, y)


@aten("dot", "vdot")
def dot(b: ImportBuilder, x: SSAValue, y: SSAValue) -> SSAValue:
    (size,) = b.shape(x)
    return b.view(b.emit("dot", b.view(x, (1, size)), b.view(y, (size, 1))), ())


def _vector_product(b: ImportBuilder, x: SSAValue, y: SSAValue) -> SSAValue:
    rows, _ = b.shape(x)
    return b.view(b.emit("dot", x, b.unsqueeze(y, 1)), (rows,))


@aten("addmm", "baddbmm")
def addmm(b: ImportBuilder, bias: SSAValue, x: SSAValue, y: SSAValue, **scales: Any) -> SSAValue:
    return _added(b, bias, b.emit("dot", x, y), **scales)


@aten("addmv")
def addmv(b: ImportBuilder, bias: SSAValue, x: SSAValue, y: SSAValue, **scales: Any) -> SSAValue:
    return _added(b, bias, _vector_product(b, x, y), **scales)


@aten("addbmm")
def addbmm(b: ImportBuilder, bias: SSAValue, x: SSAValue, y: SSAValue, **scales: Any) -> SSAValue:
    return _added(b, bias, b.emit("sum", b.emit("dot", x, y), dims=(0,), keep=False), **scales)


def _added(b: ImportBuilder, bias: SSAValue, product: SSAValue, beta: float = 1, alpha: float = 1) -> SSAValue:
    """`beta * bias + alpha * product`, where a beta of 0 leaves NaNs of the bias out."""
    if alpha != 1:
        product = apply(b, "mul", product, alpha)
    if beta == 0:
        return product
    if beta != 1:
        bias = apply(b, "mul", bias, beta)
    return b.expand(b.emit("add", product, b.to(bias, b.dtype(product))), b.result.shape)
