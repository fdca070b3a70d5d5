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
    region: Callable[..., Any] = torch.compiler.nested_compile_region(block)
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


def in_parts(block: Callable[..., Tensor], calls: int) -> Callable[[Tensor, Tensor], list[Tensor]]:
    """Both halves of the result of each call."""
    return lambda x, weight: [part for call in range(calls) for part in block(x + call, weight).chunk(2)]


def product(x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight


inner_product: Callable[..., Any] = torch.compiler.nested_compile_region(product)


def transposed(x: Tensor, weight: Tensor) -> Tensor:
    """The views begin in the region."""
    return (x @ weight).t()


def through_regions(x: Tensor, weight: Tensor) -> Tensor:
    """Views of a region's result in another region."""
    first, second = inner_product(x, weight).chunk(2)
    third, fourth = inner_product(x.sin(), weight).chunk(2)
    return torch.cat([first * fourth, second + third])


def memories(parts: list[Tensor]) -> list[int]:
    """For each part, the first one that lies in the same memory."""
    addresses = [part.untyped_storage().data_ptr() for part in parts]
    return [addresses.index(address) for address in addresses]


@pytest.mark.parametrize(
    ("block", "calls", "dynamic"),
    [
        (product, 1, None),
        (product, 2, None),
        (product, 3, True),
        (transposed, 2, None),
        (through_regions, 2, None),
        (through_regions, 2, True),
    ],
)
def test_results_may_be_views_of_what_regions_give(
    block: Callable[..., Tensor], calls: int, dynamic: bool | None
) -> None:
    region: Callable[..., Any] = torch.compiler.nested_compile_region(block)
    torch.compiler.reset()
    compiled = torch.compile(
        in_parts(region, calls), backend="weft", fullgraph=True, dynamic=dynamic, options={"fallback": "error"}
    )
    weight = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    for rows in (4, 6) if dynamic else (4,):
        x = torch.randn(rows, 4, dtype=torch.float64, requires_grad=True)
        expected, found = in_parts(block, calls)(x, weight), compiled(x, weight)
        torch.testing.assert_close(found, expected)
        tangents = [torch.randn_like(part) for part in expected]
        gradients = [torch.autograd.grad(parts, [x, weight], tangents) for parts in (found, expected)]
        torch.testing.assert_close(gradients[0], gradients[1])
        with torch.no_grad():
            parts = compiled(x, weight)
            torch.testing.assert_close(parts, expected)
            assert memories(parts) == memories(expected)


def test_symbols_of_a_region_are_those_of_each_call() -> None:
    def block(x: Tensor, weight: Tensor) -> Tensor:
        return (x @ weight).repeat(2, 1).view(x.shape[0] * 2, 2, -1) * x.shape[0]

    def run(region: Callable[..., Tensor], x: Tensor, y: Tensor, weight: Tensor) -> list[Tensor]:
        return [*region(x, weight).chunk(2, 1), *region(y, weight).chunk(2, 1)]

    region: Callable[..., Any] = torch.compiler.nested_compile_region(block)
    torch.compiler.reset()
    compiled = torch.compile(run, backend="weft", fullgraph=True, dynamic=True, options={"fallback": "error"})
    for rows in ((4, 6), (6, 5)):
        x, y, weight = (torch.randn(size, 4, dtype=torch.float64, requires_grad=True) for size in (*rows, 4))
        found, expected = compiled(region, x, y, weight), run(block, x, y, weight)
        torch.testing.assert_close(found, expected)
        tangents = [torch.randn_like(part) for part in expected]
        gradients = [torch.autograd.grad(parts, [x, y, weight], tangents) for parts in (found, expected)]
        torch.testing.assert_close(gradients[0], gradients[1])
        with torch.no_grad():
            torch.testing.assert_close(compiled(region, x, y, weight), expected)
