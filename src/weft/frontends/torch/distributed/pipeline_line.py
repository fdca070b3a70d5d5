"""The ranks of a pipeline's axis, one behind the other, and the groups through which they send each other messages."""

# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from weft.errors import ShardingError
from weft.frontends.torch.collectives.agreement import group_timeout
from weft.frontends.torch.distributed.hints import Pipeline
from weft.ops.base import GraphOp
from weft.ops.collectives import Send
from weft.passes.sharding.pipeline import interleaved


@dataclass(frozen=True)
class PipelineLine:
    """The ranks that differ in the pipeline's axis alone, and where this one stands among them."""

    axis: str
    size: int
    place: int
    chunks: int
    ranks: tuple[int, ...]
    everyone: tuple[int, ...]
    group: Any
    ways: dict[tuple[bool, bool], str]
    """The groups of messages by whether they are gradients, and whether they go from the last rank to the first or
    back: messages of one group between two ranks are received in the order in which they are sent."""

    @staticmethod
    def of(devices: DeviceMesh, pipeline: Pipeline) -> PipelineLine:
        names = devices.mesh_dim_names or ()
        if pipeline.axis not in names:
            raise ShardingError(f"the mesh has no axis {pipeline.axis}, which the pipeline is over")
        if pipeline.micro_batches < 1 or pipeline.chunks < 1:
            raise ShardingError(f"{pipeline.micro_batches} micro-batches and {pipeline.chunks} chunks are no pipeline")
        group = devices.get_group(names.index(pipeline.axis))
        ranks, size = tuple(dist.get_process_group_ranks(group)), devices.size(names.index(pipeline.axis))
        if pipeline.chunks > 1 and size == 1:
            raise ShardingError("stages of one rank cannot be interleaved", hint="use one chunk")
        interleaved(size, pipeline.micro_batches, pipeline.chunks)  # raises where there is none
        kinds = [(gradient, around) for gradient in (False, True) for around in (False, True)]
        ways = {
            kind: str(
                cast(
                    dist.ProcessGroup, dist.new_group(list(ranks), group_timeout(), use_local_synchronization=True)
                ).group_name
            )
            for kind in kinds
            if size > 1 and (pipeline.chunks > 1 or not kind[1])
        }
        place = ranks.index(dist.get_rank())
        everyone = tuple(devices.mesh.flatten().tolist())
        return PipelineLine(pipeline.axis, size, place, pipeline.chunks, ranks, everyone, group, ways)

    @property
    def stages(self) -> int:
        return self.size * self.chunks

    @property
    def own(self) -> range:
        return range(self.place, self.stages, self.size)

    @property
    def last(self) -> int:
        return self.ranks[-1]

    def pair(self, op: GraphOp) -> tuple[str, int]:
        """The group of a message, and the rank at its other end."""
        sends = isinstance(op, Send)
        peer = op.params["to"] if sends else op.params["source"]
        giver, taker = (self.place, peer) if sends else (peer, self.place)
        gradient = bool(op.params["channel"] % 2)
        onward = taker - giver if not gradient else giver - taker
        around = self.chunks > 1 and onward < 0
        return self.ways[gradient, around], self.ranks[peer]
