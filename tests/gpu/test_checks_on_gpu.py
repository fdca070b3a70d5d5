"""Mistakes in a GPU's data are found by programs there, and raised by a later call; the GPU stays usable."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from weft.errors import DivisionError, PlaceError

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


def compiled(function, **options):
    torch.compiler.reset()
    return torch.compile(function, backend="weft", options={"cache": False, **options})


@pytest.mark.parametrize("cuda_graphs", [False, True])
def test_a_later_call_raises(cuda_graphs: bool) -> None:
    table = torch.randn(100, 64, device="cuda")

    def function(i: Tensor, x: Tensor) -> Tensor:
        return F.embedding(i, x).sin() + 1

    run = compiled(function, device_checks="on", cuda_graphs=cuda_graphs)
    good, bad = torch.arange(50, device="cuda"), torch.full((50,), 100, device="cuda")
    for _ in range(5):
        torch.testing.assert_close(run(good, table), function(good, table))
    run(bad, table)
    torch.cuda.synchronize()
    with pytest.raises(PlaceError, match=r"embedding: an index is out of range for dimension 0, of size 100"):
        run(good, table)
    for _ in range(3):
        torch.testing.assert_close(run(good, table), function(good, table))


def test_a_call_that_waits_raises_at_once() -> None:
    x = torch.arange(10, device="cuda")
    run = compiled(lambda a, b: a // b, device_checks="wait")
    torch.testing.assert_close(run(x, x + 1), x // (x + 1))
    with pytest.raises(DivisionError, match="divided by zero"):
        run(x, x)


def test_small_graphs_are_not_checked_and_read_nothing_foreign() -> None:
    table = torch.randn(100, 64, device="cuda")
    run = compiled(lambda i: table[i] * 2)
    torch.testing.assert_close(run(torch.tensor([100], device="cuda")), table[99:] * 2)
    torch.cuda.synchronize()
    run(torch.tensor([1], device="cuda"))
