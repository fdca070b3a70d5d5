"""A model whose stages are on the ranks of an axis: it is trained by `step`, and evaluated by calling it.

Every rank calls it with the same whole batch, which goes through the stages in micro-batches: 1F1B, or interleaved
where a rank has several stages. A rank holds the parameters of its stages alone; the others are None in their modules,
and neither optimizers nor checkpoints see them.
"""

# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
import torch.distributed as dist
import torch.utils._pytree as pytree
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from weft.config import Config
from weft.errors import UnsupportedError
from weft.frontends.torch.collectives.agreement import Agreement
from weft.frontends.torch.collectives.failures import naming_dead_ranks
from weft.frontends.torch.collectives.transfers import finish_sends, forget_sends
from weft.frontends.torch.distributed.capture_model import CapturedModel, capture_model
from weft.frontends.torch.distributed.function_contents import Unknown, content_of
from weft.frontends.torch.distributed.hints import Pipeline, Plan
from weft.frontends.torch.distributed.kept_programs import KeptPrograms, described_function
from weft.frontends.torch.distributed.micro_batches import cut_batch, joined_outputs
from weft.frontends.torch.distributed.model_attributes import AroundModel, ModelAttributes
from weft.frontends.torch.distributed.pipeline_line import PipelineLine
from weft.frontends.torch.distributed.placing import described_call, input_name, placed_parameter, skeleton_of
from weft.frontends.torch.distributed.rank_program import Call, Groups, compile_for_rank, groups_of
from weft.frontends.torch.distributed.rank_stages import RankStages
from weft.frontends.torch.distributed.stage_programs import Program, StageProgram, stage_programs
from weft.frontends.torch.dtypes import to_torch
from weft.ir.sharding import Mesh, Sharding
from weft.ir.types import tensor_of
from weft.passes.sharding.pipeline import Step, interleaved
from weft.passes.sharding.stage_functions import place_parameters

Loss = Callable[..., torch.Tensor]


class PipelinedModel(AroundModel):
    """A model on a mesh of which one axis is a pipeline's."""

    own = frozenset({"stages", "agreement", "attributes", "programs"})

    def __init__(self, model: nn.Module, devices: DeviceMesh, plan: Plan, pipeline: Pipeline, config: Config) -> None:
        super().__init__()
        self.plan, self.pipeline, self.config = plan, pipeline, config
        self.line = PipelineLine.of(devices, pipeline)
        names = [name for name in devices.mesh_dim_names or () if name != pipeline.axis]
        # Without another axis a stage is on one rank, and nothing is sharded.
        self.alone = not names
        groups = groups_of(devices) if self.alone else groups_of(devices[tuple(names)])
        self.groups = Groups(Mesh.of(alone=1), devices, {}) if self.alone else groups
        self.rank = 0 if self.alone else groups.rank
        self.device = next((p.device for p in model.parameters()), torch.device("cpu"))
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.skeleton = [skeleton_of(model, self.fake)]
        self.shardings = {name: plan.sharding(name, p, self.groups.mesh) for name, p in model.named_parameters()}
        self.tied = _tied(model)
        self.shardings |= {name: self.shardings[names[0]] for names in self.tied for name in names}
        self.model = model
        self.stages = self._place(model)
        self.agreement = Agreement.among(self.line.everyone)
        self.attributes = ModelAttributes(model, self.skeleton[0])
        self.programs: KeptPrograms[RankStages] = KeptPrograms()

    def _place(self, model: nn.Module) -> dict[str, tuple[int, ...]]:
        """The stages of each parameter by name; those of other ranks are let go."""
        example = self.pipeline.example
        args, kwargs = (example, {}) if isinstance(example, tuple) else ((), dict(example))
        leaves, spec = pytree.tree_flatten((args, kwargs))
        first = cut_batch(leaves, self.pipeline.micro_batches)[0]
        captured = self._capture(first, spec, None, None)
        numbers = [n for n, name in enumerate(captured.state) if isinstance(attrgetter(name)(self), nn.Parameter)]
        found = place_parameters(captured.function, numbers, self.line.stages)
        used = {captured.state[n].removeprefix("model."): where for n, where in found.items()}
        own, stages = set(self.line.own), dict[str, tuple[int, ...]]()
        for names in self.tied:
            where = tuple(sorted({stage for name in names for stage in used.get(name, ())})) or (0,)
            parameter = model.get_parameter(names[0])
            devices = None if self.alone else self.groups.devices
            placed = None
            if own & set(where):
                placed = placed_parameter(parameter, self.shardings[names[0]], self.groups.mesh, devices, self.rank)
            for name in names:
                stages[name] = where
                owner, _, leaf = name.rpartition(".")
                model.get_submodule(owner)._parameters[leaf] = placed
        return stages

    def _capture(self, leaves: Sequence[Any], spec: Any, loss: Loss | None, targets: Any) -> CapturedModel:
        skeleton = self.skeleton[0]
        for traced, module in zip(skeleton.modules(), self.model.modules(), strict=True):
            traced.training = module.training
        with self.fake:
            given, wanted = pytree.tree_map_only(
                torch.Tensor, lambda t: torch.empty(t.shape, dtype=t.dtype, device=self.device), (leaves, targets)
            )
        args, kwargs = pytree.tree_unflatten(given, spec)
        return capture_model(_WithLoss(skeleton, loss), (args, kwargs, wanted), {})

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's outputs, on every rank; no gradients come of them."""
        if torch.is_grad_enabled() and any(p.requires_grad for p in self.model.parameters()):
            raise UnsupportedError(
                "the outputs of a pipeline have no gradients",
                hint="train with model.step(loss, …), or call it under torch.no_grad()",
            )
        leaves, spec = pytree.tree_flatten((args, kwargs))
        batches = cut_batch(leaves, self.pipeline.micro_batches)
        stages = self._stages(batches[0], spec, None, None)
        given = [stages.arguments(self, leaves) for leaves in batches]
        seed = self.agreement.seed() if stages.captured.is_random else None
        with self._running():
            found = [
                [stages.run(stage, each, self._seed(seed, stage, n)) for stage in self.line.own]
                for n, each in enumerate(given)
            ]
            finish_sends()
            outputs = [self._from_last(stages, results[-1]) for results in found]
        restored = [
            stages.captured.restored(results, [*stages.state(self), *leaves])
            for results, leaves in zip(outputs, batches, strict=True)
        ]
        return joined_outputs(restored, batches[0])

    def step(self, loss: Loss, *args: Any, targets: Any = None, **kwargs: Any) -> torch.Tensor:
        """Run a batch forwards and backwards; gradients are added to those that parameters have.

        `loss` is a function of the model's output, and of `targets` if there are any; the mean over micro-batches is
        given back, and gradients are of that.
        """
        leaves, spec = pytree.tree_flatten((args, kwargs))
        below, inner = pytree.tree_flatten(targets)
        count = self.pipeline.micro_batches
        batches = cut_batch([*leaves, *below], count)
        first = pytree.tree_unflatten(batches[0][len(leaves) :], inner)
        self._check_what_trains()
        stages = self._stages(batches[0][: len(leaves)], spec, loss, first)
        given = [stages.arguments(self, batch) for batch in batches]
        seed = self.agreement.seed() if stages.captured.is_random else None
        kept: dict[tuple[int, int], tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
        losses: list[torch.Tensor] = []
        gradients: dict[int, torch.Tensor] = {}
        with self._running():
            for step in self._schedule():
                if step.kind == "forward":
                    own_seed = self._seed(seed, step.stage, step.micro_batch)
                    results = stages.run(step.stage, given[step.micro_batch], own_seed)
                    own = stages.programs[step.stage].results
                    losses += results[:own]
                    kept[step.stage, step.micro_batch] = given[step.micro_batch], results[own:]
                else:
                    stages.run_back(step.stage, *kept.pop((step.stage, step.micro_batch)), 1.0 / count, gradients)
            finish_sends()
            self._share_gradients(stages, gradients)
            total = torch.stack(losses).mean().reshape(1) if losses else torch.zeros(1, device=self.device)
            dist.broadcast(total, self.line.last, group=self.line.group)
        stages.add_gradients(self, gradients)
        return total[0]

    def _check_what_trains(self) -> None:
        """Ranks know of the parameters of others only what these were when the model was distributed."""
        before = dict(self.skeleton[0].named_parameters())
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad != before[name].requires_grad:
                now = "trains" if parameter.requires_grad else "is frozen"
                raise UnsupportedError(
                    f"{name} {now} now, unlike when the pipeline was made",
                    hint="set requires_grad before weft.distribute",
                )

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """Scale gradients so that the 2-norm of all stages' together is at most this; the norm before is given back.

        torch.nn.utils.clip_grad_norm_ would see the parameters of this rank's stages alone.
        """
        held = [(name, p.grad) for name, p in self.model.named_parameters() if p.grad is not None]
        own = [grad for name, grad in held if self.stages[name][0] % self.line.size == self.line.place]
        norm = torch.nn.utils.get_total_norm(own)
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        total = norm.to(self.device, torch.float32).square().reshape(1)
        with naming_dead_ranks(self.line.everyone):
            dist.all_reduce(total, group=self.line.group)
        norm = total[0].sqrt()
        scale = min(1.0, max_norm / (norm.item() + 1e-6))
        for _, grad in held:
            grad.mul_(scale)
        return norm

    def _seed(self, seed: int | None, stage: int, micro_batch: int) -> int | None:
        """The seed of a stage's numbers for a micro-batch: all ranks that share the stage draw the same."""
        return None if seed is None else seed ^ (micro_batch * self.line.stages + stage)

    def _schedule(self) -> list[Step]:
        pipeline = self.pipeline
        return interleaved(self.line.size, pipeline.micro_batches, pipeline.chunks)[self.line.place]

    @contextmanager
    def _running(self) -> Generator[None]:
        try:
            with torch.no_grad(), naming_dead_ranks(self.line.everyone):
                yield
        finally:
            forget_sends()

    def _share_gradients(self, stages: RankStages, gradients: dict[int, torch.Tensor]) -> None:
        """Add up the gradients of parameters that several ranks of the line hold."""
        for number, where in sorted(stages.placed.items()):
            ranks = {stage % self.line.size for stage in where}
            if number not in stages.wanted or stages.first[number] != number or len(ranks) < 2:
                continue
            sharding = stages.shardings[number]
            tensor = sharding.local(tensor_of(stages.captured.function.block.args[number].type), self.groups.mesh)
            shape = [int(size) for size in tensor.shape if isinstance(size, int)]
            own = gradients.get(number)
            part = torch.zeros(shape, dtype=to_torch(tensor.dtype), device=self.device) if own is None else own
            dist.all_reduce(part, group=self.line.group)
            if own is not None:
                gradients[number] = part

    def _from_last(self, stages: RankStages, results: list[torch.Tensor]) -> list[torch.Tensor]:
        """What the last stage gives, on every rank."""
        found: list[torch.Tensor] = []
        for place, value in enumerate(stages.captured.function.returned.operands):
            tensor = tensor_of(value.type)
            shape = [int(size) for size in tensor.shape if isinstance(size, int)]
            here = self.line.place == self.line.size - 1
            sent = results[place].contiguous() if here else torch.empty(shape, dtype=to_torch(tensor.dtype))
            sent = sent.to(self.device)
            dist.broadcast(sent, self.line.last, group=self.line.group)
            found.append(sent)
        return found

    def _stages(self, leaves: Sequence[Any], spec: Any, loss: Loss | None, targets: Any) -> RankStages:
        modes = tuple(module.training for module in self.model.modules())
        below, inner = pytree.tree_flatten(targets)
        given, whole = pytree.tree_flatten((pytree.tree_unflatten(list(leaves), spec), targets))
        attributes = self.attributes.state()
        described = described_call(given, whole, [loss is not None], modes, attributes)
        # Ranks that differ where all have met both kinds of calls before would wait for each other as well.
        self.agreement.check(described if loss is None else f"{described}, loss {described_function(loss)}")
        content = content_of(loss)
        call = (spec, inner, content, modes, attributes, tuple(_described(leaf) for leaf in (*leaves, *below)))
        key = content if isinstance(content, Unknown) else call
        return self.programs.get(key, lambda: self._compile(leaves, spec, loss, targets))

    def sharded(self, *args: Any, loss: Loss | None = None, targets: Any = None, **kwargs: Any) -> list[StageProgram]:
        """The programs of this rank's stages for such a batch, with their messages and collectives, as IR."""
        leaves, spec = pytree.tree_flatten((args, kwargs))
        below, inner = pytree.tree_flatten(targets)
        first = cut_batch([*leaves, *below], self.pipeline.micro_batches)[0]
        wanted = pytree.tree_unflatten(first[len(leaves) :], inner)
        self.attributes.state()
        programs = self._programs(self._capture(first[: len(leaves)], spec, loss, wanted), first, spec, loss)[1]
        return list(programs.values())

    def _programs(
        self, captured: CapturedModel, leaves: Sequence[Any], spec: Any, loss: Loss | None
    ) -> tuple[Program, dict[int, StageProgram]]:
        mesh, count = self.groups.mesh, len(captured.state)
        values = captured.function.block.args
        lies = [Sharding.replicated(tensor_of(value.type).rank) for value in values]
        late: list[list[str]] = [[] for _ in values]
        placed: dict[int, tuple[int, ...]] = {}
        for number, state in enumerate(captured.state):
            name = state.removeprefix("model.")
            if name in self.stages:
                placed[number] = self.stages[name]
                lies[number] = self.shardings.get(name) or lies[number]
                late[number] = [self.plan.fsdp] if self.plan.fsdp else []
        named = pytree.tree_unflatten([0] * spec.num_leaves, spec)
        paths = [pytree.keystr(path) for path, _ in pytree.tree_flatten_with_path(named)[0]]
        for number, place in enumerate(captured.inputs, count):
            name = input_name(paths[place]) if place < len(paths) else "targets"
            lies[number] = self.plan.input(name, leaves[place], mesh)
        wanted = frozenset(n for n in placed if loss is not None and self._trains(captured.state[n]))
        program = Program(captured.function, mesh, lies, late, placed, wanted)
        line = self.line
        return program, stage_programs(program, self.pipeline.axis, line.size, line.place, self.pipeline.chunks)

    def _trains(self, name: str) -> bool:
        parameter = attrgetter(name)(_Named(self.skeleton[0]))
        return isinstance(parameter, nn.Parameter) and parameter.requires_grad

    def _compile(self, leaves: Sequence[Any], spec: Any, loss: Loss | None, targets: Any) -> RankStages:
        captured = self._capture(leaves, spec, loss, targets)
        every = [*leaves, *pytree.tree_leaves(targets)]
        program, programs = self._programs(captured, every, spec, loss)

        def compiled(function: Any) -> Call:
            return compile_for_rank(
                function, self.groups, self.rank, self.device, self.config, captured.objects, self.line.pair
            )

        forwards = {n: compiled(each.forward) for n, each in programs.items()}
        backwards = {n: compiled(each.backward) for n, each in programs.items() if each.backward is not None}
        numbers = {name.removeprefix("model."): number for number, name in enumerate(captured.state)}
        same = [[numbers[name] for name in names if name in numbers] for names in self.tied]
        first = {number: each[0] for each in same for number in each}
        return RankStages(
            captured,
            self.groups.mesh,
            self.rank,
            programs,
            forwards,
            backwards,
            program.arguments,
            program.placed,
            program.wanted,
            first,
        )


@dataclass(frozen=True)
class _Named:
    """A module under the name that it has in programs."""

    model: nn.Module


class _WithLoss(nn.Module):
    """A model with its loss; with none, the model."""

    def __init__(self, model: nn.Module, loss: Loss | None) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, args: Any, kwargs: Any, targets: Any) -> Any:
        output = self.model(*args, **kwargs)
        if self.loss is None:
            return output
        found: Any = self.loss(output) if targets is None else self.loss(output, targets)
        if not isinstance(found, torch.Tensor) or found.numel() != 1:
            raise UnsupportedError("the loss of a pipeline is not one number", hint="reduce it: loss.mean()")
        return found.reshape(())


def _tied(model: nn.Module) -> list[list[str]]:
    """The names of each parameter, which may have several."""
    found: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        found.setdefault(id(parameter), []).append(name)
    return list(found.values())


def _described(leaf: Any) -> Any:
    return (tuple(leaf.shape), leaf.dtype) if isinstance(leaf, torch.Tensor) else repr(leaf)
