"""Functions of the user's that are told of launches and of what is compiled: `triton.knobs.runtime` sets them.

knobs.runtime.launch_enter_hook.add(f)     →     f(facts) before each launch of any kernel; facts.get()["name"]
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weft.frontends.triton.language.constants import constexpr_type
from weft.frontends.triton.language.types import pointer_type

if TYPE_CHECKING:
    from weft.frontends.triton.runtime.jit import JITFunction
    from weft.frontends.triton.runtime.kernel_handle import KernelHandle
    from weft.frontends.triton.runtime.specialise import Described

Hook = Callable[..., Any]


class HookChain:
    """Functions that are called in order."""

    def __init__(self, reversed: bool = False) -> None:
        self.calls: list[Hook] = []
        self.reversed = reversed

    def add(self, func: Hook) -> None:
        if func not in self.calls:
            self.calls.append(func)

    def remove(self, func: Hook) -> None:
        if func in self.calls:
            self.calls.remove(func)

    def __call__(self, *args: Any, **keywords: Any) -> None:
        for call in self.calls[::-1] if self.reversed else list(self.calls):
            call(*args, **keywords)


ENTER, EXIT = HookChain(), HookChain(reversed=True)
"""Before and after a launch."""
COMPILED = HookChain()
"""After a kernel was compiled for arguments of a kind that is new to this process."""


class LaunchFacts:
    """What a launch is told to be: found out when somebody asks."""

    def __init__(self, function: JITFunction, grid: Any, kernel: KernelHandle | None, args: Mapping[str, Any]) -> None:
        self.function, self.grid, self.kernel, self.args = function, grid, kernel, args

    def get(self) -> dict[str, Any]:
        name = self.function.__name__
        facts: dict[str, Any] = {"name": name, "function": getattr(self.kernel, "function", None), "stream": 0}
        tell = self.function.launch_metadata
        if tell is None or self.kernel is None:
            return facts
        return facts | tell(self.grid, self.kernel.metadata, dict(self.args))


@dataclass(frozen=True)
class JitFunctionInfo:
    """A kernel, as hooks of compiling are told of it."""

    module: str
    name: str
    jit_function: JITFunction


def compiling_facts(
    function: JITFunction, described: Sequence[Described], options: Mapping[str, Any]
) -> dict[str, Any]:
    """What hooks of compiling are told."""
    types = {name: each.type for name, each in zip(function.arg_names, described, strict=True)}
    constants = {(n,): each.type.value for n, each in enumerate(described) if isinstance(each.type, constexpr_type)}
    signature = {
        name: "constexpr" if isinstance(type_, constexpr_type) else _short(type_) for name, type_ in types.items()
    }
    name = f"{function.module}.{function.__qualname__}"
    key = f"{name} {signature} {constants} {dict(options)}"
    told: dict[str, Any] = {"signature": signature, "constants": constants, "is_warmup": False, "configs": [{}]}
    given = {option: options.get(option, default) for option, default in _DEFAULTS.items()}
    shown = ", ".join(f"{option}={value}" for option, value in given.items())
    return {
        "key": key,
        "repr": f"{function.__name__}[{shown}]({', '.join(f'{n}: {type_}' for n, type_ in signature.items())})",
        "fn": JitFunctionInfo(function.module, function.__qualname__, function),
        "compile": {"key": key, "device": 0, **told, **given},
        "is_manual_warmup": False,
        "already_compiled": False,
    }


def _short(type_: Any) -> str:
    """A type as Triton writes it in a signature."""
    from weft.frontends.triton.runtime.specialise import SHORT_NAMES

    if isinstance(type_, pointer_type):
        return f"*{_short(type_.element_ty)}"
    return SHORT_NAMES.get(str(type_), str(type_))


_DEFAULTS: dict[str, Any] = {
    "num_warps": 4,
    "num_ctas": 1,
    "num_stages": 3,
    "enable_fp_fusion": True,
    "launch_cooperative_grid": False,
    "extern_libs": (),
}


def serialize_specialization_data(
    name: str,
    signature: Mapping[str, Any],
    constants: Mapping[Any, Any],
    attrs: Mapping[Any, Any],
    options: Any,
    key: Any,
    target: Any,
) -> str:
    """What a kernel is compiled for, as JSON."""
    values = [_plain(value) for value in constants.values()]
    told: dict[str, Any] = {
        "name": name,
        "signature": dict(signature),
        "constant_keys": [_places(each) for each in constants],
        "constant_vals": values,
        "attrs_keys": [_places(each) for each in attrs],
        "attrs_vals": list(attrs.values()),
        "options": options if isinstance(options, dict) else vars(options),
        "key": key,
        "target": vars(target),
    }
    return json.dumps(told)


def _places(key: Any) -> Sequence[Any]:
    return list(key)


def _plain(value: Any) -> Any:
    match type(value).__name__:
        case "dtype":
            return str(value)
        case "constexpr":
            return {"constexpr": value.value}
        case "JITFunction":
            return {"jit_function": f"{value.module}:{value.fn.__qualname__}"}
        case _:
            return value
