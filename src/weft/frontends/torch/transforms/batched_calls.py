"""Calls whose batches torch computes one after the other, as one call for the whole batch.

chebyshev_polynomial_t(x[i], n) for each i  ─►  chebyshev_polynomial_t(x, n)        vmap, for any function of elements
lu(a[i]) for each i                         ─►  lu(a)                               and of matrices
"""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportIncompatibleMethodOverride=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def of_elements(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of elements, which broadcasts its tensors: a batch is one more dimension before all others."""
    return _batched(function, _broadcast)


def of_matrices(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the last dimensions of its tensors, which all have the dimensions before these."""
    return _batched(function, _expanded)


def _batched(function: Callable[..., Any], aligned: Callable[..., list[Any]]) -> Callable[..., Any]:
    class Call(torch.autograd.Function):
        @staticmethod
        def forward(named: dict[str, Any], *values: Any) -> Any:
            return function(*values, **named)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            pass

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            raise NotImplementedError(f"the derivative of {function.__name__} is not implemented")

        @staticmethod
        def vmap(info: Any, in_dims: tuple[Any, ...], named: dict[str, Any], *values: Any) -> tuple[Any, Any]:
            found = apply(*aligned(values, in_dims[1:], info.batch_size), **named)
            return found, 0 if isinstance(found, Tensor) else (0,) * len(found)

    def apply(*values: Any, **named: Any) -> Any:
        found: Any = Call.apply(named, *values)
        return found

    return apply


def _broadcast(values: tuple[Any, ...], dims: tuple[Any, ...], size: int) -> list[Any]:
    """The tensors with the batch first, and as many dimensions as the one that has most."""
    pairs = list(zip(values, dims, strict=True))
    most = max(x.dim() - (dim is not None) for x, dim in pairs if isinstance(x, Tensor))
    return [x if dim is None else _with_rank(x.movedim(dim, 0), most) for x, dim in pairs]


def _with_rank(x: Tensor, most: int) -> Tensor:
    return x.reshape(x.shape[0], *(1 for _ in range(most + 1 - x.dim())), *x.shape[1:])


def _expanded(values: tuple[Any, ...], dims: tuple[Any, ...], size: int) -> list[Any]:
    """The tensors with the batch first, those that have none too."""
    return [
        x if not isinstance(x, Tensor) else x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)
        for x, dim in zip(values, dims, strict=True)
    ]
