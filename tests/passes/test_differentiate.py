"""Reverse-mode differentiation of whole functions; the rule of each op is tested with the op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from xdsl.context import Context
from xdsl.ir import SSAValue

from weft.backends.reference.graph import run
from weft.errors import UnsupportedError
from weft.ir.expr import symbol
from weft.ir.types import Tensor, f64, i64, tensor_of
from weft.ops.graph import FuncOp, GraphBuilder, ReturnOp, module_of
from weft.passes.differentiate import vjp_function
from weft.passes.simplify.eliminate_dead import EliminateDead
from weft.passes.simplify.simplify import Simplify


def function_of(tensors: dict[str, Tensor], body: Callable[..., Sequence[SSAValue]]) -> FuncOp:
    function = FuncOp.make("f", tensors)
    b = GraphBuilder(function.block)
    b.insert(ReturnOp.make(body(b, *function.block.args)))
    return function


def gradients(tensors: dict[str, Tensor], body: Callable[..., Sequence[SSAValue]], *arrays: Any) -> list[np.ndarray]:
    derivative = vjp_function(function_of(tensors, body))
    derivative.verify()
    return run(derivative, [np.asarray(array) for array in arrays])


SCALAR = Tensor(f64, ())


def test_gradients_of_all_uses_add_up() -> None:
    (g,) = gradients({"x": SCALAR}, lambda b, x: [b.mul(b.mul(x, x), x)], 2.0, 1.0)
    assert g == 12.0


def test_a_broadcast_operand_gets_the_sum() -> None:
    x, y = np.arange(6.0).reshape(2, 3), np.array([[10.0], [20.0]])
    tensors = {"x": Tensor(f64, (2, 3)), "y": Tensor(f64, (2, 1)), "z": SCALAR}
    gx, gy, gz = gradients(tensors, lambda b, x, y, z: [b.mul(b.mul(x, y), z)], x, y, 0.5, np.ones((2, 3)))
    np.testing.assert_allclose(gx, np.broadcast_to(0.5 * y, (2, 3)))
    np.testing.assert_allclose(gy, 0.5 * x.sum(axis=1, keepdims=True))
    np.testing.assert_allclose(gz, (x * y).sum())


def test_symbolic_sizes_stay_symbolic() -> None:
    s0 = symbol("s0")
    function = function_of({"x": Tensor(f64, (s0, 3)), "b": Tensor(f64, (3,))}, lambda b, x, y: [b.tanh(b.add(x, y))])
    derivative = vjp_function(function)
    derivative.verify()
    assert [tensor_of(v.type).shape for v in derivative.returned.operands] == [(s0, 3), (3,)]
    x, bias, seed = np.ones((4, 3)), np.zeros(3), np.ones((4, 3))
    _, gb = run(derivative, [x, bias, seed])
    np.testing.assert_allclose(gb, 4 * (1 - np.tanh(np.ones(3)) ** 2))


def test_an_unused_argument_has_zeros_and_an_integer_none() -> None:
    tensors = {"x": SCALAR, "n": Tensor(i64, ()), "y": Tensor(f64, (2,))}
    found = gradients(tensors, lambda b, x, n, y: [b.exp(x), n], 0.0, 3, np.ones(2), 1.0)
    assert len(found) == 2
    assert found[0] == 1.0
    np.testing.assert_array_equal(found[1], np.zeros(2))


def test_the_function_itself_is_left_alone() -> None:
    function = function_of({"x": SCALAR}, lambda b, x: [b.exp(x)])
    text = str(function)
    derivative = vjp_function(function)
    assert str(function) == text
    assert derivative.sym_name.data == "f_vjp"
    assert derivative.arg_names is not None
    assert [name.data for name in derivative.arg_names] == ["x", "grad0"]


def test_second_derivatives() -> None:
    derivative = vjp_function(function_of({"x": SCALAR}, lambda b, x: [b.sin(x)]))
    second = vjp_function(derivative)
    second.verify()
    x = np.float64(0.3)
    by_x, by_seed = run(second, [np.asarray(x), np.asarray(1.0), np.asarray(1.0)])
    np.testing.assert_allclose([by_x, by_seed], [-np.sin(x), np.cos(x)])


def test_an_op_without_a_rule_is_named() -> None:
    function = function_of({"x": SCALAR, "y": SCALAR}, lambda b, x, y: [b.nextafter(x, y)])
    with pytest.raises(UnsupportedError, match=r"graph\.nextafter"):
        vjp_function(function)


@pytest.mark.parametrize("lead", [(), (3,)])
def test_the_gradient_of_a_transposed_factor_is_made_where_it_lies(lead: tuple[int, ...]) -> None:
    random, turned = np.random.default_rng(0), (*range(len(lead)), len(lead) + 1, len(lead))
    tensors = {"x": Tensor(f64, (*lead, 5, 4)), "w": Tensor(f64, (*lead, 6, 5))}

    def product(b: GraphBuilder, x: SSAValue, w: SSAValue) -> list[SSAValue]:
        return [b.dot(b.permute(x, dims=turned), b.permute(w, dims=turned))]

    derivative = vjp_function(function_of(tensors, product))
    module = module_of(derivative)
    for each in (Simplify(), EliminateDead()):
        each.apply(Context(), module)
    assert [value.owner.name for value in derivative.returned.operands] == ["graph.dot", "graph.dot"]
    x, w, seed = (random.normal(size=(*lead, *size)) for size in ((5, 4), (6, 5), (4, 6)))
    of_x, of_w = run(derivative, [x, w, seed])
    np.testing.assert_allclose(of_x, np.swapaxes(seed @ w, -1, -2))
    np.testing.assert_allclose(of_w, np.swapaxes(x @ seed, -1, -2))
