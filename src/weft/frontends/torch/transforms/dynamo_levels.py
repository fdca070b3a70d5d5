"""Lets Dynamo trace functions while `torch.func` transforms them: it leaves those to eager, unless Weft compiles them.

Dynamo guards on the levels that are entered. It traces outside of them, on plain tensors of the shapes that the
function sees: what is transformed is the graph that it captures, by `transformed_call`.
"""

# Dynamo has no public interface to it.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportAttributeAccessIssue=false

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

import torch
from torch._dynamo import symbolic_convert
from torch._dynamo.guards import GuardBuilder
from torch._dynamo.source import GlobalStateSource
from torch._functorch import eager_transforms
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch._guards import Guard
from torch._subclasses import meta_utils
from torch.autograd import forward_ad

_under_levels: ContextVar[bool] = ContextVar("_under_levels", default=False)


def traced_under_transforms() -> bool:
    """Whether what Dynamo traces at the moment is called while torch transforms."""
    return _under_levels.get()


@contextmanager
def without_forward_mode() -> Generator[None]:
    """As outside of levels of forward mode: some functions of shapes fail inside, where torch prints tensors."""
    level = forward_ad._current_level
    forward_ad._current_level = -1
    try:
        yield
    finally:
        forward_ad._current_level = level


@contextmanager
def as_entered() -> Generator[None]:
    """Inside of `without_forward_mode`, as in the level that was entered around it, if any: tangents need one."""
    level = forward_ad._current_level
    forward_ad._current_level = 0 if eager_transforms.JVP_NESTING else level  # levels of forward mode do not nest
    try:
        yield
    finally:
        forward_ad._current_level = level


def is_traced_for(traced: Any, backend: Callable[..., Any]) -> bool:
    """Whether what Dynamo translates will be handed to a backend."""
    asked = inspect.getattr_static(traced.output.compiler_fn, "compiler_fn", traced.output.compiler_fn)
    asked = getattr(asked, "_torchdynamo_orig_backend", asked)
    return (asked.compiler_fn if isinstance(asked, torch._TorchCompileWrapper) else asked) is backend


def asked_options(traced: Any) -> dict[str, Any]:
    """The `options` and the `mode` under which Dynamo translates."""
    asked = getattr(traced.output.compiler_fn, "_torchdynamo_orig_backend", traced.output.compiler_fn)
    found = getattr(asked, "kwargs", {})  # those of `torch.compile`, which what wraps its backend shows as its own
    return {name: found[name] for name in ("options", "mode") if name in found}


@cache
def trace_under_transforms(backend: Callable[..., Any]) -> None:
    """Let Dynamo trace what this backend compiles while functions of `torch.func` are entered."""
    translator: Any = symbolic_convert.InstructionTranslator
    refuse = getattr(translator, "_throw_if_in_functorch", None)
    if refuse is None:
        return  # then such functions run in eager
    describer: Any = meta_utils.MetaTensorDescriber
    run, describe = translator.run, describer.describe_tensor

    def checked(self: Any) -> None:
        if not is_traced_for(self, backend):
            refuse(self)

    def outside(self: Any) -> Any:
        if is_traced_for(self, backend):  # what is compiled outside of forward mode has no tangents
            level: Any = GuardBuilder.DUAL_LEVEL
            self.output.guards.add(Guard(GlobalStateSource(), level))
        transformed = torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0
        if not transformed or not is_traced_for(self, backend):
            return run(self)
        token = _under_levels.set(True)
        try:
            with temporarily_clear_interpreter_stack(), without_forward_mode():
                return run(self)
        finally:
            _under_levels.reset(token)

    def described(self: Any, tensor: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        wrapped = _under_levels.get() and torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        return describe(self, _plain(tensor) if wrapped else tensor, *arguments, **options)

    translator._throw_if_in_functorch, translator.run = checked, outside
    describer.describe_tensor = described


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor like one that is wrapped, as the function sees that, outside of the levels that Dynamo has entered."""
    is_leaf = tensor.is_leaf
    with temporarily_clear_interpreter_stack(), torch.enable_grad():
        made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
        if not tensor.requires_grad:
            return made
        return made.requires_grad_() if is_leaf else made.requires_grad_().clone()
