"""Rows in groups, each times the matrix of its group, on a GPU that is there."""

from __future__ import annotations

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]
OPTIONS = {"cache": False}
SIZES = [(300, 5, 512, 640), (64, 32, 2880, 2880), (1000, 7, 1000, 512), (2048, 8, 1024, 256), (777, 64, 320, 192)]


def ends_of(kind: str, rows: int, groups: int) -> torch.Tensor:
    cuts = {
        "anywhere": torch.sort(torch.randint(0, rows + 1, (groups - 1,)))[0],
        "one group": torch.zeros(groups - 1, dtype=torch.int64),
        "one long": torch.arange(1, groups).clamp(max=rows),
    }
    return torch.cat([cuts[kind], torch.tensor([rows])]).to(torch.int32).cuda()


def exact(x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    parts, start = [], 0
    for group, end in enumerate(ends.tolist()):
        parts.append(x[start:end].double() @ w[group].double())
        start = end
    return torch.cat(parts)


@pytest.mark.parametrize("along", ["k", "n"])
@pytest.mark.parametrize(("rows", "groups", "n", "k"), SIZES)
def test_groups(rows: int, groups: int, n: int, k: int, along: str) -> None:
    torch._dynamo.reset()
    call = torch.compile(lambda x, w, ends: torch._grouped_mm(x, w, offs=ends), backend="weft", options=OPTIONS)
    for kind in ("anywhere", "one group", "one long"):
        x = torch.randn(rows, k, device="cuda", dtype=torch.bfloat16)
        w = torch.randn((groups, n, k) if along == "k" else (groups, k, n), device="cuda", dtype=torch.bfloat16)
        w = w.transpose(1, 2) if along == "k" else w
        ends = ends_of(kind, rows, groups)
        found, wanted = call(x, w, ends), exact(x, w, ends)
        assert float((found.double() - wanted).norm() / wanted.norm()) < 2**-8
        assert torch.equal(found, call(x, w, ends))
