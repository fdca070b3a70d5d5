"""`Config`: one choice of a kernel's parameters, for `autotune`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

_OPTIONS = ("num_warps", "num_ctas", "num_stages", "maxnreg", "ir_override")


class Config:
    """A choice of parameters of a kernel."""

    def __init__(
        self,
        kwargs: Mapping[str, Any],
        num_warps: int = 4,
        num_stages: int = 3,
        num_ctas: int = 1,
        maxnreg: int | None = None,
        pre_hook: Callable[[dict[str, Any]], Any] | None = None,
        ir_override: str | None = None,
    ) -> None:
        self.kwargs = dict(kwargs)
        self.num_warps, self.num_stages, self.num_ctas, self.maxnreg = num_warps, num_stages, num_ctas, maxnreg
        self.pre_hook, self.ir_override = pre_hook, ir_override

    def all_kwargs(self) -> dict[str, Any]:
        """The keywords to launch with: parameters of the kernel, and options."""
        chosen = dict(self.kwargs)
        for name in _OPTIONS:
            if (value := getattr(self, name)) is not None:
                chosen[name] = value
        return chosen

    def text(self) -> str | None:
        """The choice as text that is the same in another process; None where it holds more than numbers and names."""
        plain = all(value is None or isinstance(value, bool | int | float | str) for value in self.kwargs.values())
        return None if self.pre_hook is not None or not plain else repr(sorted(self.all_kwargs().items()))

    def on_cpu(self) -> Any:
        """What tells configs apart on a CPU, where warps and stages mean nothing."""
        return tuple(sorted((name, repr(value)) for name, value in self.kwargs.items())), self.pre_hook

    def on_gpu(self) -> Any:
        """What tells configs apart on a GPU, where stages and clusters are Weft's own choice."""
        return self.num_warps, self.maxnreg, *self.on_cpu()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and self.all_kwargs() == other.all_kwargs() and self.pre_hook is other.pre_hook

    def __hash__(self) -> int:
        return hash((self.on_cpu(), self.num_warps, self.num_stages, self.num_ctas))

    def __str__(self) -> str:
        shown = {**self.kwargs, **{name: getattr(self, name) for name in _OPTIONS[:-1]}}
        return ", ".join(f"{name}: {value}" for name, value in shown.items())

    def __repr__(self) -> str:
        return f"Config({self})"
