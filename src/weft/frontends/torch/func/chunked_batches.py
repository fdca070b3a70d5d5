"""Batches some samples at a time, as `torch.func.vmap(chunk_size=...)` takes them: what a sample needs exists for few.

The calls of chunks are made by Python, so that a program is compiled for a chunk and, if need be, for a last, shorter
one. Inside of another transformation, whose graph holds the whole batch, there are no chunks.
"""

# Torch's pytrees have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any

import torch
import torch.utils._pytree as pytree

from weft.diagnostics import calling_line
from weft.errors import WeftError


def checked_chunk_size(size: Any) -> int | None:
    """A number of samples as Python has it; raise for what is none."""
    if size is not None and (not isinstance(size, Integral) or size < 1):
        raise WeftError(
            f"chunk_size={size!r}",
            location=calling_line(),
            hint="give a whole number, at least 1, or None for the whole batch",
        )
    return None if size is None else int(size)


def call_in_chunks(
    call: Callable[..., Any],
    given: tuple[Any, Any],
    axes: Sequence[int | None],
    sizes: tuple[int, int],
    *,
    same_numbers: bool,
) -> list[Any]:
    """What a function gives for each chunk of a batch: `sizes` are those of the batch and of a chunk.

    With `same_numbers`, all chunks draw the random numbers of the first.
    """
    leaves, spec = pytree.tree_flatten(given)
    whole, step = sizes
    device = next((leaf.device for leaf in leaves if isinstance(leaf, torch.Tensor)), torch.device("cpu"))
    state = _random_state(device) if same_numbers else None
    found: list[Any] = []
    for start in range(0, whole, step):
        if state is not None:
            _set_random_state(device, state)
        count = min(step, whole - start)
        part = [
            leaf if axis is None else leaf.narrow(axis, start, count) for leaf, axis in zip(leaves, axes, strict=True)
        ]
        args, kwargs = pytree.tree_unflatten(part, spec)
        found.append(call(*args, **kwargs))
    return found


def joined(chunks: Sequence[Any], axes: Sequence[int | None]) -> Any:
    """The results of chunks as those of a batch, which stands at the axis of each; what has none is the same in all."""
    trees = [pytree.tree_flatten(chunk) for chunk in chunks]
    spec = trees[0][1]
    columns = zip(axes, *(leaves for leaves, _ in trees), strict=True)
    return pytree.tree_unflatten(
        [
            torch.cat(parts, axis) if axis is not None and isinstance(parts[0], torch.Tensor) else parts[0]
            for axis, *parts in columns
        ],
        spec,
    )


def _random_state(device: torch.device) -> torch.Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _set_random_state(device: torch.device, state: torch.Tensor) -> None:
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)
