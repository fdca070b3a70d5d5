"""Forward-mode differentiation of whole functions; every op's is in the test of closure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from xdsl.ir import SSAValue

from weft.backends.reference.graph import run
from weft.errors import UnsupportedError
from weft.ir.expr import symbol
from weft.ir.types import Tensor, boolean, f64, i64, tensor_of
from weft.ops.control import if_else, loop
from weft.ops.graph import FuncOp, GraphBuilder, ReturnOp
from weft.passes.transform.jvp import jvp_function
from weft.testing.transform_checks import check_jvp, check_vjp

SCALAR, VECTOR = Tensor(f64, ()), Tensor(f64, (4,))


def function_of(tensors: dict[str, Tensor], body: Callable[..., Sequence[SSAValue]]) -> FuncOp:
    function = FuncOp.make("f", tensors)
    b = GraphBuilder(function.block)
    b.insert(ReturnOp.make(body(b, *function.block.args)))
    return function


def test_tangents_come_behind_the_results() -> None:
    made = jvp_function(function_of({"x": SCALAR, "y": SCALAR}, lambda b, x, y: [b.mul(x, y), b.sin(x)]))
    made.verify()
    assert [name.data for name in made.arg_names or ()] == ["x", "y", "tangent0", "tangent1"]
    np.testing.assert_allclose(run(made, [np.array(v) for v in (2.0, 3.0, 1.0, 10.0)]), [6, np.sin(2), 23, np.cos(2)])


def test_only_wanted_arguments_have_tangents_and_integers_have_none() -> None:
    tensors = {"x": SCALAR, "y": SCALAR, "n": Tensor(i64, ())}
    made = jvp_function(function_of(tensors, lambda b, x, y, n: [b.mul(x, y), n]), wanted=[1])
    assert len(made.block.args) == 4
    assert len(made.returned.operands) == 3


def test_what_does_not_change_has_a_tangent_of_zeros() -> None:
    made = jvp_function(function_of({"x": VECTOR}, lambda b, x: [b.cast(b.lt(x, b.full_like(x, 0)), dtype=f64)]))
    assert not np.any(run(made, [np.ones(4), np.ones(4)])[1])


def test_the_detour_over_gradients_leaves_no_op_behind() -> None:
    made = jvp_function(function_of({"x": VECTOR}, lambda b, x: [b.exp(x)]))
    assert [op.name for op in made.block.ops] == ["graph.exp", "graph.mul", "graph.return"]


def test_symbolic_sizes_stay_symbolic() -> None:
    s0 = symbol("s0")
    function = function_of({"x": Tensor(f64, (s0, 3))}, lambda b, x: [b.sum(b.tanh(x), dims=(0,), keep=False)])
    made = jvp_function(function)
    made.verify()
    assert tensor_of(made.block.args[1].type).shape == (s0, 3)
    x, t = np.ones((5, 3)), np.full((5, 3), 2.0)
    np.testing.assert_allclose(run(made, [x, t])[1], 5 * 2 * (1 - np.tanh(np.ones(3)) ** 2))


def test_an_op_without_a_rule_is_named() -> None:
    function = function_of({"x": VECTOR}, lambda b, x: [b.nextafter(x, x)])
    with pytest.raises(UnsupportedError, match="nextafter has no derivative rule"):
        jvp_function(function)


def branching() -> FuncOp:
    def body(b: GraphBuilder, c: SSAValue, x: SSAValue, y: SSAValue) -> Sequence[SSAValue]:
        return if_else(b, c, lambda b: [b.mul(x, y), b.sin(x)], lambda b: [b.exp(x), y])

    return function_of({"c": Tensor(boolean, ()), "x": VECTOR, "y": VECTOR}, body)


@pytest.mark.parametrize("taken", [True, False])
def test_branches_have_tangents(taken: bool) -> None:
    rng = np.random.default_rng(0)
    check_jvp(branching(), [np.array(taken), rng.random(4), rng.random(4)])


def scanning(reverse: bool = False) -> FuncOp:
    """A loop that carries, reads slices, captures, stacks, and has a branch inside."""

    def body(b: GraphBuilder, start: SSAValue, xs: SSAValue, w: SSAValue) -> Sequence[SSAValue]:
        def turn(
            b: GraphBuilder, index: SSAValue, states: Sequence[SSAValue], slices: Sequence[SSAValue]
        ) -> tuple[list[SSAValue], list[SSAValue]]:
            (h,), (x,) = states, slices
            high = b.gt(b.sum(x, dims=(0,), keep=False), b.full(value=0, shape=(), dtype=f64))
            (new,) = if_else(b, high, lambda b: [b.tanh(b.add(b.mul(h, w), x))], lambda b: [b.mul(h, x)])
            return [new], [b.mul(new, new)]

        finals, stacks = loop(b, turn, [start], [xs], trip_count=5, reverse=reverse)
        return [*finals, *stacks]

    return function_of({"h": VECTOR, "xs": Tensor(f64, (5, 4)), "w": VECTOR}, body)


@pytest.mark.parametrize("reverse", [False, True])
def test_loops_have_tangents_also_of_their_gradients(reverse: bool) -> None:
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal(shape) for shape in ((4,), (5, 4), (4,))]
    check_jvp(scanning(reverse), arrays)
    check_jvp(*check_vjp(scanning(reverse), arrays))


def test_a_loop_that_a_condition_ends_has_tangents() -> None:
    def body(b: GraphBuilder, x: SSAValue) -> Sequence[SSAValue]:
        def below(b: GraphBuilder, x: SSAValue) -> SSAValue:
            return b.lt(x, b.full(value=100, shape=(), dtype=f64))

        finals, _ = loop(
            b, lambda b, i, s, _: ([b.mul(s[0], s[0])], [], below(b, b.mul(s[0], s[0]))), [x], condition=below(b, x)
        )
        return finals

    check_jvp(function_of({"x": SCALAR}, body), [np.array(1.5)])
