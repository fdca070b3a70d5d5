"""What classes that libraries derive from `Autotuner` call or replace: Triton's names for the steps of tuning.

class LibTuner(triton.runtime.Autotuner):     its own `run` calls prune_configs(kwargs), _bench(*args, config=...)
"""

# Arguments are the user's.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weft.errors import WeftError
from weft.frontends.triton.errors import AutotunerError, MemoryAccessError
from weft.frontends.triton.runtime.jit import Grid, KernelInterface
from weft.frontends.triton.runtime.memory_places import is_on_gpu
from weft.frontends.triton.target import driver
from weft.frontends.triton.tuning.config import Config

log = logging.getLogger("weft")


class TunerMembers(KernelInterface):
    """The steps of tuning as methods of their own."""

    arg_names: list[str]
    cache: dict[tuple[Any, ...], Config]
    dropped: dict[Config, str]
    nargs: dict[str, Any] | None
    """Arguments by position, by their names: set by whoever calls `prune_configs` and `_bench`."""
    _do_bench: Callable[..., Any] | None

    @abstractmethod
    def _pruned(self, named: Mapping[str, Any], keywords: Mapping[str, Any]) -> list[Config]: ...

    @abstractmethod
    def _measure(
        self,
        config: Config,
        args: Sequence[Any],
        named: dict[str, Any],
        grid: Grid,
        keywords: dict[str, Any],
        timings: Mapping[Config, Any],
    ) -> Any: ...

    @abstractmethod
    def _place_on_disk(self, key: tuple[Any, ...], configs: Sequence[Config], on_gpu: bool) -> str | None: ...

    @abstractmethod
    def _from_disk(self, place: str | None, configs: Sequence[Config]) -> Config | None: ...

    @abstractmethod
    def _to_disk(self, place: str | None, config: Config) -> None: ...

    @property
    def do_bench(self) -> Callable[..., Any]:
        """What measures."""
        return self._do_bench or driver.active.get_benchmarker()

    def prune_configs(self, kwargs: dict[str, Any]) -> list[Config]:
        """The configs that are worth measuring for `nargs` and these keywords."""
        return self._pruned({**(self.nargs or {}), **kwargs}, _of_kernel(kwargs))

    def _bench(self, *args: Any, config: Config, **meta: Any) -> Any:
        """What a config takes: the median of some runs, and what bounds most of them; infinity if it cannot be used."""
        keywords = _of_kernel(meta)
        if conflicts := keywords.keys() & config.kwargs.keys():
            raise AutotunerError(
                f"{', '.join(sorted(conflicts))} is given at the launch and by a config",
                hint="leave out of the launch what is tuned",
            )
        named = {**dict(zip(self.arg_names, args, strict=False)), **keywords}
        try:
            return self._measure(config, args, named, meta["grid"], keywords, {})
        except MemoryAccessError:
            raise  # a mistake of the kernel's author, not of the config
        except WeftError as error:
            self.dropped[config] = error.message
            log.warning("dropped config %s: %s", config, error.message)
            return [math.inf, math.inf, math.inf]

    def check_disk_cache(
        self, tuning_key: tuple[Any, ...], configs: Sequence[Config], bench_fn: Callable[[], Any]
    ) -> bool:
        """Take the best config from the disk; where it is not there, have it measured and kept."""
        on_gpu = any(map(is_on_gpu, (self.nargs or {}).values()))
        place = self._place_on_disk(tuning_key, configs, on_gpu)
        known = self._from_disk(place, configs)
        if known is not None:
            self.cache[tuning_key] = known
            return True
        bench_fn()
        self._to_disk(place, self.cache[tuning_key])
        return False


def _of_kernel(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Without what says how the launch itself is done."""
    return {name: value for name, value in keywords.items() if name not in ("grid", "warmup")}
