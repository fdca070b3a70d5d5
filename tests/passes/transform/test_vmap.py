"""Vectorisation of whole functions; every op's batching rule is in the test of closure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from xdsl.ir import SSAValue

from tests.passes.transform.test_jvp import VECTOR, branching, function_of, scanning
from tests.seeds import generator
from weft.backends.reference.graph import run
from weft.errors import ShapeError, UnsupportedError
from weft.ir.expr import symbol
from weft.ir.types import Tensor, f64, i8, i32, i64, tensor_of, u8
from weft.ops.control import loop
from weft.ops.graph import FuncOp, GraphBuilder
from weft.passes.transform.jvp import jvp_function
from weft.passes.transform.vmap import vmap_function


def loops(function: FuncOp, arrays: Sequence[np.ndarray], axes: Sequence[int | None], size: int) -> list[np.ndarray]:
    calls = [
        run(function, [x if axis is None else np.take(x, n, axis) for x, axis in zip(arrays, axes, strict=True)])
        for n in range(size)
    ]
    return [np.stack(each) for each in zip(*calls, strict=True)]


def agree(function: FuncOp, arrays: Sequence[np.ndarray], axes: Sequence[int | None], size: int = 3) -> None:
    made = vmap_function(function, size, axes)
    made.verify()
    for actual, expected in zip(run(made, arrays), loops(function, arrays, axes, size), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-12)


def test_what_no_batched_argument_reaches_is_computed_once() -> None:
    function = function_of({"x": VECTOR, "w": VECTOR}, lambda b, x, w: [b.mul(x, b.exp(w))])
    made = vmap_function(function, 3, [0, None])
    shapes = {op.name: tensor_of(op.results[0].type).shape for op in made.block.ops if op.results}
    assert shapes["graph.exp"] == (4,)
    assert shapes["graph.mul"] == (3, 4)


def test_axes_are_anywhere() -> None:
    function = function_of({"x": Tensor(f64, (2, 4))}, lambda b, x: [b.tanh(x)])
    x = np.random.default_rng(0).random((2, 3, 4))
    made = vmap_function(function, 3, [1], [-1])
    np.testing.assert_allclose(run(made, [x])[0], np.tanh(np.moveaxis(x, 1, -1)))
    with pytest.raises(ShapeError, match="no axis 3"):
        vmap_function(function, 3, [3])


def test_a_result_that_differs_cannot_be_shared() -> None:
    function = function_of({"x": VECTOR, "y": VECTOR}, lambda b, x, y: [x, y])
    assert tensor_of(vmap_function(function, 3, [0, None], [0, None]).returned.operands[1].type) == VECTOR
    with pytest.raises(ShapeError, match="differs within the batch"):
        vmap_function(function, 3, [0, None], [None, None])


def test_batches_nest_and_have_symbolic_sizes() -> None:
    s0 = symbol("s0")
    function = function_of({"x": VECTOR, "y": VECTOR}, lambda b, x, y: [b.mul(x, b.sum(y, dims=(0,), keep=True))])
    made = vmap_function(vmap_function(function, s0, [None, 0]), 2, [0, None])
    made.verify()
    assert tensor_of(made.returned.operands[0].type).shape == (2, s0, 4)
    x, y = np.random.default_rng(0).random((2, 4)), np.random.default_rng(1).random((3, 4))
    np.testing.assert_allclose(run(made, [x, y])[0], x[:, None] * y.sum(-1)[None, :, None])


def test_random_numbers_are_the_same_or_different() -> None:
    tensors = {"x": VECTOR, "seed": Tensor(i64, (1,))}
    function = function_of(tensors, lambda b, x, seed: [b.add(x, b.cast(b.uniform(seed, shape=(4,)), dtype=f64))])
    arrays = [np.zeros((3, 4)), np.array([7])]
    with pytest.raises(UnsupportedError, match="same for all of the batch"):
        vmap_function(function, 3, [0, None])
    same, different = (
        run(vmap_function(function, 3, [0, None], None, how), arrays)[0] for how in ("same", "different")
    )
    assert len(np.unique(same, axis=0)) == 1
    assert len(np.unique(different, axis=0)) == 3


@pytest.mark.parametrize("axes", [(None, 0, None), (None, None, 0), (0, None, None), (0, 0, 1)])
def test_branches_of_a_batch(axes: tuple[int | None, ...]) -> None:
    rng = np.random.default_rng(2)
    shapes = {None: (4,), 0: (3, 4), 1: (4, 3)}
    condition = np.array([True, False, True]) if axes[0] == 0 else np.array(False)
    agree(branching(), [condition, rng.random(shapes[axes[1]]), rng.random(shapes[axes[2]])], axes)


@pytest.mark.parametrize("axes", [(0, None, None), (None, 0, None), (None, None, 0), (0, 1, 0)])
@pytest.mark.parametrize("transform", [lambda f: f, jvp_function], ids=["value", "jvp"])
def test_loops_of_a_batch(axes: tuple[int | None, ...], transform: object) -> None:
    rng = np.random.default_rng(3)
    shapes: list[tuple[int, ...]] = [(4,), (5, 4), (4,)]
    arrays = [
        rng.standard_normal(np.insert(s, a, 3) if a is not None else s) for s, a in zip(shapes, axes, strict=True)
    ]
    function: FuncOp = transform(scanning())  # type: ignore[operator]
    tangents = [rng.standard_normal(s) for s in shapes] if len(function.block.args) > 3 else []
    agree(function, [*arrays, *tangents], [*axes, *(None for _ in tangents)])


def test_those_of_a_batch_end_at_their_own_turns() -> None:
    def body(b: GraphBuilder, x: SSAValue) -> Sequence[SSAValue]:
        def going(b: GraphBuilder, x: SSAValue) -> SSAValue:
            return b.lt(x, b.full(value=100, shape=(), dtype=f64))

        def turn(b: GraphBuilder, i: SSAValue, states: Sequence[SSAValue], _: Sequence[SSAValue]) -> object:
            new, count = b.mul(states[0], states[0]), b.add(states[1], b.full(value=1, shape=(), dtype=i64))
            return [new, count], [new], going(b, new)

        count = b.full(value=0, shape=(), dtype=i64)
        finals, stacks = loop(b, turn, [x, count], trip_count=6, condition=going(b, x))  # type: ignore[arg-type]
        return [*finals, *stacks]

    agree(function_of({"x": Tensor(f64, ())}, body), [np.array([1.5, 300.0, 3.0])], [0])


def test_vectors_of_another_type_than_the_matrix_that_multiplies_them() -> None:
    arguments = {"x": Tensor(u8, (4, 8)), "y": Tensor(i8, (8, 1))}
    function = function_of(arguments, lambda b, x, y: [b.dot(x, y, dtype=i32)])
    rng = generator()
    x, y = rng.integers(0, 255, (4, 8), np.uint8), rng.integers(-128, 127, (3, 8, 1), np.int8)
    agree(function, [x, y], [None, 0])
