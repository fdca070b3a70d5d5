"""Loops whose turns are counted by data, in functions that the importer traces in place of an operator."""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._guards import detect_fake_mode
from torch.fx.experimental.symbolic_shapes import ShapeEnv


def repeat_while(
    going: Callable[..., Tensor],
    turn: Callable[..., tuple[Tensor, ...]],
    carried: Sequence[Tensor],
    captured: Sequence[Tensor],
) -> tuple[Tensor, ...]:
    """What is carried when the condition holds no longer: both functions take it, and what is captured."""
    operators: Any = torch.ops.higher_order
    with _place_for_sizes(carried):
        return tuple(operators.while_loop(going, turn, tuple(carried), tuple(captured)))


@contextmanager
def _place_for_sizes(values: Sequence[Tensor]) -> Generator[None]:
    """Torch asks for one where it traces loops, though no size is symbolic."""
    mode = detect_fake_mode(list(values))
    if mode is None or mode.shape_env is not None:
        yield
        return
    mode.shape_env = ShapeEnv()
    try:
        yield
    finally:
        mode.shape_env = None
