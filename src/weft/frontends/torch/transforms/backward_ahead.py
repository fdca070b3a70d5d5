"""Backward graphs that are compiled with the forward one, where their results show that gradients will be asked for.

AOTAutograd hands over a backward graph when its first gradient is computed, and the step waits for its kernels then,
those that take a second included. Compiled right behind the forward graph, they are made in other threads and processes
while Dynamo writes guards and bytecode, and while the forward graph waits for its own.
"""

# AOTAutograd has no public interface to it.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import torch._functorch.config as functorch
from torch._dynamo import compiled_autograd

_SETTING = "force_non_lazy_backward_lowering"
"""What AOTAutograd calls it."""
_ahead: ContextVar[bool] = ContextVar("_ahead", default=False)


@contextmanager
def compiling_ahead(device: str) -> Generator[None]:
    """Let AOTAutograd hand over backward graphs with the forward ones, on devices whose kernels are made meanwhile.

    Compiled autograd traces them again, and has no use for what is made of them alone. Of several ranks one compiles
    what all need, and the others wait for it, which they could not while it waits for them in the forward.
    """
    traced_again = compiled_autograd.compiled_autograd_enabled or torch._dynamo.config.compiled_autograd
    ranks = torch.distributed.is_available() and torch.distributed.is_initialized()
    if device != "cuda" or traced_again or ranks or not hasattr(functorch, _SETTING):
        yield
        return
    setting: Any = functorch
    token = _ahead.set(True)
    try:
        with setting.patch({_SETTING: True}):
            yield
    finally:
        _ahead.reset(token)


def is_ahead() -> bool:
    """Whether a backward graph is compiled now that nobody has asked a gradient of yet."""
    return _ahead.get()


def expected_undefined(tangents: Mapping[int, Any]) -> tuple[int, ...] | None:
    """Which gradients of results will not be there, by their places, as far as results tell; None where they do not.

    A scalar among them is the loss: it is what gradients are asked of, and the results beside it are looked at.
    """
    scalars = [n for n, traced in tangents.items() if isinstance(traced, torch.Tensor) and traced.dim() == 0]
    return tuple(n for n in tangents if n not in scalars) if len(scalars) == 1 else None
