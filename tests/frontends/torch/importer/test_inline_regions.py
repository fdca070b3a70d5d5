"""Regions that torch compiles once are part of the graph around them: values and gradients as without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from weft.runtime.record import recording


def mixed(x: Tensor, weight: Tensor) -> Tensor:
    return (x @ weight).relu() + x


def halves(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Two results, one of them by columns."""
    return x[:, :2].tanh() @ weight[:2], x.t().sin()


def dropped(x: Tensor, weight: Tensor) -> Tensor:
    return F.dropout(x @ weight, 0.4) + x


def layers(block: Callable[..., Any], weights: list[Tensor]) -> Callable[[Tensor], Tensor]:
    def run(x: Tensor) -> Tensor:
        for weight in weights:
            found = block(x, weight)
            x = found if isinstance(found, Tensor) else found[0] + found[1].t()
        return x

    return run


def compared(block: Callable[..., Any], *, dynamic: bool | None = None) -> None:
    region = torch.compiler.nested_compile_region(block)
    weights = [torch.randn(4, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    torch.compiler.reset()
    compiled = torch.compile(
        layers(region, weights), backend="weft", fullgraph=True, dynamic=dynamic, options={"fallback": "error"}
    )
    for rows in (4, 6) if dynamic else (4,):
        x = torch.randn(rows, 4, dtype=torch.float64, requires_grad=True)
        found: list[Any] = []
        for run in (layers(block, weights), compiled):
            torch.manual_seed(3)
            y = run(x)
            found.append((y.detach(), *torch.autograd.grad((y * y).sum(), [x, *weights])))
        torch.testing.assert_close(found[1], found[0])
        with torch.no_grad():
            torch.manual_seed(3)
            torch.testing.assert_close(compiled(x), found[0][0])


@pytest.mark.parametrize("block", [mixed, halves, dropped])
def test_values_and_gradients_are_eagers(block: Callable[..., Any]) -> None:
    compared(block)


def test_sizes_may_be_symbolic() -> None:
    compared(mixed, dynamic=True)


def test_regions_in_regions() -> None:
    inner: Callable[..., Any] = torch.compiler.nested_compile_region(mixed)

    def outer(x: Tensor, weight: Tensor) -> Tensor:
        return inner(inner(x, weight).sin(), weight * 2)

    compared(outer)


def test_nothing_is_left_to_torch() -> None:
    region = torch.compiler.nested_compile_region(mixed)
    torch.compiler.reset()
    with recording() as records:
        compiled: Any = torch.compile(layers(region, [torch.randn(4, 4)] * 2), backend="weft")
        compiled(torch.randn(3, 4))
    assert not any(record.fallbacks or record.error for record in records)
