"""Tensors in memory as a GPU's kernels take it: they read and write 16 bytes at a time.

A copy keeps the strides, whatever they are: the memory from a tensor's first element to its last is copied whole.
"""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import torch

from weft.runtime.cuda.device_executor import ALIGNMENT
from weft.runtime.strides import span


def aligned(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy of it with the same strides in aligned memory."""
    return tensor if tensor.data_ptr() % ALIGNMENT == 0 else copied_whole(tensor)


def copied_whole(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides, also where they overlap or leave gaps; what allocators return is aligned."""
    with torch.no_grad():
        return spanned(tensor).clone().as_strided(tensor.shape, tensor.stride())


def spanned(tensor: torch.Tensor) -> torch.Tensor:
    """The memory from a tensor's first element to its last, as a row of elements."""
    return tensor.detach().as_strided((span(tensor.shape, tensor.stride()),), (1,))
