"""Tensors in two banks: a layer begins while the last rows of the one before it are still written."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from xdsl.ir import SSAValue

from tests.spatial.exact_programs import TSP1, check
from weft.ir.types import Tensor, i8
from weft.spatial.int8_builder import Int8Builder
from weft.spatial.isa import Opcode
from weft.spatial.machine import StreamingMachine, streaming_machine
from weft.spatial.mapping.layers import Model
from weft.spatial.program import Program, expanded
from weft.spatial.scheduler.bank_halves import NO_HALVES, BankHalves, plan_halves, portions
from weft.spatial.scheduler.chip import ChipSchedule, span_of
from weft.spatial.scheduler.compile import compile_graph, map_graph
from weft.spatial.scheduler.memory_map import CapacityError
from weft.testing.spatial.programs import RandomProgram


def bottlenecks(blocks: int, side: int, channels: int, wide: int, stride: int = 1, seed: int = 0) -> RandomProgram:
    """Blocks of a ResNet: 1 × 1, 3 × 3 and 1 × 1 convolutions, and the block's input added to the last."""
    rng = np.random.default_rng(seed)
    build = Int8Builder("blocks", {"x": Tensor(i8, (1, wide, side, side))})

    def convolution(x: SSAValue, outs: int, size: int, stride: int = 1, beside: SSAValue | None = None) -> SSAValue:
        ins = int(build.builder.tensor(x).shape[1])  # type: ignore[arg-type]
        weights = rng.integers(-128, 128, (outs, ins, size, size), dtype=np.int8)
        value = build.convolution(x, weights, (stride, stride), (size // 2, size // 2), zero=-128)
        scale = (rng.uniform(0.5, 2, outs) / (140 * np.sqrt(ins * size * size))).astype(np.float32)
        value = build.add(build.scaled(value, scale), rng.uniform(-9, 9, outs).astype(np.float32))
        if beside is not None:
            value = build.add(value, build.scaled(beside, np.full(outs, 0.5, np.float32)))
        return build.to_int8(value)

    value = build.argument("x")
    for _ in range(blocks):
        inner = convolution(convolution(value, channels, 1), channels, 3)
        value = convolution(inner, wide, 1, beside=value)
    if stride > 1:
        value = convolution(convolution(value, channels, 3, stride), wide, 1)
    given = rng.integers(-128, 128, (1, wide, side, side), dtype=np.int8)
    return RandomProgram(build.finish([value]), build.constants, [given])


def written_until(program: Program) -> dict[int, int]:
    """For each layer with a product, the cycle of its last write."""
    issues = expanded(program.instructions)
    writes = issues["opcode"] == Opcode.WRITE
    origins, cycles = issues["origin"][writes], issues["cycle"][writes]
    return {int(each): int(cycles[origins == each].max()) for each in np.unique(origins)}


def multiplied_from(program: Program) -> dict[int, int]:
    issues = expanded(program.instructions)
    rows = issues["opcode"] == Opcode.MULTIPLY
    origins, cycles = issues["origin"][rows], issues["cycle"][rows]
    return {int(each): int(cycles[origins == each].min()) for each in np.unique(origins)}


def scheduled(model: Model, halves: BankHalves, machine: StreamingMachine = TSP1) -> int:
    """The cycles of all layers, one after another."""
    chip = ChipSchedule(machine, model, halves)
    starts = [chip.add_layer(layer) for layer in model.layers]
    return max(chip.done.values()) - min(starts)


@pytest.mark.parametrize(
    ("turns", "most", "first"), [(49, 256, 27), (266, 256, None), (1, 1, None), (600, 256, 100), (5, 2, 9)]
)
def test_portions_are_all_turns_in_order(turns: int, most: int, first: int | None) -> None:
    found = list(portions(turns, most, first))
    assert [turn for begin, count in found for turn in range(begin, begin + count)] == list(range(turns))
    later = [count for begin, count in found if begin or first is None or first >= turns]
    assert max(later) <= most and max(later) - min(later) <= 1
    if first is not None and first < turns:
        assert found[0] == (0, first)


@pytest.mark.parametrize(
    ("side", "channels", "wide", "stride", "factor"),
    [(14, 256, 330, 1, 2), (13, 330, 400, 2, 1), (20, 70, 260, 2, 0.5), (9, 128, 400, 1, 1)],
)
def test_blocks_of_layers_that_overlap_are_exact(
    side: int, channels: int, wide: int, stride: int, factor: float
) -> None:
    check(bottlenecks(1, side, channels, wide, stride, seed=side), TSP1.scaled(factor))


def test_layers_begin_before_the_one_before_them_is_written() -> None:
    given = bottlenecks(3, 14, 256, 1024)
    model = map_graph(given.function, TSP1, given.constants)
    halves = plan_halves(TSP1, model)
    inner = [layer.output.number for layer in model.layers[:-1]]
    assert set(halves.late) == set(inner)
    # In each of nine layers but the first, most of the 80 cycles from the last product to the next are gained.
    assert scheduled(model, halves) <= scheduled(model, NO_HALVES) - 8 * 60
    program = compile_graph(given.function, TSP1, given.constants)
    ends, begins = written_until(program), multiplied_from(program)
    order = sorted(begins, key=lambda each: begins[each])
    early = [ends[one] > begins[other] for one, other in pairwise(order)]
    assert sum(early) >= 6


def test_what_is_written_first_and_last_is_in_different_banks() -> None:
    given = bottlenecks(2, 14, 256, 1024)
    model = map_graph(given.function, TSP1, given.constants)
    halves = plan_halves(TSP1, model)
    ChipSchedule(TSP1, model, halves)
    for number, late in halves.late.items():
        tensor = model.tensors[number]
        assert tensor.split is not None and tensor.first_copy in (0, 2)
        np.testing.assert_array_equal(tensor.split // TSP1.memory.bank_words, late)
        assert len(np.unique(tensor.split)) == tensor.words and 0 < late.sum() < tensor.words


def test_a_machine_of_one_bank_has_no_halves() -> None:
    given = bottlenecks(1, 14, 256, 640)
    machine = streaming_machine("tsp1", {"memory.banks": 1, "memory.bank_words": 8192})
    assert not plan_halves(machine, map_graph(given.function, TSP1, given.constants)).late


def test_one_bank_for_each_tensor_is_kept_where_that_is_shorter() -> None:
    rng = np.random.default_rng(0)
    build = Int8Builder("branches", {"x": Tensor(i8, (1, 330, 9, 5))})

    def convolution(x: SSAValue, outs: int, size: int, stride: int = 1) -> SSAValue:
        ins = int(build.builder.tensor(x).shape[1])  # type: ignore[arg-type]
        weights = rng.integers(-128, 128, (outs, ins, size, size), dtype=np.int8)
        value = build.convolution(x, weights, (stride, stride), (size // 2, size // 2))
        return build.to_int8(build.scaled(value, np.full(outs, 0.001, np.float32)))

    first = convolution(build.argument("x"), 400, 1)
    second = convolution(first, 256, 1)
    third = convolution(second, 256, 5, 2)
    outputs = [convolution(third, 256, 3), first, convolution(first, 330, 3), convolution(second, 64, 3)]
    function = build.finish(outputs)
    program = compile_graph(function, TSP1, build.constants)
    model = map_graph(function, TSP1, build.constants)
    plain, halves = (schedule_of(model, each) for each in (NO_HALVES, next(plan_halves(TSP1, model).sparing())))
    assert program.cycles == plain < halves


def schedule_of(model: Model, halves: BankHalves) -> int:
    """The cycles of a schedule."""
    chip = ChipSchedule(TSP1, model, halves)
    for layer in model.layers:
        chip.add_layer(layer)
    begin, end = span_of(TSP1, chip.instructions())
    return end - begin


def test_plans_with_fewer_portions_differ() -> None:
    late = {1: np.zeros(4, np.int64)}
    assert [each.first for each in BankHalves(late).sparing()] == [{}]
    assert [each.first for each in BankHalves(late, {1: 40}, {1: 2}).sparing()] == [{1: 40}, {}]
    assert [each.first for each in BankHalves(late, {1: 40}, {1: 9}).sparing()] == [{1: 40}, {}]


def test_tensors_that_one_bank_cannot_keep_apart_ask_for_another() -> None:
    given = bottlenecks(1, 5, 32, 32)
    machine = streaming_machine("tsp1", {"memory.banks": 1, "memory.bank_words": 8192})
    with pytest.raises(CapacityError, match=r"in all banks of the 16 slices(.|\n)*raise memory.banks"):
        compile_graph(given.function, machine, given.constants)
