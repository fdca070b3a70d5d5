"""Weights that calls want to lie otherwise, copied beside the first steps of a captured program.

A convolution reads its weights with channels innermost. In a CUDA graph these copies need not wait for what comes
before the convolution, nor anything but it for them: they are a branch of the graph, from its beginning on.
"""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

import torch

from weft.frontends.torch.opaque import OpaqueRuntime
from weft.frontends.torch.strides import restrided
from weft.lower.steps import CallStep, Plan


@dataclass(frozen=True)
class LaidOut:
    """A copy on the other stream, and when it is there."""

    tensor: torch.Tensor
    made: torch.cuda.Event

    def here(self) -> torch.Tensor:
        """The copy, for what the current stream does from now on."""
        torch.cuda.current_stream().wait_event(self.made)
        return self.tensor


Ahead = dict[tuple[int, ...], dict[int, LaidOut]]
"""Copies by the results of the call that reads them, and by which operand each is."""


@contextmanager
def laid_out_ahead(
    plan: Plan, calls: Iterable[CallStep], opaque: OpaqueRuntime, held: Mapping[int, torch.Tensor]
) -> Generator[Ahead]:
    """Copy the parameters that calls want to lie otherwise, on a stream that leaves the current one and comes back."""
    ahead: Ahead = {}
    wanted = list(_wanted(plan, calls, opaque, held))
    if not wanted:
        yield ahead
        return
    here = torch.cuda.current_stream()
    other = _other_stream(here.device_index)
    other.wait_stream(here)
    with torch.cuda.stream(other), torch.no_grad():
        for call, place, tensor, strides in wanted:
            made = torch.cuda.Event()
            ahead.setdefault(call.results, {})[place] = LaidOut(restrided(tensor, strides), made)
            made.record(other)
    yield ahead
    here.wait_stream(other)


def _wanted(
    plan: Plan, calls: Iterable[CallStep], opaque: OpaqueRuntime, held: Mapping[int, torch.Tensor]
) -> Generator[tuple[CallStep, int, torch.Tensor, list[int]]]:
    """Operands of calls that are parameters as they were given, with the strides in which they are wanted."""
    changed = {number for number in plan.outputs if number in plan.inputs}
    if plan.replacing:  # who knows when
        return
    for call in (each for each in calls if each.results):
        for place, strides in opaque.known_strides(call.target, call.arguments).items():
            number = call.operands[place].buffer
            tensor = held.get(number)
            if not isinstance(tensor, torch.nn.Parameter) or number not in plan.inputs or number in changed:
                continue
            whole = tuple(tensor.shape) == call.operands[place].tensor.shape and tensor.is_contiguous()
            if whole and not _lies_so(tensor, strides):
                yield call, place, tensor, strides


def _lies_so(tensor: torch.Tensor, strides: list[int]) -> bool:
    return all(n == 1 or a == b for n, a, b in zip(tensor.shape, tensor.stride(), strides, strict=True))


@lru_cache
def _other_stream(device: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
