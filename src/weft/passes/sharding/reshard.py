"""From one layout of a tensor on the ranks to another: the collectives that it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from xdsl.ir import SSAValue

from weft.errors import ShardingError
from weft.ir.sharding import Mesh, Sharding, Split, Splits
from weft.ops.base import GraphOp
from weft.ops.collectives import AllGather, AllReduce, AllToAll, ReduceScatter, Shard, Wait
from weft.ops.graph import GraphBuilder


@dataclass
class Resharder:
    """Appends what takes a rank's part of a tensor from a layout to another.

    [{}, {}] sum {tp}  →  [{}, {}]       all_reduce
    [{}, {}] sum {tp}  →  [{tp}, {}]     reduce_scatter along 0
    [{tp}, {}]         →  [{}, {tp}]     all_to_all
    [{tp/4}, {}]       →  [{tp}, {}]     all_to_all, of parts of four blocks for whole blocks
    [{tp}, {}]         →  [{}, {}]       all_gather along 0
    [{}, {}]           →  [{tp}, {}]     shard, which asks nobody
    """

    b: GraphBuilder
    mesh: Mesh

    def __call__(self, value: SSAValue, now: Sharding, target: Sharding) -> SSAValue:
        if any(pair not in now.partial for pair in target.partial):
            raise ShardingError(f"a tensor that is {now} cannot become {target}: summands come of sums alone")
        value, now = self._reduce(value, now, target)
        value, now = self._exchange(value, now, target)
        value, now = self._regroup(value, now, target)
        for d, wanted in enumerate(target.dims):
            value = self._gather(value, d, now.dims[d], _shared(now.dims[d], wanted))
        for d, wanted in enumerate(target.dims):
            for split in wanted[_shared(now.dims[d], wanted) :]:
                value = self._within_blocks(Shard, value, d, split)
        return value

    def _reduce(self, value: SSAValue, now: Sharding, target: Sharding) -> tuple[SSAValue, Sharding]:
        pending = [(axis, kind) for axis, kind in now.partial if (axis, kind) not in target.partial]
        for axis, kind in list(pending):
            place = target.dim_of(axis)
            if place is None or now.dim_of(axis) is not None:
                continue
            here, wanted = now.dims[place], target.dims[place]
            if wanted[: len(here)] == here and wanted[len(here)].axis == axis:
                split = wanted[len(here)]
                value = self._within_blocks(ReduceScatter, value, place, split, kind=_sum(kind))
                now = Sharding((*now.dims[:place], (*here, split), *now.dims[place + 1 :]), now.partial)
                pending.remove((axis, kind))
        for kind in dict.fromkeys(_sum(kind) for _, kind in pending):
            axes = tuple(name for name, _ in self.mesh.axes if any(name == a and _sum(k) == kind for a, k in pending))
            if self.mesh.size(axes) > 1:
                value = self._started(AllReduce, value, kind=kind, axes=axes, ranks=self.mesh.size(axes))
        return value, Sharding(now.dims, target.partial)

    def _exchange(self, value: SSAValue, now: Sharding, target: Sharding) -> tuple[SSAValue, Sharding]:
        """Axes that move from the end of one dimension's splits to the end of another's."""
        for d, here in enumerate(now.dims):
            if not here or here[-1] in target.dims[d] or here[-1].blocks != 1:
                continue
            axis = here[-1].axis
            for e, there in enumerate(now.dims):
                wanted = target.dims[e]
                if e != d and wanted[: len(there) + 1] == (*there, Split(axis)):
                    ranks = self.mesh.size([axis])
                    value = self._started(AllToAll, value, dim=d, split_dim=e, axes=(axis,), ranks=ranks)
                    dims = list(now.dims)
                    dims[d], dims[e] = here[:-1], (*there, Split(axis))
                    return self._exchange(value, Sharding(tuple(dims), now.partial), target)
        return value, now

    def _regroup(self, value: SSAValue, now: Sharding, target: Sharding) -> tuple[SSAValue, Sharding]:
        """Dimensions of which ranks have a part of each block and should have whole blocks, or the other way."""
        for d, (here, wanted) in enumerate(zip(now.dims, target.dims, strict=True)):
            if not here or here == wanted or len(here) != len(wanted) or here[:-1] != wanted[:-1]:
                continue
            last, other = here[-1], wanted[-1]
            blocks, ranks = max(last.blocks, other.blocks), self.mesh.size([last.axis])
            if last.axis != other.axis or min(last.blocks, other.blocks) != 1 or blocks % ranks or ranks == 1:
                continue
            whole = other.blocks == 1
            shape = self.b.tensor(value).shape
            held = blocks if whole else blocks // ranks
            cut = self.b.reshape(value, shape=(*shape[:d], held, shape[d] // held, *shape[d + 1 :]))
            dim, split = (d + 1, d) if whole else (d, d + 1)
            made = self._started(AllToAll, cut, dim=dim, split_dim=split, axes=(last.axis,), ranks=ranks)
            value = self.b.reshape(made, shape=shape)
            now = now.with_dim(d, wanted)
        return value, now

    def _gather(self, value: SSAValue, dim: int, splits: Splits, kept: int) -> SSAValue:
        rest = list(splits[kept:])
        while rest:
            joined = [rest.pop()]
            while rest and self._follow(rest[-1], joined[0]):
                joined.insert(0, rest.pop())
            value = self._within_blocks(AllGather, value, dim, *joined)
        return value

    def _follow(self, outer: Split, inner: Split) -> bool:
        """Whether two splits are one over both axes. One without blocks cuts across the blocks of the one outside it,
        and processes stand in a group as the mesh numbers them, whatever the order of the axes."""
        order = [name for name, _ in self.mesh.axes]
        return outer.blocks == inner.blocks == 1 and order.index(outer.axis) < order.index(inner.axis)

    def _within_blocks(self, cls: type[GraphOp], value: SSAValue, dim: int, *splits: Split, **params: Any) -> SSAValue:
        """An op along a dimension that is several blocks, of which each rank has a part of each."""
        axes = tuple(split.axis for split in splits)
        blocks, ranks = splits[0].blocks, self.mesh.size(axes)
        if ranks == 1:
            return value
        shape = self.b.tensor(value).shape
        if blocks == 1:
            return self._started(cls, value, dim=dim, axes=axes, ranks=ranks, **params)
        inner = self.b.reshape(value, shape=(*shape[:dim], blocks, shape[dim] // blocks, *shape[dim + 1 :]))
        done = self._started(cls, inner, dim=dim + 1, axes=axes, ranks=ranks, **params)
        lead, count, size, *tail = (*shape[:dim],), *self.b.tensor(done).shape[dim:]
        return self.b.reshape(done, shape=(*lead, count * size, *tail))

    def _started(self, cls: type[GraphOp], value: SSAValue, **params: Any) -> SSAValue:
        made = self.b.insert(cls.make(value, location=self.b.location, **params)).results[0]
        return made if cls is Shard else self.b.insert(Wait.make(made, location=self.b.location)).results[0]


def _shared(left: Sequence[Split], right: Sequence[Split]) -> int:
    """How many splits both begin with."""
    count = 0
    while count < min(len(left), len(right)) and left[count] == right[count]:
        count += 1
    return count


def _sum(kind: str) -> str:
    return "sum" if kind == "owner" else kind
