"""Views and movements: shapes, orders, slices, joins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.fx.experimental.symbolic_shapes import statically_known_true
from xdsl.ir import SSAValue

from weft.errors import UnsupportedError
from weft.frontends.torch.aten.table import aten
from weft.frontends.torch.dtypes import Operand
from weft.frontends.torch.importer.aliasing import viewed_node
from weft.frontends.torch.importer.argument_starts import START_IS_CHECKED
from weft.frontends.torch.importer.builder import ImportBuilder, normal_dim
from weft.frontends.torch.importer.sizes import size_of
from weft.frontends.torch.importer.strides import storage_order
from weft.ir.expr import Expr, Size, maximum, minimum, product
from weft.ir.types import boolean, contiguous_strides, i64

Sizes = Sequence[Size]


@aten("view", "_unsafe_view", "reshape", "view_copy", "_reshape_alias", "_reshape_copy", "prims.reshape")
def view(b: ImportBuilder, x: SSAValue, shape: Sizes, *_strides: Any) -> SSAValue:
    given, made = product(b.shape(x)), product(b.result.shape)
    if given != made:
        # Tracing has seen that one divides the other, and `n // 4 * 4` is `n`: all the elements, by their other name.
        x = slice_dim(b, b.view(x, (given,)), 0, 0, made)
    return b.view(x, b.result.shape)


@aten("expand", "expand_copy", "broadcast_to")
def expand(b: ImportBuilder, x: SSAValue, shape: Sizes, **options: Any) -> SSAValue:
    return b.expand(x, b.result.shape)


@aten("permute", "permute_copy", "prims.transpose")
def permute(b: ImportBuilder, x: SSAValue, dims: Sequence[int]) -> SSAValue:
    return b.transpose(x, [normal_dim(d, b.rank(x)) for d in dims])


@aten("transpose.int", "transpose_copy.int")
def transpose(b: ImportBuilder, x: SSAValue, first: int, second: int) -> SSAValue:
    order = list(range(b.rank(x)))
    if order:
        first, second = normal_dim(first, len(order)), normal_dim(second, len(order))
        order[first], order[second] = order[second], order[first]
    return b.transpose(x, order)


@aten("t", "t_copy")
def t(b: ImportBuilder, x: SSAValue) -> SSAValue:
    return b.transpose(x, list(reversed(range(b.rank(x)))))


@aten("unsqueeze", "unsqueeze_copy")
@aten("squeeze", "squeeze.dim", "squeeze.dims", "squeeze_copy", "squeeze_copy.dim", "squeeze_copy.dims")
def resized(b: ImportBuilder, x: SSAValue, *_dims: Any) -> SSAValue:
    return b.view(x, b.result.shape)


def slice_dim(b: ImportBuilder, x: SSAValue, dim: int, start: Size, count: Size, step: int = 1) -> SSAValue:
    """`count` elements of one dimension, from `start` in steps."""
    shape = list(b.shape(x))
    if start == 0 and step == 1 and count == shape[dim]:
        return x
    starts: list[Size] = [0] * len(shape)
    steps = [1] * len(shape)
    starts[dim], shape[dim], steps[dim] = start, count, step
    return b.emit("slice", x, starts=tuple(starts), shape=tuple(shape), steps=tuple(steps))


def known(condition: Any) -> bool:
    """Whether a condition on sizes holds by what tracing has found out; asking adds no guard."""
    return statically_known_true(condition)


def start_of(b: ImportBuilder, dim: int, start: Any) -> Size:
    """The first index of a slice of the node's first argument, counted from the front and within it.

    `start` is what the node says, a symbolic integer too: whether that counts from the end must be known.
    """
    size = b.meta_of(0).shape[dim]
    if start is None:
        return 0
    if known(start < 0):
        start = start + size
        if known(start <= 0):
            return 0
    if not known(start >= 0):
        raise UnsupportedError(f"{start} of {size} elements may count from either end")
    return size_of(size if known(start > size) else start)


def place_of(b: ImportBuilder, dim: int, index: Any) -> Size:
    """The index of one element of the node's first argument, counted from the front; torch has checked it."""
    if known(index < 0):
        index = index + b.meta_of(0).shape[dim]
    elif not known(index >= 0):
        raise UnsupportedError(f"{index} as an index may count from either end")
    return size_of(index)


def given(b: ImportBuilder, position: int, name: str) -> Any:
    """An integer argument of the node as tracing recorded it; None where it is left out."""
    argument = b.node.args[position] if len(b.node.args) > position else b.node.kwargs.get(name)
    return argument.meta["val"] if hasattr(argument, "meta") else argument


def step_of(step: Size) -> int:
    if not isinstance(step, int):
        raise UnsupportedError(f"a slice in steps of {step}, which only a call tells")
    if step <= 0:
        raise UnsupportedError(f"a slice in steps of {step}, which torch refuses")
    return step


@aten("slice.Tensor", "slice_copy.Tensor")
def slice_(
    b: ImportBuilder, x: SSAValue, dim: int = 0, start: Size | None = None, end: Size | None = None, step: Size = 1
) -> SSAValue:
    dim = normal_dim(dim, b.rank(x))
    return slice_dim(b, x, dim, start_of(b, dim, given(b, 2, "start")), b.result.shape[dim], step_of(step))


@aten("narrow_copy", "narrow")
def narrow(b: ImportBuilder, x: SSAValue, dim: int, start: Size, length: Size) -> SSAValue:
    return slice_(b, x, dim, start)


@aten("select.int", "select_copy.int")
def select(b: ImportBuilder, x: SSAValue, dim: int, index: Size) -> SSAValue:
    dim = normal_dim(dim, b.rank(x))
    return b.view(slice_dim(b, x, dim, place_of(b, dim, given(b, 2, "index")), 1), b.result.shape)


@aten("split_with_sizes", "split_with_sizes_copy", "split.Tensor", "split.sizes", "split_copy.Tensor")
def split(b: ImportBuilder, x: SSAValue, _sizes: Any, dim: int = 0) -> tuple[SSAValue, ...]:
    dim = normal_dim(dim, b.rank(x))
    pieces: list[SSAValue] = []
    offset: Size = 0
    for result in b.results:
        assert result is not None
        pieces.append(slice_dim(b, x, dim, offset, result.shape[dim]))
        offset = offset + result.shape[dim]
    return tuple(pieces)


@aten("unbind.int", "unbind_copy.int")
def unbind(b: ImportBuilder, x: SSAValue, dim: int = 0) -> tuple[SSAValue, ...]:
    dim = normal_dim(dim, b.rank(x))
    return tuple(
        b.view(slice_dim(b, x, dim, position, 1), result.shape)
        for position, result in enumerate(b.results)
        if result is not None
    )


@aten("cat", "concat")
def cat(b: ImportBuilder, tensors: Sequence[SSAValue], dim: int = 0) -> SSAValue:
    result = b.result
    # A one-dimensional tensor without elements may stand among others of any shape.
    parts = [b.to(x, result.dtype) for x in tensors if b.shape(x) != (0,) or result.rank == 1]
    if len(parts) == 1:
        return parts[0]
    return b.emit("concat", *parts, dim=normal_dim(dim, result.rank))


@aten("stack")
def stack(b: ImportBuilder, tensors: Sequence[SSAValue], dim: int = 0) -> SSAValue:
    dim = normal_dim(dim, b.result.rank)
    return b.emit("concat", *(b.unsqueeze(b.to(x, b.result.dtype), dim) for x in tensors), dim=dim)


@aten("flip")
def flip(b: ImportBuilder, x: SSAValue, dims: Sequence[int]) -> SSAValue:
    shape = b.shape(x)
    turned = {normal_dim(d, len(shape)) for d in dims} if shape else set[int]()
    starts = tuple(size - 1 if d in turned else 0 for d, size in enumerate(shape))
    if not turned or 0 in shape:
        return x
    return b.emit(
        "slice", x, starts=starts, shape=shape, steps=tuple(-1 if d in turned else 1 for d in range(len(shape)))
    )


@aten("roll")
def roll(b: ImportBuilder, x: SSAValue, shifts: Sequence[Size], dims: Sequence[int] = ()) -> SSAValue:
    if not dims:
        return b.view(b.emit("roll", flat(b, x), shifts=tuple(shifts), dims=(0,)), b.shape(x))
    return b.emit("roll", x, shifts=tuple(shifts), dims=tuple(normal_dim(d, b.rank(x)) for d in dims))


def flat(b: ImportBuilder, x: SSAValue) -> SSAValue:
    """All elements in a row."""
    return b.view(x, (product(b.shape(x)),))


@aten("repeat")
def repeat(b: ImportBuilder, x: SSAValue, repeats: Sequence[Size]) -> SSAValue:
    shape = (1,) * (len(repeats) - b.rank(x)) + b.shape(x)
    if all(count == 1 or size == 1 for count, size in zip(repeats, shape, strict=True)):
        return b.expand(b.view(x, shape), b.result.shape)
    apart = [part for size in shape for part in (1, size)]
    spread = [part for count, size in zip(repeats, shape, strict=True) for part in (count, size)]
    return b.view(b.expand(b.view(x, apart), spread), b.result.shape)


@aten("as_strided", "as_strided_copy")
def as_strided(b: ImportBuilder, x: SSAValue, shape: Sizes, strides: Sizes, offset: Size | None = None) -> SSAValue:
    start = _relative_offset(b, offset)
    ordered = b.transpose(x, storage_order(b.meta_of(0)))
    return b.emit("as_strided", ordered, shape=b.result.shape, strides=tuple(strides), offset=start)


@aten("as_strided_scatter")
def as_strided_scatter(
    b: ImportBuilder, x: SSAValue, source: SSAValue, shape: Sizes, strides: Sizes, offset: Size | None = None
) -> SSAValue:
    order = storage_order(b.meta_of(0))
    ordered = b.transpose(x, order)
    row = flat(b, ordered)
    start = _relative_offset(b, offset)
    # Not a strided view of the numbers of all elements, which would be made for it however few are shown.
    places = b.expand(b.number(start, i64), tuple(shape))
    for dim, stride in enumerate(strides):
        places = b.emit("add", places, b.emit("iota", shape=tuple(shape), dim=dim, dtype=i64, step=stride))
    source = b.expand(b.to(source, b.dtype(x)), tuple(shape))
    written = b.emit("index_put", row, places, source, dims=(0,), position=0, accumulate=False)
    inverse = [order.index(d) for d in range(len(order))]
    return b.transpose(b.view(written, b.shape(ordered)), inverse)


def _relative_offset(b: ImportBuilder, offset: Size | None) -> Size:
    """Where in the tensor's own memory a strided view starts."""
    if offset is None:
        return 0
    if size_of(b.meta_of(0).storage_offset()) != 0:
        raise UnsupportedError("a strided view of a tensor that starts within its memory")
    source = viewed_node(b.node.args[0])
    if source.op == "placeholder" and START_IS_CHECKED not in source.meta:
        raise UnsupportedError("a strided view of an argument, from a place in its memory")
    return offset


@aten("diagonal", "diagonal_copy")
def diagonal(b: ImportBuilder, x: SSAValue, offset: int = 0, dim1: int = 0, dim2: int = 1) -> SSAValue:
    shape, result = b.shape(x), b.result.shape
    dim1, dim2 = normal_dim(dim1, len(shape)), normal_dim(dim2, len(shape))
    if isinstance(result[-1], int):
        return b.emit("diagonal", x, dim1=dim1, dim2=dim2, offset=offset)
    # Tracing knows of symbolic sizes that the diagonal is not empty, and says so in the result's.
    strides = contiguous_strides(shape)
    rest = [stride for d, stride in enumerate(strides) if d not in (dim1, dim2)]
    start = strides[dim2] * offset if offset >= 0 else strides[dim1] * -offset
    return b.emit("as_strided", x, shape=result, strides=(*rest, strides[dim1] + strides[dim2]), offset=start)


def check_replaced(b: ImportBuilder, source: SSAValue, replaced: Sequence[Size]) -> None:
    """What is written over a part must have its shape; tracing does not look. Symbolic sizes are taken for equal."""
    shape = b.shape(source)
    pairs = zip(shape, replaced, strict=False)
    differ = any(isinstance(a, int) and isinstance(c, int) and a != c for a, c in pairs)
    if len(shape) != len(replaced) or differ:
        raise UnsupportedError(f"{shape} in place of {tuple(replaced)}, which torch refuses")


@aten("diagonal_scatter")
def diagonal_scatter(
    b: ImportBuilder, x: SSAValue, source: SSAValue, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> SSAValue:
    rank = b.rank(x)
    dim1, dim2 = normal_dim(dim1, rank), normal_dim(dim2, rank)
    rest = [size for d, size in enumerate(b.shape(x)) if d not in (dim1, dim2)]
    sides = (b.shape(x)[dim1] + min(offset, 0), b.shape(x)[dim2] - max(offset, 0))
    replaced = (*rest, maximum(minimum(*sides), 0))
    check_replaced(b, source, replaced)
    row = b.iota_of(b.shape(source)[-1])
    places = [b.emit("add", row, b.number(max(shift, 0), i64)) for shift in (-offset, offset)]
    source = b.to(source, b.dtype(x))
    return b.emit("index_put", x, *places, source, dims=(dim1, dim2), position=rank - 2, accumulate=False)


@aten("constant_pad_nd")
def constant_pad(b: ImportBuilder, x: SSAValue, pad: Sequence[Size], value: Operand = 0) -> SSAValue:
    """Pairs of paddings from the last dimension on; a negative one cuts off."""
    shape = b.shape(x)
    low: list[Size] = [0] * len(shape)
    high: list[Size] = [0] * len(shape)
    for pair in range(len(pad) // 2):
        low[len(shape) - 1 - pair], high[len(shape) - 1 - pair] = pad[2 * pair], pad[2 * pair + 1]
    kept = list(shape)
    starts: list[Size] = [0] * len(shape)
    for d in range(len(shape)):
        for side in (low, high):
            if _negative(side[d]):
                kept[d] = kept[d] + side[d]
                starts[d] = starts[d] - side[d] if side is low else starts[d]
                side[d] = 0
    if tuple(kept) != shape:
        x = b.emit("slice", x, starts=tuple(starts), shape=tuple(kept), steps=(1,) * len(shape))
    if all(size == 0 for size in (*low, *high)):
        return x
    if isinstance(value, SSAValue | Expr):
        raise UnsupportedError("padding with a value that is computed")
    dtype = b.dtype(x)
    number = bool(value) if dtype == boolean else float(value) if dtype.is_float else int(value)
    return b.emit("pad", x, low=tuple(low), high=tuple(high), value=number)


def _negative(size: Size) -> bool:
    return isinstance(size, int) and size < 0


@aten("unfold", "unfold_copy")
def unfold(b: ImportBuilder, x: SSAValue, dim: int, size: int, step: int) -> SSAValue:
    """Windows of one dimension; the place within the window is a new last dimension."""
    if not b.rank(x):
        return b.view(x, b.result.shape)
    dim = normal_dim(dim, b.rank(x))
    strides = contiguous_strides(b.shape(x))
    steps = [stride * step if d == dim else stride for d, stride in enumerate(strides)]
    return b.emit("as_strided", x, shape=b.result.shape, strides=(*steps, strides[dim]), offset=0)
