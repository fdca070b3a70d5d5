"""How torch captures CUDA graphs, for the runtime's calls that are replayed: its graphs, its copies, its operators."""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportPrivateUsage=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from weft.frontends.torch.capture.random_numbers import SEEDS
from weft.frontends.torch.execution.alignment import copied_whole, spanned
from weft.frontends.torch.execution.copies import CopiesIn, CopiesOut, copy_all
from weft.frontends.torch.execution.graph_pools import GraphPool, ReleasedGraph, pool_of
from weft.frontends.torch.importer.encoding import operator_named
from weft.lower.steps import CallStep

_UNSAFE_TAGS = ("cudagraph_unsafe", "data_dependent_output", "dynamic_output_shape")


def _addresses_equal(arrays: list[torch.Tensor], addresses: list[int | None], places: list[int]) -> bool:
    return all(arrays[place].data_ptr() == addresses[place] for place in places)


class TorchGraphs:
    """Graphs of torch's, with its generators and memory of its allocator."""

    # torch's own is there where it is built for CUDA; it takes a tenth of the time.
    lie_at = staticmethod(getattr(torch._C, "_tensors_data_ptrs_at_indices_equal", _addresses_equal))

    def pool(self, device: int, stream: int) -> GraphPool:
        return pool_of(device, stream)

    def new_graph(self) -> Any:
        return ReleasedGraph(torch.cuda.CUDAGraph())

    @contextmanager
    def unwatched(self) -> Generator[None]:
        # Memory of inference mode could not be written outside of it, where a later call may be.
        with torch.inference_mode(False), torch.no_grad():
            yield

    def is_weight(self, array: torch.Tensor) -> bool:
        return isinstance(array, torch.nn.Parameter)

    def copied_whole(self, array: torch.Tensor) -> torch.Tensor:
        return copied_whole(array)

    def copy_whole(self, target: torch.Tensor, source: torch.Tensor) -> None:
        spanned(target).copy_(spanned(source))

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        target.copy_(source)

    def copy_all(self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        copy_all(pairs)

    def copies_in(self, statics: Mapping[int, torch.Tensor]) -> CopiesIn:
        return CopiesIn(statics)

    def copies_out(self, statics: Sequence[torch.Tensor]) -> CopiesOut:
        return CopiesOut(statics)

    def why_not_called(self, step: CallStep) -> str | None:
        if step.target.partition("::")[0] not in ("aten", "prims") and step.target != SEEDS:
            return "may do anything on the processor"
        arguments = json.loads(step.arguments)
        if _mentions(arguments, "item"):
            return "takes a number that the GPU computes"
        if _mentions(arguments, "object"):
            return "takes an object of Python's"
        if any(not device.startswith("cuda") for device in _mentions(arguments, "device")):
            return "works on another device"
        tags: Any = getattr(operator_named(step.target), "tags", ())
        unsafe = [name for name in _UNSAFE_TAGS if getattr(torch.Tag, name, None) in tags]
        return f"is {unsafe[0]}" if unsafe else None


def _mentions(value: Any, kind: str) -> list[Any]:
    """What encoded arguments hold of a kind."""
    if isinstance(value, list):
        return [found for item in value for found in _mentions(item, kind)]
    if isinstance(value, dict):
        here = [value[kind]] if isinstance(value.get(kind), str) else []  # not an argument of that name
        return here + [found for item in value.values() for found in _mentions(item, kind)]
    return []
