"""Products of attention: tiles of weights that are keys and values, which lie in memory as vectors of a tensor.

Queries, keys and values are matrices [S, heads · d]. The scores of a head are its queries times a tile whose columns
are keys, of which only the lanes of the head count; its result is the scores times a tile whose rows are values, again
with the lanes of the head alone, so that the results of all heads add up to a vector. Nothing is moved between lanes.
Where several heads of queries share one of keys, the queries are laid out so that each stands in the lanes of its keys.
"""

from __future__ import annotations

import numpy as np

from weft.errors import UnsupportedError
from weft.spatial.mapping.layers import BlockProduct, Placed, TensorTile

Segment = tuple[int, int, int]
"""A block of lanes, the first tile of the machine that a head has there, and how many."""


def query_order(heads: int, repeats: int, width: int, lanes: int) -> np.ndarray | None:
    """The channel that each lane of the queries holds; None where they follow each other."""
    if repeats == 1:
        return None
    groups = heads // repeats
    span = -(-groups * width // lanes) * lanes
    order = np.full((repeats, span), -1)
    channels = np.arange(heads * width).reshape(groups, repeats, width)
    order[:, : groups * width] = channels.transpose(1, 0, 2).reshape(repeats, -1)
    return order.reshape(-1)


def score_order(heads: int, keys: int, lanes: int) -> np.ndarray:
    """The channel that each lane of the scores holds: a head begins with a block of its own."""
    order = np.full((heads, -(-keys // lanes) * lanes), -1)
    order[:, :keys] = np.arange(heads * keys).reshape(heads, keys)
    return order.reshape(-1)


def segments(head: int, width: int, lanes: int, per_tile: int) -> list[Segment]:
    """Where the lanes of a head are."""
    if width % per_tile:
        raise UnsupportedError(
            f"heads of {width} channels", hint=f"lanes are switched off in steps of {per_tile}: widen the heads"
        )
    found: list[Segment] = []
    at, end = head * width, (head + 1) * width
    while at < end:
        block, lane = divmod(at, lanes)
        taken = min(end, (block + 1) * lanes) - at
        found.append((block, lane // per_tile, taken // per_tile))
        at += taken
    return found


def score_product(queries: Placed, keys: Placed, heads: int, repeats: int, width: int, per_tile: int) -> BlockProduct:
    """Queries times keys: a block of output, or several, for each head."""
    lanes, count = queries.lanes, keys.width
    own = -(-heads // repeats * width // lanes)
    passes: list[tuple[tuple[int, TensorTile], ...]] = []
    for head in range(heads):
        group, repeat = divmod(head, repeats)
        for first in range(0, count, lanes):
            taken = min(lanes, count - first)
            passes.append(
                tuple(
                    (repeat * own + block, TensorTile(keys, keys.number, block, first, taken, True, tile, tiles))
                    for block, tile, tiles in segments(group, width, lanes, per_tile)
                )
            )
    return BlockProduct(tuple(passes), heads * queries.width * count * width)


def value_product(scores: Placed, values: Placed, heads: int, repeats: int, width: int, per_tile: int) -> BlockProduct:
    """Scores times values: the results of all heads in the lanes of their queries."""
    lanes, count = scores.lanes, values.width

    def tile(block: int, first: int, taken: int, start: int, tiles: int) -> TensorTile:
        return TensorTile(values, values.number, block, first, taken, False, start, tiles)

    return BlockProduct(
        _head_passes(heads, repeats, width, lanes, per_tile, count, tile), heads * scores.width * count * width
    )


def head_sums(scores: Placed, heads: int, repeats: int, width: int, keys: int, per_tile: int) -> BlockProduct:
    """The sum of the scores of each head, in all lanes of the head."""
    lanes = scores.lanes

    def tile(block: int, first: int, taken: int, start: int, tiles: int) -> np.ndarray:
        made = np.zeros((lanes, lanes), np.int8)
        made[:taken, start * per_tile : (start + tiles) * per_tile] = 1
        return made

    return BlockProduct(_head_passes(heads, repeats, width, lanes, per_tile, keys, tile), heads * scores.width * keys)


def row_sums(source: Placed, blocks: int) -> BlockProduct:
    """The sum over all channels, in all lanes of so many blocks."""
    lanes, passes = source.lanes, list[tuple[int, np.ndarray]]()
    held = np.arange(source.blocks * lanes) < source.channels if source.order is None else source.order >= 0
    for block in range(source.blocks):
        tile = np.zeros((lanes, lanes), np.int8)
        tile[held[block * lanes : (block + 1) * lanes]] = 1
        passes.append((block, tile))
    return BlockProduct((tuple(passes),) * blocks, source.width * source.channels)


def _head_passes(heads, repeats, width, lanes, per_tile, count, tile):  # type: ignore[no-untyped-def]
    """For each block of the result the scores of each head in it, by a tile of that head."""
    groups, deep = heads // repeats, -(-count // lanes)
    own = -(-groups * width // lanes)
    found = [[] for _ in range(repeats * own)]
    for repeat in range(repeats):
        for group in range(groups):
            head = group * repeats + repeat
            for block, start, tiles in segments(group, width, lanes, per_tile):
                for number in range(deep):
                    taken = min(lanes, count - number * lanes)
                    made = tile(block, number * lanes, taken, start, tiles)
                    found[repeat * own + block].append((head * deep + number, made))
    return tuple(tuple(each) for each in found)
