"""`@heuristics` and `@autotune`: parameters of a kernel computed from the others, or chosen by measuring.

autotuned kernel[grid](x, n)  ──►  key of the arguments ──► known? ──► kernel with the best config
                                                              │ no
                      configs ──► pruned ──► compiled ──► measured ──► kept here and on disk
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weft.frontends.triton.jit import Grid, JITFunction, KernelInterface


class Config:
    """A choice of parameters of a kernel, for `autotune`."""

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
        options = {
            "num_warps": self.num_warps,
            "num_ctas": self.num_ctas,
            "num_stages": self.num_stages,
            "maxnreg": self.maxnreg,
            "ir_override": self.ir_override,
        }
        return {**self.kwargs, **{name: value for name, value in options.items() if value is not None}}

    def _values(self) -> tuple[Any, ...]:
        return (tuple(sorted(self.all_kwargs().items())), self.pre_hook)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def __str__(self) -> str:
        options = ("num_warps", "num_ctas", "num_stages", "maxnreg")
        shown = {**self.kwargs, **{name: getattr(self, name) for name in options}}
        return ", ".join(f"{name}: {value}" for name, value in shown.items())

    def __repr__(self) -> str:
        return f"Config({self})"


class Heuristics(KernelInterface):
    """A kernel of which some parameters are computed from the others at each launch."""

    def __init__(self, fn: KernelInterface, arg_names: Sequence[str], values: Mapping[str, Callable[..., Any]]) -> None:
        self.fn, self.arg_names, self.values = fn, list(arg_names), dict(values)

    def run(self, *args: Any, grid: Grid, warmup: bool = False, **keywords: Any) -> Any:
        for name, compute in self.values.items():
            keywords[name] = compute({**dict(zip(self.arg_names, args, strict=False)), **keywords})
        return self.fn.run(*args, grid=grid, warmup=warmup, **keywords)


def heuristics(values: Mapping[str, Callable[..., Any]]) -> Callable[[Any], Heuristics]:
    """Compute parameters from the others: `{"EVEN": lambda args: args["n"] % args["BLOCK"] == 0}`."""

    def decorate(fn: Any) -> Heuristics:
        return Heuristics(fn, fn.arg_names, values)

    return decorate


def kernel_of(fn: Any) -> JITFunction:
    """The kernel under heuristics and tuning."""
    while not isinstance(fn, JITFunction):
        fn = fn.fn
    return fn


@dataclass
class Autotuner(KernelInterface):
    """A kernel whose parameters are chosen by measuring."""

    fn: Any
    arg_names: list[str]
    configs: list[Config]
    keys: list[str]

    def run(self, *args: Any, grid: Grid, warmup: bool = False, **keywords: Any) -> Any:
        config = self.configs[0]
        return self.fn.run(*args, grid=grid, warmup=warmup, **keywords, **config.all_kwargs())


def autotune(configs: Sequence[Config], key: Sequence[str], **options: Any) -> Callable[[Any], Autotuner]:
    def decorate(fn: Any) -> Autotuner:
        return Autotuner(fn, fn.arg_names, list(configs), list(key))

    return decorate
