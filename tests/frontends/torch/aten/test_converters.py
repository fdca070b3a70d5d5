"""Converters with symbolic sizes: nothing is left to torch, and one compilation serves two sets of sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from weft.frontends.torch import backend
from weft.frontends.torch.report import record_targets

Sizes = tuple[int, int]
Case = tuple[str, Callable[..., Any], Callable[[int, int], tuple[torch.Tensor, ...]]]


def one(m: int, n: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(m, n),)


def two(m: int, n: int) -> tuple[torch.Tensor, ...]:
    return torch.randn(m, n), torch.randn(m, n)


def images(m: int, n: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(m, 4, n, n + 1),)


def places(m: int, n: int) -> tuple[torch.Tensor, ...]:
    return torch.randn(m, n), torch.randint(0, m, (3, n))


CASES: list[Case] = [
    ("arithmetic", lambda x, y: (x + 2 * y - y / 3, x // 0.7, x % 0.7, torch.fmod(x, y), x**2, x.abs() ** 0.3), two),
    ("comparison", lambda x, y: (x > y, x == y, (x < 0) | (y != 0), torch.where(x > y, x, 0.0)), two),
    ("clamping", lambda x, y: (x.clamp(-1, 1), x.clamp(min=y), torch.maximum(x, y), F.hardtanh(x)), two),
    ("activations", lambda x: (F.gelu(x), F.silu(x), F.elu(x), F.leaky_relu(x), F.softplus(x), F.mish(x)), one),
    ("reductions", lambda x: (x.sum(0), x.mean(), x.var(1), x.std(), x.amax(0), x.prod(1), x.logsumexp(1)), one),
    ("places of extrema", lambda x: (*x.max(0), *x.min(1), x.argmax(), x.argmin(1, keepdim=True)), one),
    ("norms", lambda x: (x.norm(), x.norm(1, 0), torch.linalg.vector_norm(x, 3, 1), x.norm(torch.inf)), one),
    ("scans", lambda x: (x.cumsum(0), x.cumprod(1), *x.cummax(0), x.logcumsumexp(1)), one),
    ("truth", lambda x: ((x > 0).any(), (x > 0).all(1), torch.isnan(x), torch.isinf(x), torch.signbit(x)), one),
    ("shapes", lambda x: (x.t().reshape(-1), x[None].expand(3, -1, -1), x.unflatten(0, (1, -1)), x.repeat(2, 3)), one),
    ("slices", lambda x: (x[1:], x[:, ::2], x[-2:], x[..., -1], x.flip(0), x.roll(1, 0), x.narrow(1, 1, 2)), one),
    ("joins", lambda x, y: (torch.cat([x, y, x]), torch.stack([x, y], 1), torch.hstack([x[:, :2], y])), two),
    ("padding", lambda x: (F.pad(x, (1, 2, 0, 3), value=2.0), F.pad(x, (-1, 1)), x.tril(), x.diagonal(1)), one),
    ("writing", lambda x, y: (torch.slice_scatter(x, y[1:], 0, 1), torch.select_scatter(x, y[0], 0, -1)), two),
    ("diagonals", lambda x, y: torch.diagonal_scatter(x, y.diagonal(1) * 2, 1), two),
    ("ranges", lambda x: (torch.arange(x.shape[0]) + torch.arange(x.shape[0] * 2, 0, -2), x.new_full(x.shape, 3)), one),
    ("indexing", lambda x, i: (x[i[:, 0]], x.gather(0, i), x.index_select(0, i[0]), torch.take(x, i)), places),
    ("masks", lambda x: (x.masked_fill(x > 0, -1.0), x.clone().masked_scatter_(x > 0, x * 2)), one),
    (
        "scatter",
        lambda x, i: (x.scatter(0, i, 2.0), x.scatter_add(0, i, x[:3]), x.index_put((i[0],), x[0, 0])),
        places,
    ),
    (
        "scatter and reduce",
        lambda x, i: tuple(
            x.scatter_reduce(0, i, x[:3] * 2, kind, include_self=own)
            for kind in ("sum", "mean", "amax", "prod")
            for own in (True, False)
        ),
        places,
    ),
    ("sorting", lambda x: (*x.sort(1), *x.topk(2, 0), x.argsort(0, descending=True)), one),
    ("products", lambda x, y: (x @ y.t(), torch.addmm(x[:, :1], x, y.t(), beta=0.5, alpha=2), x[0].dot(y[0])), two),
    ("batched products", lambda x: (x.transpose(2, 3) @ x, torch.einsum("abij,abkj->aik", x, x)), images),
    ("softmax", lambda x: (F.softmax(x, 0), F.log_softmax(x, 1), F.cross_entropy(x, x.argmax(1))), one),
    (
        "normalisation",
        lambda x: (F.group_norm(x, 2, torch.ones(4)), F.batch_norm(x, None, None, training=True), F.instance_norm(x)),
        images,
    ),
    ("layer normalisation", lambda x: (F.layer_norm(x.t()[:4].t(), (4,)), F.rms_norm(x[:, :4], (4,))), one),
    (
        "convolution",
        lambda x: (
            F.conv2d(x, torch.ones(6, 2, 3, 3), padding=1, groups=2),
            F.conv_transpose2d(x, torch.ones(4, 2, 2, 2), stride=2),
        ),
        images,
    ),
    ("pooling", lambda x: (F.max_pool2d(x, 2), F.avg_pool2d(x, 3, 2, 1), F.adaptive_avg_pool2d(x, (1, 2))), images),
    ("resizing", lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), images),
    ("distances", lambda x, y: (torch.cdist(x, y), torch.cdist(x, y, 1.0)), two),
    ("types", lambda x: (x.int() // 2, x.bool().sum(), x.double().float(), x.to(torch.bfloat16) * 0.3), one),
]


@pytest.mark.parametrize("case", CASES, ids=[name for name, *_ in CASES])
def test_symbolic_sizes(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    _, function, inputs = case
    torch.compiler.reset()
    torch.manual_seed(0)
    graphs: list[str] = []
    original = backend.import_graph
    monkeypatch.setattr(backend, "import_graph", lambda *given: (graphs.append(given[1]), original(*given))[1])
    run = torch.compile(function, backend=backend.weft_backend, dynamic=True, options={"target": "reference"})
    with record_targets() as record:
        for m, n in ((5, 6), (7, 8)):
            arguments = inputs(m, n)
            torch.testing.assert_close(run(*arguments), function(*arguments), rtol=1e-4, atol=1e-5)
    assert not record.fallbacks
    assert len(graphs) == 1
