"""Classes that libraries derive from `Autotuner`, with a way of their own to choose."""

from __future__ import annotations

from typing import Any

import torch

import weft.triton as triton
import weft.triton.language as tl


@triton.jit
def negate(x, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + offsets, -tl.load(x + offsets, mask=offsets < n), mask=offsets < n)


class Policy(triton.runtime.Autotuner):
    """Chooses in its own `run`, as flag_gems' LibTuner does, with names of its own that are any."""

    names: dict[str, type[Policy]] = {}

    @classmethod
    def register(cls, name: str) -> Any:
        return lambda subclass: cls.names.setdefault(name, subclass)

    @property
    def number(self) -> str:
        return "of its own"

    def run(self, *args: Any, **keywords: Any) -> Any:
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        key = tuple(self.nargs[name] for name in self.keys)
        if key not in self.cache:
            timings = {c: self._bench(*args, config=c, **keywords) for c in self.prune_configs(keywords)}
            self.cache[key] = min(timings, key=lambda config: timings[config][0])
            self.pre_hook({**self.nargs, **keywords, **self.cache[key].all_kwargs()}, reset_only=True)
            self.configs_timings = timings
        self.best_config = self.cache[key]
        result = self.fn.run(*args, **keywords, **self.best_config.all_kwargs())
        self.nargs = None
        return result


def _configs() -> list[triton.Config]:
    return [triton.Config({"BLOCK": block}) for block in (32, 64, 128)]


def test_a_derived_class_measures_and_prunes_itself() -> None:
    seen: list[list[int]] = []

    def prune(configs: list[triton.Config], named: dict[str, Any], **keywords: Any) -> list[triton.Config]:
        assert named["n"] == 100 and "grid" not in keywords
        seen.append([config.kwargs["BLOCK"] for config in configs])
        return configs[:2]

    def bench(call: Any, quantiles: Any) -> list[float]:
        call()
        return [1.0, 1.0, 1.0]

    tuned = Policy(
        negate, negate.arg_names, _configs(), ["n"], None, None, prune_configs_by={"early_config_prune": prune}
    )
    tuned._do_bench = bench
    x, out = torch.randn(100), torch.zeros(100)
    for _ in range(2):
        tuned[lambda meta: (triton.cdiv(100, meta["BLOCK"]),)](x, out, 100)
    assert torch.equal(out, -x) and seen == [[32, 64, 128]]
    assert [config.kwargs["BLOCK"] for config in tuned.configs_timings] == [32, 64]
    assert tuned.do_bench is bench and tuned.number == "of its own"


def test_a_config_that_cannot_be_used_takes_for_ever() -> None:
    @triton.jit
    def strict(x, BLOCK: tl.constexpr):
        tl.static_assert(BLOCK > 32)
        tl.store(x + tl.arange(0, BLOCK), 1.0)

    tuned = Policy(strict, strict.arg_names, _configs(), [], None, None)
    x = torch.zeros(128)
    tuned[(1,)](x)
    assert {c.kwargs["BLOCK"]: t[0] == float("inf") for c, t in tuned.configs_timings.items()} == {
        32: True,
        64: False,
        128: False,
    }


def test_pruning_that_is_replaced_counts() -> None:
    class First(triton.runtime.Autotuner):
        def prune_configs(self, kwargs: dict[str, Any]) -> list[triton.Config]:
            assert self.nargs is not None and self.nargs["n"] == 100 and kwargs == {}
            return self.configs[1:2]

    tuned = First(negate, negate.arg_names, _configs(), ["n"])
    x, out = torch.randn(100), torch.zeros(100)
    tuned[(4,)](x, out, 100)
    assert tuned.best_config is not None and tuned.best_config.kwargs["BLOCK"] == 64 and torch.equal(out, -x)


def test_what_is_kept_on_disk_is_asked_for(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    measured: list[int] = []

    def asked(turn: int) -> bool:
        tuned = triton.runtime.Autotuner(negate, negate.arg_names, _configs(), ["n"])

        def bench() -> None:
            measured.append(turn)
            tuned.cache[(100,)] = tuned.configs[2]

        found = tuned.check_disk_cache((100,), tuned.configs, bench)
        assert tuned.cache[(100,)].kwargs["BLOCK"] == 128
        return found

    assert [asked(0), asked(1)] == [False, True] and measured == [0]
