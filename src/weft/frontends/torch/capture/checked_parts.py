"""Operators that torch takes apart without the checks that its own kernels make first: the checks, before the parts.

nll_loss_forward %x, %labels: i32     →     DTypeError, where eager has a RuntimeError
"""

# Torch's values have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from weft.diagnostics import calling_line
from weft.errors import DTypeError, WeftError

_ops: Any = torch.ops.aten
_LABELS = (torch.int64, torch.uint8)


def labels(x: Tensor, target: Tensor, weight: Tensor | None = None, *_: Any, **__: Any) -> None:
    """Labels of losses are i64 or u8, and weights of classes of the type of the scores."""
    if target.dtype not in _LABELS:
        raise DTypeError(
            f"labels of a loss are int64, not {target.dtype}",
            location=calling_line(),
            hint="target.long() makes them so",
        )
    if weight is not None and weight.dtype != x.dtype:
        raise DTypeError(
            f"weights of classes are {weight.dtype}, scores {x.dtype}",
            location=calling_line(),
            hint="make both the same",
        )


def smooth_l1(x: Tensor, target: Tensor, reduction: int = 1, beta: float = 1.0) -> None:
    """The width of the parabola is not negative."""
    if beta < 0:
        raise WeftError(f"smooth_l1_loss with a beta of {beta}", location=calling_line(), hint="give 0, or more")


def celu(x: Tensor, alpha: float = 1.0) -> None:
    """The scale of negative numbers is a divisor, and whole ones have no power of e."""
    if not x.dtype.is_floating_point:
        raise DTypeError(f"celu of {x.dtype}", location=calling_line(), hint="make its operand a float")
    if alpha == 0:
        raise WeftError("celu with an alpha of 0", location=calling_line(), hint="relu is what it comes to")


def floats(x: Tensor, *_: Any, **__: Any) -> None:
    """Activations and gates are of floats."""
    if not x.dtype.is_floating_point:
        raise DTypeError(f"an activation of {x.dtype}", location=calling_line(), hint="make its operand a float")


def products(x: Tensor, other: Tensor, *_: Any, **__: Any) -> None:
    """Booleans have no sums of products."""
    if torch.bool in (x.dtype, other.dtype):
        raise DTypeError("a product of booleans", location=calling_line(), hint="make its operands numbers")


def lerp(x: Tensor, *_: Any) -> None:
    """There is nothing between whole numbers."""
    if not (x.dtype.is_floating_point or x.dtype.is_complex):
        raise DTypeError(f"lerp of {x.dtype}", location=calling_line(), hint="make its operands floats")


def rsub(x: Tensor, other: Tensor | complex, *_: Any, **__: Any) -> None:
    """Booleans have no difference."""
    if x.dtype == torch.bool or isinstance(other, bool) or (isinstance(other, Tensor) and other.dtype == torch.bool):
        raise DTypeError("a difference of booleans", location=calling_line(), hint="use ^, or logical_xor")


_CHECKS: dict[Any, Callable[..., None]] = {
    _ops.nll_loss_forward.default: labels,
    _ops.nll_loss2d_forward.default: labels,
    _ops.smooth_l1_loss.default: smooth_l1,
    _ops.celu.default: celu,
    _ops.hardswish.default: floats,
    _ops.glu.default: floats,
    _ops.mv.default: products,
    _ops.dot.default: products,
    _ops.lerp.Scalar: lerp,
    _ops.lerp.Tensor: lerp,
    _ops.rsub.Scalar: rsub,
    _ops.rsub.Tensor: rsub,
}


def with_checks(table: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """A table of decompositions whose parts are made when the checks of torch's kernels have passed."""
    return {**table, **{op: _checked(check, table[op]) for op, check in _CHECKS.items() if op in table}}


def _checked(check: Callable[..., None], parts: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(parts)
    def made(*args: Any, **keywords: Any) -> Any:
        check(*args, **keywords)
        return parts(*args, **keywords)

    return made
