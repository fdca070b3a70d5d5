"""`maxnreg` of a launch limits registers on a GPU; options without effect are told once."""

from __future__ import annotations

import logging
import re
from typing import Any

import numpy as np
import pytest
import torch

import weft.triton as triton
import weft.triton.language as tl
from tests.backends.nvidia.ptxas import assemble, needs_ptxas
from tests.seeds import generator
from weft.backends.nvidia.target import NvidiaTarget
from weft.diagnostics import forget
from weft.frontends.triton.listings.device_listing import device_listing_of
from weft.frontends.triton.runtime.binding import with_options
from weft.frontends.triton.runtime.jit import options_fit

SIDE, DEPTH, BLOCK = 128, 64, 64


@triton.jit
def product(a, b, c, N: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr):
    rows, columns, inner = tl.arange(0, BM), tl.arange(0, N), tl.arange(0, BK)
    total = tl.zeros((BM, N), tl.float32)
    for start in range(0, K, BK):
        left = tl.load(a + rows[:, None] * K + start + inner[None, :])
        total += tl.dot(left, tl.load(b + (start + inner)[:, None] * N + columns[None, :]))
    tl.store(c + rows[:, None] * N + columns[None, :], total)


@triton.jit
def doubled(x, out, WIDTH: tl.constexpr):
    places = tl.arange(0, WIDTH)
    tl.store(out + places, 2 * tl.load(x + places))


def matrices(depth: int = 6 * DEPTH) -> list[np.ndarray]:
    draw = generator()
    a, b = (draw.standard_normal(shape).astype(np.float16) for shape in ((BLOCK, depth), (depth, SIDE)))
    return [a, b, np.zeros((BLOCK, SIDE), np.float32)]


def launch(depth: int = 6 * DEPTH) -> dict[str, Any]:
    return {"N": SIDE, "K": depth, "BM": BLOCK, "BK": DEPTH, "num_warps": 4}


def test_how_deep_a_pipeline_is_remains_wefts_choice() -> None:
    codes = [
        device_listing_of(product, matrices(), {**launch(), "num_stages": stages}, NvidiaTarget())[1].ptx
        for stages in (None, 1, 2, 5)
    ]
    assert len(set(codes)) == 1


@needs_ptxas
@pytest.mark.parametrize("limit", [96, np.int64(128), tl.constexpr(64)])
def test_registers_are_limited(limit: Any) -> None:
    target, count = NvidiaTarget(), int(getattr(limit, "value", limit))
    given = [*np.zeros((2, 8192), np.float32)]
    _, code = device_listing_of(doubled, given, {"WIDTH": 8192, "maxnreg": limit}, target)
    assert f".maxnreg {count}" in code.ptx
    assert ".minnctapersm" not in code.ptx
    assembly = assemble(code.ptx, target.arch)
    assert not assembly.error
    assert not assembly.advice
    assert all(each.registers <= count for each in assembly.kernels.values())


def test_registers_that_warp_roles_share_are_not_limited(caplog: pytest.LogCaptureFixture) -> None:
    forget()
    with caplog.at_level(logging.WARNING, logger="weft"):
        _, code = device_listing_of(product, matrices(), {**launch(), "maxnreg": 64}, NvidiaTarget())
    assert "wgmma" in code.ptx
    assert ".maxnreg" not in code.ptx
    (told,) = caplog.messages
    assert "maxnreg=64 of product has no effect, Weft shares the registers" in told


def test_what_a_cpu_does_not_miss_is_silent_and_quick() -> None:
    forget()
    x, out = torch.arange(64.0), torch.zeros(64)
    doubled[(1,)](x, out, 64, num_stages=1, num_ctas=2)
    assert options_fit({"num_stages": 1, "num_ctas": 2})
    assert options_fit({}) and not options_fit({"nonsense": "x"}) and not options_fit({"num_warps": "four"})
    assert not options_fit({"enable_fp_fusion": False})


def test_registers_are_no_more_than_a_block_has() -> None:
    x = [*np.zeros((2, 8192), np.float32)]
    _, code = device_listing_of(doubled, x, {"WIDTH": 8192, "num_warps": 16, "maxnreg": 1000}, NvidiaTarget())
    (limit,) = re.findall(r"\.maxnreg (\d+)", code.ptx)
    assert int(limit) == 128


def test_code_without_options_is_as_it_was() -> None:
    given, options = matrices(), launch()
    _, plain = device_listing_of(product, given, options, NvidiaTarget())
    _, none = device_listing_of(product, given, {**options, "maxnreg": None}, NvidiaTarget())
    assert plain.ptx == none.ptx
    assert ".maxnreg" not in plain.ptx


def test_launches_are_told_apart_by_what_shapes_code() -> None:
    options: list[dict[str, Any]] = [{}, {"num_warps": 2}, {"maxnreg": 2}]
    assert len({with_options(("kinds", ()), each) for each in options}) == len(options)
    assert with_options(("kinds", ()), {"num_ctas": 2, "num_stages": 2, "maxnreg": None}) == ("kinds", ())


def test_an_option_without_effect_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    forget()
    x, out = torch.arange(64.0), torch.zeros(64)
    with caplog.at_level(logging.WARNING, logger="weft"):
        doubled[(1,)](x, out, 64)
        assert not caplog.messages
        doubled[(1,)](x, out, 64, enable_fp_fusion=True, num_ctas=1, num_warps=8, maxnreg=64, num_stages=2)
        assert not caplog.messages
        for _ in range(3):
            doubled[(1,)](x, out, 64, enable_fp_fusion=False)
    (told,) = caplog.messages
    assert re.match(
        r"weft: .*test_launch_options\.py:\d+: enable_fp_fusion=False of doubled has no effect, .*; round", told
    )
