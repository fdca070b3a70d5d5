"""Which calls of a captured graph torch carries out by libraries: those that beat generated kernels so far."""

# Torch's operators have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# Torch's classes of operators are only found in a private module.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from weft.capabilities import PROCESSOR, Capabilities
from weft.frontends.torch.aten.convolution import convolution_params
from weft.frontends.torch.aten.row_sums import along_rows, sums_rows
from weft.frontends.torch.capture.random_numbers import SEEDS
from weft.frontends.torch.dtypes import from_torch
from weft.frontends.torch.importer.builder import normal_dim, tensor_of_meta
from weft.frontends.torch.importer.inlining import WITH_STATES
from weft.frontends.torch.importer.operands import operands_of
from weft.frontends.torch.importer.own_attention import (
    is_dropout_attention,
    is_own_attention,
    is_own_backward,
    is_own_packed,
)
from weft.ir.types import DType
from weft.passes.convolution.convolve_trained import is_pointwise
from weft.passes.own_kernels import (
    owns_convolution,
    owns_grouped_product,
    owns_pointwise_convolution,
    owns_product,
)
from weft.passes.simplify.order_by_comparing import worth_comparing, worth_counting

_MATRICES = {
    torch.ops.aten.linalg_solve_triangular.default,
    torch.ops.aten.linalg_cholesky_ex.default,
    torch.ops.aten.cholesky.default,
    torch.ops.aten.linalg_matrix_exp.default,
}
"""LAPACK's, or done with fewer products by torch; written out where no library may be called."""
_LIBRARY = {
    *_MATRICES,
    torch.ops.aten.convolution.default,
    torch.ops.aten.convolution_backward.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
    torch.ops.aten._scaled_mm.default,
    torch.ops.aten._int_mm.default,
}
# Products for each group of rows, as many as there are: generated code would copy a matrix for each row.
_GROUPED = ("aten::_grouped_mm", "weft::grouped_mm", "weft::grouped_outer")


_aten: Any = torch.ops.aten
_GPU_LIBRARY = _MATRICES | {
    getattr(getattr(_aten, name), overload)
    for name, overload in (
        *((name, "default") for name in ("mm", "addmm", "bmm", "baddbmm", "_scaled_mm", "_int_mm", "_grouped_mm")),
        *((name, "default") for name in ("convolution", "convolution_backward", "embedding_dense_backward")),
        *((name, "default") for name in ("sort", "topk", "kthvalue", "cumsum", "cumprod", "cummax", "cummin")),
        *(("sort", "stable"), ("logcumsumexp", "default")),
        *(("scatter_add", "default"), ("scatter_reduce", "two"), ("index_add", "default")),
    )
    if overload in getattr(_aten, name).overloads()
}
_ATTENTION = (
    *(f"aten::{name}" for name in ("_scaled_dot_product_", "_flash_attention_", "_efficient_attention_")),
    "torch_attn::",
)


_PRODUCTS = {_aten.mm.default: 0, _aten.bmm.default: 0, _aten.addmm.default: 1, _aten.baddbmm.default: 1}
"""Products, and which argument of each is the first factor."""
_BYTE_PRODUCTS = {_aten._scaled_mm.default, _aten._int_mm.default}
"""The same of operands of 8 bits, which come first."""


def is_own_product(node: fx.Node) -> bool:
    """Whether a product's factors are multiplied in a kernel of Weft's."""
    of_bytes = node.target in _BYTE_PRODUCTS
    first = 0 if of_bytes else _PRODUCTS.get(node.target)  # type: ignore[arg-type]
    if first is None or (node.kwargs and not of_bytes):
        return False
    operands = operands_of(node.meta["val"], *(each.meta["val"] for each in node.args[first : first + 2]))  # type: ignore[union-attr]
    return operands is not None and owns_product(*operands, of_bytes=of_bytes)


_TURNS = {getattr(_aten, name) for name in ("t", "permute", "transpose", "view", "_unsafe_view", "expand")}


def weights_of_product(node: fx.Node) -> fx.Node | None:
    """What the second factor of a product of 16 bits is a view of."""
    first = _PRODUCTS.get(node.target)  # type: ignore[arg-type]
    if first is None or node.meta["val"].dtype not in (torch.float16, torch.bfloat16):
        return None
    weights = node.args[first + 1]
    while isinstance(weights, fx.Node) and getattr(weights.target, "overloadpacket", None) in _TURNS:
        weights = weights.args[0]
    return weights if isinstance(weights, fx.Node) else None


_VIEWS = {getattr(_aten, name).default for name in ("view", "_unsafe_view", "reshape", "expand", "clone", "_to_copy")}


def is_pointwise_product(node: fx.Node, mapped: Callable[[Any], Any]) -> bool:
    """Whether a convolution mixes the channels of single places, as a product that the tensor cores are worth."""
    if node.target is not torch.ops.aten.convolution.default or not isinstance(node.args[1], fx.Node):
        return False
    result, (x, weight) = node.meta["val"], (each.meta["val"] for each in node.args[:2])  # type: ignore[union-attr]
    if x.is_complex() or any(isinstance(size, torch.SymInt) for size in (*result.shape, *weight.shape)):
        return False
    tensors = [tensor_of_meta(meta) for meta in (x, weight)]
    if not is_pointwise(tensors[1], **convolution_params(tensors[0].rank - 2, *map(mapped, node.args[3:9]))):
        return False
    operands = operands_of(x, weight, result)
    return operands is not None and owns_pointwise_convolution(*operands)


_ORDERS: dict[Any, str] = {
    **dict.fromkeys((_aten.sort.default, _aten.sort.stable), "sort"),
    _aten.topk.default: "topk",
    _aten.cumsum.default: "cumsum",
}


def _is_order(node: fx.Node) -> bool:
    """Whether a value is where elements stood before they were sorted: what sorts it again is its inverse."""
    source = node.args[0] if node.target is operator.getitem and node.args[1] == 1 else None
    return isinstance(source, fx.Node) and _ORDERS.get(source.target) == "sort"


def _kinds(node: fx.Node) -> tuple[int, set[DType]]:
    """Below what numbers of places among the greatest are (0: they are not such), and the types they are cast to."""
    dtypes: set[DType] = set()
    while node.target in _VIEWS and isinstance(node.args[0], fx.Node):
        dtypes.add(tensor_of_meta(node.meta["val"]).dtype)
        node = node.args[0]
    source = node.args[0] if node.target is operator.getitem and node.args[1] == 1 else None
    if not isinstance(source, fx.Node) or source.target is not _aten.topk.default:
        return 0, dtypes
    tensor = tensor_of_meta(source.args[0].meta["val"])  # type: ignore[union-attr]
    dim = source.args[2] if len(source.args) > 2 else source.kwargs.get("dim", -1)
    size = tensor.shape[normal_dim(dim, tensor.rank)] if tensor.rank else 0  # type: ignore[arg-type]
    return size if isinstance(size, int) else 0, dtypes


_MADE = {_aten.full, _aten.arange, _aten.zeros, _aten.ones, _aten.scalar_tensor}
_MOVES = {getattr(_aten, name) for name in ("view", "expand", "unsqueeze", "slice", "cat", "_to_copy")}
_MOST_FOLDED = 1 << 20


def _is_known(node: fx.Node) -> bool:
    """Whether few numbers depend on no argument: they are computed when the graph is compiled."""
    sizes = node.meta["val"].shape
    if any(isinstance(size, torch.SymInt) for size in sizes) or node.meta["val"].numel() > _MOST_FOLDED:
        return False
    left, seen = [node], {node}
    while left:
        value = left.pop()
        packet = getattr(value.target, "overloadpacket", None)
        if not value.all_input_nodes and packet not in _MADE:
            return False
        if (
            value.all_input_nodes
            and packet not in _MOVES
            and torch.Tag.pointwise not in getattr(value.target, "tags", ())
        ):
            return False
        left += [each for each in value.all_input_nodes if each not in seen]
        seen.update(value.all_input_nodes)
    return True


def is_own_order(node: fx.Node) -> bool:
    """Whether a line is so short that comparing all its elements is faster than a library, or known already."""
    name = _ORDERS.get(node.target)
    if name is None or not isinstance(node.args[0], fx.Node):
        return False
    if name == "cumsum" and _is_known(node.args[0]):
        return True
    tensor = tensor_of_meta(node.args[0].meta["val"])
    place = 2 if name == "topk" else 1
    dim = node.kwargs.get("dim", node.args[place] if len(node.args) > place else -1)
    if node.target is _aten.sort.stable:
        dim = node.kwargs.get("dim", -1)
    assert isinstance(dim, int)
    if name == "sort" and tensor.rank == 1 and _is_order(node.args[0]):
        return not (node.kwargs.get("descending") or True in node.args)
    if name == "sort" and tensor.rank == 1 and worth_counting(tensor.shape[0], *_kinds(node.args[0])):
        return not (node.kwargs.get("descending") or True in node.args)
    exact = name != "cumsum" or tensor.dtype.is_integer
    return exact and tensor.rank > 0 and worth_comparing(name, tensor.shape, normal_dim(dim, tensor.rank))


def is_own_row_sum(node: fx.Node) -> bool:
    """Whether a call adds rows up by index, each result its own ones in a kernel of Weft's."""
    metas = [each.meta["val"] for each in node.args if isinstance(each, fx.Node)]
    match node.target:
        case _aten.index_add.default:
            x, _, source = metas
            return x.dim() > 1 and not node.args[1] % x.dim() and sums_rows(*_sizes(x, source))  # type: ignore[operator]
        case _aten.scatter_add.default:
            x, index, source = metas
            return along_rows(index, node.args[1], x, source) and sums_rows(*_sizes(x, source))  # type: ignore[arg-type]
        case _aten.scatter_reduce.two:
            x, index, source = metas
            plain = node.args[4] == "sum" and node.kwargs.get("include_self", True)
            return plain and along_rows(index, node.args[1], x, source) and sums_rows(*_sizes(x, source))  # type: ignore[arg-type]
        case _aten.embedding_dense_backward.default:
            grad, result = metas[0], node.meta["val"]
            # Of unknown sizes nothing is asked.
            return not node.args[4] and sums_rows(*_sizes(result, grad)) and grad.numel() >= _OFTEN * result.numel()
        case _:
            return False


_OFTEN = 2
"""Gradients for each row of a table from which on they are added up faster than by the library, which only sets to zero
the rows that have none."""


def _sizes(x: torch.Tensor, updates: torch.Tensor) -> tuple[Sequence[Any], Sequence[Any], DType]:
    return x.shape, updates.shape, from_torch(x.dtype)


_GROUPED_PRODUCT: Any = getattr(getattr(_aten, "_grouped_mm", None), "default", None)


def is_own_grouped(node: fx.Node) -> bool:
    """Whether rows in groups are multiplied with their groups' matrices in a kernel of Weft's."""
    if node.target is not _GROUPED_PRODUCT or len(node.args) + len(node.kwargs) != 3:
        return False
    operands = operands_of(*(each.meta["val"] for each in node.args[:2]))  # type: ignore[union-attr]
    return operands is not None and owns_grouped_product(*operands)


def is_own_on_tensor_cores(node: fx.Node) -> bool:
    """Whether a call is kernels of Weft's on a GPU's tensor cores."""
    own = is_own_grouped, is_own_product, is_own_attention, is_own_packed, is_own_backward, is_dropout_attention
    return any(is_own(node) for is_own in own)


_LONG_IN_TILES = 256
"""Queries and keys from which a library's attention in a processor's matrix tiles beats generated kernels in f32."""


_TRANSFORMS = {_aten._fft_r2c.default, _aten._fft_c2c.default, _aten._fft_c2r.default}


def is_claimed(node: fx.Node, capabilities: Capabilities = PROCESSOR) -> bool:
    """Whether a library takes the call: attention only where its backward needs what torch's kernel keeps, or where it
    is long, in bf16, and the library multiplies in matrix tiles.

    Where libraries come first they take all attention, and products, convolutions, sorts and scans.
    """
    name = node.target.name() if isinstance(node.target, torch._ops.OpOverload) else ""
    if node.target in _TRANSFORMS:
        return capabilities.library_transforms
    if capabilities.library_first:
        return node.target in _GPU_LIBRARY or name.startswith(_ATTENTION)
    if node.target is torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default:
        needed = any(user.target is operator.getitem and user.args[1] == 1 for user in node.users)
        return needed or (capabilities.library_matrix_tiles and _is_long_in_bf16(node))
    return node.target in _LIBRARY or name in _GROUPED


_DRAWS = {
    getattr(_aten, name)
    for name in (
        *("rand", "rand_like", "randn", "randn_like", "randint", "randint_like", "randperm"),
        *("bernoulli", "binomial", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "normal"),
        *("normal_functional", "poisson", "random", "uniform", "_sample_dirichlet", "_standard_gamma"),
        *("native_dropout", "_fused_dropout", "rrelu_with_noise_functional"),
    )
}


def is_draw(node: fx.Node) -> bool:
    """Whether a call does nothing but draw random numbers: torch's generator draws them, so that they are eager's.

    Which numbers eager draws depends on its kernels: on the CPU those of a vectorised Box-Muller transform from 16
    elements on, or of MKL's generators; on a GPU those of as many threads as a launch has.
    """
    target = node.target
    if getattr(target, "_name", None) in WITH_STATES:
        target = next(each for each in node.args if isinstance(each, torch._ops.OpOverload))
    drawn = getattr(target, "overloadpacket", None)
    return drawn in _DRAWS or getattr(drawn, "_qualified_op_name", None) == SEEDS


def _is_long_in_bf16(node: fx.Node) -> bool:
    query, key = (each.meta["val"] for each in node.args[:2])  # type: ignore[union-attr]
    lengths = query.shape[-2], key.shape[-2]
    known = all(isinstance(length, int) and length >= _LONG_IN_TILES for length in lengths)
    return known and query.dtype == torch.bfloat16


def is_own_convolution(node: fx.Node, mapped: Callable[[Any], Any], *, frozen: bool, library: bool) -> bool:
    """Whether a convolution, or its gradients, has a form that products and sums of Weft's own are faster for.

    `mapped` reads an argument of the call; `frozen` weights are constants; `library` says that torch's library makes
    code for convolutions on this machine.
    """
    if node.target is torch.ops.aten.convolution_backward.default:
        result, x, weight, geometry = *node.args[:3], node.args[4:10]
    elif node.target is torch.ops.aten.convolution.default:
        x, weight, result, geometry = *node.args[:2], node, node.args[3:9]
    else:
        return False
    metas = [each.meta["val"] for each in (x, weight, result) if isinstance(each, fx.Node)]
    if len(metas) < 3 or metas[0].is_complex():
        return False
    tensors = [tensor_of_meta(meta) for meta in metas]
    params = convolution_params(tensors[0].rank - 2, *map(mapped, geometry))
    return owns_convolution(*tensors, params=params, frozen=frozen, library=library)
