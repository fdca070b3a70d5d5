"""The NumPy runner: symbols, groups, opaque calls, and what it refuses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Block, Region

from weft.backends.reference.graph import run
from weft.errors import GuardError, UnsupportedError
from weft.ir.expr import symbol
from weft.ir.types import Tensor, f32, f64, i64
from weft.ops.graph import FuncOp, GraphBuilder, GroupOp, OpaqueOp, ReturnOp, YieldOp

s0, s1 = symbol("s0"), symbol("s1")


def test_symbols_come_from_the_shapes_of_arguments() -> None:
    function = FuncOp.make("f", {"x": Tensor(f32, (s0, 2))})
    b = GraphBuilder(function.block)
    (x,) = function.block.args
    index = b.iota(shape=(s0, 2), dim=0, dtype=f32)
    flat = b.reshape(b.add(x, index), shape=(s0 * 2,))
    b.insert(ReturnOp.make([flat]))
    function.verify()
    for size in (0, 1, 3):
        (result,) = run(function, [np.ones((size, 2), np.float32)])
        np.testing.assert_array_equal(result, np.repeat(np.arange(size) + 1, 2).astype(np.float32))


def test_other_symbols_are_given() -> None:
    function = FuncOp.make("f", {"x": Tensor(f32, (s0 * 2,))})
    b = GraphBuilder(function.block)
    b.insert(ReturnOp.make([b.full(value=1, shape=(s0, s1), dtype=i64)]))
    (result,) = run(function, [np.ones(6, np.float32)], {"s0": 3, "s1": 2})
    assert result.shape == (3, 2)
    with pytest.raises(GuardError, match="symbols"):
        run(function, [np.ones(6, np.float32)], {"s1": 2})


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        [np.ones((2, 3), np.float64), np.ones(3, np.float32)],
        [np.ones(3, np.float32), np.ones(3, np.float32)],
        [np.ones((2, 4), np.float32), np.ones(3, np.float32)],
        [np.ones((2, 5), np.float32), np.ones(2, np.float32)],
    ],
    ids=["too few", "type", "rank", "size", "symbol"],
)
def test_arguments_of_another_type_are_refused(arguments: Sequence[np.ndarray]) -> None:
    function = FuncOp.make("f", {"x": Tensor(f32, (2, s0)), "y": Tensor(f32, (s0,))})
    b = GraphBuilder(function.block)
    b.insert(ReturnOp.make(function.block.args))
    with pytest.raises(GuardError):
        run(function, arguments)


def test_a_group_is_run_in_place() -> None:
    function = FuncOp.make("f", {"x": Tensor(f64, (3,))})
    b = GraphBuilder(function.block)
    (x,) = function.block.args
    block = Block(arg_types=[x.type])
    inner = GraphBuilder(block)
    inner.insert(YieldOp.create(operands=[inner.exp(block.args[0]), inner.neg(block.args[0])]))
    group = GroupOp.create(
        operands=[x], result_types=[x.type, x.type], regions=[Region(block)], attributes={"claim": StringAttr("rows")}
    )
    b.insert(group)
    b.insert(ReturnOp.make([b.add(*group.results)]))
    function.verify()
    array = np.array([0.0, 1.0, 2.0])
    np.testing.assert_allclose(run(function, [array])[0], np.exp(array) - array)


def test_an_opaque_call_is_handed_over() -> None:
    function = FuncOp.make("f", {"x": Tensor(f64, (3,))})
    b = GraphBuilder(function.block)
    (x,) = function.block.args
    call = OpaqueOp.make("demo::twice", [x], "[#0]", [Tensor(f64, (3,))])
    b.insert(call)
    b.insert(ReturnOp.make(call.results))
    targets: list[str] = []

    def carry_out(op: OpaqueOp, operands: Sequence[np.ndarray]) -> list[np.ndarray]:
        targets.append(op.target.data)
        return [operands[0] * 2]

    np.testing.assert_array_equal(run(function, [np.ones(3)], opaque=carry_out)[0], 2 * np.ones(3))
    assert targets == ["demo::twice"]
    with pytest.raises(UnsupportedError, match="demo::twice"):
        run(function, [np.ones(3)])
