"""`store_states_twice`: what a loop carries on and stacks is made once, and written to both places by one kernel."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from xdsl.ir import SSAValue

from tests.seeds import generator
from weft.config import Config
from weft.frontends.text import compile_text
from weft.ir.types import Tensor, f32
from weft.lower.steps import LoopStep
from weft.ops.control import loop
from weft.ops.graph import FuncOp, GraphBuilder, ReturnOp
from weft.runtime.record import recording


def sums(turns: int) -> FuncOp:
    """`h = tanh(h + x)` in every turn, stacked."""
    function = FuncOp.make("f", {"h": Tensor(f32, (3, 5)), "x": Tensor(f32, (turns, 3, 5))})
    b = GraphBuilder(function.block)
    h, x = function.block.args

    def turn(
        b: GraphBuilder, _: SSAValue, states: Sequence[SSAValue], slices: Sequence[SSAValue]
    ) -> tuple[list[SSAValue], list[SSAValue]]:
        new = b.tanh(b.add(states[0], slices[0]))
        return [new], [new]

    finals, stacks = loop(b, turn, [h], [x], trip_count=turns)
    b.insert(ReturnOp.make([*finals, *stacks]))
    return function


def test_a_turn_is_one_kernel() -> None:
    rng = generator()
    h, x = rng.standard_normal((3, 5)).astype(np.float32), rng.standard_normal((6, 3, 5)).astype(np.float32)
    with recording() as records:
        compiled = compile_text(str(sums(6)), config=Config(cache=False, verify=True))
    last, stack = compiled(h, x)
    state, wanted = h.astype(np.float64), []
    for each in x.astype(np.float64):
        state = np.tanh(state + each)
        wanted.append(state)
    np.testing.assert_allclose(last, state, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(stack, np.stack(wanted), rtol=1e-6, atol=1e-6)
    plan = records[0].plan
    assert plan is not None
    (turns,) = (step for step in plan.steps if isinstance(step, LoopStep))
    assert len(turns.body) == 1
