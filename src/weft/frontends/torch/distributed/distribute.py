"""`weft.distribute`: a model on a mesh of ranks, as a module that is called like the model itself.

Every rank calls it with the same inputs, whole or as DTensors, and gets the same outputs. Parameters are DTensors: each
rank holds its parts alone, optimizers and torch.distributed.checkpoint work on them as they are.
"""

# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from operator import attrgetter
from typing import Any

import torch
import torch.distributed as dist
import torch.utils._pytree as pytree
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

from weft.config import Config
from weft.errors import ShardingError, UnsupportedError
from weft.frontends.torch.collectives.agreement import Agreement, group_timeout
from weft.frontends.torch.collectives.failures import TIMEOUT, naming_dead_ranks
from weft.frontends.torch.distributed.capture_model import CapturedModel, capture_model
from weft.frontends.torch.distributed.hints import Plan, check_patterns, plan_of_transformers
from weft.frontends.torch.distributed.kept_programs import KeptPrograms
from weft.frontends.torch.distributed.model_attributes import AroundModel, ModelAttributes
from weft.frontends.torch.distributed.pipelined_model import PipelinedModel
from weft.frontends.torch.distributed.placing import (
    described_call,
    input_name,
    part_of,
    placed_parameter,
    skeleton_of,
)
from weft.frontends.torch.distributed.rank_program import Call, Groups, compile_for_rank, groups_of
from weft.frontends.torch.distributed.shard_program import ShardedProgram, shard_program
from weft.ir.sharding import Mesh


def distribute(
    model: nn.Module,
    mesh: DeviceMesh | Mapping[str, int],
    plan: Plan | Mapping[str, str] | str = "tp",
    *,
    config: Config | None = None,
    timeout: timedelta | None = None,
) -> DistributedModel | PipelinedModel:
    """A model whose parameters lie on the ranks of a mesh as a plan says, compiled for each of them.

    `mesh` is a DeviceMesh with names, or sizes by name: `{"dp": 2, "tp": 4}`. `plan` is a `Plan`, or shardings by
    patterns of parameter names: `{"*.q_proj.weight": "[{tp}, {}]"}`; the name of an axis takes the plan that a model of
    transformers carries. The process group is made if there is none, as torchrun's environment says; `timeout` is then
    how long its ranks wait for each other in a collective, 45 seconds unless it is given. A plan with a `Pipeline`
    gives a `PipelinedModel`, which is trained by its `step`.
    """
    if timeout is not None and dist.is_initialized():
        raise ShardingError(
            "the process group is there already, and its timeout is its own",
            hint="give the timeout to init_process_group",
        )
    devices = mesh if isinstance(mesh, DeviceMesh) else _device_mesh(model, mesh, timeout or TIMEOUT)
    with naming_dead_ranks(devices.mesh.flatten().tolist()):
        return _distributed(model, devices, plan, config or Config())


def _distributed(
    model: nn.Module, devices: DeviceMesh, plan: Plan | Mapping[str, str] | str, config: Config
) -> DistributedModel | PipelinedModel:
    if isinstance(plan, str):
        plan = plan_of_transformers(model, plan)
    elif not isinstance(plan, Plan):
        plan = Plan(parameters=plan)
    check_patterns(plan, [name for name, _ in model.named_parameters()])
    if plan.pipeline is not None:
        return PipelinedModel(model, devices, plan, plan.pipeline, config)
    return DistributedModel(model, groups_of(devices), plan, config)


def _device_mesh(model: nn.Module, sizes: Mapping[str, int], timeout: timedelta) -> DeviceMesh:
    device = next((p.device.type for p in model.parameters()), "cpu")
    device = "cpu" if device == "meta" else device
    if not dist.is_initialized():
        if "RANK" not in os.environ:
            raise ShardingError("there are no ranks", hint="start the program with torchrun, or init_process_group")
        dist.init_process_group("nccl" if device == "cuda" else "gloo", timeout=timeout)
    wanted = Mesh(tuple(sizes.items()))
    if wanted.ranks != dist.get_world_size():
        raise ShardingError(f"mesh {wanted} has {wanted.ranks} ranks, and there are {dist.get_world_size()}")
    with naming_dead_ranks(range(wanted.ranks)):
        made = init_device_mesh(device, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    if dist.get_backend() != "fake":
        for axis in range(made.ndim):  # torch gives half an hour to groups that it makes itself
            dist.distributed_c10d._set_pg_timeout(group_timeout(), made.get_group(axis))
    return made


class DistributedModel(AroundModel):
    """A model on the ranks of a mesh."""

    own = frozenset({"agreement", "attributes", "programs"})

    def __init__(self, model: nn.Module, groups: Groups, plan: Plan, config: Config) -> None:
        super().__init__()
        self.groups, self.plan, self.config = groups, plan, config
        self.rank = groups.rank
        self.device = next((p.device for p in model.parameters()), torch.device("cpu"))
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.skeleton = [skeleton_of(model, self.fake)]  # in a list, so that it is no submodule
        self.shardings = {name: plan.sharding(name, p, groups.mesh) for name, p in model.named_parameters()}
        self.model = model
        for name, parameter in list(model.named_parameters()):
            self._place(name, parameter)
        self.agreement = Agreement.among(groups.numbers)
        self.attributes = ModelAttributes(model, self.skeleton[0])
        self.programs: KeptPrograms[_RankModel] = KeptPrograms()

    def _place(self, name: str, parameter: nn.Parameter) -> None:
        owner, _, leaf = name.rpartition(".")
        module = self.model.get_submodule(owner)
        sharding, mesh = self.shardings[name], self.groups.mesh
        if isinstance(parameter, DTensor):
            return
        placed = placed_parameter(parameter, sharding, mesh, self.groups.devices, self.rank)
        for other in self.model.modules():  # a parameter may be tied
            for key, value in list(other._parameters.items()):
                if value is parameter:
                    other._parameters[key] = placed
        module._parameters[leaf] = placed

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        if torch.is_grad_enabled() and any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves):
            raise UnsupportedError(
                "an input of a model on many ranks requires a gradient, and only parameters get one",
                hint="detach it, or distribute a model that has what computes it",
            )
        wanted = tuple(torch.is_grad_enabled() and p.requires_grad for p in self.model.parameters())
        trains, modes = any(wanted), tuple(module.training for module in self.model.modules())
        # Ranks that differ where all have met both kinds of calls before would wait for each other as well.
        attributes = self.attributes.state()
        self.agreement.check(described_call(leaves, spec, wanted, modes, attributes))
        key = (spec, wanted, modes, attributes, tuple(_described(leaf) for leaf in leaves))
        return self.programs.get(key, lambda: self._compile(leaves, spec, trains))(leaves, self.model)

    def sharded(self, *args: Any, trains: bool = False, **kwargs: Any) -> ShardedProgram:
        """The program of a rank for such inputs, with its collectives, as IR."""
        leaves, spec = pytree.tree_flatten((args, kwargs))
        self.attributes.state()
        return self._sharded(leaves, spec, trains)[1]

    def _sharded(self, leaves: Sequence[Any], spec: Any, trains: bool) -> tuple[CapturedModel, ShardedProgram]:
        skeleton = self.skeleton[0]
        for traced, module in zip(skeleton.modules(), self.model.modules(), strict=True):
            traced.training = module.training
        with self.fake:
            given = [
                torch.empty(leaf.shape, dtype=leaf.dtype, device=self.device)
                if isinstance(leaf, torch.Tensor)
                else leaf
                for leaf in leaves
            ]
        args, kwargs = pytree.tree_unflatten(given, spec)
        captured = capture_model(skeleton, args, kwargs)
        paths = [pytree.keystr(path) for path, _ in pytree.tree_flatten_with_path((args, kwargs))[0]]
        inputs = {
            input_name(paths[place]): self.plan.input(input_name(paths[place]), leaves[place], self.groups.mesh)
            for place in captured.inputs
        }
        program = shard_program(captured, self.groups.mesh, self.plan, self.shardings, inputs, trains, self.model)
        return captured, program

    def _compile(self, leaves: Sequence[Any], spec: Any, trains: bool) -> _RankModel:
        captured, program = self._sharded(leaves, spec, trains)

        def compiled(function: Any) -> Call:
            return compile_for_rank(function, self.groups, self.rank, self.device, self.config, captured.objects)

        backward = None if program.split is None else compiled(program.split.backward)
        forward = compiled(program.function if program.split is None else program.split.forward)
        if captured.is_random:
            forward = self._drawing_alike(forward)
        return _RankModel(captured, program, forward, backward, self.groups.mesh, self.rank)

    def _drawing_alike(self, forward: Call) -> Call:
        def call(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            with self.agreement.same_random_numbers(self.device):
                return forward(tensors)

        return call


@dataclass(frozen=True)
class _RankModel:
    """The model for inputs of known shapes, on one rank."""

    captured: CapturedModel
    program: ShardedProgram
    forward: Call
    backward: Call | None
    mesh: Mesh
    rank: int

    def __call__(self, leaves: Sequence[Any], model: nn.Module) -> Any:
        state = [attrgetter(name)(model) for name in self.captured.state]
        held = [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in state]
        first = len(self.captured.state)
        for number, place in enumerate(self.captured.inputs, first):
            leaf = leaves[place]
            if isinstance(leaf, DTensor):
                held.append(leaf.to_local())
            else:
                held.append(part_of(leaf, self.program.arguments[number], self.mesh, self.rank).contiguous())
        held += self.captured.constants
        results = _Call.apply(self, *held) if self.backward is not None else self.forward(held)
        return self.captured.restored(list(results), [*state, *(leaves[place] for place in self.captured.inputs)])


class _Call(torch.autograd.Function):
    """A call of a rank's program of which gradients are wanted."""

    @staticmethod
    def forward(ctx: Any, program: _RankModel, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        split = program.program.split
        assert split is not None, "trains"
        results = program.forward([tensor.detach() for tensor in tensors])
        count = len(results) - split.kept
        ctx.program = program
        ctx.save_for_backward(*(tensors[place] for place in split.arguments), *results[count:])
        ctx.given = len(tensors)
        ctx.shapes = [(result.shape, result.dtype, result.device) for result in results[:count]]
        outputs = tuple(results[:count])
        ctx.mark_non_differentiable(*(result for result in outputs if not result.is_floating_point()))
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        program: _RankModel = ctx.program
        assert program.backward is not None, "trains"
        seeds = [
            torch.zeros(shape, dtype=dtype, device=device) if grad is None else grad.contiguous()
            for grad, (shape, dtype, device) in zip(grads, ctx.shapes, strict=True)
            if dtype.is_floating_point
        ]
        found = program.backward([*(tensor.detach() for tensor in ctx.saved_tensors), *seeds])
        gradients: list[torch.Tensor | None] = [None] * ctx.given
        for place, gradient in zip(program.program.wanted, found, strict=True):
            gradients[place] = gradient
        return None, *gradients


def _described(leaf: Any) -> Any:
    """What a program is made for: it takes a DTensor's part as it lies."""
    if not isinstance(leaf, torch.Tensor):
        return repr(leaf)
    lies = (leaf.device_mesh, leaf.placements) if isinstance(leaf, DTensor) else None
    return tuple(leaf.shape), leaf.dtype, lies
