"""Gradients of loops and branches against finite differences, and compiled."""

import numpy as np
import pytest

from weft.backends.reference.graph import run
from weft.config import Config
from weft.errors import UnsupportedError
from weft.frontends.text import compile_text
from weft.ir.types import Tensor, boolean, f32, f64, i64
from weft.ops.control import UNBOUNDED, if_else, loop
from weft.ops.graph import FuncOp, GraphBuilder, ReturnOp
from weft.ops.recurrent import Form, Weights, gru
from weft.passes.differentiate import vjp_function


def recurrence(dtype=f64) -> FuncOp:
    shapes = {"x": (5, 2, 3), "w": (3, 3), "h": (2, 3)}
    function = FuncOp.make("f", {k: Tensor(dtype, v) for k, v in shapes.items()} | {"c": Tensor(boolean, ())})
    b = GraphBuilder(function.block)
    x, w, h, c = function.block.args

    def turn(b, index, states, slices):
        (new,) = if_else(
            b, c, lambda b: [b.tanh(b.add(b.dot(states[0], w), slices[0]))], lambda b: [b.mul(states[0], slices[0])]
        )
        new = b.mul(new, b.add(b.cast(index, dtype=dtype), b.full(value=1.0, shape=(), dtype=dtype)))
        return [new, b.add(states[1], b.full_like(states[1], 1))], [b.sin(new)]

    count = b.full(value=0, shape=(), dtype=dtype)
    (last, _), (stack,) = loop(b, turn, [h, count], [x], trip_count=5, directions=[-1], stack_directions=[1])
    b.insert(ReturnOp.make([last, stack]))
    return function


def layer(dtype=f64) -> FuncOp:
    shapes = {"x": (4, 2, 3), "h": (2, 5), "w": (15, 3), "r": (15, 5), "wb": (15,), "rb": (15,)}
    function = FuncOp.make("g", {k: Tensor(dtype, v) for k, v in shapes.items()})
    b = GraphBuilder(function.block)
    x, h, w, r, wb, rb = function.block.args
    b.insert(ReturnOp.make(gru(b, x, h, Weights(w, r, wb, rb), Form("rzn", reverse=True))))
    return function


def given(function: FuncOp, flag: bool, dtype=np.float64) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    arrays = []
    for value in function.block.args:
        shape = [int(size) for size in value.type.get_shape()]
        arrays.append(rng.standard_normal(shape).astype(dtype) * dtype(0.5) if shape else np.array(flag))
    return arrays


@pytest.mark.parametrize(("make", "flag"), [(recurrence, True), (recurrence, False), (layer, True)])
def test_gradients_are_those_of_finite_differences(make, flag):
    function, rng = make(), np.random.default_rng(4)
    arrays = given(function, flag)
    seeds = [rng.standard_normal(each.shape) for each in run(function, arrays)]
    gradients = iter(run(vjp_function(function), [*arrays, *seeds]))
    for place, array in enumerate(arrays):
        if array.dtype == bool:
            continue
        direction, step = rng.standard_normal(array.shape), 1e-6
        results = []
        for sign in (1, -1):
            moved = [each + sign * step * direction if n == place else each for n, each in enumerate(arrays)]
            results.append(run(function, moved))
        wanted = sum((s * (a - b)).sum() / (2 * step) for s, a, b in zip(seeds, *results, strict=True))
        np.testing.assert_allclose((next(gradients) * direction).sum(), wanted, rtol=1e-5, atol=1e-7)


def test_gradients_are_compiled_like_any_function():
    function = recurrence(f32)
    arrays = given(function, True, np.float32)
    seeds = [np.ones_like(each) for each in run(function, arrays)]
    derivative = vjp_function(function)
    derivative.verify()
    compiled = compile_text(str(derivative), config=Config(cache=False))
    for found, wanted in zip(compiled(*arrays, *seeds), run(derivative, [*arrays, *seeds]), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def powers(bound: float, trip_count: int = UNBOUNDED) -> FuncOp:
    """x times sums of 1, 2, 3, … until a bound, and how many turns there were."""
    function = FuncOp.make("f", {"x": Tensor(f64, ())})
    b = GraphBuilder(function.block)
    x = function.block.args[0]

    def turn(b, index, states, slices):
        weighed = b.mul(x, b.add(b.cast(index, dtype=f64), b.full_like(x, 1)))
        new = b.add(states[0], b.mul(weighed, b.full_like(x, 0.001)))
        return [new, b.add(states[1], b.full_like(states[1], 1))], [], b.lt(new, b.full_like(x, bound))

    count = b.full(value=0, shape=(), dtype=i64)
    finals, _ = loop(b, turn, [x, count], trip_count=trip_count, condition=b.lt(x, b.full_like(x, bound)))
    b.insert(ReturnOp.make(finals))
    return function


@pytest.mark.parametrize(("bound", "turns"), [(0.5, 0), (1.9, 42), (400.0, 893)], ids=["none", "kept", "made again"])
def test_loops_that_a_condition_ends_have_gradients_however_many_turns_there_are(bound, turns):
    function, x = powers(bound), np.array(1.0)
    assert run(function, [x])[1] == turns
    (gradient,) = run(vjp_function(function), [x, np.array(1.0)])
    np.testing.assert_allclose(gradient, 1 + 0.001 * sum(range(1, turns + 1)), rtol=1e-12)


@pytest.mark.slow
def test_second_derivatives_of_loops_that_a_condition_ends():
    function = FuncOp.make("f", {"x": Tensor(f64, ())})
    b = GraphBuilder(function.block)
    x = function.block.args[0]

    def turn(b, index, states, slices):
        new = b.mul(states[0], x)
        return [new], [], b.lt(new, b.full_like(x, 9))

    finals, _ = loop(b, turn, [x], condition=b.lt(x, b.full_like(x, 9)))  # x⁴ at 2
    b.insert(ReturnOp.make(finals))
    twice = vjp_function(vjp_function(function))
    gradients = run(twice, [np.array(2.0), np.array(1.0), np.array(1.0)])
    np.testing.assert_allclose(gradients, [12 * 4, 4 * 8])


def test_a_loop_with_a_condition_and_a_number_of_turns_has_none():
    with pytest.raises(UnsupportedError, match="condition"):
        vjp_function(powers(9.0, trip_count=4))


@pytest.mark.parametrize("turns", [0, 2], ids=["branch", "loop"])
def test_a_value_that_is_captured_twice_has_its_gradient_once(turns):
    function = FuncOp.make("f", {name: Tensor(f64, (3,)) for name in "xyh"} | {"c": Tensor(boolean, ())})
    b = GraphBuilder(function.block)
    x, y, h, c = function.block.args
    if turns:
        finals, _ = loop(b, lambda b, i, s, _: ([b.add(s[0], b.mul(x, y))], []), [h], trip_count=turns)
    else:
        finals = if_else(b, c, lambda b: [b.mul(x, y)], lambda b: [x])
    b.insert(ReturnOp.make(finals))
    y.replace_all_uses_with(x)  # as passes do that find equal values
    given, seed = np.array([1.0, 2.0, 3.0]), np.ones(3)
    gradient = run(vjp_function(function), [given, given, given, np.array(True), seed])[0]
    np.testing.assert_allclose(gradient, 2 * given * max(turns, 1))
