"""Lists of tensors are copied in the graph, also where types differ or shapes are broadcast."""

from __future__ import annotations

import torch
from torch import Tensor


def test_copies_into_lists() -> None:
    def run(into: list[Tensor], given: list[Tensor]) -> Tensor:
        torch._foreach_copy_(into, given)
        return into[0].sum() + given[1].sum()

    compiled = torch.compile(run, backend="weft", fullgraph=True, options={"fallback": "error"})
    given = [torch.randn(3, 4, dtype=torch.float64), torch.arange(4), torch.randn(4, 3).t(), torch.randn(0)]
    targets = [torch.zeros(3, 4), torch.zeros(2, 4), torch.zeros(3, 4), torch.zeros(0)]
    wanted, found = targets, [target.clone() for target in targets]
    torch.testing.assert_close(compiled(found, given), run(wanted, given))
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
