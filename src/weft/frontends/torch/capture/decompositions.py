"""Which operators AOTAutograd takes apart before Weft sees a graph, and which Weft takes apart when it meets them.

Fewer, larger nodes import faster and say more: what Weft has an op or a converter for stays whole.
"""

# Torch's values and sympy have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# Torch's classes of operators are only found in a private module.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache, partial
from typing import Any

import torch
from torch._decomp import _core_aten_decompositions_post_autograd as core_decompositions
from torch._decomp import core_aten_decompositions, get_decompositions
from torch._decomp import decomposition_table as all_decompositions

from weft.frontends.torch.capture import (
    bessel_functions,
    fake_quantization,
    gamma_functions,
    matrix_functions,
    pooled_windows,
    special_functions,
)
from weft.frontends.torch.capture import least_squares as least_squares  # so that Dynamo knows its shapes
from weft.frontends.torch.capture.activation_gradients import GRADIENTS
from weft.frontends.torch.capture.airy_function import airy_ai
from weft.frontends.torch.capture.checked_parts import floats, with_checks
from weft.frontends.torch.capture.fused_layers import encoder_layer, multi_head_attention, trilinear
from weft.frontends.torch.capture.linear_cross_entropy import linear_cross_entropy_of_chunks
from weft.frontends.torch.capture.margin_loss import multilabel_margin_loss
from weft.frontends.torch.capture.orthogonal_polynomials import POLYNOMIALS
from weft.frontends.torch.capture.random_numbers import dropout_by_counter, multinomial
from weft.frontends.torch.capture.whole_resizing import resizing_parts

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
    _ops.reflection_pad1d.default,
    _ops.reflection_pad2d.default,
    _ops.reflection_pad3d.default,
    _ops.replication_pad1d.default,
    _ops.replication_pad2d.default,
    _ops.replication_pad3d.default,
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
    _ops.bernoulli.default,
)


def decompositions(device: str = "cpu") -> dict[Any, Callable[..., Any]]:
    """The table for AOTAutograd: torch's to core ATen, less what Weft does better whole; dropout as eager draws it.

    A GPU's generator gives a kernel other numbers than any other kernel: there dropout stays the call that it is, or
    makes its own numbers where they are many.
    """
    return _table(device)


def exported_decompositions() -> dict[Any, Callable[..., Any]]:
    """The table for exported programs, which also hold operators that torch's dispatcher takes apart elsewhere."""
    explicit = core_decompositions()
    implicit = {op: parts for op, parts in core_aten_decompositions().items() if op not in explicit}
    return implicit | decompositions()


@lru_cache(maxsize=2)
def _table(device: str) -> dict[Any, Callable[..., Any]]:
    table = with_checks(core_decompositions())  # those of `core_aten_decompositions` take 0.2 s to collect
    for target in _WHOLE:
        table.pop(target, None)
    table.pop(_ops.native_dropout.default, None)
    table[_ops._transformer_encoder_layer_fwd.default] = encoder_layer
    table[_ops._native_multi_head_attention.default] = multi_head_attention
    table[_ops._trilinear.default] = trilinear
    table[_ops.rrelu_with_noise_functional.default] = rrelu
    table[_ops.convolution_backward.default] = convolution_backward
    table[_ops._new_zeros_with_same_feature_meta.default] = zero_tangent
    table |= GRADIENTS
    table[_ops.t.default] = partial(t, table[_ops.t.default])
    table[_ops.transpose.int] = partial(transpose, table[_ops.transpose.int])
    table[_ops.nan_to_num.default] = partial(nan_to_num, table[_ops.nan_to_num.default])
    table |= get_decompositions([_ops.tril_indices.default, _ops.triu_indices.default])
    table[_ops.multilabel_margin_loss_forward.default] = multilabel_margin_loss
    table[_ops.triangular_solve.default] = matrix_functions.triangular_solve
    table[_ops.cholesky_solve.default] = matrix_functions.cholesky_solve
    table[_ops.cholesky_inverse.default] = matrix_functions.cholesky_inverse
    table[_ops.linalg_lu_solve.default] = matrix_functions.lu_solve
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
        table |= resizing_parts()
        table[_ops.convolution_backward.default] = convolution_backward_but_for_bias
    return table


def native_dropout(x: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Dropout whose mask takes the same numbers from the generator as eager's."""
    if train is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    if p == 1:
        return torch.zeros_like(x), torch.zeros_like(x, dtype=torch.bool)
    mask = _ops.bernoulli.p(torch.empty_like(x, dtype=torch.bool), 1.0 - p)
    return x * mask * (1.0 / (1.0 - p)), mask


def t(of_others: Callable[..., torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """A transposed matrix as one call, where torch's own makes three of it, each of which is traced."""
    return _ops.permute.default(x, [1, 0]) if x.dim() == 2 else of_others(x)


def transpose(of_others: Callable[..., torch.Tensor], x: torch.Tensor, dim0: int, dim1: int) -> torch.Tensor:
    """Two dimensions exchanged, as one call."""
    rank = x.dim()
    if rank < 2 or dim0 == dim1 or not (-rank <= dim0 < rank and -rank <= dim1 < rank):
        return of_others(x, dim0, dim1)
    order = list(range(rank))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return _ops.permute.default(x, order)


def nan_to_num(of_reals: Callable[..., torch.Tensor], x: torch.Tensor, *numbers: Any, **named: Any) -> torch.Tensor:
    """Also of complex numbers, part by part, which torch's decomposition of it does not take."""
    if not x.is_complex():
        return of_reals(x, *numbers, **named)
    return torch.complex(of_reals(x.real, *numbers, **named), of_reals(x.imag, *numbers, **named))


def rrelu(
    x: torch.Tensor, noise: torch.Tensor, lower: float = 0.125, upper: float = 1 / 3, training: bool = False, **_: Any
) -> Any:
    """Where nothing is drawn, all slopes are the mean; eager draws for elements that are not positive alone."""
    return NotImplemented if training else (torch.nn.functional.leaky_relu(x, (lower + upper) / 2), noise.clone())


def embedding_renorm(weight: torch.Tensor, indices: torch.Tensor, max_norm: float, norm_type: float) -> torch.Tensor:
    """Rows that are read and too long are made shorter; a row that is read twice is written twice, with the same."""
    places = indices.reshape(-1)
    rows = weight.index_select(0, places)
    norms = torch.linalg.vector_norm(rows, norm_type, dim=1, keepdim=True)
    return weight.index_put((places,), torch.where(norms > max_norm, rows * (max_norm / (norms + 1e-7)), rows))


def convolution_backward(*args: Any) -> Any:
    """Torch's second derivative of a transposed one hands its output padding on, which others refuse."""
    transposed, padding = args[7:9]
    if transposed or not any(padding):
        return NotImplemented
    return _ops.convolution_backward.default(*args[:8], [0] * len(padding), *args[9:])


def convolution_backward_but_for_bias(grad: torch.Tensor, *args: Any) -> Any:
    """With the bias' gradient as a sum by itself, which becomes a part of other kernels.

    On a GPU torch sums in a kernel of its own either way. A processor's library sums while it reads the rest.
    """
    *geometry, (on_x, on_weight, on_bias) = args
    if not on_bias:
        return convolution_backward(grad, *args)
    total = grad.sum((0, *range(2, grad.dim())))
    if not (on_x or on_weight):
        return None, None, total
    made = _ops.convolution_backward.default(grad, *geometry, [on_x, on_weight, False])
    return made[0], made[1], total


def zero_tangent(x: torch.Tensor, like: torch.Tensor, *, self_num_batch_dims: int = 0) -> torch.Tensor:
    """Zeros for a tangent that is not there, with the batch dimensions of another."""
    return x.new_zeros([*x.shape[:self_num_batch_dims], *like.shape])


def log_sigmoid_forward(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The logarithm of the sigmoid, which eager's CPU kernel gives row-major however its argument lies."""
    floats(x)
    result, buffer = all_decompositions[_ops.log_sigmoid_forward.default](x)
    return result.contiguous(), buffer.contiguous()


def index_reduce(
    x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, reduce: str, *, include_self: bool = True
) -> torch.Tensor:
    """Rows brought to places and combined there."""
    if x.dim() == 0:
        return index_reduce(x.view(1), 0, index, source.view(1), reduce, include_self=include_self).view(())
    shape = [1] * x.dim()
    shape[dim] = -1
    places = index.view(shape).expand(source.shape)
    return x.scatter_reduce(dim, places, source, reduce, include_self=include_self)


def glu_jvp(glu: torch.Tensor, x: torch.Tensor, dx: torch.Tensor, dim: int) -> torch.Tensor:
    """The tangent of a gated linear unit."""
    (_, gate), (moved, turned) = x.chunk(2, dim), dx.chunk(2, dim)
    share = torch.sigmoid(gate)
    return moved * share + glu * (1 - share) * turned


def frexp(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mantissas of at least 1/2 and below 1, and powers of two, from the bits."""
    wide = x if x.dtype == torch.float64 else x.to(torch.float32)
    kind, bits, bias = (torch.int64, 52, 1022) if wide.dtype == torch.float64 else (torch.int32, 23, 126)
    mask = (1 << (10 if bits == 52 else 7) + 1) - 1
    small = (wide.view(kind) >> bits) & mask == 0
    coded = torch.where(small, wide * 2.0**bits, wide).view(kind)
    power = ((coded >> bits) & mask) - bias
    mantissa = ((coded & ~(mask << bits)) | (bias << bits)).view(wide.dtype)
    plain = torch.isfinite(wide) & (wide != 0)
    exponent = torch.where(plain, torch.where(small, power - bits, power), 0).to(torch.int32)
    return torch.where(plain, mantissa, wide).to(x.dtype), exponent


_OWN: dict[Any, Callable[..., Any]] = {
    _ops.embedding_renorm.default: embedding_renorm,
    _ops.i0.default: special_functions.i0,
    _ops.special_i0e.default: special_functions.i0e,
    _ops.special_i1.default: special_functions.i1,
    _ops.special_i1e.default: special_functions.i1e,
    _ops.special_modified_bessel_i0.default: special_functions.i0,
    _ops.special_modified_bessel_i1.default: special_functions.i1,
    _ops.special_ndtri.default: special_functions.ndtri,
    _ops.special_erfcx.default: special_functions.erfcx,
    _ops.polygamma.default: special_functions.polygamma,
    _ops.special_zeta.default: gamma_functions.zeta,
    _ops.special_zeta.self_scalar: gamma_functions.zeta,
    _ops.special_zeta.other_scalar: gamma_functions.zeta,
    _ops.igamma.default: gamma_functions.igamma,
    _ops.igammac.default: gamma_functions.igammac,
    _ops.special_airy_ai.default: airy_ai,
    _ops.special_bessel_j0.default: bessel_functions.bessel_j0,
    _ops.special_bessel_j1.default: bessel_functions.bessel_j1,
    _ops.special_bessel_y0.default: bessel_functions.bessel_y0,
    _ops.special_bessel_y1.default: bessel_functions.bessel_y1,
    _ops.special_modified_bessel_k0.default: bessel_functions.modified_bessel_k0,
    _ops.special_modified_bessel_k1.default: bessel_functions.modified_bessel_k1,
    _ops.special_scaled_modified_bessel_k0.default: bessel_functions.scaled_modified_bessel_k0,
    _ops.special_scaled_modified_bessel_k1.default: bessel_functions.scaled_modified_bessel_k1,
    _ops.special_spherical_bessel_j0.default: bessel_functions.spherical_bessel_j0,
    **{
        getattr(getattr(_ops, f"special_{name}"), overload): polynomial
        for name, polynomial in POLYNOMIALS.items()
        for overload in ("default", "x_scalar", "n_scalar")
    },
    _ops.linalg_solve_triangular.default: matrix_functions.solve_triangular,
    _ops.linalg_cholesky_ex.default: matrix_functions.cholesky_ex,
    _ops.cholesky.default: matrix_functions.cholesky,
    _ops.linalg_matrix_exp.default: matrix_functions.matrix_exp,
    _ops.lu_unpack.default: matrix_functions.lu_unpack,
    _ops.linalg_householder_product.default: matrix_functions.householder_product,
    _ops.ormqr.default: matrix_functions.ormqr,
    _ops.fractional_max_pool2d.default: pooled_windows.fractional_max_pool2d,
    _ops.fractional_max_pool3d.default: pooled_windows.fractional_max_pool3d,
    _ops.fractional_max_pool2d_backward.default: pooled_windows.fractional_max_pool_backward,
    _ops.fractional_max_pool3d_backward.default: pooled_windows.fractional_max_pool_backward,
    _ops.fake_quantize_per_tensor_affine_cachemask.default: fake_quantization.per_tensor,
    _ops._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default: fake_quantization.by_tensors,
    _ops.fake_quantize_per_channel_affine_cachemask.default: fake_quantization.per_channel,
    _ops.index_reduce.default: index_reduce,
    _ops.glu_jvp.default: glu_jvp,
    _ops.frexp.Tensor: frexp,
}
"""For operators that torch has no decomposition of, or only itself under another name."""

_REGISTERED_LATER: dict[str, Callable[..., Any]] = {
    "torch_nn::_linear_cross_entropy_batch_chunked": linear_cross_entropy_of_chunks,
}
"""By the names of operators that torch registers when they are first called."""


@cache
def decomposition_of(target: Any) -> Callable[..., Any] | None:
    """How to express an operator that has no converter by ones that may have."""
    if not isinstance(target, torch._ops.OpOverload):
        return None
    own = _OWN.get(target) or _REGISTERED_LATER.get(target.name())
    if own is not None:
        return own
    table: Any = all_decompositions
    found = table.get(target)
    if found is None:
        found = get_decompositions([target]).get(target)
    return found
