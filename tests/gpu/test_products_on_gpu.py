"""Products on a GPU's tensor cores against float64: odd sides, all ways to lie, bytes, and what is fused with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from weft.testing.conformance.model_check import compile_with

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

HALF, BYTE = torch.bfloat16, torch.float8_e4m3fn


def normal(*shape: int, dtype: torch.dtype = HALF) -> Tensor:
    return torch.randn(*shape, device="cuda").to(dtype)


def agree(function: Callable[..., Tensor], *inputs: Tensor, exact: Tensor, strict: bool = False) -> None:
    """At most half as wrong again as eager, and the same each time; with `strict`, by no library."""
    torch.compiler.reset()
    compiled: Any = compile_with("weft", cache=False, strict=strict)(function)
    found = compiled(*inputs)
    errors = [((each.double() - exact).norm() / exact.norm()).item() for each in (found, function(*inputs))]
    assert errors[0] <= 1.5 * errors[1] + 1e-6, errors
    assert all(torch.equal(found, compiled(*inputs)) for _ in range(3))


@pytest.mark.parametrize("sides", [(4000, 4088, 1032), (2056, 4104, 200), (1000, 8200, 328), (1536, 1536, 64)])
@pytest.mark.parametrize("turned", ["nn", "nt", "tn", "tt"])
def test_products_of_odd_sides(sides: tuple[int, int, int], turned: str) -> None:
    m, n, k = sides
    a = normal(k, m).t() if turned[0] == "t" else normal(m, k)
    b = normal(n, k).t() if turned[1] == "t" else normal(k, n)
    agree(torch.mm, a, b, exact=a.double() @ b.double())


@pytest.mark.parametrize(
    "sides",
    [
        (29, 93, 3201),
        (550, 55, 4812),
        (161, 1377, 2093),
        (768, 768, 16384),
        (300, 200, 8000),
        (67, 1200, 43),
        (2368, 4966, 67),
    ],
)
@pytest.mark.parametrize("turned", ["nn", "nt", "tn", "tt"])
def test_k_in_parts_and_rows_that_begin_anywhere(sides: tuple[int, int, int], turned: str) -> None:
    m, n, k = sides
    a = normal(k, m).t() if turned[0] == "t" else normal(m, k)
    b = normal(n, k).t() if turned[1] == "t" else normal(k, n)
    agree(torch.mm, a, b, exact=a.double() @ b.double(), strict=True)


@pytest.mark.parametrize("columns", [4097, 4098, 4100, 1283])
def test_results_whose_rows_begin_anywhere(columns: int) -> None:
    a, b, c = normal(1100, 520), normal(columns, 520), normal(1100, columns)
    agree(lambda a, b, c: F.relu(a @ b.t() + c), a, b, c, exact=(a.double() @ b.double().t() + c.double()).relu())


def test_batches_whose_rows_begin_anywhere() -> None:
    a, b = normal(7, 700, 520), normal(7, 1047, 520).mT
    agree(torch.bmm, a, b, exact=a.double() @ b.double())


def test_batches() -> None:
    a, b = normal(8, 1000, 520), normal(8, 520, 1048)
    agree(torch.bmm, a, b, exact=a.double() @ b.double())


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("rows", [False, True])
def test_products_of_8_bit_floats(fast: bool, rows: bool) -> None:
    m, n, k = 2000, 1552, 1040
    a, b = normal(m, k, dtype=BYTE), normal(n, k, dtype=BYTE)
    shapes = ((m, 1), (1, n)) if rows else ((), ())
    s, t = (torch.rand(shape, device="cuda") + 0.5 for shape in shapes)

    def scaled(a: Tensor, b: Tensor, s: Tensor, t: Tensor) -> Tensor:
        return torch._scaled_mm(a, b.t(), s, t, out_dtype=HALF, use_fast_accum=fast)

    agree(scaled, a, b, s, t, exact=(a.double() @ b.double().t()) * s.double() * t.double())


def test_products_of_8_bit_floats_in_blocks() -> None:
    m, n, k = 2000, 1536, 1040
    a, b = normal(m, k, dtype=BYTE), normal(n, k, dtype=BYTE)
    s, t = torch.rand(9, m, device="cuda").t() + 0.5, torch.rand(12, 9, device="cuda").t() + 0.5

    def scaled(a: Tensor, b: Tensor, s: Tensor, t: Tensor) -> Tensor:
        return torch._scaled_mm(a, b.t(), s, t, out_dtype=HALF)

    wide = [x.double().repeat_interleave(128, axis) for x, axis in ((s, 1), (t, 0))]
    columns = wide[1].repeat_interleave(128, 1)[:k, :n]
    exact = (a.double() * wide[0][:, :k]) @ (b.double().t() * columns)
    found = compile_with("weft", cache=False)(scaled)(a, b, s, t)
    assert ((found.double() - exact).norm() / exact.norm()).item() < 2e-3


def test_products_of_integers() -> None:
    a, b = (torch.randint(-128, 128, (1536, 1040), device="cuda", dtype=torch.int8) for _ in range(2))
    agree(lambda a, b: torch._int_mm(a, b.t()), a, b, exact=a.double() @ b.double().t())


def test_a_gate_and_what_it_opens() -> None:
    def gated(x: Tensor, w: Tensor) -> Tensor:
        gate, opened = (x @ w.t()).chunk(2, -1)
        return F.silu(gate) * opened

    x, w = normal(1500, 1032), normal(6000, 1032)
    agree(gated, x, w, exact=gated(x.double(), w.double()))


@pytest.mark.parametrize("sides", [(1000, 520, 264), (192, 64, 128), (2048, 4096, 512), (333, 768, 1024)])
def test_a_residual(sides: tuple[int, int, int]) -> None:
    m, n, k = sides
    x, w, r = normal(m, k), normal(n, k), normal(m, n)
    agree(lambda x, w, r: F.gelu(x @ w.t()) + r, x, w, r, exact=F.gelu(x.double() @ w.double().t()) + r.double())
