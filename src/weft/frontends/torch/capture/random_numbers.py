"""Random numbers: drawn by torch, or made by kernels themselves, as an operator of torch: `weft::uniform(seed, size)`.

A GPU's kernel that reads a mask from memory moves more bytes than one that makes its own. The seed is drawn by torch's
generator in every call, so that `torch.manual_seed` decides and captured graphs go on from replay to replay. Which
numbers eager draws depends on its kernels' threads: few are still drawn by these, see `dropout_by_counter`.
"""

# Torch's operators have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
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


_library.define("probabilities(Tensor x) -> Tensor")
_library.impl("uniform", _uniform, "CompositeExplicitAutograd")
torch.library.register_fake("weft::uniform", _fake)


def _probabilities(x: torch.Tensor) -> torch.Tensor:
    if not bool(((x.max() < math.inf) & (x.min() >= 0)).item()):
        raise RuntimeError("probabilities are negative, infinite or not numbers")
    if bool((x.sum(-1) == 0).any().item()):
        raise RuntimeError("probabilities sum up to 0")
    return x.clone()


_library.impl("probabilities", _probabilities, "CompositeExplicitAutograd")
torch.library.register_fake("weft::probabilities", torch.empty_like)


def multinomial(x: torch.Tensor, num_samples: int, replacement: bool = False, generator: Any = None) -> Any:
    """Choices without replacement, from the same exponential numbers as eager's."""
    count: Any = num_samples
    operators: Any = torch.ops
    if (replacement and count != 1) or generator is not None or x.numel() == 0 or not isinstance(count, int):
        return NotImplemented
    chances = operators.weft.probabilities(x) / operators.aten.exponential.default(torch.empty_like(x))
    return chances.argmax(-1, keepdim=True) if count == 1 else chances.topk(count)[1]


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
