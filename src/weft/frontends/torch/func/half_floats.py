"""Halfs are computed with as torch's kernels do it: in f32, and rounded once."""

from __future__ import annotations

from torch import Tensor, bfloat16, float16


def widened(x: Tensor) -> Tensor:
    """Halfs as f32; anything else as it is."""
    return x.float() if x.dtype in (bfloat16, float16) else x
