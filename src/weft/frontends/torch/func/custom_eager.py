"""A custom function outside of Weft's graphs: an `autograd.Function`, which autograd, torch.func and Dynamo know."""

# Torch's pytrees have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownParameterType=false, reportMissingParameterType=false, reportIncompatibleMethodOverride=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
import torch.utils._pytree as pytree
from torch.autograd.graph import get_gradient_edge

from weft.frontends.torch.transforms.differentiable_forms import takes_tangents


class Rules(Protocol):
    """A function and its rules."""

    function: Callable[..., Any]
    vjp: Callable[..., Any] | None
    jvp: Callable[..., Any] | None
    batch: Callable[..., Any] | None


def is_inexact(tensor: torch.Tensor) -> bool:
    """Whether a tensor has derivatives: of real or complex numbers."""
    return tensor.is_floating_point() or tensor.is_complex()


def eager_call(rules: Rules, args: Sequence[Any]) -> Any:
    """Call a function so that torch's transformations take its rules."""
    if rules.vjp is None and rules.jvp is None and rules.batch is None:
        return rules.function(*args)
    leaves, spec = pytree.tree_flatten(tuple(args))
    places = [n for n, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    out: dict[str, Any] = {}
    for_tangents = takes_tangents()  # gradients may be taken by another thread

    def whole(tensors: Sequence[Any]) -> Any:
        given = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            given[place] = tensor
        return pytree.tree_unflatten(given, spec)

    def tree(tensors: Sequence[Any]) -> Any:
        rest = iter(tensors)
        return pytree.tree_unflatten([next(rest) if known else leaf for known, leaf in out["leaves"]], out["spec"])

    def flat(returned: Any) -> tuple[torch.Tensor, ...]:
        found, out["spec"] = pytree.tree_flatten(returned)
        out["leaves"] = [(isinstance(leaf, torch.Tensor), leaf) for leaf in found]
        return tuple(leaf for leaf in found if isinstance(leaf, torch.Tensor))

    def evaluate(tensors: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        return flat(rules.function(*whole(tensors)))

    def backward(ctx: Any, *grads: Any) -> Any:
        saved = ctx.saved_tensors
        tensors, results = saved[: len(places)], saved[len(places) :]
        arguments = whole(tensors)
        grads = tuple(None if g is None else g.contiguous() for g in grads)  # rules may be kernels
        made = rules.vjp(tree(grads), arguments, tree(results)) if rules.vjp else _derived(evaluate, tensors, grads)
        if rules.vjp is None:
            return tuple(made)
        made = made if isinstance(made, tuple | list) else (made,)
        if for_tangents:
            _check_linear(pytree.tree_leaves(made), grads)
        flat: list[Any] = []
        for argument, gradient in zip(arguments, made, strict=True):
            held = [leaf for leaf in pytree.tree_leaves(argument) if isinstance(leaf, torch.Tensor)]
            flat += pytree.tree_leaves(gradient) if gradient is not None else [None] * len(held)
        return tuple(flat)

    def pushed(ctx: Any, *tangents: Any) -> Any:
        tensors = ctx.saved_for_forward[: len(places)] if hasattr(ctx, "saved_for_forward") else ctx.tensors
        given = [torch.zeros_like(x) if t is None else t for x, t in zip(tensors, tangents, strict=True)]
        assert rules.jvp is not None, "asked before"
        return tuple(pytree.tree_leaves(rules.jvp(whole(tensors), whole(given))))

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs, *output)
        ctx.save_for_forward(*inputs, *output)
        ctx.tensors = inputs
        ctx.mark_non_differentiable(*(each for each in output if not is_inexact(each)))

    def batched(info: Any, in_dims: Any, *tensors: Any) -> Any:
        front = [x if d is None else x.movedim(d, 0) for x, d in zip(tensors, in_dims, strict=True)]
        flags = whole([d is not None for d in in_dims])
        assert rules.batch is not None, "asked before"
        found = flat(rules.batch(info.batch_size, flags, whole(front)))
        return found, tuple(0 for _ in found)

    members: dict[str, Any] = {
        "forward": staticmethod(lambda *tensors: evaluate(tensors)),
        "setup_context": staticmethod(setup_context),
        "backward": staticmethod(backward),
        "generate_vmap_rule": rules.batch is None,
        "captured_by_weft": True,
    }
    if rules.jvp is not None:
        members["jvp"] = staticmethod(pushed)
    if rules.batch is not None:
        members["vmap"] = staticmethod(batched)
    made: Any = type("CustomFunction", (torch.autograd.Function,), members)
    return tree(made.apply(*(leaves[place] for place in places)))


def _check_linear(made: Sequence[Any], grads: Sequence[Any]) -> None:
    """Refuse gradients from which no way leads back to those they were made of, where tangents are taken along it.

    Without it, as with `once_differentiable`, torch would say that the tangents are 0.
    """
    given = {get_gradient_edge(g).node for g in grads if isinstance(g, torch.Tensor) and g.requires_grad}
    found = [each for each in made if isinstance(each, torch.Tensor)]
    waiting: list[Any] = [get_gradient_edge(each).node for each in found if each.requires_grad]
    seen: set[Any] = set()
    while waiting:
        node = waiting.pop()
        if node in given:
            return
        if node not in seen:
            seen.add(node)
            waiting += [following for following, _ in node.next_functions if following is not None]
    if given and found:
        raise NotImplementedError("tangents of a function whose gradient is not differentiable, and has no other rule")


def _derived(evaluate: Callable[..., Any], tensors: Sequence[Any], grads: Sequence[Any]) -> tuple[Any, ...]:
    """Gradients by the function itself, where it has no rule for them."""
    floats = [n for n, x in enumerate(tensors) if is_inexact(x)]

    def function(*moving: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = list(tensors)
        for place, tensor in zip(floats, moving, strict=True):
            given[place] = tensor
        return tuple(each for each in evaluate(given) if is_inexact(each))

    derived: Any = torch.func.vjp(function, *(tensors[n] for n in floats))
    found, pull = derived
    seeds = tuple(g for g in grads if g is not None)[: len(found)]
    gradients = dict(zip(floats, pull(seeds), strict=True))
    return tuple(gradients.get(n) for n in range(len(tensors)))
