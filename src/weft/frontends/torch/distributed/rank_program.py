"""A rank's program, compiled: collectives as calls of torch.distributed between the kernels."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from weft.config import Config
from weft.errors import ShardingError
from weft.frontends.torch.collectives.agreement import group_timeout
from weft.frontends.torch.collectives.failures import naming_dead_ranks
from weft.frontends.torch.collectives.lower_collectives import CollectiveLowering
from weft.frontends.torch.devices import target_on
from weft.frontends.torch.executors import LaterExecutor, executor_for
from weft.frontends.torch.importer.imported_graph import Calling, ImportedGraph
from weft.frontends.torch.importer.sizes import SymbolReader
from weft.ir.sharding import Mesh
from weft.ops.base import GraphOp
from weft.ops.collectives import Collective
from weft.ops.graph import FuncOp, module_of
from weft.passes.sharding.specialize_rank import SpecializeRank

Call = Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]
"""A rank's program: its results for its arguments."""


@dataclass(frozen=True)
class Groups:
    """The process groups of a mesh: one for each set of axes that a collective is over."""

    mesh: Mesh
    devices: DeviceMesh
    made: dict[tuple[str, ...], Any]

    def name(self, axes: tuple[str, ...]) -> str:
        if axes not in self.made:
            self.made[axes] = self._group(axes)
        return self.made[axes].group_name

    def _group(self, axes: tuple[str, ...]) -> Any:
        if len(axes) == 1:
            return self.devices.get_group(list(self.mesh.sizes).index(axes[0]))
        numbers = self.numbers
        own = next(group for group in self.mesh.groups(axes) if self.rank in group)
        # A mesh may be a part of all ranks, and the others know nothing of its groups.
        return dist.new_group([numbers[rank] for rank in own], group_timeout(), use_local_synchronization=True)

    @property
    def numbers(self) -> list[int]:
        """The mesh's ranks by their numbers among all."""
        return self.devices.mesh.flatten().tolist()

    @property
    def rank(self) -> int:
        """Where this process stands in the mesh, which need not be its number among all."""
        return self.numbers.index(dist.get_rank())


def groups_of(devices: DeviceMesh) -> Groups:
    names = devices.mesh_dim_names or tuple(f"axis{n}" for n in range(devices.ndim))
    numbers = devices.mesh.flatten().tolist()
    if numbers != sorted(numbers):
        raise ShardingError(f"the ranks of the mesh are not in order: {numbers}", hint="number them row by row")
    if dist.get_rank() not in numbers:
        raise ShardingError(f"rank {dist.get_rank()} is not one of the mesh's, {numbers}")
    return Groups(Mesh(tuple(zip(names, devices.mesh.shape, strict=True))), devices, {})


def compile_for_rank(
    function: FuncOp,
    groups: Groups,
    rank: int,
    device: torch.device,
    config: Config,
    objects: Mapping[str, Any],
    pairs: Callable[[GraphOp], tuple[str, int]] | None = None,
) -> Call:
    """A callable for the program of a rank, which must be partitioned. With `pairs` it is a stage of a pipeline, whose
    whole step is what other ranks are missed in."""
    module = ModuleOp([function.clone()])
    SpecializeRank(rank).apply(Context(), module)
    local = next(op for op in module.body.block.ops if isinstance(op, FuncOp))
    axes = dict.fromkeys(op.params["axes"] for op in local.block.ops if isinstance(op, Collective))
    table = dict(objects)
    CollectiveLowering(local, {each: groups.name(each) for each in axes}, table, pairs, device).run()
    module_of(local).verify()
    nothing = SymbolReader(())
    calling = Calling(tuple(range(len(local.block.args))), (), nothing, (), (), ())
    imported = ImportedGraph(local, calling, (), table)
    executor = executor_for(imported, config, None, {}, target_on(device, config), device)
    loaded = executor.load() if isinstance(executor, LaterExecutor) else executor
    if pairs is not None:
        return lambda tensors: list(loaded(list(tensors), {}))
    ranks = tuple(groups.numbers)

    def call(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        with naming_dead_ranks(ranks):
            return list(loaded(list(tensors), {}))

    return call
