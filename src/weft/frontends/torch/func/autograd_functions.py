"""Functions of autograd's as functions with rules of their own: their `backward`, `jvp` and `vmap` are the rules.

A rule runs the function again for what `ctx` keeps, so that derivatives of the rule see where that came from; random
numbers are those that the function drew.
"""

# Torch's own names have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
import torch.utils._pytree as pytree

from weft.diagnostics import calling_line
from weft.errors import UnsupportedError
from weft.frontends.torch.func.capturing import AUTOGRAD_RULES
from weft.frontends.torch.func.custom import Custom

_Function: Any = torch.autograd.Function


class _Context(SimpleNamespace):
    """What a function keeps for its gradient."""

    saved_tensors: tuple[Any, ...] = ()
    saved_for_forward: tuple[Any, ...] = ()
    needs_input_grad: tuple[bool, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def save_for_forward(self, *tensors: Any) -> None:
        self.saved_for_forward = tensors

    def mark_dirty(self, *tensors: Any) -> None:
        raise UnsupportedError(
            "an autograd function that writes to its arguments", location=calling_line(), hint="return new values"
        )

    def mark_non_differentiable(self, *tensors: Any) -> None:
        """Such results have no gradients anyway: they are integers, or nobody differentiates them."""

    def set_materialize_grads(self, value: bool) -> None:
        """Gradients are always there."""


def is_known(cls: Any) -> bool:
    """Whether it is a user's: torch's own compiled graphs, and what stands for a custom function, are not."""
    return not hasattr(cls, "captured_by_weft") and not cls.__module__.startswith(
        ("torch._functorch", "torch._dynamo", "torch._higher_order_ops")
    )


def rules_of(cls: Any) -> Custom | None:
    """A function of autograd's with its rules; None where it is not a user's."""
    return custom_of(cls) if is_known(cls) else None


AUTOGRAD_RULES[:] = [rules_of]


@cache
def custom_of(cls: Any) -> Custom:
    """A user's function of autograd's, with its rules."""

    def run(args: Any) -> tuple[_Context, Any]:
        context = _Context(needs_input_grad=tuple(_is_float(each) for each in args))
        if cls.setup_context is _Function.setup_context:
            return context, cls.forward(context, *args)
        found = cls.forward(*args)
        cls.setup_context(context, tuple(args), found)
        return context, found

    def vjp(grads: Any, args: Any, results: Any) -> Any:
        context, _ = run(args)
        given = grads if isinstance(grads, tuple | list) else (grads,)
        found = cls.backward(context, *given)
        found = found if isinstance(found, tuple | list) else (found,)
        pairs = zip(args, [*found, *(None for _ in args)], strict=False)
        return tuple(each if _is_float(argument) else None for argument, each in pairs)

    def jvp(args: Any, tangents: Any) -> Any:
        context, _ = run(args)
        return cls.jvp(context, *(t if _is_float(x) else None for x, t in zip(args, tangents, strict=True)))

    def batch(size: int, batched: Any, args: Any) -> Any:
        dims = pytree.tree_map(lambda flag: 0 if flag is True else None, batched)
        info = SimpleNamespace(batch_size=size, randomness="error")
        found, out = cls.vmap(info, dims, *args)
        several = isinstance(found, tuple | list)
        pairs = zip(found if several else (found,), out if isinstance(out, tuple | list) else (out,), strict=True)
        front = tuple(x.expand(size, *x.shape) if d is None else x.movedim(d, 0) for x, d in pairs)
        return front if several else front[0]

    function: Callable[..., Any] = lambda *args: run(args)[1]  # noqa: E731
    function.__name__ = function.__qualname__ = cls.__name__
    function.__module__ = cls.__module__
    has_jvp, has_batch = cls.jvp is not _Function.jvp, cls.vmap is not _Function.vmap
    made = Custom(function, vjp, jvp if has_jvp else None, batch if has_batch else None)
    made.runs_again = True
    return made


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()
