"""Let attention read keys and values that lie in pages where they lie, instead of a copy of all pages of a sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.ir import OpResult, SSAValue
from xdsl.passes import ModulePass

from weft.ir.expr import Size, coefficient_of, simplify, split_multiple, symbol, symbols_of
from weft.ir.types import bf16, f16, tensor_of
from weft.ops.base import Elementwise, GraphOp
from weft.ops.graph import FuncOp
from weft.ops.indexing.index import Take
from weft.ops.layouts import StridedLayout
from weft.ops.matmul.attention import WIDEST_HEAD, AnyAttention
from weft.ops.reshaping import reshape_index
from weft.passes.grouping.build_groups import INLINED, ValueLayouts
from weft.passes.simplify.constant_values import made_by

PAGE, SLOT = "page", "slot"
_UNIT = 16
"""Pages have whole fragments of the tensor cores."""
_ENGINE = 16
"""Bytes in multiples of which TMA counts where lines begin."""
_VIEWS = ("graph.permute", "graph.reshape", "graph.broadcast", "graph.slice")


@dataclass(frozen=True)
class Pages:
    """Keys or values in pages of `size` keys each, of which `take` chooses some for each sequence, `count` of them.

    `place` is where in the `table` the number of a sequence's page `PAGE` stands, and `index` where in the `cache` a
    key at `SLOT` in the page of the number `PAGE` lies.
    """

    take: Take
    size: int
    count: int
    table: SSAValue
    place: tuple[Size, ...]
    cache: SSAValue
    index: tuple[Size, ...]

    @property
    def among(self) -> int:
        """The number of all pages."""
        size = tensor_of(self.take.operands[0].type).shape[0]
        assert isinstance(size, int)
        return size


def pages_of(value: SSAValue, index: Sequence[Size], bounds: dict[str, Size]) -> Pages | None:
    """How an operand of attention, of which `index` says the place of a key, lies in pages, if it does.

    The index is over variables within bounds, but for that of the key, the next to last.
    """
    take = _root(value).owner
    length = tensor_of(value.type).shape[-2]
    if not isinstance(take, Take) or take.params["dim"] != 0 or not isinstance(length, int):
        return None
    cache, table = (tensor_of(operand.type) for operand in take.operands)
    if not cache.is_static or not table.is_static:
        return None
    sizes = {size for size in cache.shape[1:] if isinstance(size, int) and size > 1 and length % size == 0}
    for size in sorted(sizes):
        within = {**bounds, PAGE: length // size, SLOT: size}
        key = symbol(PAGE) * size + symbol(SLOT)
        _, places = _seen_through(value, [*index[:-2], key, index[-1]], within)
        own, rest = places[: table.rank], places[table.rank :]
        used = frozenset[str]().union(*map(symbols_of, rest))
        if PAGE in used or SLOT not in used or any(SLOT in symbols_of(place) for place in own):
            continue
        within = {**within, PAGE: cache.shape[0]}
        told, place = _seen_through(_narrow(take.operands[1]), own, {**bounds, PAGE: length // size})
        lies, where = _seen_through(take.operands[0], [symbol(PAGE), *rest], within)
        if all(coefficient_of(each, name) is not None for each in (*place, *where) for name in (PAGE, SLOT)):
            return Pages(take, size, length // size, told, tuple(place), lies, tuple(where))
    return None


def pages_of_both(
    op: AnyAttention, layout_of: Callable[[SSAValue], StridedLayout | None]
) -> tuple[Pages, Pages] | None:
    """How keys and values of attention lie in pages, where both do, in such as a kernel can read."""
    keys, values = (_readable(value, layout_of) for value in op.operands[1:3])
    # One block of keys is whole pages of both, or a part of one of each.
    return (keys, values) if keys is not None and values is not None and keys.size == values.size else None


def _readable(value: SSAValue, layout_of: Callable[[SSAValue], StridedLayout | None]) -> Pages | None:
    """How an operand of attention lies in pages, if it does and TMA can bring lines of them.

    The elements of a head lie side by side, and all else is so many bytes apart as the engine counts in.
    """
    tensor = tensor_of(value.type)
    variables = [f"i{d}" for d in range(tensor.rank)]
    index: list[Size] = [0 if n == 1 else symbol(v) for v, n in zip(variables, tensor.shape, strict=True)]
    pages = pages_of(value, index, dict(zip(variables, tensor.shape, strict=True)))
    width = tensor.shape[-1]
    if pages is None or pages.size % _UNIT or not isinstance(width, int) or width % 8 or width > WIDEST_HEAD:
        return None
    layout = layout_of(pages.cache)
    if layout is None or layout_of(pages.table) is None:
        return None
    along = coefficient_of(layout.address(pages.index), variables[-1])
    if along is None or along[0] != 1 or split_multiple(along[1], _ENGINE // tensor.dtype.bytes)[1] != 0:
        return None
    return pages


def _narrow(table: SSAValue) -> SSAValue:
    """The numbers of a table before they were widened."""
    cast = made_by(table, "graph.cast")
    if cast is None:
        return table
    source, result = (tensor_of(each.type).dtype for each in (cast.operands[0], cast.results[0]))
    return cast.operands[0] if source.is_integer and source.bits <= result.bits else table


def _root(value: SSAValue) -> SSAValue:
    while (view := made_by(value, *_VIEWS)) is not None:
        value = view.operands[0]
    return value


def _seen_through(value: SSAValue, index: Sequence[Size], bounds: dict[str, Size]) -> tuple[SSAValue, list[Size]]:
    """What a value is a view of, and where the element at an index lies in that."""
    index = list(index)
    while (view := made_by(value, *_VIEWS)) is not None:
        index = [simplify(place, bounds) for place in _through(view, index)]
        value = view.operands[0]
    return value, index


def _through(view: GraphOp, index: Sequence[Size]) -> list[Size]:
    """The index into what a view is of."""
    source, shape = (tensor_of(each.type).shape for each in (view.operands[0], view.results[0]))
    match view.name:
        case "graph.permute":
            dims: Sequence[int] = view.params["dims"]
            return [index[dims.index(d)] for d in range(len(source))]
        case "graph.broadcast":
            own = index[len(shape) - len(source) :]
            return [0 if size == 1 else place for size, place in zip(source, own, strict=True)]
        case "graph.slice":
            places = zip(view.params["starts"], view.params["steps"], index, strict=True)
            return [start + step * place for start, step, place in places]
        case _:
            return reshape_index(index, shape, source)


@dataclass(frozen=True)
class ReadPages(ModulePass):
    """%k = graph.take %cache, %table                          %k = graph.take %cache, %table {weft.inlined}
    %y = graph.attention %q, (views of %k), …         →     %y = graph.attention %q, (views of %k), …
    """

    name: ClassVar[str] = "read_pages"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if not isinstance(function, FuncOp):
                continue
            if attentions := [each for each in function.block.ops if isinstance(each, AnyAttention)]:
                layouts = ValueLayouts(function)
                for take in [take for each in attentions for take in _takes(each, layouts)]:
                    take.attributes[INLINED] = UnitAttr()


def _takes(op: AnyAttention, layouts: ValueLayouts) -> list[Take]:
    """What chooses pages of keys and of values, where both are in pages that a kernel can read, for nobody else."""
    if tensor_of(op.operands[0].type).dtype not in (bf16, f16) or op.params["scale"] <= 0:
        return []
    found = pages_of_both(op, layouts.of) or ()
    for pages in found:
        if not _is_read_by(pages.take.results[0], op) or not all(map(_is_in_memory, (pages.cache, pages.table))):
            return []
    return [pages.take for pages in found]


def _is_in_memory(value: SSAValue) -> bool:
    """Whether no kernel computes a value where it is read."""
    return not isinstance(value, OpResult) or not isinstance(value.op, Elementwise)


def _is_read_by(value: SSAValue, op: AnyAttention) -> bool:
    """Whether a value is read by one op alone, through views."""
    readers = [use.operation for use in value.uses]
    return all(reader is op or (reader.name in _VIEWS and _is_read_by(reader.results[0], op)) for reader in readers)
