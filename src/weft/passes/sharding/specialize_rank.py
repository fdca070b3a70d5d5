"""Specialize a program to one rank: what depends on where the rank stands becomes a constant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass

from weft.ir.sharding import Mesh
from weft.ir.types import i64
from weft.ops.base import GraphOp
from weft.ops.collectives import Shard, ShardIndex
from weft.ops.graph import FuncOp, GraphBuilder
from weft.passes.sharding.annotations import mesh_of


@dataclass(frozen=True)
class SpecializeRank(ModulePass):
    """%y = graph.shard %x {dim = 0, axes = ["tp"], ranks = 4}   →   %y = graph.slice %x {starts = [2*n], …}   (rank 2)"""

    name: ClassVar[str] = "specialize_rank"
    rank: int = 0

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if isinstance(function, FuncOp) and (mesh := mesh_of(function)) is not None:
                for candidate in list(function.block.ops):
                    if isinstance(candidate, Shard | ShardIndex):
                        self._rewrite(function, candidate, mesh)

    def _rewrite(self, function: FuncOp, op: GraphOp, mesh: Mesh) -> None:
        b = GraphBuilder(function.block, op.location, before=op)
        number = mesh.index(self.rank, op.params["axes"])
        made: SSAValue
        if isinstance(op, ShardIndex):
            made = b.full(value=number, shape=(), dtype=i64)
        else:
            shape, dim = b.tensor(op.results[0]).shape, op.params["dim"]
            starts = tuple(number * size if d == dim else 0 for d, size in enumerate(shape))
            made = b.slice(op.operands[0], starts=starts, shape=shape, steps=(1,) * len(shape))
        op.results[0].replace_all_uses_with(made)
        op.detach()
        op.erase()
