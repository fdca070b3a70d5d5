"""transformers' products of rows in groups: one graph, also in training, by a library or, if strict, by Weft."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

moe = pytest.importorskip("transformers.integrations.moe")


def multiplied(x: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    operators: Any = torch.ops
    return operators.transformers.grouped_mm_fallback(x, weights, offs=ends).tanh()


def gradients(function: Any, x: Tensor, weights: Tensor, ends: Tensor) -> tuple[Tensor, ...]:
    x, weights = x.clone().requires_grad_(), weights.clone().requires_grad_()
    result = function(x, weights, ends)
    return (result.detach(), *torch.autograd.grad(result.square().sum(), (x, weights)))


@pytest.mark.parametrize("strict", [False, True])
def test_one_graph_serves_all_divisions_into_groups(strict: bool) -> None:
    torch.compiler.reset()
    options = {"strict": strict, "cache": False}
    run = torch.compile(multiplied, backend="weft", fullgraph=True, options=options)
    x, weights = torch.randn(20, 6), torch.randn(4, 6, 5)
    for ends in ([5, 5, 14, 20], [0, 0, 20, 20], [3, 7, 9, 16]):  # the last ones of the rows may be in no group
        given = torch.tensor(ends, dtype=torch.int32)
        torch.testing.assert_close(gradients(run, x, weights, given), gradients(multiplied, x, weights, given))


@pytest.mark.parametrize("ends", [[5, 5, 14, 20], [0, 3, 3, 16]])
def test_the_gradient_of_a_parameter_lies_as_the_parameter_does(ends: list[int]) -> None:
    """It is given transposed, as transformers' experts give theirs; autograd copies gradients that lie otherwise."""
    torch.compiler.reset()

    def product(x: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
        return multiplied(x, weights.transpose(1, 2), ends)

    run = torch.compile(product, backend="weft", fullgraph=True, options={"cache": False})
    x, weights, given = torch.randn(20, 6), torch.randn(4, 5, 6), torch.tensor(ends, dtype=torch.int32)
    found = gradients(run, x, weights, given)
    assert found[2].stride() == weights.stride()
    torch.testing.assert_close(found, gradients(product, x, weights, given))


@pytest.mark.parametrize("reentrant", [False, True])
def test_groups_in_a_checkpoint_are_part_of_its_graph(reentrant: bool) -> None:
    torch.compiler.reset()

    def kept(x: Tensor, weights: Tensor, ends: Tensor) -> Any:
        return checkpoint(multiplied, x, weights, ends, use_reentrant=reentrant)

    run = torch.compile(kept, backend="weft", fullgraph=not reentrant, options={"cache": False, "fallback": "error"})
    x, weights, ends = torch.randn(20, 6), torch.randn(4, 6, 5), torch.tensor([5, 5, 14, 20], dtype=torch.int32)
    if reentrant:  # torch allows no autograd.grad around it
        x.requires_grad_()
        run(x, weights, ends).square().sum().backward()
        found, x.grad = x.grad, None
        multiplied(x, weights, ends).square().sum().backward()
        torch.testing.assert_close(found, x.grad)
    else:
        torch.testing.assert_close(gradients(run, x, weights, ends), gradients(multiplied, x, weights, ends))
