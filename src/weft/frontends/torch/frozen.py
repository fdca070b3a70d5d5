"""Tensors that a program was given as constants: snapshots of frozen weights, prepared and packed for it.

Code does not depend on the values, so one program serves many sets of weights: those of the layers of a model, or those
of one layer at different times. A set is made when weights are met that are not those of another set: other tensors, or
the same ones changed in place. Torch counts most changes. Those that it does not (through `.data`, or NumPy) are seen
in a few elements of each weight in the processor's memory; what leaves these as they are, or writes to a GPU's memory
past torch, has to be told by `refreeze`.
"""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportPrivateUsage=false

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from weft.frontends.torch.alignment import aligned
from weft.frontends.torch.dtypes import to_torch
from weft.frontends.torch.reference import to_array
from weft.ir.types import dtype_of_numpy
from weft.runtime.memory_samples import MemorySamples, sampled_addresses
from weft.runtime.program import Program


@dataclass(frozen=True)
class ConstantSet:
    """The constants of one set of weights: tensors by their buffers, and where the table has their addresses.

    It holds the weights' memory, so that no other weights can come to lie there, but not the weights themselves.
    """

    weights: tuple[weakref.ref[torch.Tensor], ...]
    memory: tuple[torch.Tensor, ...]
    pointers: tuple[int, ...]
    versions: tuple[int, ...]
    samples: MemorySamples | None
    """Elements of those in the processor's memory."""
    time: int
    """How often `refreeze` had been called."""
    tensors: dict[int, torch.Tensor]
    places: np.ndarray
    addresses: np.ndarray

    def is_of(self, given: Sequence[torch.Tensor]) -> bool:
        """Whether these are the weights that it was made of."""
        return tuple([tensor.data_ptr() for tensor in given]) == self.pointers

    def is_fresh(self, given: Sequence[torch.Tensor]) -> bool:
        """Whether the weights, which lie where they did, have not changed since."""
        return (
            tuple([tensor._version for tensor in given]) == self.versions
            and (self.samples is None or self.samples.are_unchanged())
            and self.time == _refrozen[0]
        )

    def is_needed(self) -> bool:
        """Whether all of the weights are still there, where they were."""
        found = [reference() for reference in self.weights]
        return all(t is not None and t.data_ptr() == p for t, p in zip(found, self.pointers, strict=True))


_refrozen = [0]


def refreeze() -> None:
    """Take the weights of all compiled functions with `freeze` anew, when these are next called.

    To be called after weights were changed in a way that nobody sees: parts of them through `.data` or NumPy, or the
    memory of a GPU past torch.
    """
    _refrozen[0] += 1


Preparing = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]
"""What a program's constants are computed by, on its own device."""


def make_set(
    program: Program, given: Sequence[torch.Tensor], device: torch.device, prepare: Preparing | None = None
) -> ConstantSet:
    """Prepare and pack weights for a program: on its device, or by the processor."""
    _count_fused_steps()
    plan = program.plan
    if prepare is not None and all(constant.packing is None for constant in plan.constants):
        there = [aligned(tensor.detach().to(device)) for tensor in given]
        made = prepare(there) if any(c.source >= len(given) for c in plan.constants) else ()
        tensors = {c.buffer: (*there, *made)[c.source] for c in plan.constants}
    else:
        arrays = program.constants([to_array(tensor.cpu()) for tensor in given])
        tensors = {number: _tensor_on(array).to(device) for number, array in arrays.items()}
    return ConstantSet(
        tuple(weakref.ref(tensor) for tensor in given),
        tuple(tensor.detach() for tensor in given),
        tuple(tensor.data_ptr() for tensor in given),
        tuple(tensor._version for tensor in given),
        _samples(given),
        _refrozen[0],
        tensors,
        np.array(list(tensors), np.int64),
        np.array([tensor.data_ptr() for tensor in tensors.values()], np.int64),
    )


def _samples(given: Sequence[torch.Tensor]) -> MemorySamples | None:
    here = [tensor for tensor in given if tensor.device.type == "cpu" and tensor.data_ptr()]
    addresses = [
        address
        for each in here
        for address in sampled_addresses(each.data_ptr(), each.shape, each.stride(), each.element_size())
    ]
    return MemorySamples(addresses) if addresses else None


@lru_cache(maxsize=1)
def _count_fused_steps() -> None:
    """Let the steps of fused optimizers count as changes: their kernels write parameters without telling autograd."""

    def count(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        for group in optimizer.param_groups:
            if group.get("fused"):
                torch.autograd.graph.increment_version([p for p in group["params"] if not p.is_inference()])

    register_optimizer_step_post_hook(count)


def _tensor_on(array: np.ndarray) -> torch.Tensor:
    """A tensor on the memory of an array."""
    dtype = to_torch(dtype_of_numpy(array.dtype))
    if not array.size:
        return torch.empty(array.shape, dtype=dtype)
    if array.dtype.kind != "V":
        return torch.from_numpy(array)
    # torch does not know NumPy's narrow floats, but integers of their width.
    return torch.from_numpy(array.view(f"i{array.itemsize}")).view(dtype)
