"""A custom function outside of Weft's graphs: an `autograd.Function`, which autograd, torch.func and Dynamo know."""

# Torch's pytrees have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownParameterType=false, reportMissingParameterType=false, reportIncompatibleMethodOverride=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
import torch.utils._pytree as pytree
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.autograd.graph import get_gradient_edge

from weft.diagnostics import calling_line
from weft.errors import UnsupportedError
from weft.frontends.torch.func.argument_writes import refusing_writes
from weft.frontends.torch.func.custom_checks import checked_batch, checked_gradients, checked_tangents, is_inexact
from weft.frontends.torch.func.tangents_by_gradients import jvp_by_gradients, unless_torch_has_no_rule
from weft.frontends.torch.transforms.differentiable_forms import takes_tangents

_is_wrapped: Any = is_functorch_wrapped_tensor
_NO_TANGENTS = "tangents of a function whose gradient is not differentiable, and has no other rule"


class Rules(Protocol):
    """A function and its rules."""

    name: str
    function: Callable[..., Any]
    vjp: Callable[..., Any] | None
    jvp: Callable[..., Any] | None
    batch: Callable[..., Any] | None

    def check_linear(self, args: Sequence[Any], line: str | None) -> None:
        """Raise where the gradient rule gives no tangents, for it is not linear."""
        ...


def eager_call(rules: Rules, args: Sequence[Any]) -> Any:
    """Call a function so that torch's transformations take its rules."""
    if rules.vjp is None and rules.jvp is None and rules.batch is None:
        return rules.function(*args)
    call = _EagerCall(rules, args, calling_line(), takes_tangents())
    made: Any = type("CustomFunction", (torch.autograd.Function,), call.members())
    return call.tree(made.apply(*(leaf for leaf in pytree.tree_leaves(tuple(args)) if isinstance(leaf, torch.Tensor))))


class _EagerCall:
    """One call: its arguments' tree, and the methods of an `autograd.Function` of the tensors in it."""

    def __init__(self, rules: Rules, args: Sequence[Any], line: str | None, for_tangents: bool) -> None:
        self.rules, self.line = rules, line
        self.for_tangents = for_tangents  # gradients may be taken by another thread
        leaves, self._spec = pytree.tree_flatten(tuple(args))
        self.transformed = any(isinstance(leaf, torch.Tensor) and _is_wrapped(leaf) for leaf in leaves)
        self._leaves = [None if isinstance(leaf, torch.Tensor) else (leaf,) for leaf in leaves]
        self._count = self._leaves.count(None)
        self._out: tuple[list[Any], Any] = [], None

    def members(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "forward": staticmethod(lambda *tensors: self.evaluate(tensors)),
            "setup_context": staticmethod(_setup_context),
            "backward": staticmethod(self._backward),
            "jvp": staticmethod(self._jvp),
            "generate_vmap_rule": self.rules.batch is None,
            "captured_by_weft": True,
        }
        return found if self.rules.batch is None else {**found, "vmap": staticmethod(self._vmap)}

    def arguments(self, tensors: Sequence[Any]) -> Any:
        """The arguments, with these tensors."""
        return _filled(self._leaves, self._spec, tensors)

    def tree(self, tensors: Sequence[Any]) -> Any:
        """What the function returns, with these tensors."""
        return _filled(*self._out, tensors)

    def evaluate(self, tensors: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        given = {id(each) for each in tensors}
        with refusing_writes(self.rules.name, self.line, tensors, self.transformed):
            found = self._flat(self.rules.function(*self.arguments(tensors)))
        return tuple(each.view_as(each) if id(each) in given else each for each in found)  # torch takes no argument

    def _flat(self, returned: Any) -> tuple[torch.Tensor, ...]:
        found, spec = pytree.tree_flatten(returned)
        self._out = [None if isinstance(leaf, torch.Tensor) else (leaf,) for leaf in found], spec
        return tuple(leaf for leaf in found if isinstance(leaf, torch.Tensor))

    def _saved(self, saved: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        """The arguments and the results among what was saved."""
        return saved[: self._count], saved[self._count :]

    def _backward(self, ctx: Any, *grads: Any) -> Any:
        tensors, results = self._saved(ctx.saved_tensors)
        if self.rules.vjp is None:
            seeds = [g for g, result in zip(grads, results, strict=True) if is_inexact(result)]
            return _derived(self.evaluate, tensors, seeds)
        grads = tuple(None if g is None else g.contiguous() for g in grads)  # rules may be kernels
        found = self._gradients(self.rules.vjp, tensors, results, grads)
        if self.for_tangents:
            if not _leads_back(found, grads):
                raise NotImplementedError(_NO_TANGENTS)
            if self.rules.jvp is None:
                self.rules.check_linear(self.arguments(tensors), self.line)
        rest = iter(found)
        return tuple(next(rest) if is_inexact(each) else None for each in tensors)

    def _gradients(self, vjp: Any, tensors: Sequence[Any], results: Sequence[Any], grads: Sequence[Any]) -> list[Any]:
        """The gradients of those tensors that have them, by the rule."""
        arguments = self.arguments(tensors)
        made = vjp(self.tree(grads), arguments, self.tree(results))
        return checked_gradients(self.rules.name, self.line, made, arguments)

    def _jvp(self, ctx: Any, *tangents: Any) -> Any:
        saved = ctx.saved_for_forward if hasattr(ctx, "saved_for_forward") else ctx.tensors
        tensors, results = self._saved(saved)
        given = [_tangent_or_zeros(x, t) for x, t in zip(tensors, tangents, strict=True)]
        if self.rules.jvp is not None:
            made = self.rules.jvp(self.arguments(tensors), self.arguments(given))
            found = checked_tangents(self.rules.name, self.line, made, results)
        elif self.rules.vjp is not None:
            self.rules.check_linear(self.arguments(tensors), self.line)
            found = self._transposed(self.rules.vjp, tensors, results, given)
        else:
            found = _tangents_of_body(self.evaluate, tensors, given)
        rest = iter(found)
        return tuple(next(rest) if is_inexact(each) else None for each in results)

    def _transposed(self, vjp: Any, tensors: Sequence[Any], results: Sequence[Any], tangents: Sequence[Any]) -> Any:
        """Tangents by the transpose of the gradient rule, which is linear in the gradients that it takes."""
        moving = [each for each in tensors if is_inexact(each)]

        def pull(*seeds: torch.Tensor) -> tuple[torch.Tensor, ...]:
            rest = iter(seeds)
            grads = [next(rest) if is_inexact(each) else None for each in results]
            found = self._gradients(vjp, tensors, results, grads)
            if not _leads_back(found, grads):
                raise UnsupportedError(_NO_TANGENTS, location=self.line, hint="give it a rule `jvp` as well")
            return tuple(torch.zeros_like(x) if g is None else g for x, g in zip(moving, found, strict=True))

        pulled: Any = torch.func.vjp(pull, *(torch.ones_like(each) for each in results if is_inexact(each)))
        return pulled[1](tuple(each for each in tangents if each is not None))

    def _vmap(self, info: Any, in_dims: Any, *tensors: Any) -> Any:
        front = [x if d is None else x.movedim(d, 0) for x, d in zip(tensors, in_dims, strict=True)]
        flags = self.arguments([d is not None for d in in_dims])
        assert self.rules.batch is not None, "asked before"
        made = self.rules.batch(info.batch_size, flags, self.arguments(front))
        checked_batch(self.rules.name, self.line, info.batch_size, made, None)
        found = self._flat(made)
        return found, tuple(0 for _ in found)


def _filled(leaves: Sequence[tuple[Any] | None], spec: Any, tensors: Sequence[Any]) -> Any:
    """A tree with these tensors in place of None."""
    rest = iter(tensors)
    return pytree.tree_unflatten([next(rest) if leaf is None else leaf[0] for leaf in leaves], spec)


def _setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs, *output)
    ctx.save_for_forward(*inputs, *output)
    ctx.tensors = (*inputs, *output)
    ctx.mark_non_differentiable(*(each for each in output if not is_inexact(each)))


def _tangent_or_zeros(x: torch.Tensor, tangent: torch.Tensor | None) -> torch.Tensor | None:
    if not is_inexact(x):
        return None
    return torch.zeros_like(x) if tangent is None else tangent


def _leads_back(made: Sequence[Any], grads: Sequence[Any]) -> bool:
    """Whether a way leads from gradients back to those they were made of: tangents are taken along it.

    Without it, as with `once_differentiable`, torch would say that the tangents are 0.
    """
    given = {get_gradient_edge(g).node for g in grads if isinstance(g, torch.Tensor) and g.requires_grad}
    found = [each for each in made if isinstance(each, torch.Tensor)]
    waiting: list[Any] = [get_gradient_edge(each).node for each in found if each.requires_grad]
    seen: set[Any] = set()
    while waiting:
        node = waiting.pop()
        if node in given:
            return True
        if node not in seen:
            seen.add(node)
            waiting += [following for following, _ in node.next_functions if following is not None]
    return not (given and found)


def _derived(evaluate: Callable[..., Any], tensors: Sequence[Any], seeds: Sequence[Any]) -> tuple[Any, ...]:
    """Gradients by the function itself, where it has no rule for them."""
    floats, function = _of_floats(evaluate, tensors)
    derived: Any = torch.func.vjp(function, *(tensors[n] for n in floats))
    gradients = dict(zip(floats, derived[1](tuple(seeds)), strict=True))
    return tuple(gradients.get(n) for n in range(len(tensors)))


def _tangents_of_body(
    evaluate: Callable[..., Any], tensors: Sequence[Any], tangents: Sequence[Any]
) -> tuple[torch.Tensor, ...]:
    """Tangents by the function itself, where it has no rule that gives them."""
    floats, function = _of_floats(evaluate, tensors)
    primals, directions = tuple(tensors[n] for n in floats), tuple(tangents[n] for n in floats)
    with unless_torch_has_no_rule():  # levels of forward mode do not nest
        return jvp_by_gradients(function, primals, directions, has_aux=False)[1]
    return torch.func.jvp(function, primals, directions)[1]


def _of_floats(evaluate: Callable[..., Any], tensors: Sequence[Any]) -> tuple[list[int], Callable[..., Any]]:
    """The places of tensors that have derivatives, and the function of these, for its results that have them."""
    floats = [n for n, x in enumerate(tensors) if is_inexact(x)]

    def function(*moving: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = list(tensors)
        for place, tensor in zip(floats, moving, strict=True):
            given[place] = tensor
        return tuple(each for each in evaluate(given) if is_inexact(each))

    return floats, function
