"""What ranks say to each other: collectives over axes of a mesh, in the programs that each rank runs.

A collective is started by its op, and what it gives is there after a `graph.wait`: between the two a rank computes
other things. `axes` name the ranks that take part, which differ in these axes of the mesh alone; `ranks` is their
number. The meaning of a collective is `exchange`: from what each rank of a group gives to what each of them gets.

`graph.shard` asks nobody: it is this rank's part of what all ranks have. `graph.send` and `graph.recv` are what stages
of a pipeline say to each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, ClassVar

import numpy as np
from xdsl.irdl import irdl_op_definition

from weft.errors import ShapeError
from weft.ir.types import DType, Tensor, i64
from weft.ops.base import GraphOp

_COMBINE: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "sum": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "prod": np.multiply,
    "any": np.logical_or,
    "all": np.logical_and,
}
_MEAN = "avg"
KINDS = (*_COMBINE, _MEAN)
Given = Sequence[Sequence[np.ndarray]]
"""Of each rank of a group, in order, the arrays that it gives or gets."""


class Collective(GraphOp):
    """An op of several ranks: `exchange(given, **params)` is what each of them gets."""

    @staticmethod
    def exchange(given: Given, **params: Any) -> Given:
        raise NotImplementedError


def _resized(name: str, x: Tensor, dim: int, change: Callable[[Any], Any]) -> Tensor:
    if not 0 <= dim < x.rank:
        raise ShapeError(f"{name}: {x} has no dimension {dim}")
    return Tensor(x.dtype, (*x.shape[:dim], change(x.shape[dim]), *x.shape[dim + 1 :]))


def _part(name: str, x: Tensor, dim: int, ranks: int) -> Tensor:
    size = x.shape[dim] if 0 <= dim < x.rank else 0
    if isinstance(size, int) and size % ranks:
        raise ShapeError(f"{name}: {size} is not a multiple of {ranks} in dimension {dim} of {x}")
    return _resized(name, x, dim, lambda size: size // ranks)


def _check_kind(name: str, kind: str) -> None:
    if kind not in KINDS:
        raise ShapeError(f"{name}: {kind} is not one of {', '.join(KINDS)}")


def combined(kind: str, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """The arrays of all ranks as one, in the ranks' order."""
    if kind == _MEAN:
        return np.asarray(combined("sum", arrays) / arrays[0].dtype.type(len(arrays)), arrays[0].dtype)
    return np.asarray(reduce(_COMBINE[kind], arrays))


@irdl_op_definition
class AllReduce(Collective):
    """Every rank gets the sum (`kind`) over all; several tensors travel as one message."""

    name = "graph.all_reduce"

    @classmethod
    def infer(cls, *tensors: Tensor, **params: Any) -> tuple[Tensor, ...]:
        _check_kind("all_reduce", params["kind"])
        return tensors

    @staticmethod
    def exchange(given: Given, *, kind: str, **params: Any) -> Given:
        sums = [combined(kind, arrays) for arrays in zip(*given, strict=True)]
        return [sums for _ in given]


@irdl_op_definition
class AllGather(Collective):
    """Every rank gets the parts of all, one behind the other along `dim`."""

    name = "graph.all_gather"

    @classmethod
    def infer(cls, *tensors: Tensor, dim: int, ranks: int, **params: Any) -> tuple[Tensor, ...]:
        return tuple(_resized("all_gather", x, dim, lambda size: size * ranks) for x in tensors)

    @staticmethod
    def exchange(given: Given, *, dim: int, **params: Any) -> Given:
        joined = [np.concatenate(arrays, dim) for arrays in zip(*given, strict=True)]
        return [joined for _ in given]


@irdl_op_definition
class ReduceScatter(Collective):
    """Every rank gets its part, along `dim`, of the sum (`kind`) over all."""

    name = "graph.reduce_scatter"

    @classmethod
    def infer(cls, *tensors: Tensor, dim: int, ranks: int, **params: Any) -> tuple[Tensor, ...]:
        _check_kind("reduce_scatter", params["kind"])
        return tuple(_part("reduce_scatter", x, dim, ranks) for x in tensors)

    @staticmethod
    def exchange(given: Given, *, kind: str, dim: int, **params: Any) -> Given:
        sums = [combined(kind, arrays) for arrays in zip(*given, strict=True)]
        return list(zip(*(np.split(total, len(given), dim) for total in sums), strict=True))


@irdl_op_definition
class AllToAll(Collective):
    """Every rank cuts what it has along `split_dim`, sends each rank its part, and joins what comes along `dim`."""

    name = "graph.all_to_all"

    @classmethod
    def infer(cls, *tensors: Tensor, dim: int, split_dim: int, ranks: int, **params: Any) -> tuple[Tensor, ...]:
        cut = [_part("all_to_all", x, split_dim, ranks) for x in tensors]
        return tuple(_resized("all_to_all", x, dim, lambda size: size * ranks) for x in cut)

    @staticmethod
    def exchange(given: Given, *, dim: int, split_dim: int, **params: Any) -> Given:
        parts = [[np.split(x, len(given), split_dim) for x in arrays] for arrays in given]
        return [
            [np.concatenate([parts[source][n][to] for source in range(len(given))], dim) for n in range(len(given[0]))]
            for to in range(len(given))
        ]


@irdl_op_definition
class Wait(GraphOp):
    """What a collective gives, once it is there."""

    name = "graph.wait"

    @classmethod
    def infer(cls, *tensors: Tensor, **params: Any) -> tuple[Tensor, ...]:
        return tensors

    @staticmethod
    def reference(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        return arrays


@irdl_op_definition
class Shard(GraphOp):
    """This rank's part along `dim` of what all ranks of a group have."""

    name = "graph.shard"

    @classmethod
    def infer(cls, *tensors: Tensor, dim: int, ranks: int, **params: Any) -> Tensor:
        (x,) = tensors
        return _part("shard", x, dim, ranks)


@irdl_op_definition
class ShardIndex(GraphOp):
    """This rank's number among those of `axes`, as an i64 of shape []."""

    name = "graph.shard_index"

    @classmethod
    def infer(cls, *tensors: Tensor, **params: Any) -> Tensor:
        return Tensor(i64, ())


@irdl_op_definition
class Send(GraphOp):
    """Give a tensor to the rank that stands at `to` on `axis`; messages of one `channel` arrive in order."""

    name = "graph.send"
    EFFECTS: ClassVar[bool] = True

    @classmethod
    def infer(cls, *tensors: Tensor, **params: Any) -> tuple[Tensor, ...]:
        return ()


@irdl_op_definition
class Recv(GraphOp):
    """Take a tensor that the rank at `source` on `axis` sends."""

    name = "graph.recv"
    EFFECTS: ClassVar[bool] = True

    @classmethod
    def infer(cls, *tensors: Tensor, shape: Any, dtype: DType, **params: Any) -> Tensor:
        return Tensor(dtype, shape)


COLLECTIVES: tuple[type[GraphOp], ...] = (
    *(AllReduce, AllGather, ReduceScatter, AllToAll),
    *(Wait, Shard, ShardIndex, Send, Recv),
)
