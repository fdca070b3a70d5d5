"""Keys and values that lie in pages, as attention reads them: blocks of keys are pieces, a page each.

    %k = graph.take %cache, %table        %p = tile.number %table[b, j], tile.number %table[b, j + 1], …
    graph.attention %q, %k, …       →     tile.load %cache[%p0 * …, %p1 * …, …] : width x keys of a block

A number in the table is counted from the end if it is negative, and kept inside, as `take` does. Blocks that reach
beyond the last page read that again: none of its keys count there.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from xdsl.dialects.builtin import IndexType, IntegerAttr, i64
from xdsl.ir import SSAValue

from weft.ir.expr import Size, coefficient_of, floordiv, maximum, minimum, mod, substitute, symbol
from weft.ir.types import tensor_of
from weft.lower.emit.body import register_dtype
from weft.passes.attention.read_pages import PAGE, SLOT, Pages
from weft.tile import dialect as tile

if TYPE_CHECKING:
    from weft.lower.attention.flash_attention import FlashLowering


def keys_of_block(pages: Pages, keys: int) -> int:
    """A number of keys of about so many that is whole pages, or that whole pages are made of."""
    return keys // pages.size * pages.size if pages.size <= keys else math.gcd(pages.size, keys)


def load_pages(lowering: FlashLowering, pages: Pages, start: Size, letters: str) -> SSAValue:
    """A block of keys or values from a key on, which is the first of a block."""
    emit, cache = lowering.emit, pages.cache
    other = letters.replace("j", "")
    address = emit.resolve(lowering.layouts[cache].address(pages.index))
    run, sides = lowering.runs[other], {letter: lowering.sides[letter] for letter in letters}
    along_page, along_other = coefficient_of(address, SLOT), coefficient_of(address, run.name)
    assert along_page is not None and along_other is not None
    strides = {"j": along_page[0], other: along_other[0]}
    first = mod(start, pages.size) if pages.size > sides["j"] else 0
    offset = substitute(address, {SLOT: first, run.name: 0})
    numbers = find_pages(lowering, pages, start)
    whole = {"j": pages.size, other: run.size}
    expressions = {
        "offset": [substitute(offset, {PAGE: number}) for number in numbers],
        "strides": [strides[letter] for letter in letters],
        "extents": [minimum(sides[letter], run.size) if letter == other else sides[letter] for letter in letters],
        "sides": [whole[letter] for letter in letters],
        "starts": [first if letter == "j" else 0 for letter in letters],
    }
    attributes, operands = emit.sizes(*expressions.values())
    in_pieces = {"piece_axis": IntegerAttr(letters.index("j"), i64)} if len(numbers) > 1 else {}
    op = tile.LoadOp.create(
        operands=[emit.pointers[cache], *operands],
        attributes={**dict(zip(expressions, attributes, strict=True)), **in_pieces},
        result_types=[tile.TileType.of(tuple(sides.values()), register_dtype(tensor_of(cache.type).dtype))],
    )
    return emit.add(op)


def find_pages(lowering: FlashLowering, pages: Pages, start: Size) -> list[Size]:
    """Which of all pages the block from a key on is in; numbers that are known already are not read again."""
    count = max(1, lowering.sides["j"] // pages.size)
    first = floordiv(start, pages.size)
    known = lowering.known_pages
    places = [(pages.table, first + piece) for piece in range(count)]
    for piece, place in enumerate(places):
        if place not in known:
            known[place] = _page(lowering, pages, first + piece)
    return [known[place] for place in places]


def _page(lowering: FlashLowering, pages: Pages, number: Size) -> Size:
    """Which of all pages one of a sequence is."""
    emit, table = lowering.emit, pages.table
    place = emit.resolve(lowering.layouts[table].address(pages.place))
    place = substitute(place, {PAGE: minimum(number, pages.count - 1)})
    (offset,), operands = emit.sizes((place,))
    op = tile.NumberOp.create(
        operands=[emit.pointers[table], *operands], attributes={"offset": offset}, result_types=[IndexType()]
    )
    name = f"{PAGE}{sum(each.startswith(PAGE) for each in emit.scalars)}"
    emit.scalars[name] = emit.add(op)
    found = symbol(name) + tile.NumberOp.LEAST
    counted = found + minimum(maximum(-found, 0), 1) * pages.among
    return maximum(minimum(counted, pages.among - 1), 0)
