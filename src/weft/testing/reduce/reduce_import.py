"""Finds the one call of a captured graph that cannot be imported: `weft reduce`, where no graph program was made.

Each call is converted by itself, whatever stands around it, so that it fails alone as well. It is written as Python:

    def call(x0):
        return torch.ops.aten.tanh.default(x0)

    INPUTS = [torch.empty_strided((2, 3), (3, 1), dtype=torch.float32)]
"""

# Torch's graphs have no types that can be followed, and its operators no public class.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from weft.config import Config
from weft.errors import UnsupportedError
from weft.frontends.torch.importer.import_graph import import_graph


def failing_call(module: fx.GraphModule, config: Config | None = None) -> tuple[str, Exception]:
    """The text of the first call of a graph that fails by itself, and how it does."""
    for node in module.graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        try:
            text = call_text(node)
        except UnsupportedError:
            continue
        if (error := import_failure(*_read(text), config)) is not None:
            return text, error
    raise UnsupportedError("the import of a graph fails, but none of its calls does by itself")


def import_failure(call: Callable[..., Any], inputs: Sequence[Any], config: Config | None = None) -> Exception | None:
    """What goes wrong when a function's graph is imported, None if nothing does."""

    def outputs(*arguments: Any) -> Sequence[Any]:
        made = call(*arguments)
        return made if isinstance(made, tuple | list) else (made,)

    try:
        traced = make_fx(outputs, tracing_mode="fake")(*inputs)
        import_graph(traced, "inference", config or Config.from_options())
    except Exception as error:  # this is what is looked for, whatever it is
        return error
    return None


def reproduce(call: Callable[..., Any], inputs: Sequence[Any], options: Mapping[str, Any] | None = None) -> NoReturn:
    """Import a call's graph with the options that it failed with, say what happens, and exit with 1 if it fails."""
    error = import_failure(call, inputs, Config.from_options(options))
    print("it works" if error is None else f"it fails: raises: {type(error).__name__}: {error}")
    raise SystemExit(error is not None)


def call_text(node: fx.Node) -> str:
    """A call as a function of the tensors that it takes, and these, without their values."""
    names = {source: f"x{number}" for number, source in enumerate(_tensors(node))}
    arguments = [_literal(value, names) for value in node.args]
    arguments += [f"{name}={_literal(value, names)}" for name, value in node.kwargs.items()]
    inputs = ", ".join(_input(source.meta["val"]) for source in names)
    return (
        f"def call({', '.join(names.values())}):\n    return torch.ops.{node.target}({', '.join(arguments)})\n\n\n"
        f"INPUTS = [{inputs}]\n"
    )


def _tensors(node: fx.Node) -> list[fx.Node]:
    return [source for source in node.all_input_nodes if isinstance(source.meta.get("val"), torch.Tensor)]


def _input(meta: torch.Tensor) -> str:
    shape, strides = (tuple(map(_number, sizes)) for sizes in (meta.shape, meta.stride()))
    return f"torch.empty_strided({shape}, {strides}, dtype={meta.dtype})"


def _number(size: Any) -> int:
    """A size as it was in the call that was traced."""
    hint = size.node.hint if isinstance(size, torch.SymInt) else size
    if not isinstance(hint, int):
        raise UnsupportedError(f"the size {size} is not known")
    return hint


def _literal(value: Any, names: dict[fx.Node, str]) -> str:
    match value:
        case fx.Node() if value in names:
            return names[value]
        case fx.Node():
            return _literal(value.meta.get("val"), names)
        case list() | tuple():
            return f"[{', '.join(_literal(item, names) for item in value)}]"
        case torch.SymInt():
            return str(_number(value))
        case float() if not math.isfinite(value):
            return f'float("{value}")'
        case torch.device():
            return f'torch.device("{value}")'
        case None | bool() | int() | float() | str() | torch.dtype() | torch.layout() | torch.memory_format():
            return repr(value)
        case _:
            raise UnsupportedError(f"{type(value).__name__} as an argument")


def _read(text: str) -> tuple[Callable[..., Any], Sequence[Any]]:
    scope: dict[str, Any] = {"torch": torch}
    exec(text, scope)
    return scope["call"], scope["INPUTS"]
