"""A random `nn.Module` while it is drawn: its lines and layers so far, and the forms that layers come from."""

# torch leaves some of its arguments without types.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from weft.testing.fuzz.torch_programs import Drawing, Unfit

LAYERS: list[tuple[float, Callable[[ModuleDrawing], str]]] = []


def layer(
    weight: float = 1.0,
) -> Callable[[Callable[[ModuleDrawing], str]], Callable[[ModuleDrawing], str]]:
    """Register a form of a layer, to be chosen with this weight."""

    def register(function: Callable[[ModuleDrawing], str]) -> Callable[[ModuleDrawing], str]:
        LAYERS.append((weight, function))
        return function

    return register


@dataclass
class ModuleDrawing(Drawing):
    """A module that is being drawn: beside its lines, the layers that they use, which are there already."""

    module: nn.Module = field(default_factory=nn.Module)
    dtype: torch.dtype = torch.float32
    layers: list[str] = field(default_factory=list[str])
    pending: list[str] = field(default_factory=list[str])
    """Lines of layers that stay if the line that uses them does."""
    made: int = 0

    def layer(self, text: str, *more: str) -> str:
        """The name of a new layer; `more` are lines about it, with its name in the place of `{0}`."""
        name = f"self.l{self.made}"
        self.made += 1
        self.state(f"{name} = {text}", *(line.format(name) for line in more))
        return name

    def state(self, *lines: str) -> None:
        """Lines of the module's `__init__`."""
        for line in lines:
            try:
                exec(line, dict(self.names))
            except Exception as error:  # no such layer of these sizes
                raise Unfit from error
            self.module.to(self.dtype)
            self.pending.append(line)

    def pick(self, *choices: Any) -> Any:
        return self.rng.choice(choices)

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def signal(self, *ranks: int, test: Callable[[Tensor], bool] = lambda tensor: True) -> str:
        """The name of floats of the module's type, of some rank."""
        self.rounds()
        return self.floating(
            lambda tensor: tensor.dtype == self.dtype and (not ranks or tensor.dim() in ranks) and test(tensor)
        )
