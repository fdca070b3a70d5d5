"""The programs of many ranks in one process: collectives, messages, and ranks that wait for each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from weft.backends.reference.ranks import part_of, run_ranks, whole_of
from weft.errors import ShardingError
from weft.ir.sharding import Mesh, Sharding
from weft.ir.types import Tensor, f32, tensor_of
from weft.ops.base import GraphOp
from weft.ops.collectives import AllGather, AllReduce, AllToAll, Recv, ReduceScatter, Send
from weft.ops.graph import FuncOp, GraphBuilder, ReturnOp

MESH = Mesh.of(a=2, b=3)


def one(cls: type[GraphOp], **params: Any) -> FuncOp:
    function = FuncOp.make("f", {"x": Tensor(f32, (6, 6))})
    b = GraphBuilder(function.block)
    made = b.insert(cls.make(*function.block.args, **params))
    b.insert(ReturnOp.make(made.results))
    return function


def given(rank: int) -> list[np.ndarray]:
    return [np.arange(36, dtype=np.float32).reshape(6, 6) + 100 * rank]


def test_collectives_are_among_the_ranks_of_their_axes() -> None:
    shared: dict[str, Any] = {"axes": ("b",), "ranks": 3}
    groups = [[0, 1, 2], [3, 4, 5]]
    summed = run_ranks(one(AllReduce, kind="sum", **shared), MESH, given)
    gathered = run_ranks(one(AllGather, dim=1, **shared), MESH, given)
    scattered = run_ranks(one(ReduceScatter, kind="max", dim=0, **shared), MESH, given)
    exchanged = run_ranks(one(AllToAll, dim=1, split_dim=0, **shared), MESH, given)
    for group in groups:
        arrays = [given(rank)[0] for rank in group]
        for place, rank in enumerate(group):
            np.testing.assert_array_equal(summed[rank][0], sum(arrays))
            np.testing.assert_array_equal(gathered[rank][0], np.concatenate(arrays, 1))
            np.testing.assert_array_equal(scattered[rank][0], np.maximum.reduce(arrays)[2 * place : 2 * place + 2])
            np.testing.assert_array_equal(
                exchanged[rank][0], np.concatenate([x[2 * place : 2 * place + 2] for x in arrays], 1)
            )


def test_parts_are_put_together_again() -> None:
    array = np.arange(4 * 12, dtype=np.float32).reshape(4, 12)
    for text in ("[{a}, {b}]", "[{}, {b/2}]", "[{}, {a, b/2}]", "[{a}, {}] sum {b}"):
        sharding = Sharding.parse(text)
        parts = [part_of(array, sharding, MESH, rank) for rank in range(6)]
        assert parts[0].shape == sharding.local(Tensor(f32, (4, 12)), MESH).shape
        np.testing.assert_array_equal(whole_of(parts, sharding, MESH), array)


def stages() -> list[FuncOp]:
    """The first rank sends its square to the second, which adds one to it."""
    first = FuncOp.make("first", {"x": Tensor(f32, (3,))})
    b = GraphBuilder(first.block)
    (x,) = first.block.args
    b.insert(Send.make(b.mul(x, x), axis="pp", to=1, channel=0))
    b.insert(ReturnOp.make([x]))
    second = FuncOp.make("second", {"x": Tensor(f32, (3,))})
    b = GraphBuilder(second.block)
    got = b.insert(Recv.make(axis="pp", source=0, channel=0, shape=(3,), dtype=f32)).results[0]
    b.insert(ReturnOp.make([b.add(got, b.full_like(got, 1))]))
    return [first, second]


def test_messages_go_from_stage_to_stage() -> None:
    x = np.array([1, 2, 3], np.float32)
    _, (got,) = run_ranks(stages(), Mesh.of(pp=2), lambda rank: [x])
    np.testing.assert_array_equal(got, x * x + 1)


def test_ranks_that_wait_for_each_other_are_an_error() -> None:
    first, second = stages()
    with pytest.raises(ShardingError, match=r"rank 0 at graph\.recv; rank 1 at graph\.recv"):
        run_ranks([second, second], Mesh.of(pp=2), lambda rank: [np.zeros(3, np.float32)])
    assert tensor_of(first.block.args[0].type).shape == (3,)
