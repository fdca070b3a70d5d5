"""Which calls of a captured graph torch carries out by libraries: those that beat generated kernels so far."""

# Torch's operators have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from weft.backends.cpu.target import CpuTarget
from weft.frontends.torch.aten.convolution import convolution_params
from weft.frontends.torch.builder import tensor_of_meta
from weft.passes.convolve_by_products import geometry_of
from weft.passes.convolve_trained import is_product

_CONVOLUTION, _GRADIENTS = torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default
CONVOLUTIONS: dict[Any, slice] = {_CONVOLUTION: slice(3, 9), _GRADIENTS: slice(4, 10)}
"""Convolutions and their gradients, and where strides and what follows them are among the arguments."""
_LIBRARY = {
    *CONVOLUTIONS,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
}


def is_claimed(node: fx.Node) -> bool:
    """Whether a library takes the call: attention only where its backward needs what torch's kernel keeps."""
    if node.target is torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default:
        return any(user.target is operator.getitem and user.args[1] == 1 for user in node.users)
    return node.target in _LIBRARY


def is_own_convolution(node: fx.Node, geometry: list[Any], target: CpuTarget, *, frozen: bool) -> bool:
    """Whether a convolution, or its gradients, has a form that products and sums of Weft's own are faster for.

    With weights that are not frozen, and in more forms, only where the library makes no code for convolutions.
    """
    gradient, x, weight = node.args[:3] if node.target is _GRADIENTS else (node, *node.args[:2])
    metas = [each.meta["val"] for each in (x, weight, gradient) if isinstance(each, fx.Node)]
    if metas[0].is_complex():
        return False
    tensors = [tensor_of_meta(meta) for meta in metas]
    params = convolution_params(tensors[0].rank - 2, *geometry)
    if frozen and node.target is _CONVOLUTION and geometry_of(*tensors, **params) is not None:
        return True
    return not target.has_library_convolutions and is_product(*tensors, **params)
