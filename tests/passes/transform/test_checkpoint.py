"""Checkpointed functions: the same gradients, from values that are made again."""

from __future__ import annotations

import numpy as np
import pytest
from xdsl.context import Context

from weft.backends.reference.graph import run
from weft.errors import ParseError, WeftError
from weft.ir.expr import symbol
from weft.ir.types import Tensor, f32, f64
from weft.ops.control import loop
from weft.ops.graph import FuncOp, GraphBuilder, ReturnOp, module_of
from weft.passes.differentiate import value_and_vjp_function, vjp_function
from weft.passes.recompute import COPY
from weft.passes.registry import read_pipeline
from weft.passes.simplify.eliminate_common import EliminateCommon
from weft.passes.split_joint import split_joint
from weft.passes.transform.autocast import autocast_function
from weft.passes.transform.checkpoint import checkpoint_function
from weft.passes.transform.jvp import jvp_function
from weft.passes.transform.quantize import quantize_function


def chain(dtype=f64, rows=3) -> FuncOp:
    function = FuncOp.make("f", {"x": Tensor(dtype, (rows, 4)), "w": Tensor(dtype, (4, 4))})
    b = GraphBuilder(function.block)
    x, w = function.block.args
    for _ in range(3):
        x = b.tanh(b.dot(x, w))
    b.insert(ReturnOp.make([x]))
    return function


def copies(function: FuncOp) -> list[str]:
    return [op.name for op in function.block.ops if COPY in op.attributes]


def kept(function: FuncOp) -> int:
    joint = value_and_vjp_function(function, [0, 1])
    return split_joint(joint, 1, 1).kept


def test_gradients_are_the_same_and_only_what_is_saved_is_kept() -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape) for shape in ((3, 4), (4, 4), (3, 4))]
    plain = chain()
    expected = run(vjp_function(plain), arrays)
    for save, residuals in (((), 0), (("dots",), 3), (("tanh",), 3), (("everything",), 3)):
        function = checkpoint_function(plain, save)
        for actual, wanted in zip(run(vjp_function(function), arrays), expected, strict=True):
            np.testing.assert_array_equal(actual, wanted)
        assert kept(function) == residuals
    assert not copies(vjp_function(checkpoint_function(plain, ["everything"])))
    assert "graph.dot" not in copies(vjp_function(checkpoint_function(plain, ["dots"])))


def test_no_pass_takes_a_copy_for_the_op() -> None:
    made = vjp_function(checkpoint_function(chain()))
    before = copies(made)
    EliminateCommon().apply(Context(), module_of(made))
    assert before and copies(made) == before


def test_second_derivatives_of_a_checkpointed_function() -> None:
    rng = np.random.default_rng(1)
    plain = chain()
    for first, second in ((vjp_function, vjp_function), (jvp_function, vjp_function), (vjp_function, jvp_function)):
        wanted, found = second(first(plain)), second(first(checkpoint_function(plain)))
        shapes = [tuple(map(int, value.type.get_shape())) for value in wanted.block.args]
        arrays = [rng.standard_normal(shape) for shape in shapes]
        for actual, expected in zip(run(found, arrays), run(wanted, arrays), strict=True):
            np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12)


def test_a_loop_is_run_again_for_its_gradient() -> None:
    function = FuncOp.make("f", {"x": Tensor(f64, (4,)), "w": Tensor(f64, (5, 4))})
    b = GraphBuilder(function.block)
    x, w = function.block.args
    first = b.sin(x)

    def turn(inner, index, states, slices):
        after = inner.tanh(inner.mul(states[0], slices[0]))
        return [after], []

    (last,), _ = loop(b, turn, [first], [w], trip_count=5, directions=[1], stack_directions=[])
    b.insert(ReturnOp.make([last]))
    rng = np.random.default_rng(2)
    arrays = [rng.standard_normal(shape) for shape in ((4,), (5, 4), (4,))]
    function_again = checkpoint_function(function)
    made = vjp_function(function_again)
    assert "graph.loop" in copies(made)
    for actual, expected in zip(run(made, arrays), run(vjp_function(function), arrays), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-12)


def test_what_nothing_is_called_cannot_be_kept() -> None:
    with pytest.raises(WeftError, match="cannot keep dotz: no op and no value is called so"):
        checkpoint_function(chain(), ["dotz"])


def test_precision_is_narrow_where_a_class_says_so_on_symbolic_sizes() -> None:
    function = chain(f32, symbol("s0"))
    made = autocast_function(function)
    made.verify()
    dots = [op for op in made.block.ops if op.name in ("graph.dot", "graph.tanh")]
    assert len(dots) == 6 and all("bf16" in str(op.results[0].type) for op in dots)
    assert [str(v.type) for v in made.returned.operands] == [str(v.type) for v in function.returned.operands]
    rng = np.random.default_rng(3)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in ((6, 4), (4, 4))]
    np.testing.assert_allclose(run(made, arrays)[0], run(function, arrays)[0], atol=0.03)


def test_quantised_products_are_those_of_integers_and_gradients_pass_straight() -> None:
    function = FuncOp.make("f", {"x": Tensor(f64, (symbol("s0"), 4)), "w": Tensor(f64, (4, 5))})
    b = GraphBuilder(function.block)
    b.insert(ReturnOp.make([b.dot(*function.block.args)]))
    made = quantize_function(function)
    made.verify()
    rng = np.random.default_rng(4)
    x, w, g = (rng.standard_normal(shape) for shape in ((3, 4), (4, 5), (3, 5)))
    s, t = np.abs(x).max(1, keepdims=True) / 127, np.abs(w).max(0, keepdims=True) / 127
    qx, qw = np.round(x / s) * s, np.round(w / t) * t
    np.testing.assert_allclose(run(made, [x, w])[0], qx @ qw, rtol=1e-12)
    dx, dw = run(vjp_function(made), [x, w, g])
    np.testing.assert_allclose(dx, g @ qw.T, rtol=1e-12)
    np.testing.assert_allclose(dw, qx.T @ g, rtol=1e-12)
    only = quantize_function(function, weights=True)
    np.testing.assert_allclose(run(only, [x, w])[0], x @ qw, rtol=1e-12)
    zero = run(made, [np.zeros((3, 4)), w])[0]
    np.testing.assert_array_equal(zero, 0)


def test_options_are_read_and_checked() -> None:
    passes = read_pipeline("checkpoint{save=dots,exp},autocast{dtype=f16},quantize{bits=4 weights=true},vjp", {})
    assert [each.name for each in passes] == ["checkpoint", "autocast", "quantize", "vjp"]
    module = module_of(chain(f32))
    for each in passes:
        each.apply(Context(), module)
        module.verify()
    for wrong in ("autocast{dtype=i8}", "quantize{bits=9}"):
        with pytest.raises(ParseError):
            read_pipeline(wrong, {})[0].apply(Context(), module)
