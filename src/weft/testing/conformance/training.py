"""Whether a compiled model trains as eager does: the losses of some steps, from equal weights on equal data."""

# torch leaves some of its arguments without types.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import nn

from weft.testing.conformance.model_check import Compile, moved
from weft.testing.models import ModelCase

# A wrong gradient moves the loss by percents within a few steps; rounding does not within twenty.
ALLOWED = 5e-3


@dataclass(frozen=True, slots=True)
class TrainingReport:
    """The losses of both, step by step."""

    name: str
    compiled: tuple[float, ...]
    eager: tuple[float, ...]

    @property
    def error(self) -> float:
        """The largest difference of the losses, as a share of eager's."""
        pairs = zip(self.compiled, self.eager, strict=True)
        return max(abs(mine - theirs) / max(abs(theirs), 1e-6) for mine, theirs in pairs)

    @property
    def ok(self) -> bool:
        """The losses agree, and they fell: equal nonsense is none."""
        return self.error <= ALLOWED and self.eager[-1] < self.eager[0]

    def __str__(self) -> str:
        losses = ", ".join(f"{mine:.4f}/{theirs:.4f}" for mine, theirs in zip(self.compiled, self.eager, strict=True))
        return f"{self.name}: {'follows' if self.ok else 'LEAVES'} eager, error {self.error:.1e}; losses {losses}"


def check_training(
    case: ModelCase, compiled: Compile, *, steps: int = 20, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> TrainingReport:
    """Train the model for some steps of AdamW, compiled and in eager, over four batches that come again."""
    module = case.build().to(device, dtype)
    torch.compiler.reset()
    mine = _losses(case, module, compiled, steps, device, dtype)
    theirs = _losses(case, module, lambda module: module, steps, device, dtype)
    return TrainingReport(case.name, mine, theirs)


def _losses(
    case: ModelCase, module: nn.Module, compiled: Compile, steps: int, device: str, dtype: torch.dtype
) -> tuple[float, ...]:
    batches = [moved(case.inputs(seed), device, dtype) for seed in range(4)]
    mine = case.train(copy.deepcopy(module))
    run = compiled(mine)
    optimizer = torch.optim.AdamW(mine.parameters(), lr=1e-4)
    losses: list[float] = []
    for step in range(steps):
        loss = case.loss(run(**batches[step % len(batches)]))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return tuple(losses)
