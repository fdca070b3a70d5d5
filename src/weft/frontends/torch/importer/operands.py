"""Captured tensors as the rules for own kernels know them."""

# Torch's values have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import torch

from weft.errors import UnsupportedError
from weft.frontends.torch.dtypes import from_torch
from weft.ir.types import DType
from weft.passes.own_kernels import Operand


def operands_of(*metas: torch.Tensor) -> list[Operand] | None:
    """Captured tensors as rules know them; None where a size or a stride of one is symbolic."""
    if any(isinstance(size, torch.SymInt) for meta in metas for size in (*meta.shape, *meta.stride())):
        return None
    return [Operand(_dtype_of(m), m.element_size(), tuple(m.shape), tuple(m.stride())) for m in metas]


def _dtype_of(meta: torch.Tensor) -> DType | None:
    try:
        return from_torch(meta.dtype)
    except UnsupportedError:
        return None
