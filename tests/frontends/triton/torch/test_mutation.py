"""`triton_op` and `wrap_triton`: torch learns from Weft which tensors a kernel writes."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch.library import triton_op, wrap_triton

import weft.triton as triton
import weft.triton.language as tl
from weft.frontends.triton.torch.mutation import written_tensors


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr, TWICE: tl.constexpr = False):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    index = tl.load(x + places, mask=places < n).to(tl.int64) * 0 + places  # an index that was read from x
    total = tl.load(x + index, mask=places < n) + tl.load(y + places, mask=places < n)
    tl.store(out + index, total, mask=places < n)
    if TWICE:
        tl.store(y + places, total, mask=places < n)


tuned: Any = triton.autotune([triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 32})], key=["n"])(add)
computed: Any = triton.heuristics({"TWICE": lambda args: args["n"] > 4})(add)


@pytest.mark.parametrize(
    ("kernel", "more", "written"),
    [
        (add, {"BLOCK": 16}, ("out",)),
        (add, {"BLOCK": 16, "TWICE": True}, ("y", "out")),
        (tuned, {}, ("out",)),
        (computed, {"BLOCK": 16}, ("y", "out")),
    ],
    ids=["plain", "both", "tuned", "computed"],
)
def test_only_what_is_written_counts(kernel: Any, more: dict[str, Any], written: tuple[str, ...]) -> None:
    tensors = {name: torch.zeros(16) for name in ("x", "y", "out")}
    assert written_tensors(kernel, {**tensors, "n": 16, **more}) == written


def test_what_cannot_be_compiled_counts_by_its_text() -> None:
    tensors = {name: torch.zeros(16) for name in ("x", "y", "out")}
    assert {"out"} <= set(written_tensors(add, {**tensors, "n": object(), "BLOCK": 16}))


@pytest.mark.parametrize("backend", ["aot_eager", "weft"])
def test_an_operator_of_a_kernel_is_compiled_without_a_word(backend: str, caplog: pytest.LogCaptureFixture) -> None:
    with triton.enable():
        name = f"weft_test::added_{backend}"

        @triton_op(name, mutates_args={})
        def added(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(x)
            size = out.numel()
            wrap_triton(add)[(triton.cdiv(size, 16),)](x, y, out, size, 16)
            return out

        def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return added(x.sin(), y) * 2

        x, y = torch.rand(100), torch.rand(100)
        kept = y.clone()
        with caplog.at_level(logging.WARNING):
            result = torch.compile(f, backend=backend, fullgraph=True)(x, y)
        assert torch.allclose(result, (x.sin() + y) * 2) and torch.equal(y, kept)
        assert "every input is mutated" not in caplog.text
