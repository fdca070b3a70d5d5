"""Rows of narrow images share vectors: fewer passes, and the same bits."""

from __future__ import annotations

import numpy as np
import pytest

from weft.backends.reference.graph import run
from weft.ir.types import Tensor, i8
from weft.spatial.int8_builder import Int8Builder
from weft.spatial.isa import Function
from weft.spatial.machine import streaming_machine
from weft.spatial.mapping.jobs import line_groups
from weft.spatial.mapping.layers import Constant, Node, Placed, Window
from weft.spatial.mapping.packing import Packing, packings, plain
from weft.spatial.scheduler.compile import compile_graph
from weft.spatial.scheduler.expression import padding_constants
from weft.spatial.simulator.run import simulate
from weft.spatial.verifier.verify import violations

TSP1 = streaming_machine("tsp1")
THREE = Window((3, 3), (1, 1), ((1, 1), (1, 1)))


def image(height: int, channels: int, packing: Packing | None = None) -> Placed:
    made = Placed("x", (1, channels, height, 8), np.dtype(np.int8), height, 8, channels, 320, border=1)
    made.packing = packing or plain(height)
    return made


@pytest.mark.parametrize("height", [7, 14, 56])
def test_every_packing_holds_every_row(height: int) -> None:
    for packing in packings(height, 5, 1):
        rows = {packing.row(line, slot) for line in range(packing.lines) for slot in range(packing.slots)}
        assert rows >= set(range(height))


def test_a_window_of_three_rows_lies_in_one_overlapping_vector() -> None:
    source = image(56, 64, Packing(5, 3, 1, -1, 0, 19))
    output = image(56, 64, Packing(3, 3, 1, 0, 0, 19))
    groups = line_groups(source, output, THREE)
    assert [len(group.meetings) for group in groups] == [1]
    assert len(groups[0].meetings[0]) == 9  # three rows of output, three taps each


def test_strips_of_two_take_three_lines_for_two_rows() -> None:
    strips = Packing(2, 2, 1, 0, 0, 14)
    groups = line_groups(image(28, 128, strips), image(28, 128, strips), THREE)
    assert [len(group.meetings) for group in groups] == [3]


def test_constants_give_padding_its_value() -> None:
    scale, bias = Constant(np.ones(4)), Constant(np.zeros(4))
    product = Node(Function.MUL_F32, (Node(Function.I32_TO_F32, ("product",)), scale))
    root = Node(Function.F32_TO_I8, (Node(Function.ADD_F32, (product, bias)),))
    assert padding_constants(root, -128) == {id(scale): 0.0, id(bias): -128.0}
    assert padding_constants(Node(Function.F32_TO_I8, (product,)), -128) is None


@pytest.mark.parametrize(("height", "channels", "stride"), [(11, 64, 1), (12, 40, 2), (9, 100, 1), (13, 150, 2)])
def test_narrow_convolutions_are_exact_and_take_fewer_passes(height: int, channels: int, stride: int) -> None:
    rng = np.random.default_rng(height)
    build = Int8Builder("narrow", {"x": Tensor(i8, (1, channels, height, 10))})
    value = build.argument("x")
    for size, step in ((1, 1), (3, stride), (1, 1)):
        weights = rng.integers(-128, 128, (channels, channels, size, size), dtype=np.int8)
        product = build.convolution(value, weights, (step, step), (size // 2, size // 2), zero=-128)
        scaled = build.scaled(product, np.full(channels, 0.0005, np.float32))
        value = build.to_int8(build.add(scaled, rng.uniform(-40, 40, channels).astype(np.float32)))
    function, x = build.finish([value]), rng.integers(-128, 128, (1, channels, height, 10), dtype=np.int8)
    program = compile_graph(function, TSP1, build.constants)
    assert not violations(program)
    simulated = simulate(program, [x])
    assert simulated.cycles == program.cycles
    np.testing.assert_array_equal(simulated.results[0], run(function, [x, *build.constants.values()])[0])
    out = -(-height // stride) * -(-10 // stride)
    unpacked = (height * 10 + 9 * out + out) // 4
    assert program.bounds["MXM"] < unpacked
