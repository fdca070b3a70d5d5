"""Loops over parts, or with turns that data count, in functions that the importer traces in place of an operator."""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._guards import detect_fake_mode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

_PART, _PART_ELSEWHERE = 1 << 16, 1 << 20
"""Elements of a part: what is computed of them stays in a processor's cache, or keeps a device busy."""
_PART_OF_BATCH, _LONG_BATCH = 1 << 18, 1 << 22
"""Elements of a part of a batch, and how many a batch has before it is computed by parts."""


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


def by_parts(function: Callable[..., Tensor], *values: Tensor) -> Tensor:
    """A function of elements, which loops while any element needs it, of one part of long tensors after the other.

    What the function computes meanwhile is then as large as a part, and only the slowest part has the most turns. The
    tensors have one shape, or are numbers; the last part begins where it has as many elements as the others.
    """
    shape = torch.broadcast_shapes(*(value.shape for value in values))
    count: Any = math.prod(shape)  # symbolic sizes are left whole
    part = _PART if values[0].device.type == "cpu" else _PART_ELSEWHERE
    if not isinstance(count, int) or count < 2 * part:
        return function(*values)
    part = _divisor_near(count, part)
    flat = [value.expand(shape).reshape(-1) if value.dim() else value for value in values]
    places = torch.arange(part, device=values[0].device)
    starts = torch.arange(-(-count // part), device=values[0].device) * part

    def one(carried: Tensor, start: Tensor, places: Tensor, *flat: Tensor) -> tuple[Tensor, Tensor]:
        taken = places + torch.clamp(start, max=count - part)
        return carried.clone(), function(*(value[taken] if value.dim() else value for value in flat))

    operators: Any = torch.ops.higher_order
    with _place_for_sizes(values):
        _, found = operators.scan(one, (starts[:1].clone(),), (starts,), (places, *flat))
    if count % part == 0:
        return found.reshape(shape)
    beyond = (len(found) - 1) * part
    return torch.cat([found[:-1].reshape(-1), found[-1, part - (count - beyond) :]]).reshape(shape)


def is_long_batch(*sizes: Any) -> bool:
    """Whether tensors of these shapes, whose first dimensions are one batch, are computed by parts of it.

    What is long with one element of the batch has no parts.
    """
    if not all(len(shape) and all(isinstance(size, int) for size in shape) for shape in sizes):
        return False
    return max(map(math.prod, sizes)) >= _LONG_BATCH > max(math.prod(shape[1:]) for shape in sizes)


def by_batches(
    function: Callable[..., Tensor | tuple[Tensor, ...]], *values: Tensor, captured: Sequence[Tensor] = ()
) -> Any:
    """A function of elements of a batch, the first dimension of all values but those captured, of some after the other.

    What the function computes meanwhile is then as large as they are, and not as its operands. Those that are left
    over, where no number of about the wanted size divides the batch, are computed by themselves.
    """
    count = values[0].shape[0]
    wanted = max(1, count * _PART_OF_BATCH // max(value.numel() for value in values))
    size = _divisor_near(count, min(wanted, count))
    whole = count // size * size
    parts = tuple(value[:whole].reshape(-1, size, *value.shape[1:]) for value in values)

    def one(*part: Tensor) -> tuple[Tensor, ...]:
        results = function(*part)
        return results if isinstance(results, tuple) else (results,)

    operators: Any = torch.ops.higher_order
    with _place_for_sizes(values):
        found = [each.flatten(0, 1) for each in operators.map_impl(one, parts, tuple(captured))]
    if whole < count:
        rest = one(*(value[whole:] for value in values), *captured)
        found = [torch.cat(pair) for pair in zip(found, rest, strict=True)]
    return tuple(found) if len(found) > 1 else found[0]


def _divisor_near(count: int, wanted: int) -> int:
    """Parts of which length leave nothing over, so that results are not copied; the wanted one if none is near it."""
    return next((size for size in range(wanted, wanted // 2, -1) if count % size == 0), wanted)


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
