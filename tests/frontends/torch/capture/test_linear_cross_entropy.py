"""Torch's cross-entropy of a projection in chunks: what its operator gives, in a graph without it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from weft.frontends.torch.capture.linear_cross_entropy import linear_cross_entropy_of_chunks

_module: Any = pytest.importorskip(
    "torch.nn.modules.linear_cross_entropy", reason="torch has no linear_cross_entropy before 2.13"
)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
def test_loss_and_gradients_are_those_of_the_operator(reduction: str, weighted: bool) -> None:
    x, weight, bias = (torch.randn(*shape, dtype=torch.float64) for shape in ((7, 5), (11, 5), (11,)))
    target = torch.randint(0, 11, (7,))
    target[2] = -100
    weights = torch.rand(11, dtype=torch.float64) if weighted else None
    settings: Any = reduction, -100, 0.0, 3, "balanced", torch.float64, True, True, True, True
    given: Any = x, weight, target, bias, weights
    operator = _module._linear_cross_entropy_batch_chunked
    torch.testing.assert_close(linear_cross_entropy_of_chunks(*given, *settings), tuple(operator(*given, *settings)))

    def doubled(*tensors: Any) -> Any:
        loss, *gradients = operator(*tensors, *settings)
        return 2 * loss, gradients

    compiled = torch.compile(doubled, backend="weft", options={"strict": True})
    torch.testing.assert_close(compiled(*given), doubled(*given))
