"""The stages of a pipeline that one rank has, compiled: what runs in a step, forwards and backwards."""

# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from weft.frontends.torch.distributed.capture_model import CapturedModel
from weft.frontends.torch.distributed.placing import part_of
from weft.frontends.torch.distributed.rank_program import Call
from weft.frontends.torch.distributed.stage_programs import StageProgram
from weft.frontends.torch.dtypes import to_torch
from weft.frontends.torch.transforms.random_state import RandomState
from weft.ir.sharding import Mesh, Sharding
from weft.ir.types import tensor_of


@dataclass(frozen=True)
class RankStages:
    """The stages of a rank for batches of one kind, compiled."""

    captured: CapturedModel
    mesh: Mesh
    rank: int
    programs: dict[int, StageProgram]
    forwards: dict[int, Call]
    backwards: dict[int, Call]
    shardings: Sequence[Sharding]
    placed: Any
    wanted: frozenset[int]
    first: dict[int, int]
    """Of each wanted parameter the first argument that is the same one, under whatever name."""

    def state(self, model: nn.Module) -> list[torch.Tensor | None]:
        return [attrgetter(name)(model) for name in self.captured.state]

    def arguments(self, model: nn.Module, leaves: Sequence[Any]) -> list[Any]:
        """This rank's parts of a micro-batch's arguments; parameters of other ranks are None."""
        held = [each.to_local() if isinstance(each, DTensor) else each for each in self.state(model)]
        first = len(held)
        for number, place in enumerate(self.captured.inputs, first):
            held.append(part_of(leaves[place], self.shardings[number], self.mesh, self.rank).contiguous())
        return [*(None if each is None else each.detach() for each in held), *self.captured.constants]

    def run(self, stage: int, arguments: list[Any], seed: int | None = None) -> list[torch.Tensor]:
        """What a stage gives; one that draws random numbers draws those of a seed."""
        given = [arguments[n] for n in self.programs[stage].arguments]
        if seed is None:
            return self.forwards[stage](given)
        with RandomState.seeded(seed, arguments).replayed():
            return self.forwards[stage](given)

    def run_back(
        self,
        stage: int,
        arguments: list[Any],
        kept: list[torch.Tensor],
        seed: float,
        gradients: dict[int, torch.Tensor],
    ) -> None:
        program = self.programs[stage]
        result = [tensor_of(value.type) for value in self.captured.function.returned.operands]
        seeds = [torch.full((), seed, dtype=to_torch(each.dtype), device=_device(arguments)) for each in result]
        again = [arguments[n] for n in program.again]
        found = self.backwards[stage]([*again, *kept, *(seeds if program.results else [])])
        for number, gradient in zip((self.first[n] for n in program.wanted), found, strict=True):
            gradients[number] = gradient if number not in gradients else gradients[number] + gradient

    def add_gradients(self, model: nn.Module, gradients: dict[int, torch.Tensor]) -> None:
        for number, gradient in gradients.items():
            parameter: Any = attrgetter(self.captured.state[number])(model)
            if isinstance(parameter, DTensor):
                gradient = DTensor.from_local(
                    gradient, parameter.device_mesh, parameter.placements, run_check=False,
                    shape=parameter.shape, stride=parameter.stride(),
                )  # fmt: skip
            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient


def _device(arguments: Sequence[Any]) -> torch.device:
    return next((each.device for each in arguments if isinstance(each, torch.Tensor)), torch.device("cpu"))
