"""How much a program's result means: it is run again with every rounding error made a little different.

A bound of twice eager's error takes eager's luck for a law. Where a result exceeds it, the program runs again in eager
with each intermediate moved by one unit in the last place, up or down by chance: a result that moves as much as the
one that is judged differs from eager's cannot be held against a compiler.
"""

# torch leaves some of its arguments without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class RoundingNoise(TorchDispatchMode):
    """Moves what each op computes by one unit in the last place; views and what is not a float stay."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        given = {_memory(leaf) for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        changes = func._schema.is_mutable
        for result in pytree.tree_leaves(results):
            if isinstance(result, Tensor) and (changes or _memory(result) not in given):
                self._move(result)
        return results

    def _move(self, tensor: Tensor) -> None:
        if tensor.layout != torch.strided or not (tensor.is_floating_point() or tensor.is_complex()):
            return
        if not tensor.numel() or tensor.is_conj() or tensor.is_neg():
            return
        step = torch.finfo(tensor.dtype).eps
        signs = torch.randint(-1, 2, tensor.shape, generator=self._generator).to(tensor.device)
        tensor.copy_(tensor.detach() * (1 + signs * step))


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else 0
