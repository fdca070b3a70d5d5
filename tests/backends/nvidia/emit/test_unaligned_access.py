"""Rows that begin anywhere, of threads that hold more than 16 bytes of them: the PTX, run on the CPU."""

from __future__ import annotations

import pytest
import torch

from ..emulated_graphs import torch_backend


@pytest.mark.parametrize("narrow", [torch.int8, torch.bool])
@pytest.mark.parametrize("wide", [torch.bfloat16, torch.float32])
def test_a_thread_of_two_chunks_takes_the_one_before_its_second_from_no_other_lane(
    narrow: torch.dtype, wide: torch.dtype
) -> None:
    def chosen(codes: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return torch.where(codes[0] != 0, codes.to(values.dtype), values)

    torch.compiler.reset()
    codes, values = (torch.randn(5, 77) * 20).to(narrow), torch.randn(5, 77).to(wide)
    found = torch.compile(chosen, backend=torch_backend, dynamic=True)(codes, values)
    assert torch.equal(found, chosen(codes, values))
