"""Which operators AOTAutograd takes apart before Weft sees a graph, and which Weft takes apart when it meets them.

Fewer, larger nodes import faster and say more: what Weft has an op or a converter for stays whole.
"""

# Torch's values and sympy have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# Torch's classes of operators are only found in a private module.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, get_decompositions
from torch._decomp import decomposition_table as all_decompositions

from weft.frontends.torch.capture.fused_layers import encoder_layer, multi_head_attention, trilinear
from weft.frontends.torch.capture.random_numbers import dropout_by_counter, multinomial

_ops: Any = torch.ops.aten

# Left whole for the converters in `aten/`; the partitioner may compute all but the products and norms again.
_WHOLE: tuple[Any, ...] = (
    _ops._scaled_dot_product_flash_attention_for_cpu.default,
    _ops._fused_rms_norm.default,
    _ops.baddbmm.default,
    _ops.embedding_dense_backward.default,
    _ops.hardsigmoid.default,
    _ops.logsumexp.default,
    _ops.masked_fill.Scalar,
    _ops.masked_fill.Tensor,
    _ops.mish.default,
    _ops.roll.default,
    _ops.select_scatter.default,
    _ops.silu.default,
    _ops.softplus.default,
    _ops.std.correction,
)

# In parts, places that count from the end would do, and numbers that are no probabilities, which eager refuses.
_CHECKED: tuple[Any, ...] = (
    _ops.index_add.default,
    _ops.index_copy.default,
    _ops.index_fill.int_Scalar,
    _ops.index_fill.int_Tensor,
    _ops.binary_cross_entropy.default,
)


def decompositions(device: str = "cpu") -> dict[Any, Callable[..., Any]]:
    """The table for AOTAutograd: torch's to core ATen, less what Weft does better whole; dropout as eager draws it.

    A GPU's generator gives a kernel other numbers than any other kernel: there dropout stays the call that it is, or
    makes its own numbers where they are many.
    """
    return _table(device)


@lru_cache(maxsize=2)
def _table(device: str) -> dict[Any, Callable[..., Any]]:
    table = dict(core_aten_decompositions())
    for target in _WHOLE:
        table.pop(target, None)
    table.pop(_ops.native_dropout.default, None)
    table[_ops._transformer_encoder_layer_fwd.default] = encoder_layer
    table[_ops._native_multi_head_attention.default] = multi_head_attention
    table[_ops._trilinear.default] = trilinear
    table[_ops._new_zeros_with_same_feature_meta.default] = zero_tangent
    if device == "cpu":
        table[_ops.native_dropout.default] = native_dropout
        table[_ops.log_sigmoid_forward.default] = log_sigmoid_forward
        for target in _CHECKED:
            table.pop(target, None)
        table[_ops.multinomial.default] = multinomial
    else:
        # In parts, a row's largest and its sum are kept for the backward, and not what they are taken from, in f32.
        table |= get_decompositions([_ops._log_softmax.default, _ops._softmax.default])
        table[_ops.native_dropout.default] = dropout_by_counter
    return table


def native_dropout(x: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Dropout whose mask takes the same numbers from the generator as eager's."""
    if train is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    if p == 1:
        return torch.zeros_like(x), torch.zeros_like(x, dtype=torch.bool)
    mask = _ops.bernoulli.p(torch.empty_like(x, dtype=torch.bool), 1.0 - p)
    return x * mask * (1.0 / (1.0 - p)), mask


def zero_tangent(x: torch.Tensor, like: torch.Tensor, *, self_num_batch_dims: int = 0) -> torch.Tensor:
    """Zeros for a tangent that is not there, with the batch dimensions of another."""
    return x.new_zeros([*x.shape[:self_num_batch_dims], *like.shape])


def log_sigmoid_forward(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The logarithm of the sigmoid, which eager's CPU kernel gives row-major however its argument lies."""
    result, buffer = all_decompositions[_ops.log_sigmoid_forward.default](x)
    return result.contiguous(), buffer.contiguous()


@cache
def decomposition_of(target: Any) -> Callable[..., Any] | None:
    """How to express an operator that has no converter by ones that may have."""
    if not isinstance(target, torch._ops.OpOverload):
        return None
    table: Any = all_decompositions
    found = table.get(target)
    if found is None:
        found = get_decompositions([target]).get(target)
    return found
