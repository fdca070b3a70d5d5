"""`autotune` and `heuristics`, and what is kept of what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import weft.triton as triton
import weft.triton.language as tl
from weft.frontends.triton.errors import AutotunerError


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))


def _bench(times: dict[int, float]) -> Any:
    """Stands for a clock: the block that was launched last says how long it took."""

    def bench(call: Any, quantiles: Any) -> list[float]:
        call()
        return [times[_seen[-1]]] * 3

    return bench


_seen: list[int] = []


def _kernel() -> Any:
    @triton.jit
    def double(x_ptr, out_ptr, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        if EVEN:
            tl.store(out_ptr + offsets, tl.load(x_ptr + offsets) * 2)
        else:
            tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n) * 2, mask=offsets < n)

    return triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})(double)


def _configs(*blocks: int) -> list[triton.Config]:
    return [triton.Config({"BLOCK": block}, pre_hook=lambda args: _seen.append(args["BLOCK"])) for block in blocks]


def _launch(tuned: Any, size: int = 1000) -> torch.Tensor:
    x, out = torch.randn(size), torch.zeros(size)
    tuned[lambda meta: (triton.cdiv(size, meta["BLOCK"]),)](x, out, size)
    assert torch.equal(out, x * 2)
    return out


def test_the_fastest_config_is_taken_once_for_each_key() -> None:
    tuned = triton.autotune(_configs(32, 64, 128), key=["n"], do_bench=_bench({32: 3.0, 64: 1.0, 128: 2.0}))(_kernel())
    _launch(tuned)
    assert tuned.best_config.kwargs == {"BLOCK": 64}
    measured = len(_seen)
    _launch(tuned)
    assert len(_seen) == measured + 1, "the second launch measures nothing"
    _launch(tuned, 500)
    assert len(tuned.cache) == 2


def test_what_is_known_of_a_launch_is_the_types_of_its_tensors_and_what_the_cache_has() -> None:
    tuned = triton.autotune(_configs(32, 64), key=["n"], do_bench=_bench({32: 3.0, 64: 1.0}))(_kernel())
    for _ in range(2):
        _launch(tuned)
    x, out = torch.randn(1000, dtype=torch.float64), torch.zeros(1000, dtype=torch.float64)
    tuned[(16,)](out_ptr=out, x_ptr=x, n=1000)
    assert torch.equal(out, x * 2)
    assert len(tuned.cache) == 2
    tuned.cache.clear()
    measured = len(_seen)
    _launch(tuned)
    assert len(_seen) > measured + 1, "what the user threw away is measured again"


def test_a_config_that_cannot_be_compiled_is_dropped_with_the_reason() -> None:
    tuned = triton.autotune(_configs(1 << 22, 64), key=["n"], do_bench=_bench({64: 1.0}))(_kernel())
    _launch(tuned)
    assert tuned.best_config.kwargs == {"BLOCK": 64}
    assert ["exceeds" in reason for reason in tuned.dropped.values()] == [True]
    broken = triton.autotune(_configs(1 << 22, 1 << 23), key=["n"])(_kernel())
    with pytest.raises(AutotunerError, match="no config of double can be used"):
        _launch(broken)


def test_configs_are_pruned_before_they_are_measured() -> None:
    def keep_large(configs: list[triton.Config], named: dict[str, Any], **keywords: Any) -> list[triton.Config]:
        assert named["n"] == 1000
        return [config for config in configs if config.kwargs["BLOCK"] >= 64]

    pruning = {"early_config_prune": keep_large, "perf_model": lambda BLOCK, **_: BLOCK, "top_k": 1}
    tuned = triton.autotune(_configs(32, 64, 128), key=["n"], prune_configs_by=pruning, do_bench=_bench({64: 1.0}))(
        _kernel()
    )
    _launch(tuned)
    assert [config.kwargs for config in tuned.configs_timings] == [{"BLOCK": 64}]


def test_configs_that_differ_only_for_a_gpu_are_measured_once() -> None:
    configs = [triton.Config({"BLOCK": block}, num_warps=warps) for block in (64, 128) for warps in (1, 2, 4)]
    tuned = triton.autotune(configs, key=["n"], warmup=1, rep=1)(_kernel())
    _launch(tuned)
    assert len(tuned.configs_timings) == 2


def test_what_was_found_is_kept_on_disk() -> None:
    configs = [triton.Config({"BLOCK": block}) for block in (64, 128)]
    kernel = _kernel()
    first = triton.autotune(configs, key=["n"], warmup=1, rep=1)(kernel)
    _launch(first)
    second = triton.autotune(configs, key=["n"])(kernel)
    _launch(second)
    assert second.best_config == first.best_config
    assert not second.configs_timings, "nothing was measured"


def test_a_parameter_that_is_tuned_must_not_be_given() -> None:
    tuned = triton.autotune(_configs(32, 64), key=["n"])(_kernel())
    with pytest.raises(AutotunerError, match="BLOCK"):
        tuned[(1,)](torch.zeros(4), torch.zeros(4), 4, BLOCK=32)


def test_configs_that_seem_too_costly_are_not_measured() -> None:
    blocks = (1, 64, 128, 256, 512)
    tuned = triton.autotune(_configs(*blocks), key=["n"], do_bench=_bench(dict.fromkeys(blocks, 1.0)))(_kernel())
    _seen.clear()
    _launch(tuned)
    (reason,) = tuned.pruned.values()
    assert "1000 programs" in reason and 1 not in _seen
    assert [config.kwargs["BLOCK"] for config in tuned.pruned] == [1]


def test_configs_whose_tiles_do_not_fit_are_not_measured() -> None:
    @triton.jit
    def product(x, y, out, K, B: tl.constexpr):
        i = tl.arange(0, B)
        total = tl.zeros((B, B), tl.float32)
        for k in range(0, K, B):
            a = tl.load(x + i[:, None] * K + k + i[None, :])
            total = tl.dot(a, tl.load(y + (k + i[:, None]) * B + i[None, :]), total)
        tl.store(out + i[:, None] * B + i[None, :], total)

    from weft.frontends.triton.tuning.cost import cost_of, prune

    given = {"x": torch.zeros(1), "y": torch.zeros(1), "out": torch.zeros(1), "K": 4096}
    costs = {side: cost_of(product, {**given, "B": side}, (1,)) for side in (16, 64, 1024)}
    assert costs[64].footprint == 3 * 64 * 64 * 4 and not costs[64].whole
    assert list(prune(costs)) == [1024] and "L2 cache" in prune(costs)[1024]


# -- what libraries build on ---------------------------------------------------------------------------------------


@triton.jit
def add_to(x_ptr, optional_ptr, n, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(x_ptr + places, 1.0, mask=places < n)
    if optional_ptr is not None:
        tl.store(optional_ptr + places, tl.load(optional_ptr + places, mask=places < n) * 2, mask=places < n)


class OwnAutotuner(triton.runtime.autotuner.Autotuner):
    """A tuner of a library's own, which replaces the hooks where the user gave none."""

    def __init__(self, fn, arg_names, configs, key, reset_to_zero, restore_value, **options):
        super().__init__(fn, arg_names, configs, key, reset_to_zero, restore_value, **options)
        self.called: list[bool] = []
        if not self.user_defined_pre_hook:
            given = self.pre_hook

            def pre_hook(arguments, reset_only=False):
                self.called.append(reset_only)
                given(arguments, reset_only)

            self.pre_hook = pre_hook


def _own(**options: Any) -> OwnAutotuner:
    configs = [triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 32})]
    return OwnAutotuner(add_to, add_to.arg_names, configs, ["n"], ["x_ptr"], ["optional_ptr"], **options)


@pytest.mark.parametrize("optional", [True, False])
def test_a_library_may_replace_the_hooks_and_optional_tensors_may_be_none(optional: bool) -> None:
    tuner = _own()
    assert not tuner.user_defined_pre_hook and not tuner.user_defined_post_hook
    x, other = torch.full((40,), 7.0), torch.ones(40) if optional else None
    tuner[lambda meta: (triton.cdiv(40, meta["BLOCK"]),)](x, other, 40)
    assert torch.equal(x, torch.ones(40)), "reset before the launch, not only while measuring"
    assert other is None or torch.equal(other, torch.full((40,), 2.0)), "put back after each run that is measured"
    assert tuner.called[-1] and not tuner.called[0]


def test_the_keys_of_the_cache_are_those_of_triton() -> None:
    tuner, x = _own(), torch.zeros(40)
    tuner.cache[(40, "torch.float32", "torch.float32")] = triton.Config({"BLOCK": 32})
    tuner[(2,)](x, torch.ones(40), 40)
    assert tuner.best_config is not None and tuner.best_config.kwargs == {"BLOCK": 32} and not tuner.configs_timings


def test_what_is_kept_on_disk_resets_nothing() -> None:
    x = torch.full((40,), 7.0)
    for expected in (1.0, 8.0):  # measured first; then another process would find the config, and just launch
        _own()[(2,)](x, torch.ones(40), 40)
        assert x[:32].eq(expected).all()
        x.fill_(7.0)


def test_configs_that_differ_in_what_weft_chooses_are_one_on_a_gpu() -> None:
    stages = [triton.Config({"BLOCK": 16}, num_stages=stages, num_ctas=count) for stages, count in ((2, 1), (3, 2))]
    assert len({config.on_gpu() for config in stages}) == 1


def test_configs_are_told_apart_by_what_shapes_code_on_a_gpu() -> None:
    given: list[dict[str, Any]] = [{}, {"num_warps": 8}, {"maxnreg": 64}]
    configs = [triton.Config({"BLOCK": 16}, **options) for options in given]
    assert len({config.on_gpu() for config in configs}) == len({config.text() for config in configs}) == len(configs)
    assert len({config.on_cpu() for config in configs}) == 1
    assert len(set(configs)) == len(configs)


def test_values_that_are_known_have_the_names_of_triton() -> None:
    assert tl.core.CONSTEXPR_0.value == 0
