"""Forms of functions that Dynamo would leave to eager, because they look at data or seem to have sizes of it.

Dynamo inlines these in place of torch's own, in what Weft compiles: cov, corrcoef, combinations, gaussian_nll_loss.
"""

# Dynamo has no public interface to it, and torch leaves some of its functions without types.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportAttributeAccessIssue=false

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.variables import TensorVariable, UserFunctionVariable
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable
from torch.nn import functional

from weft.frontends.torch.capture.data_checks import check_data
from weft.frontends.torch.transforms.dynamo_levels import is_traced_for


def cov(
    input: Tensor, *, correction: int = 1, fweights: Tensor | None = None, aweights: Tensor | None = None
) -> Tensor:
    """Covariances of rows; eager looks at its weights, and at whether there are enough of them."""
    if input.dim() > 2 or input.dtype == torch.bool:
        raise RuntimeError(f"cov(): expected a matrix of numbers, or a row of them: {list(input.shape)}, {input.dtype}")
    rows = input.reshape(1, -1) if input.dim() < 2 else input
    count = rows.shape[1]
    weights = _weights(fweights, aweights, count)
    if weights is None:
        weighted, total = rows, count
        norm: Any = max(count - correction, 0)
    else:
        weighted, total = rows * weights, weights.sum()
        check_data(total == 0, "data", "cov(): weights sum to zero, can't be normalized")
        lost = correction
        if aweights is not None and correction != 0:
            lost = correction * (weights * aweights).sum() / total
        norm = torch.clamp_min(total - lost, 0)
    mean = weighted.sum(1) / total
    centred = rows - mean.unsqueeze(1)
    other = centred if weights is None else centred * weights
    return (torch.mm(centred, other.t().conj()) / norm).squeeze()


def _weights(counts: Tensor | None, shares: Tensor | None, count: int) -> Tensor | None:
    """The product of the weights that are given."""
    found = [(name, each) for name, each in (("fweights", counts), ("aweights", shares)) if each is not None]
    for name, each in found:
        if each.dim() > 1 or each.numel() != count:
            raise RuntimeError(f"cov(): expected {name} to have one dimension, of size {count}: {list(each.shape)}")
        if each.is_floating_point() != (name == "aweights") or each.dtype == torch.bool:
            raise RuntimeError(f"cov(): expected {name} to have another type than {each.dtype}")
        check_data(each < 0, "data", f"cov(): {name} cannot be negative")
    if not found:
        return None
    return found[0][1] if len(found) == 1 else found[0][1] * found[1][1]


def corrcoef(input: Tensor) -> Tensor:
    """Correlations of rows."""
    c = cov(input)
    if c.dim() == 0:
        return c / c
    diagonal = c.diag()
    deviation = torch.sqrt(torch.real(diagonal) if c.is_complex() else diagonal)
    c = c / deviation.view(-1, 1) / deviation.view(1, -1)
    if not c.is_complex():
        return c.clip(-1, 1)
    return torch.complex(torch.real(c).clip(-1, 1), torch.imag(c).clip(-1, 1))


def combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """Choices of elements, one after the other in order: how many there are does not depend on the elements."""
    if input.dim() != 1 or r < 0:
        raise RuntimeError(f"combinations takes a vector and no fewer than 0 of its elements: {list(input.shape)}, {r}")
    if r == 0:
        return input.new_empty(0)
    if r == 1:
        return input.unsqueeze(1).clone()
    if r == 2:
        return input[_pairs(input.shape[0], with_replacement, input.device)]
    return input[_choices(_settled(input.shape[0]), _settled(r), with_replacement).to(input.device)]


def _settled(number: int) -> int:
    """A number that is no symbol to Dynamo, which goes through a loop with a guard on how often."""
    count = 0
    for _ in range(number):
        count += 1
    return count


def _pairs(count: int, again: bool, device: torch.device) -> Tensor:
    """The places of all pairs, a row each: counted from the last, those with one first element are one more each."""
    total = (count * (count + 1) if again else count * (count - 1)) // 2
    left = total - 1 - torch.arange(total, device=device)
    k = ((torch.sqrt((8 * left + 1).double()) - 1) / 2).long()
    first, second = count - (1 if again else 2) - k, count - 1 - (left - k * (k + 1) // 2)
    return torch.stack([first, second], 1)


@torch.compiler.assume_constant_result
def _choices(count: int, r: int, again: bool) -> Tensor:
    """The places of all choices, a row each."""
    chosen = (itertools.combinations_with_replacement if again else itertools.combinations)(range(count), r)
    return torch.tensor(list(chosen), dtype=torch.int64).reshape(-1, r)


def gaussian_nll_loss(
    input: Tensor, target: Tensor, var: Tensor | float, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Tensor:
    """The negative log-likelihood of a normal distribution; eager looks for variances below 0."""
    if not isinstance(var, Tensor):
        if not isinstance(var, float):
            raise TypeError(f"var must be a tensor or a float, not {type(var).__name__}")
        if var < 0:
            raise ValueError("var has negative entry/entries")
        var = var * torch.ones_like(input)
    else:
        check_data(var < 0, "value", "var has negative entry/entries")
    if var.size() != input.size():
        differing = [b for a, b in zip(input.size(), var.size(), strict=False) if a != b]
        if input.size()[:-1] == var.size():
            var = var.unsqueeze(-1)
        elif input.dim() != var.dim() or sum(differing) != 1:
            raise ValueError("var is of incorrect size")
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction} is not valid")
    if not var.is_floating_point():
        raise RuntimeError(f"var is clamped in place, which {var.dtype} cannot be to {eps}")
    with torch.no_grad():  # the gradient is that of what is not clamped
        missing = torch.where(var < eps, eps - var, 0)
    var = var + missing
    loss = 0.5 * (torch.log(var) + (input - target) ** 2 / var)
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    return loss.mean() if reduction == "mean" else loss.sum() if reduction == "sum" else loss


_FORMS: dict[Any, Callable[..., Any]] = {
    torch.cov: cov,
    torch.corrcoef: corrcoef,
    torch.combinations: combinations,
    functional.gaussian_nll_loss: gaussian_nll_loss,
}


_METHODS = {"cov": cov, "corrcoef": corrcoef}


@cache
def trace_by_forms(backend: Callable[..., Any]) -> None:
    """Let Dynamo inline the forms in what this backend compiles."""
    functions: Any = TorchInGraphFunctionVariable
    tensors: Any = TensorVariable
    call_function, call_method = functions.call_function, tensors.call_method

    def function(self: Any, tx: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        form = _FORMS.get(self.value)
        if form is None or not is_traced_for(tx, backend):
            return call_function(self, tx, args, kwargs)
        return tx.inline_user_function_return(UserFunctionVariable(form), list(args), kwargs)

    def method(self: Any, tx: Any, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        form = _METHODS.get(name)
        if form is None or not is_traced_for(tx, backend):
            return call_method(self, tx, name, args, kwargs)
        return tx.inline_user_function_return(UserFunctionVariable(form), [self, *args], kwargs)

    functions.call_function, tensors.call_method = function, method
