"""Random numbers that kernels make themselves, as an operator of torch: `weft::uniform(seed, size)`.

A GPU's kernel that reads a mask from memory moves more bytes than one that makes its own. The seed is drawn by torch's
generator in every call, so that `torch.manual_seed` decides and captured graphs go on from replay to replay. Which
numbers eager draws depends on its kernels' threads: few are still drawn by these, see `dropout_by_counter`.
"""

# Torch's operators have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from weft.ops.random import Uniform

_MANY = 1 << 20
"""Elements from which on dropout makes its own numbers."""
_library = torch.library.Library("weft", "FRAGMENT")
_library.define("uniform(Tensor seed, SymInt[] size) -> Tensor")


def _uniform(seed: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    return torch.from_numpy(Uniform.reference(seed.cpu().numpy(), tuple(size))).to(seed.device)


def _fake(seed: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    return seed.new_empty(size, dtype=torch.float32)


_library.impl("uniform", _uniform, "CompositeExplicitAutograd")
torch.library.register_fake("weft::uniform", _fake)


def dropout_by_counter(x: torch.Tensor, p: float, train: bool | None) -> Any:
    """Dropout of many elements on a GPU; that of few stays the call that it is."""
    count: Any = x.numel()  # or a symbol
    if train is False or p in (0, 1) or not isinstance(count, int) or count < _MANY or not x.is_floating_point():
        return NotImplemented
    operators: Any = torch.ops
    limits = torch.iinfo(torch.int64)
    seed = operators.aten.randint.low(limits.min, limits.max, [1], dtype=torch.int64, device=x.device)
    mask = operators.weft.uniform(seed, x.shape) < 1.0 - p
    wide = x if x.dtype == torch.float64 else x.float()
    return torch.where(mask, wide * (1.0 / (1.0 - p)), 0.0).to(x.dtype), mask
