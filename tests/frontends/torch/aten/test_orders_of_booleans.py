"""Booleans, for which torch has no order but that of extrema and sorting: what eager refuses, Weft refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

TRUTHS = torch.tensor([[True, False, True], [False, False, True]])

REFUSED: dict[str, Callable[[Any], Any]] = {
    "argmax": lambda x: x.argmax(),
    "argmax of rows": lambda x: x.argmax(1, keepdim=True),
    "argmin": lambda x: x.argmin(),
    "argmin of rows": lambda x: x.argmin(0),
    "topk": lambda x: x.topk(1)[1],
    "kthvalue": lambda x: x.kthvalue(1)[1],
    "median": lambda x: x.median(),
    "median of rows": lambda x: x.median(1)[1],
    "nanmedian": lambda x: x.nanmedian(),
}
TAKEN: dict[str, Callable[[Any], Any]] = {
    "max of rows": lambda x: x.max(1)[1],
    "min of rows": lambda x: x.min(0)[1],
    "sort": lambda x: x.sort(1)[0],
    "cummax": lambda x: x.cummax(1)[1],
}


def compiled(function: Callable[[Any], Any]) -> Any:
    torch.compiler.reset()
    return torch.compile(function, backend="weft", options={"fallback": "quiet"})


@pytest.mark.parametrize("function", REFUSED.values(), ids=REFUSED)
def test_what_eager_refuses_is_refused(function: Callable[[Any], Any]) -> None:
    for call in (function, compiled(function)):
        with pytest.raises((RuntimeError, NotImplementedError), match=r"bool|Bool"):
            call(TRUTHS)


@pytest.mark.parametrize("function", TAKEN.values(), ids=TAKEN)
def test_what_eager_takes_is_taken(function: Callable[[Any], Any]) -> None:
    assert torch.equal(compiled(function)(TRUTHS), function(TRUTHS))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float32])
def test_the_median_of_nothing_is_eagers(dtype: torch.dtype) -> None:
    nothing = torch.empty(0, dtype=dtype)
    torch.testing.assert_close(compiled(lambda x: x.median())(nothing), nothing.median(), equal_nan=True)
