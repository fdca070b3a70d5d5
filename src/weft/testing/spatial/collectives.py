"""Collectives among chips as graphs of 8-bit integers: every chip has a tensor, and all get the sum."""

from __future__ import annotations

import numpy as np
from xdsl.ir import SSAValue

from weft.ir.types import Tensor, i8
from weft.spatial.int8_transformer import TransformerBuilder
from weft.testing.spatial.programs import RandomProgram


def all_reduce(chips: int, size: int, lanes: int, seed: int = 0) -> RandomProgram:
    """So many bytes on each chip, added up in 32 bits, and rounded to 8: results lie side by side for all chips.

    A chip adds up a share of them for all others (reduce-scatter), which then get it (all-gather). Vectors are rows, so
    that a sum over chips is a product by one diagonal for each of them.
    """
    rows = -(-size // (lanes * chips))
    names = [(chip, share) for share in range(chips) for chip in range(chips)]
    build = TransformerBuilder("all_reduce", {f"x{chip}.{share}": Tensor(i8, (rows, lanes)) for chip, share in names})
    parts: dict[tuple[int, int], SSAValue] = {}
    for chip, share in names:
        with build.on(chip):
            given = build.argument(f"x{chip}.{share}")
            parts[chip, share] = build.to_int8(build.scaled(given, np.ones(lanes, np.float32)))
    diagonals = np.tile(np.eye(lanes, dtype=np.int8), (chips, 1))
    joined = [build.builder.concat(*(parts[chip, share] for chip in range(chips)), dim=1) for share in range(chips)]
    totals: list[SSAValue] = []
    for share in range(chips):
        with build.on(share):
            product = build.dot(joined[share], diagonals)
            totals.append(build.to_int8(build.scaled(product, np.full(lanes, 1 / chips, np.float32))))
    build.builder.concat(*totals, dim=1)
    rng = np.random.default_rng(seed)
    values = [rng.integers(-128, 128, (rows, lanes), dtype=np.int8) for _ in names]
    return RandomProgram(build.finish(totals), build.constants, values)
