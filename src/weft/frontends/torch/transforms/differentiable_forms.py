"""Forms of operators whose derivatives or batches torch has not, or only by looking at data, in ones that it has.

trace(x)  ─►  diagonal(x).sum()        `evaluate_graph` runs these in place of what a captured graph calls
"""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false, reportAttributeAccessIssue=false, reportIncompatibleMethodOverride=false

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from weft.frontends.torch.capture.orthogonal_polynomials import POLYNOMIALS
from weft.frontends.torch.transforms import segmented_forms
from weft.frontends.torch.transforms.batched_calls import of_elements, of_matrices

_MOST_FACTORS = 1 << 22
"""Elements of a table of places and factors, which a product over places is taken from."""


_TANGENTS: ContextVar[bool] = ContextVar("tangents by gradients", default=False)


@contextmanager
def taking_tangents() -> Generator[None]:
    """What is evaluated here is differentiated for tangents, which are taken as gradients of gradients."""
    token = _TANGENTS.set(True)
    try:
        yield
    finally:
        _TANGENTS.reset(token)


def takes_tangents() -> bool:
    """Whether what is evaluated now is differentiated for tangents."""
    return _TANGENTS.get()


def trace(x: Tensor) -> Tensor:
    """By the diagonal: torch's second derivative looks for places that occur twice."""
    return x.diagonal().sum()


def soft_margin_loss(
    x: Tensor, target: Tensor, size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean"
) -> Tensor:
    """By a logarithm: torch's has no tangents of targets."""
    if size_average is not None or reduce is not None:
        reduction = functional._Reduction.legacy_get_string(size_average, reduce)
    losses = functional.softplus(-target * x)
    return {"mean": losses.mean, "sum": losses.sum}.get(reduction, lambda: losses)()


def column_stack(tensors: Sequence[Tensor]) -> Tensor:
    """By `cat`: torch has no batches of it."""
    return torch.cat([x.reshape(-1, 1) if x.dim() < 2 else x for x in tensors], 1)


def scatter_reduce(
    x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """Products as those of a table: torch's gradient of a gradient asks whether factors are 0."""
    if reduce == "prod" and x.dim() == 0:
        given = x.view(1), 0, index.view(1), src.view(1), reduce
        return scatter_reduce(*given, include_self=include_self).view(())
    if reduce != "prod" or index.numel() * x.shape[dim] > _MOST_FACTORS:
        return torch.scatter_reduce(x, dim, index, src, reduce, include_self=include_self)
    taken = src[tuple(slice(size) for size in index.shape)]
    outside = [slice(size) for size in index.shape]
    outside[dim] = slice(None)
    kept = x[tuple(outside)]
    places = torch.arange(x.shape[dim], device=x.device)
    here = index.movedim(dim, -1).unsqueeze(-2) == places.unsqueeze(-1)
    factors = torch.where(here, taken.movedim(dim, -1).unsqueeze(-2), torch.ones((), dtype=x.dtype, device=x.device))
    product = factors.prod(-1)
    own = kept.movedim(dim, -1)
    found = (own * product if include_self else torch.where(here.any(-1), product, own)).movedim(-1, dim)
    if found.shape == x.shape:
        return found
    whole = x.clone()
    whole[tuple(outside)] = found
    return whole


def index_reduce(
    x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """By `scatter_reduce`, which has tangents."""
    if x.dim() == 0:
        return index_reduce(x.view(1), 0, index, source.view(1), reduce, include_self=include_self).view(())
    shape = [1] * x.dim()
    shape[dim] = -1
    return scatter_reduce(x, dim, index.view(shape).expand(source.shape), source, reduce, include_self=include_self)


def cdist(x: Tensor, y: Tensor, p: float = 2.0, compute_mode: str = "use_mm_for_euclid_dist_if_necessary") -> Tensor:
    """By norms of differences: torch's gradient has no gradient."""
    if x.numel() * y.shape[-2] > _MOST_FACTORS:
        return torch.cdist(x, y, p, compute_mode)
    return torch.linalg.vector_norm(x.unsqueeze(-2) - y.unsqueeze(-3), p, -1)


def logcumsumexp(x: Tensor, dim: int) -> Tensor:
    """By `logsumexp` of what is so far: torch's gradient takes logarithms of gradients, which have no slope at 0."""
    if x.dim() == 0 or x.numel() * x.shape[dim] > _MOST_FACTORS or not x.is_floating_point():
        return torch.logcumsumexp(x, dim)
    last = x.movedim(dim, -1)
    later = torch.ones(last.shape[-1:] * 2, dtype=torch.bool, device=x.device).triu(1)
    return last.unsqueeze(-2).masked_fill(later, -math.inf).logsumexp(-1).movedim(-1, dim)


def pdist(x: Tensor, p: float = 2.0) -> Tensor:
    """The same for each pair of rows."""
    if x.numel() * x.shape[0] > _MOST_FACTORS:
        return functional.pdist(x, p)
    first, second = torch.triu_indices(x.shape[0], x.shape[0], 1, device=x.device)
    return torch.linalg.vector_norm(x[first] - x[second], p, -1)


def as_strided_scatter(
    x: Tensor, src: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Tensor:
    """By the places that are written, for tangents: torch's gradient flows through these alone to the tensor, where it
    should flow through all others. Gradients are as in eager."""
    if not takes_tangents() or not x.numel():
        return torch.as_strided_scatter(x, src, size, stride, storage_offset)
    written = written_in_strides(x, src, size, stride, storage_offset)
    if written is None:
        raise NotImplementedError("tangents of as_strided_scatter are not implemented beside a tensor's own memory")
    return written


def written_in_strides(
    x: Tensor, src: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None
) -> Tensor | None:
    """A tensor with some places of its memory written; None where it is not dense, or places lie beside it."""
    order = sorted(range(x.dim()), key=x.stride, reverse=True)
    in_memory = x.permute(order)
    first = 0 if storage_offset is None else storage_offset - x.storage_offset()
    last = first + sum((count - 1) * step for count, step in zip(size, stride, strict=True))
    if not in_memory.is_contiguous() or not 0 <= first <= last < x.numel():
        return None
    places = torch.arange(x.numel(), device=x.device).as_strided(size, stride, first)
    written = in_memory.reshape(-1).index_put((places,), src.expand(places.shape))
    return written.view(in_memory.shape).permute([order.index(dim) for dim in range(x.dim())])


def _unpool(name: str) -> Callable[..., Tensor]:
    """Unpooling where, for tangents, each place moves with the element that it has: of those that are written to one
    place that is the last. Gradients are as in eager, where all of these have that of the place."""
    unpool, rank = getattr(functional, name), int(name[-2])

    def unpooled(x: Tensor, indices: Tensor, *args: Any, **named: Any) -> Tensor:
        if not takes_tangents() or not x.numel():
            return unpool(x, indices, *args, **named)
        places = indices.reshape(*indices.shape[:-rank], -1)
        exact = torch.float32 if places.shape[-1] <= 1 << 24 else torch.float64  # of the numbers of all elements
        numbers = torch.arange(places.shape[-1], dtype=exact, device=x.device).view(indices.shape[-rank:])
        last = unpool(numbers.expand(x.shape).contiguous(), indices, *args, **named)
        written = last.reshape(*places.shape[:-1], -1).gather(-1, places).view(x.shape) == numbers
        return _summed(torch.where(written, x, 0), places, last)

    return unpooled


def _summed(x: Tensor, places: Tensor, like: Tensor) -> Tensor:
    """What is brought to places, added up."""
    flat = torch.zeros(
        *places.shape[:-1], like.numel() // max(1, places[..., 0].numel()), dtype=x.dtype, device=x.device
    )
    return flat.scatter_add(-1, places, x.reshape(places.shape)).view(like.shape)


_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    torch.trace: trace,
    torch.as_strided_scatter: as_strided_scatter,
    torch.column_stack: column_stack,
    torch.cdist: cdist,
    torch.pdist: pdist,
    functional.pdist: pdist,
    torch.scatter_reduce: scatter_reduce,
    torch.logcumsumexp: logcumsumexp,
    torch.index_reduce: index_reduce,
    functional.soft_margin_loss: soft_margin_loss,
    functional.embedding_bag: segmented_forms.embedding_bag,
    torch.segment_reduce: segmented_forms.segment_reduce,
    **{call: of_elements(call) for call in (torch.special.airy_ai, *(getattr(torch.special, n) for n in POLYNOMIALS))},
    **{call: of_matrices(call) for call in (torch.linalg.lu, torch.linalg.ldl_solve)},
    **{getattr(functional, name): _unpool(name) for name in ("max_unpool1d", "max_unpool2d", "max_unpool3d")},
}
_METHODS: dict[str, Callable[..., Any]] = {
    "trace": trace,
    "as_strided_scatter": as_strided_scatter,
    "scatter_reduce": scatter_reduce,
    "logcumsumexp": logcumsumexp,
    "index_reduce": index_reduce,
}


_OPERATORS: dict[str, Callable[..., Any]] = {
    "torch_nn._linear_cross_entropy_batch_chunked": segmented_forms.linear_cross_entropy,
    "torch_nn._linear_cross_entropy_batch_chunked_no_reduction": segmented_forms.linear_cross_entropies,
}
"""By their names, as torch registers them when they are first called."""


def form_of(target: Any) -> Callable[..., Any] | None:
    """The form of a function of torch, of an operator, or of a method by its name."""
    if isinstance(target, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return _OPERATORS.get(str(target).removesuffix(".default"))
    return _METHODS.get(target) if isinstance(target, str) else _FUNCTIONS.get(target)


class CallingForms(TorchFunctionMode):
    """Calls the forms in place of what has one, where a function is run that is no graph."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        form = form_of(name if func is getattr(Tensor, name, None) else func)
        return (form or func)(*args, **(kwargs or {}))
