"""Torch's tensors as the runtime sees them."""

# torch leaves some of its functions without types, and the count of changes without a public name.
# pyright: reportUnknownMemberType=false, reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

import numpy as np
import torch

from weft.errors import GuardError
from weft.frontends.torch.dtypes import to_torch
from weft.frontends.torch.execution.alignment import aligned
from weft.frontends.torch.execution.reference import tensor_on, to_array
from weft.ir.types import DType


class TorchArrays:
    """Tensors on a device."""

    address = staticmethod(torch.Tensor.data_ptr)
    strides = staticmethod(torch.Tensor.stride)
    version = staticmethod(attrgetter("_version"))

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def shape(self, array: torch.Tensor) -> Sequence[int]:
        return array.shape

    def count(self, array: torch.Tensor) -> int:
        return array.numel()

    def itemsize(self, array: torch.Tensor) -> int:
        return array.element_size()

    def is_on_host(self, array: torch.Tensor) -> bool:
        return array.device.type == "cpu"

    def dtype(self, dtype: DType) -> torch.dtype:
        return to_torch(dtype)

    def number(self, array: torch.Tensor) -> int:
        return int(array)

    def in_memory(self, array: torch.Tensor) -> torch.Tensor:
        """Zeros that are only said to be zeros as such; other tensors without memory are none to compute on."""
        if array._is_zerotensor():
            return torch.zeros(array.shape, dtype=array.dtype, device=array.device)
        kind = "" if type(array) is torch.Tensor else f"{type(array).__name__} "
        raise GuardError(
            f"a {kind}tensor of shape {tuple(array.shape)} has no memory to compute on",
            hint="programs run on data: call the function itself, not the compiled one, under a fake tensor mode",
        )

    def alias(self, array: torch.Tensor) -> torch.Tensor:
        return array.detach()

    def cloned(self, array: torch.Tensor) -> torch.Tensor:
        return array.clone()

    def copied(self, array: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
        copy = torch.empty_strided(array.shape, strides, dtype=array.dtype, device=self.device)
        return copy.copy_(array)

    def view(self, array: torch.Tensor, shape: Sequence[int], strides: Sequence[int], offset: int) -> torch.Tensor:
        return array.as_strided(shape, strides, array.storage_offset() + offset)

    def view_of_arena(
        self, arena: torch.Tensor, start: int, dtype: DType, shape: Sequence[int], strides: Sequence[int], offset: int
    ) -> torch.Tensor:
        own = to_torch(dtype)
        whole = arena[start : start + (arena.numel() - start) // own.itemsize * own.itemsize].view(own)
        return whole.as_strided(shape, strides, whole.storage_offset() + offset)

    def placed(self, array: torch.Tensor) -> torch.Tensor:
        return aligned(array.detach().to(self.device))

    def to_host(self, array: torch.Tensor) -> np.ndarray:
        return to_array(array.cpu())

    def from_host(self, array: np.ndarray) -> torch.Tensor:
        return tensor_on(array).to(self.device)

    def multiply(self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, *, accumulates: bool = False) -> None:
        with torch.no_grad():
            if accumulates and out.dim() <= 3:
                (torch.addmm if out.dim() == 2 else torch.baddbmm)(out, a, b, out=out)
            elif accumulates:
                # Products that are made to be added would need memory, and autocast would round them.
                x, y = (each.expand(*out.shape[:-2], *each.shape[-2:]) for each in (a, b))
                for left, right, part in zip(x, y, out, strict=True):
                    self.multiply(left, right, part, accumulates=True)
            elif out.dim() == 2:
                torch.mm(a, b, out=out)
            elif out.dim() == 3:
                torch.bmm(a, b, out=out)
            else:
                torch.matmul(a, b, out=out)
