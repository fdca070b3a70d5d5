"""The one configuration: a frozen value, printed in every report and part of every cache key."""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from weft.diagnostics import nearest, warn
from weft.discovery import is_target, unknown_target
from weft.errors import WeftError

FALLBACKS = ("warn", "error", "quiet")
MODES: Mapping[str, Mapping[str, bool]] = {
    "default": {},
    "reduce-overhead": {"cuda_graphs": True},
    "max-autotune": {"tune": True, "cuda_graphs": True},
    "max-autotune-no-cudagraphs": {"tune": True, "cuda_graphs": False},
}
"""What the modes of `torch.compile` mean here."""
OTHER_VARIABLES = ("CACHE_DIR", "CONFIG_DIR", "INTERPRET", "COMMIT")
"""Environment variables that are no fields, after their `WEFT_`; `CONFORM_...` are of our own runs."""
CODES = ("int4", "int4_64", "int4_32", "int8", "fp8", "mxfp4", "nvfp4")
"""How a GPU's weights can be held."""
QUANTIZATIONS = ("", "int8_weights", "int8_dynamic", *CODES)
SOLVERS = ("min_cut", "exact")
_BUDGET_HINT = "it takes a share from 0 to 1 of what a step takes without it (0.5), or bytes (800MB, 2GiB)"
_BUDGET = re.compile(r"((?:\d+(?:\.\d*)?|\.\d+)(?:e-\d{1,3})?)\s*(([KMGT]?)(i?)B)?", re.IGNORECASE)
_NOT_OF_CODE = ("cache", "verify", "fallback", "workers")
"""Fields that change how code is made, and not the code."""
DEVICE_CHECKS = ("auto", "on", "wait", "off")


@dataclass(frozen=True)
class Config:
    """How to compile. Fields can be given as options, or as environment variables `WEFT_<FIELD>`."""

    target: str = "cpu"
    """`cpu`: machine code, for a GPU where the tensors lie on one; `reference`: NumPy, the meaning of every op; or any
    other that is found by entry point (`weft.discovery`)."""
    strict: bool = False
    """Neither libraries nor the framework's own kernels: an op that Weft cannot compile is an error."""
    fallback: str = "warn"
    """What is done about an op, or a graph, that Weft cannot compile: `warn` lets torch run it and says so once,
    `quiet` does not say so, `error` refuses it. Libraries stay, unlike with `strict`, which refuses them too."""
    freeze: bool = False
    """Weights are constants: they may be folded and packed at compile time."""
    quantize: str = ""
    """`int8_weights` holds the frozen weights of products in 8 bits, with a factor for each column; `int8_dynamic`
    rounds what they are multiplied with to 16 bits, with a factor for each row. Both need `freeze`. On a GPU, `int4`,
    `int4_64`, `int4_32`, `int8`, `fp8`, `mxfp4` and `nvfp4` hold weights of 16 bits so, and freeze them."""
    cache: bool = True
    """Keep compiled programs on disk."""
    verify: bool = False
    """Verify the IR before and after each pass."""
    memory_budget: str = ""
    """The memory that a training step may take beyond parameters and arguments: a share of what it takes without a
    budget (`0.5`), or bytes (`2GiB`). Values are computed again in the backward where it is exceeded."""
    memory_budget_solver: str = "min_cut"
    """How it is found what to compute again: `min_cut`, or `exact`, an integer program, which needs SciPy."""
    offload: bool = False
    """On a GPU, let a memory budget keep values in the host's memory until the backward, where copies that run beside
    what is computed take less time than it takes to compute them again."""
    chunked_loss: str = ""
    """Compute the cross-entropy of a projection so many rows at a time, with its gradients: no more logits exist at
    once. `auto` finds how many, and so does a memory budget where nothing is said; 0 computes all rows together."""
    tune: bool = False
    """Measure schedules of the kernels that take most of the time, and keep the fastest on disk."""
    cuda_graphs: bool = True
    """Capture calls on a GPU as CUDA graphs, where sizes do not change and that is quicker."""
    device_checks: str = "off"
    """Indices out of range and other mistakes in a GPU's data: `on` finds them while later work runs, and the next call
    raises; `wait` waits for each call's verdict; `auto` is `on` for graphs that are large enough not to notice."""
    emulate_precision_casts: bool = False
    """Round what each op of the program gives to its type, as eager does; else narrow floats stay wide inside a kernel,
    but for results that leave it."""
    cpu: str = "native"
    """The processor to compile for: `native`, or a name LLVM knows."""
    workers: bool = True
    """Compile the kernels of large graphs for a GPU in processes beside this one, where there are cores for them."""
    debug_lines: bool = False
    """Line tables in the code: profilers and disassemblers show which line of the program, and which op of the graph,
    an instruction comes from. The instructions are the same without."""

    def __post_init__(self) -> None:
        budget: Any = self.memory_budget
        if budget is None or (isinstance(budget, int | float) and not isinstance(budget, bool)):
            object.__setattr__(self, "memory_budget", "" if budget is None else str(budget))
        elif not isinstance(budget, str):
            raise WeftError(f"the option memory_budget is {budget!r}", hint=_BUDGET_HINT)
        rows: Any = self.chunked_loss
        if isinstance(rows, int) and not isinstance(rows, bool):
            object.__setattr__(self, "chunked_loss", str(rows))
        for field in fields(self):
            value, wanted = getattr(self, field.name), bool if field.type == "bool" else str
            if not isinstance(value, wanted):
                kind = "True or False" if wanted is bool else "a string"
                raise WeftError(f"the option {field.name} is {value!r}", hint=f"it takes {kind}")
        _check_choice("quantize", self.quantize, QUANTIZATIONS)
        _check_choice("memory_budget_solver", self.memory_budget_solver, SOLVERS)
        _check_choice("fallback", self.fallback, FALLBACKS)
        _check_choice("device_checks", self.device_checks, DEVICE_CHECKS)
        if self.chunked_loss not in ("", "auto") and not self.chunked_loss.isdecimal():
            hint = "it takes a number of rows, or auto"
            raise WeftError(f"the option chunked_loss is {self.chunked_loss!r}", hint=hint)
        if self.offload and not self.memory_budget:
            raise WeftError("offload=True needs a memory budget", hint="set memory_budget, as a share or in bytes")
        if self.memory_budget:
            MemoryBudget.read(self.memory_budget)
        if not is_target(self.target):
            raise unknown_target(self.target)
        if self.quantize and not self.freeze:
            raise WeftError(f"quantize={self.quantize!r} needs constant weights", hint="set freeze=True, too")

    @property
    def forbids_fallbacks(self) -> bool:
        """Whether what Weft cannot compile is an error."""
        return self.strict or self.fallback == "error"

    @classmethod
    def from_options(cls, options: Mapping[str, Any] | None = None, mode: str | None = None) -> Self:
        """The defaults, overridden by the environment, by what the mode means, and by `options`."""
        known = {field.name: field for field in fields(cls)}
        values: dict[str, Any] = {}
        for name, field in known.items():
            text = os.environ.get(f"WEFT_{name.upper()}")
            if text:
                values[name] = truth(f"WEFT_{name.upper()}") if field.type == "bool" else text
        _warn_of_unknown_variables(known)
        if mode is not None and mode not in MODES:
            raise WeftError(
                f"no mode is called {mode!r}{nearest(str(mode), MODES)}", hint=f"modes are {', '.join(MODES)}"
            )
        unknown = sorted(map(str, set(options or {}) - known.keys()))
        if unknown:
            close = nearest(unknown[0], known)
            raise WeftError(f"unknown option {', '.join(unknown)}{close}", hint=f"options are {', '.join(known)}")
        inherited = {f"WEFT_{name.upper()}" for name in values.keys() - (options or {}).keys()}
        values |= {**MODES[mode or "default"], **(options or {})}
        if values.get("quantize") in CODES:
            values.setdefault("freeze", True)
        try:
            return cls(**values)
        except WeftError as error:
            told = f"the environment sets {', '.join(sorted(inherited))}" if inherited else None
            raise type(error)(error.message, hint="; ".join(filter(None, (error.hint, told)))) from None

    def key(self) -> str:
        """The part of the configuration that changes the code, as text."""
        return repr(sorted((k, v) for k, v in asdict(self).items() if k not in _NOT_OF_CODE))


@dataclass(frozen=True)
class MemoryBudget:
    """How much memory a training step may take: a share of what it takes without a budget, or bytes."""

    share: float | None = None
    bytes: int | None = None

    @classmethod
    def read(cls, text: str) -> Self:
        """A budget from text: `0.5`, `800MB`, `2GiB`."""
        found = _BUDGET.fullmatch(text.strip())
        if found is None or (not found[2] and not 0 <= float(found[1]) <= 1):
            raise WeftError(
                f"the option memory_budget is {text!r}",
                hint=_BUDGET_HINT,
            )
        if not found[2]:
            return cls(share=float(found[1]))
        power = " KMGT".index(found[3].upper() or " ")
        return cls(bytes=round(float(found[1]) * (1024 if found[4] else 1000) ** power))

    def limit(self, without: int) -> int:
        """The bytes of a budget, where a step takes so many without one."""
        return round(self.share * without) if self.share is not None else self.bytes or 0


def _check_choice(option: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise WeftError(f"{option} is {value!r}{nearest(value, known)}, which is none of {', '.join(map(repr, known))}")


def _warn_of_unknown_variables(known: Mapping[str, Any]) -> None:
    names = {*(name.upper() for name in known), *OTHER_VARIABLES}
    for variable in os.environ:
        name = variable.removeprefix("WEFT_")
        if name != variable and name not in names and not name.startswith("CONFORM_"):
            close = nearest(variable, (f"WEFT_{each}" for each in names))
            listed = ", ".join(f"WEFT_{each}" for each in sorted(names))
            warn(
                "options",
                f"the environment variable {variable} has no effect{close}",
                "nothing reads it",
                f"there are {listed}",
            )


@contextmanager
def compiling_anew() -> Generator[None]:
    """Within it, programs are neither found in the disk cache nor kept there."""
    before = os.environ.get("WEFT_CACHE")
    os.environ["WEFT_CACHE"] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ["WEFT_CACHE"]
        else:
            os.environ["WEFT_CACHE"] = before


def truth(variable: str, default: bool = False) -> bool:
    """What an environment variable says, by any of the usual words."""
    text = os.environ.get(variable, "")
    known = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if text and text.lower() not in known:
        raise WeftError(f"the environment variable {variable} is {text!r}", hint="it takes 1 or 0")
    return known[text.lower()] if text else default
