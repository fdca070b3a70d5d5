"""Matrix products, with torch's scaled additions to them."""

from __future__ import annotations

from typing import Any

from xdsl.dialects.builtin import UnitAttr
from xdsl.ir import SSAValue

from weft.errors import UnsupportedError
from weft.frontends.torch.aten.pointwise import apply
from weft.frontends.torch.aten.table import aten
from weft.frontends.torch.importer.builder import ImportBuilder
from weft.frontends.torch.importer.checks import check_that
from weft.ir.expr import Size, is_nonnegative
from weft.ir.types import boolean, f32, i32
from weft.passes.dot.tile_grouped_gemm import IN_ORDER


@aten("weft.check_matrices")
def check_matrices(b: ImportBuilder, info: SSAValue, name: str) -> SSAValue:
    """Raise, when the program has run, where a matrix could not be factored or solved with."""
    wrong = b.emit("ne", info, b.number(0, b.dtype(info)))
    check_that(b, "data", f"{name} of a matrix that is singular, or of which a pivot is not positive", wrong)
    return info


@aten("mm", "bmm")
def mm(b: ImportBuilder, x: SSAValue, y: SSAValue) -> SSAValue:
    if b.dtype(x) == boolean:
        raise UnsupportedError("a product of booleans, which torch refuses")
    return b.emit("dot", x, y)


@aten("_grouped_mm", "weft.grouped_mm")
def grouped_mm(b: ImportBuilder, x: SSAValue, weights: SSAValue, offs: SSAValue | None = None) -> SSAValue:
    """Rows in groups, each times the matrix of its group: by the number of the group of every row."""
    if offs is None or len(b.shape(x)) != 2 or len(b.shape(weights)) != 3:
        raise UnsupportedError("_grouped_mm has other forms than rows in groups and a matrix for each")
    rows, depth = b.shape(x)
    groups = _groups(b, rows, offs)
    matrices = b.emit("take", b.emit("permute", weights, dims=(0, 2, 1)), groups, dim=0)
    product = b.emit("dot", b.view(x, (rows, 1, depth)), b.emit("permute", matrices, dims=(0, 2, 1)))
    product = b.view(product, (rows, b.shape(weights)[2]))
    if b.node.target.name().startswith("aten::"):
        return product  # rows of no group have no defined result
    grouped = b.emit("lt", b.unsqueeze(groups, 1), b.number(b.shape(weights)[0], i32))
    return b.emit("where", grouped, product, b.number(0, b.dtype(product)))


def _groups(b: ImportBuilder, rows: Size, ends: SSAValue) -> SSAValue:
    """The number of the group of every row: how many groups end before it."""
    places = b.emit("iota", shape=(rows, 1), dim=0, dtype=i32)
    ended = b.emit("le", b.emit("cast", b.unsqueeze(ends, 0), dtype=i32), places)
    groups = b.emit("sum", b.emit("cast", ended, dtype=i32), dims=(1,), keep=False)
    groups.op.attributes[IN_ORDER] = UnitAttr()  # torch asks for ends that do not fall
    return groups


@aten("weft.grouped_outer")
def grouped_outer(b: ImportBuilder, x: SSAValue, y: SSAValue, ends: SSAValue) -> SSAValue:
    """For each group, the product of its rows: all rows, of which those of other groups are 0."""
    (rows, depth), (_, width), (count,) = b.shape(x), b.shape(y), b.shape(ends)
    own = b.emit("eq", b.view(_groups(b, rows, ends), (1, 1, rows)), b.view(b.iota_of(count, i32), (count, 1, 1)))
    turned = b.expand(b.view(b.transpose(x, (1, 0)), (1, depth, rows)), (count, depth, rows))
    chosen = b.emit("where", own, turned, b.number(0, b.dtype(x)))
    return b.emit("dot", chosen, b.expand(b.unsqueeze(y, 0), (count, rows, width)))


@aten("mv")
def mv(b: ImportBuilder, x: SSAValue, y: SSAValue) -> SSAValue:
    return _vector_product(b, x, y)


@aten("dot", "vdot")
def dot(b: ImportBuilder, x: SSAValue, y: SSAValue) -> SSAValue:
    (size,) = b.shape(x)
    return b.view(b.emit("dot", b.view(x, (1, size)), b.view(y, (size, 1))), ())


def _vector_product(b: ImportBuilder, x: SSAValue, y: SSAValue, **scales: Any) -> SSAValue:
    rows, _ = b.shape(x)
    return b.view(_scaled_product(b, x, b.unsqueeze(y, 1), **scales), (rows,))


@aten("addmm", "baddbmm")
def addmm(b: ImportBuilder, bias: SSAValue, x: SSAValue, y: SSAValue, **scales: Any) -> SSAValue:
    return _added(b, bias, _scaled_product(b, x, y, **scales), **scales)


def _scaled_product(b: ImportBuilder, x: SSAValue, y: SSAValue, beta: float = 1, alpha: float = 1) -> SSAValue:
    """A product that is rounded after it was scaled, or after what is scaled was added to it."""
    return _wide_product(b, x, y) if alpha != 1 or beta not in (0, 1) else b.emit("dot", x, y)


def _wide_product(b: ImportBuilder, x: SSAValue, y: SSAValue) -> SSAValue:
    """A product before it is rounded to 16 bits."""
    narrow = b.dtype(x).is_float and b.dtype(x).bytes == 2 and b.dtype(x) == b.dtype(y)
    return b.emit("dot", x, y, dtype=f32) if narrow else b.emit("dot", x, y)


@aten("addmv")
def addmv(b: ImportBuilder, bias: SSAValue, x: SSAValue, y: SSAValue, **scales: Any) -> SSAValue:
    return _added(b, bias, _vector_product(b, x, y, **scales), **scales)


@aten("addbmm")
def addbmm(b: ImportBuilder, bias: SSAValue, x: SSAValue, y: SSAValue, **scales: Any) -> SSAValue:
    """The sum of a batch of products is one product, unless to turn its left side takes more memory than all."""
    (batch, rows, depth), columns = b.shape(x), b.shape(y)[2]
    if not is_nonnegative(columns - depth):
        return _added(b, bias, b.emit("sum", _wide_product(b, x, y), dims=(0,), keep=False), **scales)
    left = b.view(b.transpose(x, (1, 0, 2)), (rows, batch * depth))
    right = b.view(y, (batch * depth, columns))
    return _added(b, bias, _scaled_product(b, left, right, **scales), **scales)


@aten("_int_mm")
def int_mm(b: ImportBuilder, x: SSAValue, y: SSAValue) -> SSAValue:
    return b.emit("dot", x, y, dtype=i32)


@aten("_scaled_mm")
def scaled_mm(
    b: ImportBuilder,
    x: SSAValue,
    y: SSAValue,
    scale_x: SSAValue,
    scale_y: SSAValue,
    bias: SSAValue | None = None,
    scale_result: SSAValue | None = None,
    out_dtype: Any = None,
    use_fast_accum: bool = False,
) -> SSAValue:
    """A product of 8-bit floats, by a factor for all of each operand, for its rows and columns, or for its blocks."""
    if scale_result is not None or b.result.dtype.bytes == 1 or b.dtype(scale_x) != f32:
        raise UnsupportedError("a product that is rounded to 8 bits, or has factors that are")
    (rows, _), (_, columns) = b.shape(x), b.shape(y)
    one = ((), (1,), (1, 1))
    if b.shape(scale_x) in (*one, (rows, 1)) and b.shape(scale_y) in (*one, (1, columns)):
        product = b.emit("dot", x, y, dtype=f32, fast=use_fast_accum)
        product = b.emit("mul", b.emit("mul", product, scale_x), scale_y)
    else:
        product = b.emit("scaled_dot", x, y, scale_x, scale_y)
    return product if bias is None else b.emit("add", product, b.to(bias, f32))


def _added(b: ImportBuilder, bias: SSAValue, product: SSAValue, beta: float = 1, alpha: float = 1) -> SSAValue:
    """`beta * bias + alpha * product`, where a beta of 0 leaves NaNs of the bias out; rounded once."""
    dtype = b.dtype(product)
    if alpha != 1:
        product = apply(b, "mul", product, alpha, dtype=dtype)
    if beta == 0:
        return b.to(product, b.result.dtype)
    bias = apply(b, "mul", bias, beta, dtype=dtype) if beta != 1 else b.to(bias, dtype)
    return b.expand(b.to(b.emit("add", product, bias), b.result.dtype), b.result.shape)
