"""What users say of shardings: patterns of names, DTensors, and the plans of transformers, as hints on arguments."""

# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from weft.errors import ShardingError
from weft.frontends.torch.dtypes import from_torch
from weft.ir.sharding import Mesh, Sharding, Split
from weft.ir.types import Tensor


@dataclass(frozen=True)
class Pipeline:
    """Stages of a model over an axis of the mesh, cut where the slowest is as fast as it can be.

    A batch is cut into `micro_batches` along the first dimension of its tensors; those of one row go along whole.
    `example` is a batch as the model is called with, a tuple or a dictionary of inputs, by which stages are cut. With
    more than one of `chunks` a rank has several stages, interleaved.
    """

    axis: str
    micro_batches: int
    example: tuple[Any, ...] | Mapping[str, Any]
    chunks: int = 1


@dataclass(frozen=True)
class Plan:
    """Hints by name: patterns of parameters and buffers, and of inputs, each with the text of a sharding.

    A dictionary of patterns stands for `Plan(parameters=…)`. The first pattern that matches counts. `fsdp` is an axis
    over which every parameter's first dimension that fits is split, too, after all else: what batches are split over
    wins, so that parameters are gathered before they are used and their gradients reduced and scattered. `pipeline`
    cuts the model into stages over an axis of its own.
    """

    parameters: Mapping[str, str] = field(default_factory=dict[str, str])
    inputs: Mapping[str, str] = field(default_factory=dict[str, str])
    fsdp: str | None = None
    pipeline: Pipeline | None = None

    def sharding(self, name: str, tensor: torch.Tensor, mesh: Mesh) -> Sharding:
        """How a parameter lies on the ranks."""
        if isinstance(tensor, DTensor):
            return _sharding_of(tensor, name, mesh)
        found = matched(self.parameters, name)
        sharding = Sharding.replicated(tensor.dim()) if found is None else _read(found, name, tensor.dim())
        sharding.check(_type_of(tensor), mesh, name)
        return sharding if self.fsdp is None else _fully(sharding, tensor, mesh, self.fsdp)

    def input(self, name: str, tensor: torch.Tensor, mesh: Mesh) -> Sharding:
        if isinstance(tensor, DTensor):
            return _sharding_of(tensor, name, mesh)
        found = matched(self.inputs, name)
        sharding = Sharding.replicated(tensor.dim()) if found is None else _read(found, name, tensor.dim())
        sharding.check(_type_of(tensor), mesh, name)
        return sharding


def matched(patterns: Mapping[str, str], name: str) -> str | None:
    return next((text for pattern, text in patterns.items() if fnmatchcase(name, pattern)), None)


def check_patterns(plan: Plan, names: Iterable[str]) -> None:
    """Raise where a pattern fits no parameter: a misspelt one would do nothing."""
    known = list(names)
    for pattern in plan.parameters:
        if not any(fnmatchcase(name, pattern) for name in known):
            raise ShardingError(f"no parameter is called {pattern}", hint=f"there are {', '.join(known[:8])}, …")


def _read(text: str, name: str, rank: int) -> Sharding:
    sharding = Sharding.parse(text)
    if len(sharding.dims) != rank:
        raise ShardingError(f"{name} has {rank} dimensions, its sharding {text} {len(sharding.dims)}")
    return sharding


def _type_of(tensor: torch.Tensor) -> Tensor:
    return Tensor(from_torch(tensor.dtype), tuple(tensor.shape))


def _fully(sharding: Sharding, tensor: torch.Tensor, mesh: Mesh, axis: str) -> Sharding:
    for d in sorted(range(tensor.dim()), key=lambda d: bool(sharding.dims[d])):
        if sharding.dims[d]:
            break  # gathered over the later axis alone, it would not be split over the other as the user says
        wider = sharding.with_dim(d, (*sharding.dims[d], Split(axis)))
        try:
            wider.check(_type_of(tensor), mesh, "")
        except ShardingError:
            continue
        return wider
    return sharding


def _sharding_of(tensor: DTensor, name: str, mesh: Mesh) -> Sharding:
    """How a DTensor lies, which has to be on the model's mesh: placements name its axes by their order alone."""
    own, names = tuple(tensor.device_mesh.shape), tensor.device_mesh.mesh_dim_names
    if own != tuple(mesh.sizes.values()) or names not in (None, tuple(mesh.sizes)):
        axes = ", ".join(f"{axis}={size}" for axis, size in zip(names or ("?",) * len(own), own, strict=True))
        raise ShardingError(
            f"{name} is a DTensor on a mesh {axes}, and the model is on {mesh}",
            hint="make it on the mesh that weft.distribute gets, or give the whole tensor",
        )
    return sharding_of_placements(tensor.placements, tensor.dim(), mesh)


_PENDING = {"sum": "sum", "max": "max", "min": "min", "product": "prod"}
"""DTensor's pending reductions, as they are called here."""


def sharding_of_placements(placements: Sequence[Placement], rank: int, mesh: Mesh) -> Sharding:
    """DTensor's placements, one for each axis of the mesh, as a sharding."""
    dims: list[tuple[Split, ...]] = [()] * rank
    partial: list[tuple[str, str]] = []
    for (axis, _), placement in zip(mesh.axes, placements, strict=True):
        match placement:
            case Shard(dim=dim):
                dims[dim] = (*dims[dim], Split(axis))
            case _StridedShard(dim=dim, split_factor=blocks):
                dims[dim] = (*dims[dim], Split(axis, int(blocks)))
            case Partial(reduce_op=kind):
                if kind not in _PENDING:
                    raise ShardingError(
                        f"the pending reduction {kind} of {placement} has no sharding here",
                        hint=f"there are {', '.join(_PENDING)}; or redistribute the tensor to Replicate() first",
                    )
                partial.append((axis, _PENDING[kind]))
            case Replicate():
                pass
            case _:
                raise ShardingError(f"the placement {placement} has no sharding here")
    return Sharding(tuple(dims), tuple(partial))


def placements_of(sharding: Sharding, mesh: Mesh) -> list[Placement]:
    """A sharding as DTensor's placements."""
    order = [name for name, _ in mesh.axes]
    placements: list[Placement] = [Replicate() for _ in order]
    for d, splits in enumerate(sharding.dims):
        places = [order.index(split.axis) for split in splits]
        if places != sorted(places):
            raise ShardingError(f"{sharding} is no placement of a DTensor", hint="name axes in the mesh's order")
        for place, split in zip(places, splits, strict=True):
            placements[place] = Shard(d) if split.blocks == 1 else _StridedShard(d, split_factor=split.blocks)
    return placements


_COLUMNS = ("colwise", "colwise_rep", "colwise_gather_output", "local_colwise")
_ROWS = ("rowwise", "rowwise_rep", "local_rowwise", "rowwise_split_input")


def plan_of_transformers(model: nn.Module, axis: str = "tp") -> Plan:
    """The tensor-parallel plan that a model of transformers carries, as hints.

    A column-wise layer splits what it gives, a row-wise one what it sums over. What it says of inputs and outputs of
    layers follows from these; styles that say nothing of weights are left out.
    """
    given: Mapping[str, str] = getattr(model, "tp_plan", None) or getattr(model, "_tp_plan", None) or {}
    if not given:
        raise ShardingError(
            f"{type(model).__name__} carries no plan for tensor parallelism", hint="give a Plan of your own"
        )
    found: dict[str, str] = {}
    for name, parameter in model.named_parameters():
        layer, _, leaf = name.rpartition(".")
        style = matched(given, layer) or matched(given, name)
        text = _styled(style, parameter.dim(), leaf, axis) if style else None
        if text is not None:
            found[name] = text
    return Plan(parameters=found)


def _styled(style: str, rank: int, leaf: str, axis: str) -> str | None:
    dims = ["{}"] * rank
    if style in _COLUMNS:
        dims[max(rank - 2, 0)] = f"{{{axis}}}"
    elif style in _ROWS and (rank >= 2 or leaf != "bias"):
        if rank < 2:
            return None
        dims[rank - 1] = f"{{{axis}}}"
    elif style == "packed_colwise":
        dims[max(rank - 2, 0)] = f"{{{axis}/2}}"
    elif style == "packed_rowwise" and rank >= 2:
        dims[rank - 1] = f"{{{axis}/2}}"
    else:
        return None
    return f"[{', '.join(dims)}]"
