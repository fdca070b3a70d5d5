"""Whose turn it is: which jobs are one."""

from __future__ import annotations

import numpy as np

from weft.spatial.isa import Function
from weft.spatial.machine import streaming_machine
from weft.spatial.mapping.layers import Job, Layer, Node, Pass, Placed
from weft.spatial.scheduler.turns import joined_jobs


def job(block: int, rows: int, tiles: tuple[int, ...]) -> Job:
    at = np.arange(rows)
    return Job(block, at, at, tuple(Pass(tile, 0, at) for tile in tiles))


def test_few_rows_join_few_alone() -> None:
    """A tile is loaded for the rows of a long job alone: they take turns on all planes, as joined rows do not."""
    output = Placed("y", (200, 64), np.dtype(np.int8), 1, 200, 64, 320)
    jobs = (job(0, 200, (0, 1)), job(1, 16, (0, 1)), job(2, 16, (0, 1)), job(3, 17, (0, 1)), job(4, 8, (2, 3)))
    layer = Layer(0, None, output, Node(next(iter(Function)), ("product",)), jobs=jobs)
    found = joined_jobs(streaming_machine("tsp1"), layer)
    assert [sorted({*each.blocks.tolist()}) for each in found] == [[0], [1, 2], [3], [4]]
    assert [each.joined for each in found] == [False, True, False, False]
