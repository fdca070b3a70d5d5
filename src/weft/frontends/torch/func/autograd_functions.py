"""Functions of autograd's as functions with rules of their own: their `backward`, `jvp` and `vmap` are the rules.

A rule runs the function again for what `ctx` keeps, so that derivatives of the rule see where that came from; random
numbers are those that the function drew.
"""

# Torch's own names have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false, reportPrivateUsage=false

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from weft.diagnostics import calling_line
from weft.errors import UnsupportedError
from weft.frontends.torch.func.capture_function import fake_tensors
from weft.frontends.torch.func.capturing import AUTOGRAD_RULES
from weft.frontends.torch.func.custom import Custom, plain_fake
from weft.frontends.torch.func.custom_checks import is_inexact
from weft.frontends.torch.transforms.dynamo_levels import without_forward_mode

log = logging.getLogger("weft")
_Function: Any = torch.autograd.Function


class _Context:
    """What a function keeps for its gradient; Dynamo traces it, too."""

    materializes = True
    """Whether its rules want zeros for what has no gradient or tangent, and not None."""

    def __init__(self, needs: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs
        self.saved_tensors: tuple[Any, ...] = ()
        self.saved_for_forward: tuple[Any, ...] = ()

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
        self.materializes = value


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
def _runner(cls: Any) -> Callable[[Any], tuple[_Context, Any]]:
    """Runs a function, and gives what it keeps beside what it returns."""
    forward, setup_context = cls.forward, cls.setup_context
    has_setup = setup_context is not _Function.setup_context

    def run(args: Any) -> tuple[_Context, Any]:
        context = _Context(tuple([_moves(each) for each in args]))
        if not has_setup:
            return context, forward(context, *args)
        found = forward(*args)
        setup_context(context, tuple(args), found)
        return context, found

    return run


@cache
def custom_of(cls: Any) -> Custom:
    """A user's function of autograd's, with its rules."""

    run, backward, tangent = _runner(cls), cls.backward, cls.jvp

    def vjp(grads: Any, args: Any, results: Any) -> Any:
        context, _ = run(args)
        given = grads if isinstance(grads, tuple | list) else (grads,)
        found = backward(context, *given)
        found = found if isinstance(found, tuple | list) else (found,)
        pairs = zip(args, [*found, *[None for _ in args]])  # noqa: B905
        return tuple([each if _moves(argument) else None for argument, each in pairs])

    def jvp(args: Any, tangents: Any) -> Any:
        context, _ = run(args)
        found = tangent(context, *[t if _moves(x) else None for x, t in zip(args, tangents, strict=True)])
        return (None,) if found is None else found

    def batch(size: int, batched: Any, args: Any) -> Any:
        dims = pytree.tree_map(lambda flag: 0 if flag is True else None, batched)
        info = SimpleNamespace(batch_size=size, randomness="error")
        found, out = cls.vmap(info, dims, *args)
        several = isinstance(found, tuple | list)
        pairs = zip(found if several else (found,), out if isinstance(out, tuple | list) else (out,), strict=True)
        front = tuple(x.expand(size, *x.shape) if d is None else x.movedim(d, 0) for x, d in pairs)
        return front if several else front[0]

    def function(*args: Any) -> Any:
        return run(args)[1]

    function.__name__ = function.__qualname__ = cls.__name__
    function.__module__ = cls.__module__
    has_jvp, has_batch = cls.jvp is not _Function.jvp, cls.vmap is not _Function.vmap
    made = Custom(function, vjp, jvp if has_jvp else None, batch if has_batch else None)
    made.runs_again = True
    return made


_TRACED: dict[str, Custom] = {}
"""Functions of autograd's that Dynamo has traced, by their names."""


def traced_key(cls: Any, args: Sequence[Any]) -> str | None:
    """The key of a user's function for `apply_traced`; None where Dynamo has to trace it by itself.

    That is one that draws random numbers: what Dynamo traces a second time draws others. And one whose rules tell
    None from zeros: what is traced does not know which gradients there will be.
    """
    known = rules_of(cls)
    if known is None or not _may_be_traced(cls, args):
        return None
    if known.place not in _TRACED:  # batches are those of the body: Dynamo traces no batching rules
        _TRACED[known.place] = Custom(known.function, known.vjp, known.jvp, None)
    return known.place


class _Drawing(TorchDispatchMode):
    """Sees random numbers."""

    found = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found |= torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))


def _may_be_traced(cls: Any, args: Sequence[Any]) -> bool:
    """Whether a function draws no random numbers, and its rules are never given None, for tensors of these types.

    One that cannot be run on such is not traced.
    """
    drawing = _Drawing()
    with _disable_current_modes(), temporarily_clear_interpreter_stack(), without_forward_mode():
        fakes = iter(fake_tensors([plain_fake(each) for each in args if isinstance(each, torch.Tensor)]))
        given = [next(fakes) if isinstance(each, torch.Tensor) else each for each in args]
        try:
            with torch.no_grad(), drawing:
                context, found = _runner(cls)(given)
        except Exception as error:  # a user's code may raise anything that has no numbers to look at
            log.info("%s: its rules are not traced, as %r", cls.__name__, error)
            return False
    moving = max(sum(map(_moves, args)) if cls.jvp is not _Function.jvp else 1, sum(map(_moves, _results(found))))
    return not drawing.found and (context.materializes or moving <= 1)


def _results(found: Any) -> Sequence[Any]:
    return found if isinstance(found, tuple | list) else (found,)


def apply_traced(key: str, *args: Any) -> Any:
    """Call a function with its rules; Dynamo traces this."""
    return _TRACED[key](*args)


def _moves(value: Any) -> bool:
    """Whether a value has derivatives."""
    return isinstance(value, torch.Tensor) and is_inexact(value)
