"""`num_stages` and `maxnreg` of a launch shape its code on a GPU; options without effect are told once."""

from __future__ import annotations

import logging
import re
from typing import Any

import numpy as np
import pytest
import torch

import weft.triton as triton
import weft.triton.language as tl
from tests.backends.nvidia.emulation import compile_like, emulate
from tests.backends.nvidia.ptxas import assemble, needs_ptxas
from tests.seeds import generator
from weft.backends.nvidia.target import NvidiaTarget
from weft.diagnostics import forget
from weft.frontends.triton.listings.device_listing import device_listing_of
from weft.frontends.triton.runtime.binding import with_options

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
def gathered(a, b, c, at, N: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr):
    rows, columns, inner = tl.load(at + tl.arange(0, BM)), tl.arange(0, N), tl.arange(0, BK)
    total = tl.zeros((BM, N), tl.float32)
    for start in range(0, K, BK):
        left = tl.load(a + rows[:, None] * K + start + inner[None, :])
        total += tl.dot(left, tl.load(b + (start + inner)[:, None] * N + columns[None, :]))
    tl.store(c + tl.arange(0, BM)[:, None] * N + columns[None, :], total)


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


def shared(kernel: Any, args: list[Any], **options: Any) -> int:
    code = compile_like(kernel, args, {**launch(), **options}, "sm_90a")
    return code.code.launches[code.name].shared


def test_stages_bound_the_pipeline_of_tma() -> None:
    given = matrices()
    sizes = {count: shared(product, given, num_stages=count) for count in (2, 3, 4)}
    stage = (BLOCK * DEPTH + DEPTH * SIDE) * 2
    assert sizes[3] - sizes[2] == pytest.approx(stage, abs=1024)
    assert sizes[4] - sizes[3] == pytest.approx(stage, abs=1024)
    assert shared(product, given, num_stages=100) == shared(product, given)


@pytest.mark.parametrize("stages", [0, 1])
def test_one_stage_is_no_pipeline(stages: int) -> None:
    for kernel, given in ((product, matrices()), (gathered, [*matrices(), np.arange(BLOCK)])):
        listing, _ = device_listing_of(kernel, given, {**launch(), "num_stages": stages}, NvidiaTarget())
        assert shared(kernel, given, num_stages=stages) < shared(kernel, given, num_stages=2)
        assert any("its author allows one" in str(note.refused) for note in listing.passes)


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_products_are_right_at_any_depth(stages: int) -> None:
    a, b, c = matrices()
    emulate(product, a, b, c, **launch(), num_stages=stages)
    np.testing.assert_allclose(c, a.astype(np.float64) @ b.astype(np.float64), rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("stages", [2, 3])
def test_threads_copy_no_further_ahead(stages: int) -> None:
    (a, b, c), at = matrices(), generator().permutation(BLOCK)
    listing, code = device_listing_of(gathered, [a, b, c, at], {**launch(), "num_stages": stages}, NvidiaTarget())
    assert "cp.async.cg" in code.ptx or "cp.async.ca" in code.ptx, [str(note) for note in listing.passes]
    emulate(gathered, a, b, c, at, **launch(), num_stages=stages)
    np.testing.assert_allclose(c, a[at].astype(np.float64) @ b.astype(np.float64), rtol=1e-3, atol=1e-2)


@needs_ptxas
@pytest.mark.parametrize("kernel", [product, doubled])
def test_registers_are_limited(kernel: Any) -> None:
    given, options = matrices(), launch()
    if kernel is doubled:
        given, options = [*np.zeros((2, 8192), np.float32)], {"WIDTH": 8192}
    target = NvidiaTarget()
    for limit in (96, 128):
        _, code = device_listing_of(kernel, given, {**options, "maxnreg": limit}, target)
        assert f".maxnreg {limit}" in code.ptx
        assert "setmaxnreg" not in code.ptx
        assert ".minnctapersm" not in code.ptx
        assembly = assemble(code.ptx, target.arch)
        assert not assembly.error
        assert not assembly.advice
        assert all(each.registers <= limit for each in assembly.kernels.values())


def test_registers_are_no_more_than_a_block_has() -> None:
    x = [*np.zeros((2, 8192), np.float32)]
    _, code = device_listing_of(doubled, x, {"WIDTH": 8192, "num_warps": 16, "maxnreg": 1000}, NvidiaTarget())
    (limit,) = re.findall(r"\.maxnreg (\d+)", code.ptx)
    assert int(limit) == 128


def test_code_without_options_is_as_it_was() -> None:
    given, options = matrices(), launch()
    _, plain = device_listing_of(product, given, options, NvidiaTarget())
    _, none = device_listing_of(product, given, {**options, "num_stages": None, "maxnreg": None}, NvidiaTarget())
    assert plain.ptx == none.ptx
    assert ".maxnreg" not in plain.ptx


def test_launches_are_told_apart_by_what_shapes_code() -> None:
    options: list[dict[str, Any]] = [{}, {"num_warps": 2}, {"num_stages": 2}, {"maxnreg": 2}]
    assert len({with_options(("kinds", ()), each) for each in options}) == len(options)
    assert with_options(("kinds", ()), {"num_ctas": 2, "maxnreg": None}) == ("kinds", ())


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
        r"weft: .*test_code_limits\.py:\d+: enable_fp_fusion=False of doubled has no effect, .*; round", told
    )
