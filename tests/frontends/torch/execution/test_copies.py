"""Many tensors are copied at once, whatever their types are."""

from __future__ import annotations

import pytest
import torch

from weft.frontends.torch.execution.copies import CopiesIn, CopiesOut, copy_all

TYPES = (torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2, torch.bool, torch.complex64)
# torch copies lists of these on a GPU; what else there is has to come as one of them.
LISTED = {torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32}
LISTED |= {torch.float64, torch.bool, torch.complex64, torch.complex128}


def drawn(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.randint(0, 100, shape).to(dtype)


@pytest.fixture(autouse=True)
def only_listed_types(monkeypatch: pytest.MonkeyPatch) -> None:
    copy = torch._foreach_copy_

    def checked(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
        assert {each.dtype for each in (*targets, *sources)} <= LISTED
        copy(targets, sources)

    monkeypatch.setattr(torch, "_foreach_copy_", checked)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_copies_of_any_type(dtype: torch.dtype) -> None:
    sources = [drawn(dtype, 3, 4), drawn(dtype, 5), drawn(dtype), drawn(dtype, 4, 3).T, drawn(dtype, 0)]
    targets = [torch.zeros_like(each) for each in sources]
    copy_all(list(zip(targets, sources, strict=True)))
    assert all(
        torch.equal(mine.to(torch.complex64), each.to(torch.complex64))
        for mine, each in zip(targets, sources, strict=True)
    )
    again = [torch.zeros_like(each) for each in sources]
    CopiesIn(dict(enumerate(again)))(sources)
    found = CopiesOut(again)(lambda shape, strides, kind: torch.empty_strided(shape, strides, dtype=kind))
    assert all(
        torch.equal(mine.to(torch.complex64), each.to(torch.complex64))
        for mine, each in zip(found, sources, strict=True)
    )
