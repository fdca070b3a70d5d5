"""Where turns of a loop make the new states: in the place of the old ones, once these are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from xdsl.ir import SSAValue

from tests.seeds import generator
from weft.config import Config
from weft.frontends.text import compile_text
from weft.ir.types import Tensor, f32
from weft.lower.steps import DotStep, KernelStep, LoopStep, Step
from weft.ops.control import loop
from weft.ops.graph import FuncOp, GraphBuilder, ReturnOp
from weft.ops.recurrent import Form, Weights, gru, lstm
from weft.runtime.record import CompilationRecord, recording

ROWS, SIZE, TURNS = 3, 5, 4
Turn = Callable[[GraphBuilder, SSAValue, SSAValue, SSAValue], list[SSAValue]]
Exact = Callable[[np.ndarray, np.ndarray, np.ndarray], tuple[np.ndarray, ...]]


def states_of(turn: Turn) -> FuncOp:
    """A loop that carries two states and captures weights."""
    state = Tensor(f32, (ROWS, SIZE))
    function = FuncOp.make("f", {"h": state, "c": state, "w": Tensor(f32, (SIZE, SIZE))})
    b = GraphBuilder(function.block)
    h, c, w = function.block.args

    def body(
        b: GraphBuilder, _: SSAValue, states: Sequence[SSAValue], __: Sequence[SSAValue]
    ) -> tuple[list[SSAValue], list[SSAValue]]:
        return turn(b, states[0], states[1], w), []

    b.insert(ReturnOp.make(loop(b, body, [h, c], trip_count=TURNS)[0]))
    return function


def steps_of_turn(records: list[CompilationRecord]) -> tuple[Step, ...]:
    plan = records[0].plan
    assert plan is not None
    (step,) = [step for step in plan.steps if isinstance(step, LoopStep)]
    return step.body


CASES: dict[str, tuple[Turn, Exact, bool]] = {
    # The first product has read h when the second one begins, in h's place. c is written over where it lies.
    "read before": (
        lambda b, h, c, w: [b.tanh(b.dot(b.sin(b.dot(h, w)), w)), b.mul(c, c)],
        lambda h, c, w: (np.tanh(np.sin(h @ w) @ w), c * c),
        False,
    ),
    # The product reads h, which it would write over.
    "read by its maker": (
        lambda b, h, c, w: [b.tanh(b.dot(h, w)), b.add(c, c)],
        lambda h, c, w: (np.tanh(h @ w), c + c),
        True,
    ),
    # h is read by a product behind that of the new h.
    "read behind": (
        lambda b, h, c, w: [b.dot(b.tanh(c), w), b.dot(b.sin(h), w)],
        lambda h, c, w: (np.tanh(c) @ w, np.sin(h) @ w),
        True,
    ),
    # Each becomes the other.
    "exchanged": (lambda b, h, c, w: [c, b.tanh(h)], lambda h, c, w: (c, np.tanh(h)), True),
    # One value becomes both.
    "one for two": (
        lambda b, h, c, w: [new := b.tanh(b.add(b.dot(h, w), c)), new],
        lambda h, c, w: (np.tanh(h @ w + c),) * 2,
        True,
    ),
}


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_states_are_right_and_copied_only_where_they_must_be(name, strict):
    turn, exact, copied = CASES[name]
    rng = generator()
    h, c = (rng.standard_normal((ROWS, SIZE)).astype(np.float32) for _ in range(2))
    w = (rng.standard_normal((SIZE, SIZE)) / SIZE).astype(np.float32)
    with recording() as records:
        compiled = compile_text(str(states_of(turn)), config=Config(cache=False, strict=strict))
        found = compiled(h, c, w)
    old, cell, weights = (each.astype(np.float64) for each in (h, c, w))
    for _ in range(TURNS):
        old, cell = exact(old, cell, weights)
    for value, wanted in zip(found, (old, cell), strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-6)
    steps = steps_of_turn(records)
    copies = [step for step in steps if isinstance(step, KernelStep) and not step.label]
    if not any(isinstance(step, DotStep) for step in steps):  # behind a library's product the old state is read
        assert bool(copies) == copied


@pytest.mark.parametrize("kind", ["lstm", "gru"])
@pytest.mark.parametrize("rows", [3, 130, 520])
def test_a_turn_of_a_layer_is_a_product_and_a_kernel(kind, rows):
    gates = {"lstm": 4, "gru": 3}[kind]
    shapes = {"x": (9, rows, 5), "h": (rows, 72), "c": (rows, 72), "w": (gates * 72, 5), "r": (gates * 72, 72)}
    shapes |= {"wb": (gates * 72,), "rb": (gates * 72,)}
    function = FuncOp.make(kind, {name: Tensor(f32, shape) for name, shape in shapes.items()})
    b = GraphBuilder(function.block)
    x, h, c, w, r, wb, rb = function.block.args
    weights = Weights(w, r, wb, rb)
    made = lstm(b, x, h, c, weights, Form("ifgo")) if kind == "lstm" else gru(b, x, h, weights, Form("rzn"))
    b.insert(ReturnOp.make(made))
    with recording() as records:
        compile_text(str(function), config=Config(cache=False))
    product, gates_kernel = steps_of_turn(records)  # the kernel writes the state to the stack of all turns, too
    assert isinstance(product, DotStep) or product.label == "dot"
    assert isinstance(gates_kernel, KernelStep) and "sigmoid" in gates_kernel.label
