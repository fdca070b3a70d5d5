"""What is written over a part of a tensor: of its shape, and of its type, or both eager and Weft refuse it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

PLACES, MASK = torch.tensor([0, 2]), torch.tensor([True, False, True])
REFUSED: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Tensor]] = {
    "steps backwards": (lambda x, y: torch.slice_scatter(x, y, 1, 0, 2, -1), torch.ones(3, 2)),
    "steps of 0": (lambda x, y: torch.slice_scatter(x, y, 1, 0, 2, 0), torch.ones(3, 2)),
    "more than a slice": (lambda x, y: torch.slice_scatter(x, y, 0, 1, 2), torch.ones(2, 2)),
    "a slice that would be expanded": (lambda x, y: torch.slice_scatter(x, y, 0, -2, 9), torch.ones(2, 1)),
    "a row that would be expanded": (lambda x, y: torch.select_scatter(x, y, 0, 1), torch.ones(1)),
    "less than a diagonal": (lambda x, y: torch.diagonal_scatter(x, y), torch.ones(1)),
    "more than a diagonal": (lambda x, y: torch.diagonal_scatter(x, y, 5), torch.ones(1)),
    "integers at places": (lambda x, y: x.index_put((PLACES,), y), torch.ones(2, 2, dtype=torch.int64)),
    "a number at places": (lambda x, y: x.index_put((PLACES,), y), torch.tensor(1)),
    "integers at a mask": (lambda x, y: x.index_put((MASK,), y), torch.ones(2, dtype=torch.int64)),
    "a number that is added": (lambda x, y: x.index_put((MASK,), y, accumulate=True), torch.tensor(1)),
}
TAKEN: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Tensor]] = {
    "every second row from the end": (lambda x, y: torch.slice_scatter(x, y, 0, -5, None, 2), torch.ones(2, 2)),
    "rows past the end": (lambda x, y: torch.slice_scatter(x, y, 0, -2, 9), torch.ones(2, 2)),
    "an empty diagonal": (lambda x, y: torch.diagonal_scatter(x, y, 5), torch.ones(0)),
    "a diagonal below": (lambda x, y: torch.diagonal_scatter(x, y, -1), torch.ones(2)),
    "integers in a slice": (lambda x, y: torch.slice_scatter(x, y, 0, 1, 2), torch.ones(1, 2, dtype=torch.int64)),
    "a number of another type at a mask": (lambda x, y: x.index_put((MASK,), y), torch.tensor(1)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_refuses_is_refused(name: str) -> None:
    write, part = REFUSED[name]
    x = torch.randn(3, 2)
    torch.compiler.reset()
    for call in (write, torch.compile(write, backend="weft")):
        with pytest.raises(RuntimeError, match=r"slice|diagonal|types match"):
            call(x, part)


@pytest.mark.parametrize("name", TAKEN)
def test_what_eager_takes_is_compiled(name: str) -> None:
    write, part = TAKEN[name]
    x = torch.randn(3, 2)
    torch.compiler.reset()
    compiled = torch.compile(write, backend="weft", fullgraph=True, options={"fallback": "error"})
    torch.testing.assert_close(compiled(x, part), write(x, part))
