"""Gradients of activations and losses in parts that keep NaN, as eager's kernels do, while a graph is traced.

Torch's own parts choose by a comparison that NaN fails, and give the gradient of the other side: a loss that is NaN had
gradients of 0 or 1, at which a scaler of gradients does not skip a step. And those of means divide numbers of Python's
by a count of elements, which is an error where there are none: a batch without a box to regress.
"""

# Torch's decorator of decompositions has no types.
# pyright: reportUnknownMemberType=false, reportUntypedFunctionDecorator=false, reportUnknownVariableType=false

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._decomp.decompositions import pw_cast_for_opmath

_MEAN = 1
_ops: Any = torch.ops.aten


@pw_cast_for_opmath
def elu_backward(
    grad: Tensor, alpha: float, scale: float, input_scale: float, is_result: bool, self_or_result: Tensor
) -> Tensor:
    """Also of CELU and SELU."""
    slope = alpha * scale
    wave = self_or_result + slope if is_result else slope * torch.exp(self_or_result * input_scale)
    return torch.where(self_or_result > 0, grad * scale, grad * input_scale * wave)


@pw_cast_for_opmath
def hardswish_backward(grad: Tensor, x: Tensor) -> Tensor:
    """0 up to -3, all of it from 3 on."""
    return torch.where(x <= -3, 0.0, torch.where(x >= 3, grad, grad * (x / 3 + 0.5)))


@pw_cast_for_opmath
def smooth_l1_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int, beta: float) -> Tensor:
    """A parabola's within `beta` of the target, signs beyond."""
    grad, difference = _of_each(grad, x, reduction), x - target
    return torch.where(difference.abs() >= beta, grad * torch.sign(difference), grad * difference / beta)


@pw_cast_for_opmath
def huber_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int, delta: float) -> Tensor:
    """A parabola's within `delta` of the target, lines beyond."""
    grad, difference = _of_each(grad, x, reduction), x - target
    return torch.where(difference.abs() > delta, grad * torch.sign(difference) * delta, grad * difference)


@pw_cast_for_opmath
def mse_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int) -> Tensor:
    """Twice the difference."""
    return 2.0 * _of_each(grad, x, reduction) * (x - target)


def _of_each(grad: Tensor, x: Tensor, reduction: int) -> Tensor:
    """The gradient of each element's loss."""
    return grad / x.numel() if reduction == _MEAN else grad


GRADIENTS: dict[Any, Any] = {
    _ops.elu_backward.default: elu_backward,
    _ops.hardswish_backward.default: hardswish_backward,
    _ops.huber_loss_backward.default: huber_loss_backward,
    _ops.mse_loss_backward.default: mse_loss_backward,
    _ops.smooth_l1_loss_backward.default: smooth_l1_loss_backward,
}
"""By torch's operators."""
