"""Calls of functions with rules of their own, as one operator of captured graphs: `weft::custom(tensors, key)`.

The key tells which call it is. Whoever imports the graph asks the call for graphs of its function and of its rules.
"""

# Torch's operators have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import fx


class CustomCall(Protocol):
    """A function with rules of its own, for the arguments of one call."""

    has_checks: bool
    """Whether the function's graph looks at its data: a number that says what is wrong is a result of its own."""

    @property
    def batching(self) -> str | None:
        """Names its batching rule, if it has one."""
        ...

    def evaluate(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The tensors that the function returns, for those among the leaves of its arguments."""
        ...

    def graphs(self, tensors: Sequence[torch.Tensor]) -> dict[str, fx.GraphModule]:
        """The function (`body`) and its rules (`vjp`, `jvp`) as graphs of tensors, whose contents do not matter."""
        ...


CALLS: dict[str, CustomCall] = {}
"""The calls in graphs that are being captured, by their keys."""

_library = torch.library.Library("weft", "FRAGMENT")
_library.define("custom(Tensor[] tensors, str key) -> Tensor[]")
_library.define("named(Tensor x, str name) -> Tensor")


def _evaluate(tensors: Sequence[torch.Tensor], key: str) -> list[torch.Tensor]:
    return CALLS[key].evaluate(tensors)


_library.impl("custom", _evaluate, "CompositeExplicitAutograd")
torch.library.register_fake("weft::custom", _evaluate)


def _named(x: torch.Tensor, name: str) -> torch.Tensor:
    return x.clone()


_library.impl("named", _named, "CompositeExplicitAutograd")
torch.library.register_fake("weft::named", _named)


def _gradient_of_named(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
    return grad, None


def _batch_of_named(_: Any, dims: tuple[Any, ...], x: torch.Tensor, name: str) -> tuple[torch.Tensor, Any]:
    return torch.ops.weft.named(x, name), dims[0]


torch.library.register_autograd("weft::named", _gradient_of_named)
torch.library.register_vmap("weft::named", _batch_of_named)
