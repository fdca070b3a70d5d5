"""Reading and writing at computed indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xdsl.ir import SSAValue

from weft.errors import UnsupportedError
from weft.frontends.torch.aten.combining import added_by_token
from weft.frontends.torch.aten.row_sums import summed_rows
from weft.frontends.torch.aten.shape import check_replaced, flat, given, place_of, start_of, step_of
from weft.frontends.torch.aten.table import aten
from weft.frontends.torch.importer.builder import ImportBuilder, normal_dim
from weft.frontends.torch.importer.checks import check_count, check_places
from weft.ir.expr import Expr, Size, product
from weft.ir.types import Tensor, boolean, i32, i64

Indices = Sequence[SSAValue | None]


@aten("index.Tensor", "_unsafe_index.Tensor")
def index(b: ImportBuilder, x: SSAValue, indices: Indices) -> SSAValue:
    dims, places = _indexed(b, indices)
    _check(b, x, dims, places, product(b.result.shape))
    if len(dims) == 1:
        return b.emit("take", x, places[0], dim=dims[0])
    return b.emit("index", x, *places, dims=dims, position=_position(dims))


def _check(b: ImportBuilder, x: SSAValue, dims: Sequence[int], places: Sequence[SSAValue], touched: Size) -> None:
    if not b.node.target.name().startswith("aten::_unsafe"):
        for dim, place in zip(dims, places, strict=True):
            size = b.shape(x)[dim]
            check_places(b, place, dim, size, wraps=True, touched=1 if size == 0 else touched)


def _indexed(b: ImportBuilder, indices: Indices) -> tuple[tuple[int, ...], list[SSAValue]]:
    """The dimensions that are indexed, and by what."""
    given = [(d, place) for d, place in enumerate(indices) if place is not None]
    if any(b.dtype(place) == boolean for _, place in given):
        raise UnsupportedError("a mask as an index has a result whose size depends on data")
    return tuple(d for d, _ in given), [place for _, place in given]


def _position(dims: tuple[int, ...]) -> int:
    """Where the dimensions of the indices go: in place of neighbours, else in front."""
    neighbours = dims == tuple(range(dims[0], dims[0] + len(dims)))
    return dims[0] if neighbours else 0


@aten("index_put", "_unsafe_index_put")
def index_put(b: ImportBuilder, x: SSAValue, indices: Indices, values: SSAValue, accumulate: bool = False) -> SSAValue:
    masks = [(d, place) for d, place in enumerate(indices) if place is not None and b.dtype(place) == boolean]
    fills = masks and not accumulate and product(b.shape(values)) == 1
    if b.dtype(values) != b.dtype(x) and not fills:
        raise UnsupportedError("what is written is of another type, which torch refuses")
    values = b.to(values, b.dtype(x))
    if masks:
        return _masked_put(b, x, indices, masks, values, accumulate)
    dims, places = _indexed(b, indices)
    position = _position(dims)
    rest = [size for d, size in enumerate(b.shape(x)) if d not in dims]
    _check(b, x, dims, places, product(rest))
    rank = max(b.rank(place) for place in places)
    chosen = _broadcast(b, places, rank)
    values = b.expand(values, (*rest[:position], *chosen, *rest[position:]))
    if accumulate and dims == (0,) and (added := _added_rows(b, x, places[0], values)) is not None:
        return added
    return b.emit("index_put", x, *places, values, dims=dims, position=position, accumulate=accumulate)


def _added_rows(b: ImportBuilder, x: SSAValue, place: SSAValue, rows: SSAValue) -> SSAValue | None:
    """`x` with rows added at places in its first dimension, where each result can look up its own."""
    added = added_by_token(b, x, place, rows)
    return summed_rows(b, x, place, rows) if added is None else added


@aten("flex_lib.zeros_and_scatter")
def zeros_and_scatter(b: ImportBuilder, _shape: Sequence[Size], indices: Indices, values: SSAValue) -> SSAValue:
    """The gradient of what a function of FlexAttention's scores reads at places."""
    return index_put(b, b.zeros(b.result), indices, b.to(values, b.result.dtype), accumulate=True)


def _broadcast(b: ImportBuilder, places: Sequence[SSAValue], rank: int) -> list[Size]:
    shape: list[Size] = [1] * rank
    for place in places:
        for d, size in enumerate(reversed(b.shape(place)), 1):
            shape[-d] = size if size != 1 else shape[-d]
    return shape


def _masked_put(
    b: ImportBuilder,
    x: SSAValue,
    indices: Indices,
    masks: Sequence[tuple[int, SSAValue]],
    values: SSAValue,
    accumulate: bool,
) -> SSAValue:
    """One mask over the first dimensions: the n-th true element takes the n-th of the values, or the only one."""
    given = [place for place in indices if place is not None]
    ((dim, mask), *others) = masks
    if len(given) != 1 or others or dim:
        raise UnsupportedError("a mask among other indices chooses elements whose number depends on data")
    chosen, trailing = b.rank(mask), b.shape(x)[b.rank(mask) :]
    where = b.view(mask, (*b.shape(mask), *(1 for _ in trailing)))
    if b.rank(values) > len(trailing) and b.shape(values)[0] != 1:
        values = b.expand(values, (b.shape(values)[0], *trailing))
        check_count(b, _true_count(b, mask), b.shape(values)[0])
        taken = b.emit("take", values, _ordinal(b, flat(b, mask)), dim=0)
        values = b.view(taken, (*b.shape(x)[:chosen], *trailing))
    elif b.rank(values) > len(trailing):
        values = b.view(values, b.shape(values)[1:])
    if accumulate:
        values = b.emit("add", x, values)
    return b.emit("where", where, values, x)


def _ordinal(b: ImportBuilder, mask: SSAValue) -> SSAValue:
    """How many true elements stand before each one, in a row of booleans; for those that are false, any place."""
    (length,) = b.shape(mask)
    dtype = i32 if isinstance(length, int) and length < 1 << 31 else i64  # counts of all elements: half the memory
    count = b.emit("cumsum", b.to(mask, dtype), dim=0)
    return b.emit("maximum", b.emit("sub", count, b.number(1, dtype)), b.number(0, dtype))


def _true_count(b: ImportBuilder, mask: SSAValue) -> SSAValue:
    return b.emit("sum", b.to(mask, i64), dims=tuple(range(b.rank(mask))), keep=False)


@aten("index_add")
def index_add(
    b: ImportBuilder, x: SSAValue, dim: int, places: SSAValue, source: SSAValue, alpha: bool | int | float = 1
) -> SSAValue:
    if b.dtype(source) != b.dtype(x):
        raise UnsupportedError("what is added is of another type, which torch refuses")
    if alpha != 1:
        source = b.emit("mul", source, b.number(alpha, b.dtype(x)))
    # Eager does nothing to a tensor without elements, whatever the places are.
    check_along(b, x, dim, places, touched=product(b.shape(x)))
    return _put_along(b, x, dim, places, source, accumulate=True)


@aten("index_copy")
def index_copy(b: ImportBuilder, x: SSAValue, dim: int, places: SSAValue, source: SSAValue) -> SSAValue:
    check_along(b, x, dim, places, touched=product(b.shape(source)))
    return _put_along(b, x, dim, places, source, accumulate=False)


@aten("index_fill.int_Scalar", "index_fill.int_Tensor")
def index_fill(b: ImportBuilder, x: SSAValue, dim: int, places: SSAValue, value: Any) -> SSAValue:
    row = at_least_1d(b, x)
    rest = [size for d, size in enumerate(b.shape(row)) if d != normal_dim(dim, b.rank(row))]
    check_along(b, x, dim, places, wraps=True, touched=product(rest))
    return _put_along(b, x, dim, places, b.operand(value, b.dtype(x)), accumulate=False)


def check_along(
    b: ImportBuilder, x: SSAValue, dim: int, places: SSAValue, *, touched: Size, wraps: bool = False
) -> None:
    """All places must be indices into a dimension of `x`, which has one even if it is a number."""
    shape = b.shape(x) or (1,)
    dim = normal_dim(dim, len(shape))
    check_places(b, places, dim, shape[dim], wraps=wraps, touched=touched)


def _put_along(
    b: ImportBuilder, x: SSAValue, dim: int, places: SSAValue, source: SSAValue, *, accumulate: bool
) -> SSAValue:
    """`x` with slices written, or one number, at places along one dimension."""
    row, places = at_least_1d(b, x), at_least_1d(b, places)
    dim = normal_dim(dim, b.rank(row))
    shape = (*b.shape(row)[:dim], *b.shape(places), *b.shape(row)[dim + 1 :])
    source = b.view(source, shape) if b.rank(source) else b.expand(source, shape)
    if accumulate and dim == 0 and (added := _added_rows(b, row, places, source)) is not None:
        return b.view(added, b.shape(x))
    put = b.emit("index_put", row, places, source, dims=(dim,), position=dim, accumulate=accumulate)
    return b.view(put, b.shape(x))


@aten("index_select")
def index_select(b: ImportBuilder, x: SSAValue, dim: int, places: SSAValue) -> SSAValue:
    if b.rank(places) > 1 or b.dtype(places) not in (i32, i64):
        raise UnsupportedError("places that are no vector of i32 or i64, which torch refuses")
    if not b.rank(x):
        if b.rank(places) and b.shape(places)[0] != 1:
            raise UnsupportedError("several places in a number, which torch refuses")
        check_places(b, places, 0, 1)
        return b.expand(x, b.result.shape)
    dim = normal_dim(dim, b.rank(x))
    check_places(b, places, dim, b.shape(x)[dim])
    return b.emit("take", x, b.view(places, (b.result.shape[dim],)), dim=dim)


@aten("embedding")
def embedding(b: ImportBuilder, weight: SSAValue, places: SSAValue, *_options: Any, **__: Any) -> SSAValue:
    check_places(b, places, 0, b.shape(weight)[0])
    return b.emit("take", weight, places, dim=0)


@aten("embedding_dense_backward")
def embedding_dense_backward(
    b: ImportBuilder, grad: SSAValue, places: SSAValue, rows: Size, padding: int, by_frequency: bool
) -> SSAValue:
    result, rank = b.result, b.rank(places)

    def gathered(updates: SSAValue, shape: tuple[Size, ...]) -> SSAValue:
        zeros = b.zeros(Tensor(b.dtype(updates), shape))
        if (added := summed_rows(b, zeros, places, updates)) is not None:
            return added
        return b.emit("index_put", zeros, places, updates, dims=(0,), position=0, accumulate=True)

    if by_frequency:
        counts = gathered(b.expand(b.number(1, b.dtype(grad)), b.shape(places)), (rows,))
        grad = b.emit("div", grad, b.unsqueeze(b.emit("take", counts, places, dim=0), rank))
    if padding >= 0:
        skipped = b.unsqueeze(b.emit("eq", b.to(places, i64), b.number(padding, i64)), rank)
        grad = b.emit("where", skipped, b.number(0, b.dtype(grad)), grad)
    return gathered(grad, result.shape)


@aten("gather")
def gather(b: ImportBuilder, x: SSAValue, dim: int, places: SSAValue, **options: Any) -> SSAValue:
    result = b.result
    x, places = at_least_1d(b, x), at_least_1d(b, places)
    dim = normal_dim(dim, b.rank(x))
    check_places(b, places, dim, b.shape(x)[dim])
    return b.view(b.emit("gather", x, places, dim=dim), result.shape)


def at_least_1d(b: ImportBuilder, x: SSAValue) -> SSAValue:
    """A tensor without dimensions as one with a single element."""
    return x if b.rank(x) else b.view(x, (1,))


@aten("take")
def take(b: ImportBuilder, x: SSAValue, places: SSAValue) -> SSAValue:
    row = flat(b, x)
    check_places(b, places, 0, b.shape(row)[0], wraps=True)
    return b.emit("take", row, places, dim=0)


@aten("put")
def put(b: ImportBuilder, x: SSAValue, places: SSAValue, source: SSAValue, accumulate: bool = False) -> SSAValue:
    check_places(b, places, 0, product(b.shape(x)), wraps=True)
    row = b.emit(
        "index_put", flat(b, x), flat(b, places), flat(b, source), dims=(0,), position=0, accumulate=accumulate
    )
    return b.view(row, b.shape(x))


@aten("masked_scatter")
def masked_scatter(b: ImportBuilder, x: SSAValue, mask: SSAValue, source: SSAValue) -> SSAValue:
    """The n-th true element of the mask takes the n-th element of the source."""
    shape = b.result.shape
    row, whole = flat(b, source), b.expand(mask, shape)
    check_count(b, _true_count(b, whole), b.shape(row)[0], at_least=True)
    taken = b.emit("take", row, _ordinal(b, flat(b, whole)), dim=0)
    return b.emit("where", b.expand(mask, shape), b.view(taken, shape), b.expand(x, shape))


@aten("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(b: ImportBuilder, x: SSAValue, mask: SSAValue, value: Any) -> SSAValue:
    return b.emit("where", mask, b.operand(value, b.dtype(x)), x)


@aten("slice_scatter")
def slice_scatter(
    b: ImportBuilder,
    x: SSAValue,
    source: SSAValue,
    dim: int = 0,
    start: Size | None = None,
    end: Size | None = None,
    step: Size = 1,
) -> SSAValue:
    dim = normal_dim(dim, b.rank(x))
    begin = start_of(b, dim, given(b, 3, "start"))
    size = b.shape(x)[dim]
    if isinstance(size, Expr) or isinstance(start, Expr) or isinstance(end, Expr):
        count = next(iter(b.shape(source)[dim:]), 0)
    else:
        count = len(range(size)[slice(start, end, step_of(step))])
    check_replaced(b, source, [count if d == dim else size for d, size in enumerate(b.shape(x))])
    return update(b, x, b.to(source, b.dtype(x)), dim, begin, step_of(step))


def update(b: ImportBuilder, x: SSAValue, source: SSAValue, dim: int, start: Size, step: int = 1) -> SSAValue:
    """`x` with the source written over part of one dimension."""
    if start == 0 and step == 1 and b.shape(source) == b.shape(x):
        return source
    starts = tuple(start if d == dim else 0 for d in range(b.rank(x)))
    steps = tuple(step if d == dim else 1 for d in range(b.rank(x)))
    return b.emit("update_slice", x, source, starts=starts, steps=steps)


@aten("select_scatter")
def select_scatter(b: ImportBuilder, x: SSAValue, source: SSAValue, dim: int, place: Size) -> SSAValue:
    dim = normal_dim(dim, b.rank(x))
    check_replaced(b, source, [size for d, size in enumerate(b.shape(x)) if d != dim])
    source = b.unsqueeze(b.to(source, b.dtype(x)), dim)
    return update(b, x, source, dim, place_of(b, dim, given(b, 3, "index")))
