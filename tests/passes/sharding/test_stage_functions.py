"""Stages of a program, each on a rank of its own, give what the program gives, whatever skips some of them."""

from __future__ import annotations

import numpy as np
import pytest

from weft.backends.reference.graph import run_op
from weft.backends.reference.ranks import run_ranks
from weft.errors import ShardingError
from weft.ir.sharding import Mesh
from weft.ir.types import Tensor, f32
from weft.ops.collectives import Recv, Send
from weft.ops.graph import FuncOp, GraphBuilder, ReturnOp
from weft.passes.sharding.counts import count_program
from weft.passes.sharding.stage_functions import Message, cut_into_stages, place_parameters, with_transfers


def program(layers: int) -> FuncOp:
    """Layers whose first result is added to the last one, and angles that need no parameter."""
    function = FuncOp.make("layers", {"x": Tensor(f32, (4, 8))} | {f"w{n}": Tensor(f32, (8, 8)) for n in range(layers)})
    b = GraphBuilder(function.block)
    x, *weights = function.block.args
    angles = b.cos(b.iota(shape=(8,), dim=0, dtype=f32, start=0, step=1))
    first = y = b.dot(x, weights[0])
    for weight in weights[1:]:
        y = b.mul(b.tanh(b.dot(y, b.permute(weight, dims=(1, 0)))), angles)
    b.insert(ReturnOp.make([b.add(y, first)]))
    return function


def whole(function: FuncOp, arguments: list[np.ndarray]) -> np.ndarray:
    values = dict(zip(function.block.args, arguments, strict=True))
    for op in function.block.ops:
        if isinstance(op, ReturnOp):
            return values[op.operands[0]]
        values.update(zip(op.results, run_op(op, [values[v] for v in op.operands], {}, None), strict=True))
    raise AssertionError("it returns")


@pytest.mark.parametrize("stages", [1, 2, 3, 5])
def test_stages_give_what_the_program_gives(stages: int) -> None:
    function, rng = program(6), np.random.default_rng(0)
    arguments = [rng.standard_normal((4, 8), np.float32)] + [rng.standard_normal((8, 8), np.float32) for _ in range(6)]
    placed = place_parameters(function, range(1, 7), stages)
    assert [where for where in placed.values()] == sorted(placed.values()) and len(set(placed.values())) == stages
    cut = cut_into_stages(function, placed, stages)
    programs: list[FuncOp] = []
    for number, stage in enumerate(cut):
        behind = len(stage.arguments)
        received = {behind + n: Message("pp", number - 1, message) for n, message in enumerate(stage.received)}
        sent = {n: Message("pp", number + 1, message) for n, message in enumerate(stage.sent)}
        programs.append(with_transfers(stage.function, received, sent))
    results = run_ranks(programs, Mesh.of(pp=stages), lambda rank: [arguments[n] for n in cut[rank].arguments])
    np.testing.assert_allclose(results[-1][0], whole(function, arguments), rtol=1e-5)
    for stage, made in zip(cut, programs, strict=True):
        assert count_program(made).calls("recv") == len(stage.received)
        assert count_program(made).calls("send") == len(stage.sent)


def test_what_skips_a_stage_goes_through_it() -> None:
    cut = cut_into_stages(program(4), {1: (0,), 2: (1,), 3: (2,), 4: (2,)}, 3)
    assert cut[1].received[0] in cut[1].sent, "the first result is handed on"
    assert all(op.name != "graph.cos" for op in cut[0].function.block.ops), "it reads no angles"
    assert all(any(op.name == "graph.cos" for op in stage.function.block.ops) for stage in cut[1:])


def test_messages_are_in_the_program() -> None:
    cut = cut_into_stages(program(2), {1: (0,), 2: (1,)}, 2)
    made = with_transfers(cut[0].function, {}, {0: Message("pp", 1, 0)})
    assert [type(op) for op in made.block.ops][-2:] == [Send, ReturnOp]
    made = with_transfers(cut[1].function, {len(cut[1].arguments): Message("pp", 0, 0)}, {})
    assert isinstance(made.block.first_op, Recv)


def test_a_parameter_of_an_earlier_stage_is_refused() -> None:
    with pytest.raises(ShardingError, match="w1 is on stage 0, and is used behind stage 1"):
        cut_into_stages(program(3), {1: (1,), 2: (0,), 3: (1,)}, 2)


def test_more_stages_than_ops_are_refused() -> None:
    with pytest.raises(ShardingError, match="are not 40 stages"):
        place_parameters(program(3), range(1, 4), 40)
