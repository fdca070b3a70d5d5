"""Tile IR is built once for configs that differ in their warps alone, and compiled for each."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import weft.triton as triton
import weft.triton.language as tl
from weft.backends.nvidia.target import NvidiaTarget
from weft.frontends.triton.listings.device_listing import device_listing_of
from weft.frontends.triton.runtime import device_compiled
from weft.frontends.triton.runtime.built_kernels import BuiltKernels
from weft.frontends.triton.runtime.compiling import arguments_of, builder_of, name_of
from weft.frontends.triton.runtime.device_compiled import compile_device_kernel
from weft.triton.language.extra.cuda import num_warps


@triton.jit
def doubled(x, out, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    tl.store(out + places, 2 * tl.load(x + places))


@triton.jit
def warps_of(x, out, BLOCK: tl.constexpr):
    tl.store(out + tl.arange(0, BLOCK), tl.load(x + tl.arange(0, BLOCK)) * num_warps())


@triton.jit
def two_sums_and_a_third_dot(a, b, c, d, out, N: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.arange(0, BLOCK)
    first, second = tl.zeros((BLOCK, BLOCK), tl.float32), tl.zeros((BLOCK, BLOCK), tl.float32)
    places = rows[:, None] * BLOCK + rows[None, :]
    mask = tl.where(rows[:, None] >= rows[None, :], tl.load(d + places), 0.0).to(tl.float16)
    for start in range(0, N, BLOCK):
        left = tl.load(a + rows[:, None] * N + start + rows[None, :])
        first += tl.dot(left, tl.load(b + (start + rows)[:, None] * BLOCK + rows[None, :]))
        second += tl.dot(left, tl.load(c + (start + rows)[:, None] * BLOCK + rows[None, :]))
        tl.store(out + 2 * BLOCK * BLOCK + start * BLOCK + places, tl.dot(tl.trans(mask), left))
    tl.store(out + places, first)
    tl.store(out + BLOCK * BLOCK + places, second)


def _built(kernel: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[str]]:
    """How often a kernel was built for 1, 4 and 8 warps, and the PTX of each."""
    monkeypatch.setattr(device_compiled, "_built", BuiltKernels())
    x = torch.zeros(256)
    described, groups = kernel.launcher.describe([x, torch.zeros(256), 256], {})
    count, texts = [0], list[str]()
    once = builder_of(kernel, described)

    def build(*given: Any) -> None:
        count[0] += 1
        once(*given)

    for warps in (1, 4, 8):
        arguments = arguments_of(described, groups)
        code = compile_device_kernel(build, arguments, name_of(kernel), NvidiaTarget(), warps, tiles="key")
        texts += code.code.modules.values()
    return count[0], texts


def test_a_kernel_is_built_once_for_all_warps_and_is_what_it_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    count, texts = _built(doubled, monkeypatch)
    assert count == 1
    for warps, text in zip((1, 4, 8), texts, strict=True):
        given = [torch.zeros(256), torch.zeros(256), 256]
        _, alone = device_listing_of(doubled, given, {"num_warps": warps}, NvidiaTarget())
        assert [text] == list(alone.modules.values()) and f".reqntid {32 * warps}" in text


def test_a_kernel_that_asks_for_its_warps_is_built_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _built(warps_of, monkeypatch)[0] == 3


def test_few_are_kept() -> None:
    kernels: Any = BuiltKernels()
    for number in range(100):
        kernels.get(str(number), lambda: ("kernel", (), True))
    built: list[str] = []
    kernels.get("99", lambda: built.append("again"))
    kernels.get("0", lambda: built.append("anew") or ("kernel", (), True))
    assert built == ["anew"]


@pytest.mark.parametrize("warps", [1, 2, 4])
def test_a_dot_beside_two_that_a_loop_sums_up(warps: int) -> None:
    halves = [torch.zeros(16, 64, dtype=torch.float16) for _ in range(4)]
    given = [*halves, torch.zeros(6, 16, 16), 64, 16]
    listing, _ = device_listing_of(two_sums_and_a_third_dot, given, {"num_warps": warps}, NvidiaTarget())
    assert ".entry" in listing.code["ptx"]
