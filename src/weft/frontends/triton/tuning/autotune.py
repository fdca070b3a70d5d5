"""`@heuristics` and `@autotune`: parameters of a kernel computed from the others, or chosen by measuring.

autotuned kernel[grid](x, n)  ──►  key of the arguments ──► known? ──► kernel with the best config
                                                              │ no
            configs ──► pruned (cost.py) ──► compiled ──► measured, the worst given up early ──► kept here and on disk
"""

# Arguments and functions are the user's.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from weft.backends.cpu.target import host_target
from weft.errors import WeftError
from weft.frontends.triton.errors import AutotunerError, MemoryAccessError
from weft.frontends.triton.runtime.jit import Grid, JITFunction, KernelInterface, register
from weft.frontends.triton.runtime.memory_places import is_on_gpu
from weft.frontends.triton.target import cuda_is_there, driver
from weft.frontends.triton.tuning.compile_ahead import compiled_ahead
from weft.frontends.triton.tuning.config import Config
from weft.frontends.triton.tuning.tuner_members import TunerMembers
from weft.runtime.cache import DiskCache, cache_key
from weft.runtime.sources import source_digest, versions

log = logging.getLogger("weft")

_ON_CPU = "on the CPU"
"""Ends the keys of launches on the CPU where there is a GPU as well: Triton's own keys are those of the GPU."""
_PLAIN = frozenset({int, float, bool, str, type(None)})
"""Types of arguments that have no element type."""
_FEW = 4
"""So many configs are measured, whatever they seem to cost."""
_RACE = 4.0
"""A config that takes so many times as long as the best yet in its first run is not measured further."""


class Heuristics(KernelInterface):
    """A kernel of which some parameters are computed from the others at each launch."""

    def __init__(self, fn: Any, arg_names: Sequence[str], values: Mapping[str, Callable[..., Any]]) -> None:
        self.fn, self.arg_names, self.values = fn, list(arg_names), dict(values)
        register(self)

    def run(self, *args: Any, grid: Grid, warmup: bool = False, **keywords: Any) -> Any:
        named = dict(zip(self.arg_names, args, strict=False))
        computed = self.computed({**named, **keywords})
        return self.fn.run(*args, grid=grid, warmup=warmup, **{**keywords, **computed})

    def computed(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters that the others decide."""
        known = dict(given)
        for name, compute in self.values.items():
            known[name] = compute(known)
        return {name: known[name] for name in self.values}


def heuristics(values: Mapping[str, Callable[..., Any]]) -> Callable[[Any], Heuristics]:
    """Compute parameters from the others: `{"EVEN": lambda args: args["n"] % args["BLOCK"] == 0}`."""
    return lambda fn: Heuristics(fn, fn.arg_names, values)


def kernel_of(fn: Any) -> JITFunction:
    """The kernel under heuristics and tuning."""
    while not isinstance(fn, JITFunction):
        fn = fn.fn
    return fn


class Autotuner(TunerMembers):
    """A kernel whose parameters are chosen by measuring, once for each key of its arguments."""

    def __init__(
        self,
        fn: Any,
        arg_names: Sequence[str],
        configs: Sequence[Config],
        key: Sequence[str],
        reset_to_zero: Sequence[str] | None = None,
        restore_value: Sequence[str] | None = None,
        pre_hook: Callable[..., Any] | None = None,
        post_hook: Callable[..., Any] | None = None,
        prune_configs_by: Mapping[str, Any] | None = None,
        warmup: int | None = None,
        rep: int | None = None,
        use_cuda_graph: bool = False,
        do_bench: Callable[..., Any] | None = None,
        cache_results: bool = True,
    ) -> None:
        self.fn, self.arg_names = fn, list(arg_names)
        self.base_fn = kernel_of(fn).fn
        self.configs = list(configs) or [Config({})]
        self.keys = list(key)
        self.reset_to_zero, self.restore_value = list(reset_to_zero or ()), list(restore_value or ())
        self.user_defined_pre_hook, self.user_defined_post_hook = pre_hook is not None, post_hook is not None
        self.pre_hook: Callable[..., Any] = pre_hook or self._before_run
        """Called with all arguments before each measured run; with `reset_only`, before the launch itself."""
        self.post_hook: Callable[..., Any] = post_hook or self._after_run
        """Called with all arguments and the exception, if any, after each measured run."""
        self.restore_copies: dict[str, Any] = {}
        pruning = dict(prune_configs_by or {})
        self.perf_model: Callable[..., float] | None = pruning.get("perf_model")
        self.configs_top_k: int | float = pruning.get("top_k", 1.0)
        self.early_config_prune: Callable[..., list[Config]] | None = pruning.get("early_config_prune")
        self.warmup_ms, self.rep_ms = (10 if warmup is None else warmup), (40 if rep is None else rep)
        self._do_bench = do_bench
        self.cache_results = cache_results
        self.cache: dict[tuple[Any, ...], Config] = {}
        self._keys: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        """The keys of arguments by what is looked at quickly."""
        self._places = {name: place for place, name in enumerate(self.arg_names)}
        self.best_config: Config | None = None
        self.configs_timings: dict[Config, Any] = {}
        self.dropped: dict[Config, str] = {}
        """Configs that could not be compiled or run, with the reason."""
        self.pruned: dict[Config, str] = {}
        """Configs that were not measured because they seem too costly, with the reason."""
        self.bench_time = 0.0
        self.nargs: dict[str, Any] | None = None
        register(self)

    def run(self, *args: Any, grid: Grid, warmup: bool = False, **keywords: Any) -> Any:
        if warmup:
            return self.warmup(*args, grid=grid, **keywords)
        self.best_config = config = self.chosen(args, grid, keywords)
        keywords.update(config.all_kwargs())
        if config.pre_hook is not None:
            config.pre_hook({**dict(zip(self.arg_names, args, strict=False)), **keywords})
        return self.fn.run(*args, grid=grid, **keywords)

    def chosen(self, args: Sequence[Any], grid: Grid, keywords: dict[str, Any]) -> Config:
        """The config for arguments like these: the best of those measured, now or before."""
        if len(self.configs) == 1:
            return self.configs[0]
        quick = self._quick_key(args, keywords)
        with suppress(TypeError):  # something has no hash, but a text
            if (key := self._keys.get(quick)) is not None and (found := self.cache.get(key)) is not None:
                return found
        named = {**dict(zip(self.arg_names, args, strict=False)), **keywords}
        key = self._key(named)
        with suppress(TypeError):
            self._keys[quick] = key
        found = self.cache.get(key)
        return self._tuned(key, args, named, grid, keywords) if found is None else found

    def _quick_key(self, args: Sequence[Any], keywords: Mapping[str, Any]) -> tuple[Any, ...]:
        """What decides the key, as objects: a launch that is known spends little time on it."""
        parts: list[Any] = []
        for value in args:
            if type(value) not in _PLAIN and (dtype := getattr(value, "dtype", None)) is not None:
                parts += dtype, is_on_gpu(value)
        for name, value in keywords.items():
            if type(value) not in _PLAIN and (dtype := getattr(value, "dtype", None)) is not None:
                parts += name, dtype, is_on_gpu(value)
        for name in self.keys:
            if name in keywords:
                value = keywords[name]
            else:
                place = self._places.get(name, len(args))
                value = args[place] if place < len(args) else None
            parts += type(value), value
        return tuple(parts)

    def warmup(self, *args: Any, grid: Grid, **keywords: Any) -> list[Any]:
        """Compile every config."""
        named = dict(zip(self.arg_names, args, strict=False))
        return [
            self.fn.warmup(*args, grid=grid, **{**keywords, **config.all_kwargs()})
            for config in self._candidates({**named, **keywords}, keywords)
        ]

    def _key(self, named: Mapping[str, Any]) -> tuple[Any, ...]:
        values = [named[name] for name in self.keys if name in named]
        types = [
            str(value.dtype) for name, value in named.items() if name in self.arg_names and hasattr(value, "dtype")
        ]
        return (*values, *types, *((_ON_CPU,) if cuda_is_there() and not _is_on_gpu(named) else ()))

    def _candidates(self, named: Mapping[str, Any], keywords: Mapping[str, Any]) -> list[Config]:
        if type(self).prune_configs is TunerMembers.prune_configs:
            return self._pruned(named, keywords)
        self.nargs = {name: value for name, value in named.items() if name not in keywords}
        return self.prune_configs(dict(keywords))

    def _pruned(self, named: Mapping[str, Any], keywords: Mapping[str, Any]) -> list[Config]:
        """The configs that are worth measuring: those the user's functions leave, and one of each that differ here."""
        configs = self.configs
        positional = {name: value for name, value in named.items() if name not in keywords}
        if self.early_config_prune is not None:
            configs = self.early_config_prune(configs, positional, **keywords)
            if not configs:
                raise AutotunerError(
                    "no configs are left after pruning", hint="`early_config_prune` must leave at least one"
                )
        if self.perf_model is not None:
            top = self.configs_top_k
            if not isinstance(top, int) and top > 1.0:
                raise AutotunerError(f"top_k is {top}", hint="give a share of at most 1.0, or a number of configs")
            count = top if isinstance(top, int) else int(len(self.configs) * top)
            model = self.perf_model
            if len(configs) > count:
                costs = {config: model(**{**named, **config.all_kwargs()}) for config in configs}
                configs = sorted(costs, key=lambda config: costs[config])[: max(count, 1)]
        on_gpu = _is_on_gpu(named)
        return list({c.on_gpu() if on_gpu else c.on_cpu(): c for c in reversed(configs)}.values())[::-1]

    def _worth_measuring(self, configs: list[Config], named: Mapping[str, Any], grid: Grid) -> list[Config]:
        """The configs that do not cost far more than others on a processor, by what their tile IR says."""
        if self.perf_model is not None or len(configs) <= _FEW or _is_on_gpu(named):
            return configs
        from weft.frontends.triton.tuning.cost import Cost, cost_of, prune

        costs: dict[Config, Cost] = {}
        for config in configs:
            values = {**named, **config.all_kwargs()}
            if isinstance(self.fn, Heuristics):
                values |= self.fn.computed(values)
            with suppress(WeftError):  # measuring finds it out again, and says so
                costs[config] = cost_of(kernel_of(self.fn), values, grid)
        self.pruned = prune(costs) if costs else {}
        for config, reason in self.pruned.items():
            log.info("%s: config %s is not measured: %s", self.base_fn.__name__, config, reason)
        return [config for config in configs if config not in self.pruned]

    # -- measuring -------------------------------------------------------------------------------------------------

    def _tuned(
        self, key: tuple[Any, ...], args: Sequence[Any], named: dict[str, Any], grid: Grid, keywords: dict[str, Any]
    ) -> Config:
        for config in self.configs:
            if conflicts := keywords.keys() & config.kwargs.keys():
                raise AutotunerError(
                    f"{', '.join(sorted(conflicts))} is given at the launch and by a config",
                    hint="leave out of the launch what is tuned",
                )
        start = time.perf_counter()
        configs = self._worth_measuring(self._candidates(named, keywords), named, grid)
        place = self._place_on_disk(key, configs, _is_on_gpu(named))
        config = self._from_disk(place, configs)
        if config is None:
            config = self._measured(configs, args, named, grid, keywords)
            self._to_disk(place, config)
            self.pre_hook({**named, **config.all_kwargs()}, reset_only=True)
        self.bench_time = time.perf_counter() - start
        self.cache[key] = config
        log.info("%s: %s was best, in %.2f s", self.base_fn.__name__, config, self.bench_time)
        return config

    def _measured(
        self, configs: list[Config], args: Sequence[Any], named: dict[str, Any], grid: Grid, keywords: dict[str, Any]
    ) -> Config:
        """Compile and measure the configs; those that cannot be compiled or run are dropped, with the reason."""
        timings: dict[Config, Any] = {}

        def compile_config(config: Config) -> None:
            self.fn.run(*args, grid=grid, warmup=True, **{**keywords, **config.all_kwargs()})

        ahead = configs if self._can_compile_ahead(named) else []
        with compiled_ahead(ahead, compile_config) as ready:
            for config in self._progress(configs):
                try:
                    ready(config)
                    timings[config] = self._measure(config, args, named, grid, keywords, timings)
                except MemoryAccessError:
                    raise  # a mistake of the kernel's author, not of the config
                except WeftError as error:
                    self.dropped[config] = error.message
                    log.warning("%s: dropped config %s: %s", self.base_fn.__name__, config, error.message)
        if not timings:
            reasons = "\n".join(f"  {config}: {reason}" for config, reason in self.dropped.items())
            raise AutotunerError(f"no config of {self.base_fn.__name__} can be used:\n{reasons}")
        self.configs_timings = timings
        return min(timings, key=lambda config: _middle(timings[config]))

    def _can_compile_ahead(self, named: Mapping[str, Any]) -> bool:
        """Whether what is compiled is known before a config's turn: hooks may change arguments."""
        hooks = self.user_defined_pre_hook or any(config.pre_hook is not None for config in self.configs)
        watched = kernel_of(self.fn).pre_run_hooks or JITFunction.watcher is not None
        return _is_on_gpu(named) and not hooks and not watched

    def _progress(self, configs: list[Config]) -> Iterator[Config]:
        """The configs, with a bar on a terminal."""
        columns = (TextColumn("tuning {task.description}"), BarColumn(), MofNCompleteColumn())
        console = Console(stderr=True)
        with Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as progress:
            task = progress.add_task(self.base_fn.__name__, total=len(configs))
            for config in configs:
                yield config
                progress.advance(task)

    def _measure(
        self,
        config: Config,
        args: Sequence[Any],
        named: dict[str, Any],
        grid: Grid,
        keywords: dict[str, Any],
        timings: Mapping[Config, Any],
    ) -> Any:
        current = {**keywords, **config.all_kwargs()}
        everything = {**named, **current}

        def call() -> None:
            if config.pre_hook is not None:
                config.pre_hook(everything)
            self.pre_hook(everything)
            try:
                self.fn.run(*args, grid=grid, **current)
            except Exception as error:
                self.post_hook(everything, exception=error)
                raise
            self.post_hook(everything, exception=None)

        if self._do_bench is not None:
            return self._do_bench(call, quantiles=(0.5, 0.2, 0.8))
        from weft.frontends.triton.tuning.do_bench import do_bench

        wait = _waiting(named)
        call()
        wait()
        start = time.perf_counter()
        call()
        wait()
        first = (time.perf_counter() - start) * 1e3
        if first > _RACE * min((_middle(each) for each in timings.values()), default=math.inf):
            return [first, first, first]
        return do_bench(call, warmup=self.warmup_ms, rep=self.rep_ms, quantiles=(0.5, 0.2, 0.8))

    def _before_run(self, named: Mapping[str, Any], reset_only: bool = False) -> None:
        """What the kernel adds to starts at zero, what is to be put back is kept; a tensor may be None."""
        for name in self.reset_to_zero:
            if named[name] is not None:
                named[name].zero_()
        if not reset_only:
            self.restore_copies = {name: named[name].clone() for name in self.restore_value if named[name] is not None}

    def _after_run(self, named: Mapping[str, Any], exception: Exception | None = None) -> None:
        for name, copy in self.restore_copies.items():
            named[name].copy_(copy)
        self.restore_copies = {}

    # -- on disk ---------------------------------------------------------------------------------------------------

    def _place_on_disk(self, key: tuple[Any, ...], configs: Sequence[Config], on_gpu: bool) -> str | None:
        """Where the best config is kept: by kernel, configs, arguments and machine; None where it cannot be."""
        if not self.cache_results or self._do_bench is not None:
            return None
        texts = [config.text() for config in configs]
        origin = kernel_of(self.fn).fingerprint()
        plain = all(value is None or isinstance(value, bool | int | float | str) for value in key)
        if None in texts or not origin.stable or not plain:
            return None
        parts = [origin.digest, repr(key), *map(str, texts)]
        return cache_key("triton autotune", "\n".join(parts), versions(), _machine(on_gpu), source_digest())

    def _from_disk(self, place: str | None, configs: Sequence[Config]) -> Config | None:
        entry = DiskCache().get(place) if place is not None else None
        best = None if entry is None else entry.meta.get("best")
        return next((config for config in configs if best is not None and config.text() == best), None)

    def _to_disk(self, place: str | None, config: Config) -> None:
        if place is not None:
            DiskCache().put(place, {"best": config.text(), "kernel": self.base_fn.__name__}, {})


def _is_on_gpu(named: Mapping[str, Any]) -> bool:
    return any(map(is_on_gpu, named.values()))


def _waiting(named: Mapping[str, Any]) -> Callable[[], None]:
    """Waits for what was launched on the device of the arguments."""
    if not _is_on_gpu(named):
        return lambda: None
    import torch

    return torch.cuda.synchronize


def _machine(on_gpu: bool) -> str:
    """What measurements depend on."""
    if not on_gpu:
        return repr(host_target())
    from weft.frontends.triton.runtime.device_compiled import device_target

    return repr(device_target(driver.active.get_current_device()))


def _middle(timing: Any) -> float:
    return float(timing[0] if isinstance(timing, list | tuple) else timing)


def autotune(configs: Sequence[Config], key: Sequence[str], **options: Any) -> Callable[[Any], Autotuner]:
    """Choose a kernel's parameters by measuring: the best of `configs`, once for each value of the arguments in `key`.

    `prune_configs_by` (early_config_prune, perf_model, top_k) leaves configs out; `reset_to_zero` and `restore_value`
    name tensors that the kernel changes. What was found is kept on disk, by kernel, arguments and machine.
    """
    return lambda fn: Autotuner(fn, fn.arg_names, configs, key, **options)
