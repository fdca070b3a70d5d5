"""Let attention read keys and values that lie in pages where they lie, instead of a copy of all pages of a sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass

from weft.ir.expr import Size, simplify, symbol, symbols_of
from weft.ir.types import bf16, f16, tensor_of
from weft.ops.attention import AnyAttention
from weft.ops.base import GraphOp
from weft.ops.graph import FuncOp
from weft.ops.index import Take
from weft.ops.reshaping import reshape_index
from weft.passes.build_groups import INLINED
from weft.passes.constant_values import made_by

PAGE, SLOT = "page", "slot"
_UNIT, _MOST_WIDTH = 16, 256
"""Pages have whole fragments of the tensor cores, and heads fit into one tile."""
_VIEWS = ("graph.permute", "graph.reshape", "graph.broadcast")


@dataclass(frozen=True)
class Pages:
    """Keys or values in pages: `take` chooses, for each sequence, `count` pages of `size` keys each.

    `place` is where in the table a sequence's first page is told, and `index` the place among all pages of a key at
    `SLOT` in the page `PAGE`.
    """

    take: Take
    size: int
    count: int
    place: tuple[Size, ...]
    index: tuple[Size, ...]


def pages_of(value: SSAValue, index: Sequence[Size], bounds: dict[str, Size]) -> Pages | None:
    """How an operand of attention, of which `index` says the place of a key, lies in pages, if it does.

    The index is over variables within bounds, but for that of the key, the next to last.
    """
    views: list[GraphOp] = []
    while (view := made_by(value, *_VIEWS)) is not None:
        views.append(view)
        value = view.operands[0]
    take = value.owner
    keys = index[-2] if views else None
    if not isinstance(take, Take) or take.params["dim"] != 0 or keys is None:
        return None
    cache, table = (tensor_of(operand.type) for operand in take.operands)
    length = tensor_of(views[0].results[0].type).shape[-2]
    if not cache.is_static or not table.is_static or table.rank != 2 or not isinstance(length, int):
        return None
    count = table.shape[1]
    assert isinstance(count, int)
    size = length // max(count, 1)
    if size * count != length:
        return None
    known = {**bounds, PAGE: count, SLOT: size}
    places: list[Size] = [*index[:-2], symbol(PAGE) * size + symbol(SLOT), index[-1]]
    for view in views:
        places = [simplify(place, known) for place in _through(view, places)]
    row, page, *rest = places
    if page != symbol(PAGE) or any(PAGE in symbols_of(place) for place in (row, *rest)) or SLOT in symbols_of(row):
        return None
    return Pages(take, size, count, (row, 0), (symbol(PAGE), *rest))


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
            for each in list(function.block.ops):
                takes = _pages(each) if isinstance(each, AnyAttention) else []
                if takes:
                    for take in takes:
                        take.attributes[INLINED] = UnitAttr()


def _pages(op: AnyAttention) -> list[Take]:
    """What chooses pages of keys and of values, where both are in pages that a kernel can read, for nobody else."""
    query = tensor_of(op.operands[0].type)
    found: list[Take] = []
    for value in op.operands[1:3]:
        tensor = tensor_of(value.type)
        variables = [f"i{d}" for d in range(tensor.rank)]
        index: list[Size] = [0 if n == 1 else symbol(v) for v, n in zip(variables, tensor.shape, strict=True)]
        pages = pages_of(value, index, dict(zip(variables, tensor.shape, strict=True)))
        width = tensor.shape[-1]
        if pages is None or pages.size % _UNIT or not isinstance(width, int) or width % 8 or width > _MOST_WIDTH:
            return []
        if not _is_read_by(pages.take.results[0], op):
            return []
        found.append(pages.take)
    return found if query.dtype in (bf16, f16) and op.params["scale"] > 0 else []


def _is_read_by(value: SSAValue, op: AnyAttention) -> bool:
    """Whether a value is read by one op alone, through views."""
    readers = [use.operation for use in value.uses]
    return all(reader is op or (reader.name in _VIEWS and _is_read_by(reader.results[0], op)) for reader in readers)
