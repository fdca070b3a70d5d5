"""Queues hold a few words at the start and fetch the others: layers wait for them, or are refused."""

from __future__ import annotations

import numpy as np
import pytest
from xdsl.ir import SSAValue

from weft.ir.types import Tensor, i8
from weft.spatial.int8_builder import Int8Builder
from weft.spatial.machine import streaming_machine
from weft.spatial.scheduler.compile import compile_graph
from weft.spatial.scheduler.memory_map import CapacityError
from weft.spatial.verifier.verify import violations
from weft.testing.spatial.programs import RandomProgram


def pooled(first: bool) -> RandomProgram:
    """A max pool, which reads in a pattern of many words, and a convolution; the pool is the first layer or not."""
    rng = np.random.default_rng(0)
    build = Int8Builder("pooled", {"x": Tensor(i8, (1, 260, 7, 19))})

    def convolution(x: SSAValue, outs: int, size: int, stride: int = 1) -> SSAValue:
        weights = rng.integers(-128, 128, (outs, 260, size, size), dtype=np.int8)
        value = build.convolution(x, weights, (stride, stride), (size // 2, size // 2))
        return build.to_int8(build.scaled(value, np.full(outs, 0.001, np.float32)))

    x = build.argument("x") if first else convolution(build.argument("x"), 260, 1)
    pool = build.max_pool(x, 3, 1, 1)
    convolution(pool, 130, 3)
    return RandomProgram(build.finish([convolution(pool, 260, 1, 2), pool]), build.constants, [])


def test_a_first_layer_of_more_words_than_are_fetched_is_refused() -> None:
    given = pooled(first=True)
    with pytest.raises(CapacityError, match=r"lacks instructions for \d+ cycles in graph.max_pool"):
        compile_graph(given.function, streaming_machine("tsp1"), given.constants)
    deeper = compile_graph(given.function, streaming_machine("tsp1", {"control.depth": 64}), given.constants)
    assert not violations(deeper)


def test_a_later_layer_starts_when_its_words_are_fetched() -> None:
    given = pooled(first=False)
    slow = compile_graph(
        given.function, streaming_machine("tsp1", {"control.fetch_bytes": 8, "control.depth": 20}), given.constants
    )
    fast = compile_graph(given.function, streaming_machine("tsp1"), given.constants)
    assert not violations(slow) and not violations(fast)
    assert slow.cycles > fast.cycles
