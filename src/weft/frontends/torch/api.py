"""`weft.compile`: compile a module or a function, its repeated layers once.

A model that repeats a block (the layers of a transformer) is compiled by region: the block is traced and compiled once,
and all its copies run that code with their own weights. What lies around the blocks runs as it is. This makes a first
call several times faster than tracing every layer, at the price of a guard check per layer and call.
"""

# torch leaves some of its functions without types, and has no public name for what a module calls when compiled.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar, overload

import torch
from torch import nn
from torch._dynamo import trace_rules

from weft.config import MODES
from weft.errors import WeftError
from weft.frontends.torch.settings import settings

_LEAST_COPIES = 3
_LEAST_PARTS = 2

Function = TypeVar("Function", bound=Callable[..., Any])


@overload
def compile(model: nn.Module, **options: Any) -> nn.Module: ...
@overload
def compile(model: Function, **options: Any) -> Function: ...
@overload
def compile(model: None = None, **options: Any) -> Callable[[Function], Function]: ...
def compile(
    model: Any = None,
    *,
    dynamic: bool | None = None,
    fullgraph: bool = False,
    regions: bool = True,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Any:
    """A compiled version of a module or function; `options` are fields of `weft.Config`, and may be given by name.

    `mode` is one of torch's, and stands for some of them.

    Without a model it is a decorator: `@weft.compile(strict=True)`. Unlike `torch.compile(model, backend="weft")` this
    compiles repeated layers once (`regions=False` turns that off).
    The module is compiled in place, like `nn.Module.compile`: its parameters, its `state_dict` and its class stay.
    Of an exported program it is the module that the program makes.
    """
    chosen = {**(options or {}), **fields}
    try:
        settings(chosen, mode)
    except WeftError as error:
        beside = "; beside dynamic, fullgraph, mode and regions" if "unknown option" in error.message else ""
        raise type(error)(error.message, hint=error.hint and f"{error.hint}{beside}") from None
    chosen = {**MODES[mode or "default"], **chosen}
    if isinstance(model, torch.export.ExportedProgram):
        model = model.module()
    if model is None:
        return partial(compile, dynamic=dynamic, fullgraph=fullgraph, regions=regions, options=chosen)
    if not callable(model):
        raise WeftError(f"weft.compile takes a module or a function, got {type(model).__name__}")
    asked: dict[str, Any] = {
        "backend": "weft",
        "dynamic": dynamic,
        "fullgraph": fullgraph,
        "options": chosen or None,
    }
    if not isinstance(model, nn.Module):
        return torch.compile(model, **asked)
    blocks = list(repeated_blocks(model)) if regions and not fullgraph else []
    for module in blocks or [model]:
        _compile_in_place(module, asked)
    return model


def _compile_in_place(module: nn.Module, settings: Mapping[str, Any]) -> None:
    """As `nn.Module.compile`, also for modules of torch's own."""
    if not trace_rules.check(module.forward):
        module.compile(**settings)
        return
    # Dynamo passes over functions of torch itself, and a Sequential has no others: it needs a frame to begin with.
    module._compiled_call_impl = partial(torch.compile(_call, **settings), module)


def _call(module: nn.Module, *arguments: Any, **named: Any) -> Any:
    return module._call_impl(*arguments, **named)


def repeated_blocks(model: nn.Module) -> Iterator[nn.Module]:
    """The outermost submodules that stand at least three times, with one structure, in a list of modules."""
    for child in model.children():
        if isinstance(child, nn.ModuleList | nn.Sequential):
            shapes = [_structure(block) for block in child]
            counts = Counter(shapes)
            repeated = [block for block, shape in zip(child, shapes, strict=True) if _repeats(block, counts[shape])]
            if repeated:
                yield from repeated
                continue
        yield from repeated_blocks(child)


def _repeats(block: nn.Module, copies: int) -> bool:
    return copies >= _LEAST_COPIES and sum(1 for _ in block.children()) >= _LEAST_PARTS


def _structure(module: nn.Module) -> tuple[Any, ...]:
    """What decides whether two modules can run the same code: classes and the types of parameters and buffers."""
    classes = tuple((name, type(part)) for name, part in module.named_modules())
    tensors = tuple(
        (name, tuple(tensor.shape), tensor.dtype)
        for name, tensor in (*module.named_parameters(), *module.named_buffers())
    )
    return classes, tensors
