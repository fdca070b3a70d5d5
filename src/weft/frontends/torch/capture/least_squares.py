"""The shapes of what `torch.linalg.lstsq` gives: torch has no rule for them, and Dynamo would leave it to eager.

LAPACK carries it out, and torch's derivatives of it are traced. Only residuals that are there or not as the rank tells,
of a tall matrix by its singular values, are not known before.
"""

# Torch's operators have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_impls import register_op_impl
from torch._subclasses.fake_tensor import DataDependentOutputException

_BY_SINGULAR_VALUES = ("gelss", "gelsd")


@register_op_impl(torch.ops.aten.linalg_lstsq.default)
def shapes(
    mode: Any, operator: Any, a: Tensor, b: Tensor, rcond: float | None = None, *, driver: str | None = None
) -> tuple[Tensor, ...]:
    """The solution, residuals, rank and singular values, as tensors without values."""
    driver = driver or ("gels" if a.is_cuda else "gelsy")
    rows, columns = a.shape[-2:]
    is_vector = a.dim() - 1 == b.dim() and b.shape == a.shape[:-1]
    sides = 1 if is_vector else b.shape[-1]
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-1] if is_vector else b.shape[:-2])
    if rows > columns and driver in _BY_SINGULAR_VALUES:
        raise DataDependentOutputException(operator)
    real = torch.real(a).dtype if a.is_complex() else a.dtype
    longest = max(rows, columns)  # LAPACK writes over what it is given, column by column
    residuals = [*batch, sides] if rows > columns and driver == "gels" else [0]
    ranks = [0] if driver == "gels" else list(a.shape[:-2])
    values = [*a.shape[:-2], min(rows, columns)] if driver in _BY_SINGULAR_VALUES else [0]
    with mode:
        solution = a.new_empty([*batch, sides, longest]).mT[..., :columns, :]
        return (
            solution.squeeze(-1) if is_vector else solution,
            a.new_empty(residuals, dtype=real),
            a.new_empty(ranks, dtype=torch.int64),
            a.new_empty(values, dtype=real),
        )
