"""Loops whose turns read what they begin with, compiled and transformed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops import scan, while_loop

import weft

FOUR = torch.arange(4, dtype=torch.float64)


def reads_its_start(x: Tensor) -> Tensor:
    return while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y.sin() * x), (torch.tensor(0), x))[1]


def reads_a_view(x: Tensor) -> Tensor:
    carried = (torch.tensor(0), x.view(3))
    return while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y.sin() * x.view(-1)), carried)[1]


def carries_one_twice(x: Tensor) -> Tensor:
    return while_loop(lambda i, y, z: i < 3, lambda i, y, z: (i + 1, y.sin() * z, z * 1), (torch.tensor(0), x, x))[1]


def scans_from_what_it_reads(x: Tensor) -> Tensor:
    return scan(lambda h, row: (h.sin() * x, h + row), x, FOUR[:3, None].expand(3, 3))[0]


def by_hand(x: Tensor) -> Tensor:
    return ((x.sin() * x).sin() * x).sin() * x


LOOPS = [reads_its_start, reads_a_view, carries_one_twice, scans_from_what_it_reads]


@pytest.mark.parametrize("function", LOOPS)
def test_compiled_loops_may_read_what_they_carry(function: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(3, dtype=torch.float64, requires_grad=True)
    found = torch.compile(function, backend="weft", options={"fallback": "error"})(x)
    torch.testing.assert_close(found, by_hand(x))
    torch.testing.assert_close(*(torch.autograd.grad(each.sum(), x) for each in (found, by_hand(x))))


@pytest.mark.parametrize("function", LOOPS)
def test_transformed_loops_may_read_what_they_carry(function: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(2, 3, dtype=torch.float64)
    gradient = torch.func.vmap(torch.func.grad(lambda x: by_hand(x).sum()))(x)
    torch.testing.assert_close(weft.vmap(weft.grad(lambda x: function(x).sum()))(x), gradient)
    tangent = torch.func.jvp(by_hand, (x[0],), (x[1],))
    torch.testing.assert_close(weft.jvp(function, (x[0],), (x[1],)), tangent)
    compiled = torch.compile(function, backend="weft", options={"fallback": "error"})
    torch.testing.assert_close(torch.func.jvp(compiled, (x[0],), (x[1],)), tangent)


def test_sizes_that_loops_carry_and_read_are_not_copied() -> None:
    def counted(x: Tensor) -> tuple[Any, Tensor]:
        n = x.shape[0]
        return while_loop(lambda i, m, y: i > n - 3, lambda i, m, y: (i - 1, m, y.sin() * 1.0), (n, n, x))

    torch.compiler.reset()
    x = torch.randn(5, dtype=torch.float64)
    found = torch.compile(counted, backend="weft", dynamic=True)(x)
    assert found[:2] == (2, 5)
    torch.testing.assert_close(found[2], x.sin().sin().sin())
