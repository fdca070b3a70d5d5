"""Configs that are compiled ahead of being measured."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

import weft.triton as triton
import weft.triton.language as tl
from weft.errors import CompilationError
from weft.frontends.triton.tuning import autotune as tuning
from weft.frontends.triton.tuning.compile_ahead import compiled_ahead
from weft.frontends.triton.tuning.config import Config

CONFIGS = [Config({"BLOCK": block}) for block in (16, 32, 64)]


def test_all_are_under_way_before_the_first_is_asked_for() -> None:
    begun: list[int] = []

    def compile_config(config: Config) -> None:
        begun.append(config.kwargs["BLOCK"])

    with compiled_ahead(CONFIGS, compile_config) as ready:
        for config in reversed(CONFIGS):
            ready(config)
            assert config.kwargs["BLOCK"] in begun
    assert sorted(begun) == [16, 32, 64]


def test_an_error_is_raised_by_the_config_that_has_it() -> None:
    def compile_config(config: Config) -> None:
        if config is CONFIGS[1]:
            raise CompilationError("no code")

    with compiled_ahead(CONFIGS, compile_config) as ready:
        ready(CONFIGS[0])
        with pytest.raises(CompilationError, match="no code"):
            ready(CONFIGS[1])
        ready(CONFIGS[2])


def test_what_is_not_begun_is_left_out_at_the_end() -> None:
    begun, go_on = list[Config](), threading.Event()

    def compile_config(config: Config) -> None:
        begun.append(config)
        go_on.wait(10)

    many = [Config({"BLOCK": block}) for block in range(100)]
    with pytest.raises(KeyboardInterrupt), compiled_ahead(many, compile_config):
        go_on.set()
        raise KeyboardInterrupt
    assert len(begun) < len(many)


@pytest.mark.parametrize("hooked", [False, True])
def test_tuning_compiles_ahead_unless_a_hook_may_change_the_arguments(
    monkeypatch: pytest.MonkeyPatch, hooked: bool
) -> None:
    monkeypatch.setattr(tuning, "_is_on_gpu", lambda named: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    asked: list[list[Config]] = []
    original = tuning.compiled_ahead
    monkeypatch.setattr(tuning, "compiled_ahead", lambda configs, run: asked.append(configs) or original(configs, run))

    @triton.autotune(
        configs=[
            triton.Config({"BLOCK": block}, num_warps=warps, pre_hook=(lambda named: None) if hooked else None)
            for block, warps in ((32, 1), (64, 2))
        ],
        key=["n"],
        cache_results=False,
    )
    @triton.jit
    def double(x: Any, y: Any, n: Any, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)

    x, y = torch.randn(1000), torch.full((1000,), torch.nan)
    double[lambda meta: (triton.cdiv(1000, meta["BLOCK"]),)](x, y, 1000)
    assert torch.equal(y, x * 2)
    assert [len(configs) for configs in asked] == [0 if hooked else 2]
