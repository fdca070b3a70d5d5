"""Softmax and its kin for functions that are going to be differentiated: the greatest element is a shift alone.

Results do not depend on the shift, so no gradient flows through it; deriving the maximum would compute a sum of zeros.
Quotients that have a limit where their denominator is zero are said by it there, so that derivatives have theirs.
"""

# Torch's operators have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from weft.frontends.torch.capture.stop_gradients import stopped
from weft.frontends.torch.func.half_floats import widened

_ops: Any = torch.ops.aten


def _shifted(x: torch.Tensor, dims: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """The elements less the greatest ones, which are 0 where they are infinite, and these."""
    greatest = stopped(torch.amax(x, dims, keepdim=True))
    shift = torch.where(torch.isinf(greatest), 0, greatest)
    return x - shift, shift


def _softmax(x: torch.Tensor, dim: int, half_to_float: bool) -> Any:
    if x.dim() == 0 or x.numel() == 0:
        return NotImplemented
    wide = widened(x)
    powers = torch.exp(wide - stopped(torch.amax(wide, [dim], keepdim=True)))
    result = powers / powers.sum(dim, keepdim=True)
    return result if half_to_float else result.to(x.dtype)


def _log_softmax(x: torch.Tensor, dim: int, half_to_float: bool) -> Any:
    if x.dim() == 0 or x.numel() == 0:
        return NotImplemented
    wide = widened(x)
    below = wide - stopped(torch.amax(wide, [dim], keepdim=True))
    result = below - torch.log(torch.exp(below).sum(dim, keepdim=True))
    return result if half_to_float else result.to(x.dtype)


def _logsumexp(x: torch.Tensor, dim: Sequence[int], keepdim: bool = False) -> Any:
    if x.dim() == 0 or x.numel() == 0 or not x.is_floating_point():
        return NotImplemented
    wide = widened(x)
    dims = list(dim) or list(range(x.dim()))
    below, shift = _shifted(wide, dims)
    result = torch.log(torch.exp(below).sum(dims, keepdim=True)) + shift
    return (result if keepdim else result.squeeze(dims)).to(x.dtype)


def _sinc(x: torch.Tensor) -> Any:
    if not x.is_floating_point():
        return NotImplemented
    angle = widened(x) * math.pi
    none = angle == 0
    divisor = torch.where(none, 1, angle)
    return torch.where(none, 1 - angle * angle / 6, torch.sin(divisor) / divisor).to(x.dtype)


SHIFTED: dict[Any, Callable[..., Any]] = {
    _ops.sinc.default: _sinc,
    _ops._softmax.default: _softmax,
    _ops._log_softmax.default: _log_softmax,
    _ops.logsumexp.default: _logsumexp,
}
