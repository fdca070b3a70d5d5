"""A custom function inside of what Dynamo traces: its body stands in the graph, and its rules in a graph beside it.

    y = f(x)                      ─►   y' = (body of f)(x)
                                       y = weft_custom_rules(graph of the rules, ..., tensors=[x], results=[y'])

Dynamo traces the rules as it traces the function: what they close over, it guards or gives to the graph. Whoever runs
the graph, be it to trace it or to transform it, calls an `autograd.Function`, which has the rules for derivatives.
"""

# Torch's operators and graphs have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownParameterType=false, reportMissingParameterType=false, reportIncompatibleMethodOverride=false, reportPrivateUsage=false, reportUnknownLambdaType=false

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import fx
from torch._C._functorch import TransformType
from torch._dynamo.comptime import comptime
from torch._dynamo.variables.higher_order_ops import BaseHOPVariable
from torch._functorch.pyfunctorch import retrieve_all_functorch_interpreters
from torch._higher_order_ops import BaseHOP

from weft.diagnostics import calling_line
from weft.frontends.torch.func.argument_writes import written
from weft.frontends.torch.func.custom_checks import checked_gradients, checked_tangents, is_inexact, zeros_for_none
from weft.frontends.torch.func.custom_eager import Rules
from weft.frontends.torch.transforms.dynamo_levels import traced_under_transforms

_PLACE = "place "
"""Names of operands inside of the graph of rules begin with it: Dynamo hands over only what is used, in that order."""


@torch._dynamo.assume_constant_result
def in_batches() -> bool:
    """Whether what Dynamo traces at the moment may be called for a batch."""
    levels = retrieve_all_functorch_interpreters()
    return traced_under_transforms() or any(each.key() == TransformType.Vmap for each in levels)


@torch._dynamo.assume_constant_result
def has_tangents() -> bool:
    """Whether Dynamo is at a level of forward mode."""
    return any(each.key() == TransformType.Jvp for each in retrieve_all_functorch_interpreters())


def _with_tangents(results: Sequence[torch.Tensor], moving: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Results as they are, made so that Dynamo sees that they, and their gradients, have tangents of all orders.

    What has none when it traces, it takes for a constant. Nothing is made of values that are not finite.
    """
    found: list[torch.Tensor] = []
    for result in results:
        for each in moving if is_inexact(result) else []:
            one = torch.tanh(each).sum()
            one = (one if result.is_complex() or not one.is_complex() else one.real).to(result.dtype)
            result = torch.where(torch.zeros((), dtype=torch.bool, device=result.device), one, result)
        found.append(result)
    return found


def _fakes(ctx: Any) -> list[Any]:
    """What Dynamo takes for the values of the local `tensors`."""
    proxies = ctx.get_local("tensors").as_proxy()
    return [each.node.meta["example_value"] for each in proxies]


def _note_versions(ctx: Any) -> None:
    for each in _fakes(ctx):
        each.weft_version = each._version


def _refuse_writes(ctx: Any) -> None:
    """Raise where the function has written to its arguments."""
    if any(each._version != each.weft_version for each in _fakes(ctx)):
        raise written("a custom function", calling_line())


def traced_call(rules: Rules, args: tuple[Any, ...], kwargs: dict[str, Any], named: dict[str, dict[str, Any]]) -> Any:
    """Call a function where Dynamo traces."""
    tensors = [leaf for leaf in pytree.tree_leaves(args) if isinstance(leaf, torch.Tensor)]
    comptime(_note_versions)
    with torch.no_grad() if rules.vjp is not None else nullcontext():
        returned = rules.function(*args, **kwargs)
    if rules.vjp is None and rules.jvp is None:
        return returned
    comptime(_refuse_writes)
    results = [leaf for leaf in pytree.tree_leaves(returned) if isinstance(leaf, torch.Tensor)]
    moving, floats = ([each for each in some if is_inexact(each)] for some in (tensors, results))
    # Only their types matter: all of them are tensors that nobody else has.
    operands = [torch.empty_like(each) for each in (*tensors, *results, *floats, *moving)]
    given = custom_rules(
        functools.partial(_by_rules, rules, args, kwargs, named, returned),
        *operands,
        tensors=tensors,
        results=results,
        has_vjp=rules.vjp is not None,
        has_jvp=rules.jvp is not None,
    )
    given = given[: len(results)]
    return _with_tensors(returned, _with_tangents(given, moving) if has_tangents() else given)


def _with_tensors(tree: Any, tensors: Sequence[Any]) -> Any:
    """A tree with other tensors."""
    leaves, spec = pytree.tree_flatten(tree)
    rest = iter(tensors)
    return pytree.tree_unflatten([next(rest) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves], spec)


def _by_rules(
    rules: Rules,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    named: dict[str, dict[str, Any]],
    returned: Any,
    *operands: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    """What the rules give for arguments, results, gradients of these and tangents of those, behind the results."""
    given = [torch.ops.weft.named(each, _PLACE + str(n)) for n, each in enumerate(operands)]
    count = sum(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(args))
    many = sum(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(returned))
    tensors, results, rest = given[:count], given[count : count + many], iter(given[count + many :])
    grads = [next(rest) if is_inexact(each) else None for each in results]
    tangents = [next(rest) if is_inexact(each) else None for each in tensors]
    arguments = _with_tensors(args, tensors)
    made = [each.clone() for each in results]
    if rules.vjp is not None:
        found = rules.vjp(
            _with_tensors(returned, grads),
            arguments,
            _with_tensors(returned, results),
            **kwargs,
            **named.get("vjp", {}),
        )
        moving = [each for each in tensors if is_inexact(each)]
        checked = checked_gradients(rules.name, None, found, arguments)
        made += [zeros_for_none(each, like) for each, like in zip(checked, moving, strict=True)]
    if rules.jvp is not None:
        found = rules.jvp(arguments, _with_tensors(args, tangents), **kwargs, **named.get("jvp", {}))
        floats = [each for each in results if is_inexact(each)]
        checked = checked_tangents(rules.name, None, found, results)
        made += [zeros_for_none(each, like) for each, like in zip(checked, floats, strict=True)]
    return tuple(made)


class CustomRules(BaseHOP):
    """The results of a function as they are, with the rules for its derivatives."""

    custom: Callable[..., Callable[..., Any]]
    """Makes a function with rules of its own."""

    def __init__(self) -> None:
        super().__init__("weft_custom_rules")

    def __call__(
        self,
        subgraph: Any,
        *operands: Any,
        tensors: Sequence[torch.Tensor],
        results: Sequence[torch.Tensor],
        has_vjp: bool,
        has_jvp: bool,
    ) -> tuple[Any, ...]:
        if isinstance(subgraph, functools.partial):  # what Dynamo could not trace: errors are those of eager
            rules, args, kwargs, named, *_ = subgraph.args
            leaves = pytree.tree_leaves(rules.untraced(args, kwargs, named))
            return tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
        rules = _TracedRules(subgraph, len(operands))
        captured = [operands[n] for n in rules.captures]
        call = self.custom(
            rules.results, vjp=rules.vjp if has_vjp else rules.of_results, jvp=rules.jvp if has_jvp else None
        )
        found = call(list(tensors), list(results), captured)
        return (*found, *(None for _ in range(rules.outputs - len(found))))


custom_rules = CustomRules()


def _trace_under_levels() -> None:
    """Let Dynamo trace rules while functions are transformed: it looks for shared memory, in plain tensors alone."""
    variable: Any = BaseHOPVariable
    init = variable.__init__

    def begin(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        if isinstance(self.value, CustomRules) and retrieve_all_functorch_interpreters():
            self.supports_aliasing = True  # results are copies

    variable.__init__ = begin


_trace_under_levels()


class _TracedRules:
    """A function of another's arguments, its results and what its rules close over: it gives the results."""

    def __init__(self, graph: fx.GraphModule, count: int) -> None:
        self.graph = graph
        self.__name__ = "a custom function"
        placeholders = graph.graph.find_nodes(op="placeholder")
        named = {int(str(node.args[1])[len(_PLACE) :]): node.args[0] for node in _places(graph)}
        self.places = [placeholders.index(named[n]) for n in range(len(named))]
        self.captures = [n for n in range(count) if n not in self.places]
        (ends,) = graph.graph.output_node().args
        self.outputs = len(ends)  # pyright: ignore[reportArgumentType]

    def results(self, tensors: Sequence[Any], results: Sequence[Any], captured: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(each.clone() for each in results)

    def of_results(self, grads: Any, args: Any, values: Any) -> tuple[Any, ...]:
        """Gradients by the body, whose results came in."""
        return None, list(grads), None

    def vjp(self, grads: Any, args: Any, values: Any) -> tuple[Any, ...]:
        tensors, _, captured = args
        moving = [each for each in tensors if is_inexact(each)]
        seeds = [grad.contiguous() for grad, value in zip(grads, values, strict=True) if is_inexact(value)]
        found = iter(self._run(len(values), len(moving), [*tensors, *values, *seeds, *moving], captured))
        return [next(found) if is_inexact(each) else None for each in tensors], None, None

    def jvp(self, args: Any, tangents: Any) -> tuple[Any, ...]:
        tensors, results, captured = args
        seeds = [each for each in results if is_inexact(each)]
        along = [tangent for tangent, each in zip(tangents[0], tensors, strict=True) if is_inexact(each)]
        given = [*tensors, *results, *seeds, *along]
        found = iter(self._run(self.outputs - len(seeds), len(seeds), given, captured))
        return tuple(next(found) if is_inexact(each) else None for each in results)

    def _run(self, first: int, count: int, operands: Sequence[Any], captured: Sequence[Any]) -> tuple[Any, ...]:
        """Some outputs of the graph of rules."""
        given: list[Any] = [None] * (len(self.places) + len(captured))
        for place, value in zip((*self.places, *self.captures), (*operands, *captured), strict=True):
            given[place] = value
        return _part(self.graph, first, count)(*given)


def _places(graph: fx.GraphModule) -> list[fx.Node]:
    """The nodes that tell operands from what rules close over."""
    named = [node for node in graph.graph.nodes if node.target in (torch.ops.weft.named, torch.ops.weft.named.default)]
    return [node for node in named if str(node.args[1]).startswith(_PLACE)]


def _part(graph: fx.GraphModule, first: int, count: int) -> fx.GraphModule:
    """A graph of all operands for some of the outputs."""
    parts: dict[tuple[int, int], fx.GraphModule] = graph.__dict__.setdefault("_weft_parts", {})
    if (first, count) not in parts:
        made = fx.GraphModule(graph, copy.deepcopy(graph.graph))
        for node in _places(made):
            node.replace_all_uses_with(node.args[0])  # pyright: ignore[reportArgumentType]
            made.graph.erase_node(node)
        output = made.graph.output_node()
        output.args = (tuple(output.args[0][first : first + count]),)  # pyright: ignore[reportArgumentType, reportIndexIssue, reportOptionalSubscript, reportUnknownArgumentType]
        made.graph.eliminate_dead_code()
        made.recompile()
        parts[first, count] = made
    return parts[first, count]
