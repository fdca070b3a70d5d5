"""`Config`: one choice of a kernel's parameters, for `autotune`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

_OPTIONS = ("num_warps", "num_ctas", "num_stages", "maxnreg", "ir_override")
_DEFAULT_STAGES = 3
"""Triton's, which users read: Weft chooses where no number is given."""


class Config:
    """A choice of parameters of a kernel."""

    def __init__(
        self,
        kwargs: Mapping[str, Any],
        num_warps: int = 4,
        num_stages: int | None = None,
        num_ctas: int = 1,
        maxnreg: int | None = None,
        pre_hook: Callable[[dict[str, Any]], Any] | None = None,
        ir_override: str | None = None,
    ) -> None:
        self.kwargs = dict(kwargs)
        self.num_warps, self.num_ctas, self.maxnreg = num_warps, num_ctas, maxnreg
        self.num_stages = _DEFAULT_STAGES if num_stages is None else num_stages
        self._states_stages = num_stages is not None
        self.pre_hook, self.ir_override = pre_hook, ir_override

    def all_kwargs(self) -> dict[str, Any]:
        """The keywords to launch with: parameters of the kernel, and options."""
        options = [(name, value) for name in _OPTIONS if (value := getattr(self, name)) is not None]
        return {**self.kwargs, **dict(options)}

    def launch_kwargs(self, names: Collection[str]) -> dict[str, Any]:
        """What a launch of a kernel with such parameters gets: stages that nobody asked for bound nothing."""
        keywords = self.all_kwargs()
        if self.stages is None and "num_stages" not in names:
            del keywords["num_stages"]
        return keywords

    @property
    def stages(self) -> int | None:
        """The stages of a pipeline, where somebody gave them."""
        return self.num_stages if self._states_stages or self.num_stages != _DEFAULT_STAGES else None

    def text(self) -> str | None:
        """The choice as text that is the same in another process; None where it holds more than numbers and names."""
        plain = all(value is None or isinstance(value, bool | int | float | str) for value in self.kwargs.values())
        shown = sorted({**self.all_kwargs(), "stages": self.stages}.items(), key=lambda item: item[0])
        return None if self.pre_hook is not None or not plain else repr(shown)

    def on_cpu(self) -> Any:
        """What tells configs apart on a CPU, where warps and stages mean nothing."""
        return tuple(sorted((name, repr(value)) for name, value in self.kwargs.items())), self.pre_hook

    def on_gpu(self) -> Any:
        """What tells configs apart on a GPU, where clusters are Weft's own choice."""
        return self.num_warps, self.stages, self.maxnreg, *self.on_cpu()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Config) or self.pre_hook is not other.pre_hook:
            return False
        return self.all_kwargs() == other.all_kwargs() and self.stages == other.stages

    def __hash__(self) -> int:
        return hash((self.on_cpu(), self.num_warps, self.num_stages, self.num_ctas))

    def __str__(self) -> str:
        shown = {**self.kwargs, **{name: getattr(self, name) for name in _OPTIONS[:-1]}}
        return ", ".join(f"{name}: {value}" for name, value in shown.items())

    def __repr__(self) -> str:
        return f"Config({self})"
