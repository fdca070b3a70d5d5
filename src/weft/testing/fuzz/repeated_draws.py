"""Random numbers that a program took, taken again: so that a run in float64 makes the choices of the one it judges.

Which numbers a generator gives depends on the type they are asked in.
"""

# torch leaves some of its arguments without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class RecordedDraws(TorchDispatchMode):
    """Keeps what every op that draws random numbers gives."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[list[Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.drawn.append([leaf.detach().clone() for leaf in _tensors(results)])
        return results


class RepeatedDraws(TorchDispatchMode):
    """Lets the ops that draw random numbers give what was recorded, in the type that they are asked for."""

    def __init__(self, recorded: RecordedDraws) -> None:
        super().__init__()
        self._drawn = iter(recorded.drawn)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded in func.tags:
            for result, drawn in zip(_tensors(results), next(self._drawn), strict=True):
                result.detach().copy_(drawn)
        return results


def _tensors(results: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(results) if isinstance(leaf, Tensor)]
