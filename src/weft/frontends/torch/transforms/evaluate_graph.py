"""Runs graphs that Dynamo captured, so that torch can transform what it runs: what wraps code is taken apart.

Checkpoints and regions that are compiled once are run as what they hold: `torch.func` takes no hooks for saved tensors.
Functions of `torch.func` that the graph calls enter levels inside of those that are entered, by `captured_levels`.
A custom `autograd.Function` is made anew, so that its gradient has the gradients that it has in eager. Control flow
becomes that of `control_functions`.
"""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false, reportIncompatibleMethodOverride=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._guards import TracingContext, detect_fake_mode, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import traceback as fx_traceback
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from weft.frontends.torch.transforms import control_functions
from weft.frontends.torch.transforms.captured_levels import CapturedLevels
from weft.frontends.torch.transforms.differentiable_forms import form_of


def evaluate(module: fx.GraphModule, arguments: Sequence[Any]) -> Any:
    """The results of a graph; operators remember the lines of its nodes where they are traced."""
    with fx_traceback.preserve_node_meta():
        return _Evaluator(module).run(*arguments)


def must_be_evaluated(module: fx.GraphModule, *, trained: bool) -> bool:
    """Whether a graph, or one inside of it, has what AOTAutograd fails at: functions that are only marked as such, and
    loops of turns that it would have to differentiate."""
    names = _names(module)
    return bool(names & _MARKED) or (trained and bool(names & {"scan", "while_loop"}))


def has_while(module: fx.GraphModule) -> bool:
    """Whether a graph, or one inside of it, has a loop with a condition."""
    return "while_loop" in _names(module)


def sizes_for_loops() -> Any:
    """What torch asks for where it traces loops with a condition: a place for sizes, though none is symbolic."""
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv(), static_shapes=True)
    return tracing(TracingContext(mode))


def _names(module: fx.GraphModule) -> set[str]:
    """The names of the higher-order operators in a graph and in those inside of it."""
    graphs = (each for each in module.modules() if isinstance(each, fx.GraphModule))
    return {getattr(node.target, "_name", "") for graph in graphs for node in graph.graph.nodes}


class _Evaluator(fx.Interpreter):
    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self._levels = CapturedLevels.of(module)

    def run(self, *args: Any, **options: Any) -> Any:
        try:
            return super().run(*args, **options)
        finally:
            self._levels.leave()

    def get_attr(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        value = super().get_attr(target, args, kwargs)
        # A tensor that Dynamo holds for constant: this is how a trace takes one, as that of `torch.tensor([1, 2])`.
        constant = type(value) is Tensor and not value.requires_grad and detect_fake_mode() is not None
        return torch.ops.aten.lift_fresh_copy.default(value) if constant else value

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        rule = _WRAPPERS.get(getattr(target, "_name", ""))
        if rule is None or not isinstance(target, torch._ops.HigherOrderOperator):
            if (found := self._levels.call(target, args, kwargs)) is not None:
                return found[0]
            return super().call_function(form_of(target) or target, args, kwargs)
        return rule(target, args, kwargs)

    def call_method(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        form = form_of(target) if isinstance(args[0], Tensor) else None
        return super().call_method(target, args, kwargs) if form is None else form(*args, **kwargs)


class _Differentiable(_Evaluator):
    """Runs the gradient of a custom function: Dynamo wrote it down without gradients of its own, eager has them."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        modes = module.graph.find_nodes(op="call_function", target=torch._C._set_grad_enabled)
        self._left_out = {modes[0], modes[-1]} if len(modes) > 1 and modes[0].args == (False,) else set[fx.Node]()

    def run_node(self, n: fx.Node) -> Any:
        return None if n in self._left_out else super().run_node(n)


def _inside(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _body(args[0])(*args[1:])


def _region(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    graph, _, *operands = args
    return _Evaluator(graph).run(*operands) if isinstance(graph, fx.GraphModule) else target(*args, **kwargs)


def _custom_function(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    forward, backward, *arguments = args
    if kwargs.get("dirty_idx"):
        return target(*args, **kwargs)
    made = _custom(forward, backward, kwargs.get("non_differentiable_idx") or ())
    whole, results = made.apply(*arguments), _outputs(forward)[0]
    return whole[: len(results)] if isinstance(results, tuple | list) else whole[0]


def _body(graph: Any) -> Callable[..., Any]:
    """The function of a graph."""
    return (lambda *values: _Evaluator(graph).run(*values)) if isinstance(graph, fx.GraphModule) else graph


def _scan(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    combine, init, xs, captured = args
    return control_functions.scan(_body(combine), init, xs, captured)


def _cond(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    predicate, then, otherwise, operands = args
    return control_functions.cond(predicate, _body(then), _body(otherwise), operands)


def _map(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    body, xs, captured = args
    return control_functions.map_rows(_body(body), xs, captured)


def _associative_scan(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    combine, xs, captured = args
    return control_functions.associative_scan(_body(combine), xs, captured)


def _while_loop(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    condition, body, carried, captured = args
    return control_functions.while_loop(_body(condition), _body(body), carried, captured)


_MARKED = frozenset({"invoke_quant", "invoke_quant_packed"})
_WRAPPERS: dict[str, Callable[..., Any]] = {
    "scan": _scan,
    "cond": _cond,
    "map_impl": _map,
    "associative_scan": _associative_scan,
    "while_loop": _while_loop,
    "tag_activation_checkpoint": _inside,
    **dict.fromkeys(_MARKED, _inside),
    "invoke_subgraph": _region,
    "autograd_function_apply": _custom_function,
}
"""By the names of the higher-order operators."""


def _outputs(graph: fx.GraphModule) -> tuple[Any, Sequence[Any]]:
    """The nodes of what a custom function gives, and of what it saves."""
    (output,) = graph.graph.find_nodes(op="output")
    results, saved = output.args[0]
    return results, saved


def _custom(forward: fx.GraphModule, backward: fx.GraphModule, constant: Sequence[int]) -> Any:
    """A custom function that saves arguments and results as such, so that these have gradients in its gradient."""
    results, saved = _outputs(forward)
    given = list(results) if isinstance(results, tuple | list) else [results]
    places = {node: n for n, node in enumerate(forward.graph.find_nodes(op="placeholder"))}

    class Custom(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(*arguments: Any) -> tuple[Any, ...]:
            found, kept = _Evaluator(forward).run(*arguments)
            made = tuple(found) if isinstance(results, tuple | list) else (found,)
            own = [value for node, value in zip(saved, kept, strict=True) if node not in places and node not in given]
            return (*made, *own)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
            own = iter(output[len(given) :])
            kept = [
                inputs[places[node]] if node in places else output[given.index(node)] if node in given else next(own)
                for node in saved
            ]
            ctx.others = [None if isinstance(value, Tensor) else (value,) for value in kept]
            ctx.save_for_backward(*(value for value in kept if isinstance(value, Tensor)))
            fixed = [*(output[n] for n in constant), *output[len(given) :]]
            ctx.mark_non_differentiable(*(value for value in fixed if isinstance(value, Tensor)))

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            tensors = iter(ctx.saved_tensors)
            kept = [next(tensors) if other is None else other[0] for other in ctx.others]
            return _Differentiable(backward).run(*grads[: len(given)], *kept)

    return Custom
