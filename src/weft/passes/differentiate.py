"""Reverse-mode differentiation of a graph function, by the gradient rules of its ops.

The derivative is again a graph function, so that it is optimized and compiled like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

from weft.errors import DTypeError, UnsupportedError, WeftError
from weft.ir.locations import line_of, sourced
from weft.ir.types import is_float, tensor_of
from weft.ops.base import GraphOp
from weft.ops.call_rules import rules_of
from weft.ops.control import ControlOp, LoopOp
from weft.ops.custom import CustomOp
from weft.ops.graph import FuncOp, GraphBuilder, LaunchOp, OpaqueOp, ReturnOp
from weft.ops.rules import zeros
from weft.passes.custom_derivatives import propagate_custom
from weft.passes.differentiate_regions import keep_histories, propagate_control, result_gradients
from weft.passes.differentiate_while import propagate_while
from weft.passes.recompute import REGION, Recomputed, inherit_marks, ops_after, region_of


@dataclass(frozen=True)
class Vjp(ModulePass):
    """graph.func @f(%x) { … }   →   graph.func @f_vjp(%x, %g) { … the gradient of %x where the result's is %g }"""

    name: ClassVar[str] = "vjp"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        transform_functions(op, lambda function: vjp_function(with_floats(function, "gradient")))


def with_floats(function: FuncOp, what: str) -> FuncOp:
    """The function; raise where no result of it has a derivative."""
    results = list(function.returned.operands)
    if results and not any(map(is_float, results)):
        kinds = ", ".join(str(tensor_of(each.type)) for each in results)
        raise DTypeError(f"the {what} of a function that returns {kinds}", hint="only results of floats have one")
    return function


def transform_functions(module: ModuleOp, transform: Callable[[FuncOp], FuncOp]) -> None:
    """Put what a transformation makes of each function of a module in its place."""
    for function in [each for each in module.body.block.ops if isinstance(each, FuncOp)]:
        try:
            made = transform(function)
        except WeftError as error:
            error.locate(line_of(function.location))
            raise
        module.body.block.insert_op_before(made, function)
        function.detach()
        function.erase()


def vjp_function(function: FuncOp) -> FuncOp:
    """The function that maps arguments and gradients of the results to gradients of the arguments.

        graph.func @f(%x, %y) {            graph.func @f_vjp(%x, %y, %g) {
          %p = graph.mul %x, %y              %p  = graph.mul %x, %y
          graph.return %p             →      %gx = graph.mul %g, %y
        }                                    %gy = graph.mul %g, %x
                                             graph.return %gx, %gy
                                           }

    Only results and arguments of floats have gradients; an argument that no result depends on has a gradient of zeros.
    """
    derivative, tape, forward = _seeded(function, "vjp")
    for op in reversed(forward):
        with sourced(op.location):
            tape.propagate(op)
    arguments = derivative.block.args[: len(function.block.args)]
    return_values(derivative, tape.of(value for value in arguments if is_float(value)))
    tape.recomputed.drop_unread()
    return derivative


def value_and_vjp_function(function: FuncOp, wanted: Sequence[int], seeded: Sequence[int] | None = None) -> FuncOp:
    """The function that gives, beside the results, the gradients of the arguments at the `wanted` places.

    It takes gradients of all results of floats, or of those that are `seeded`; those of others are 0.

    graph.func @f(%x, %y) {            graph.func @f_joint(%x, %y, %g) {
      %p = graph.mul %x, %y              %p  = graph.mul %x, %y
      graph.return %p             →      %gx = graph.mul %g, %y
    }                                    graph.return %p, %gx
                                       }
    """
    joint, tape, forward = _seeded(function, "joint", seeded)
    arguments = [joint.block.args[place] for place in wanted]
    needed = depending(forward, arguments)
    for op in reversed(forward):
        if op in needed:
            with sourced(op.location):
                tape.propagate(op)
    return_values(joint, [*joint.returned.operands, *tape.of(arguments)])
    tape.recomputed.drop_unread()
    return joint


def _seeded(
    function: FuncOp, suffix: str, seeded: Sequence[int] | None = None
) -> tuple[FuncOp, GradientTape, list[Operation]]:
    """A copy that also takes the gradients of its results of floats, a tape that has these, and the ops of the copy."""
    made = function.clone()
    block, returned = made.block, made.returned
    keep_histories(block)
    forward = [op for op in block.ops if op is not returned]
    tape = GradientTape(GraphBuilder(block, before=returned))
    names = [name.data for name in function.arg_names] if function.arg_names else []
    for position, result in enumerate(returned.operands):
        if is_float(result) and (seeded is None or position in seeded):
            seed = block.insert_arg(result.type, len(block.args))
            names.append(f"grad{position}")
            seed.name_hint = names[-1]
            tape.add(result, seed)
    made.sym_name = StringAttr(f"{function.sym_name.data}_{suffix}")
    if function.arg_names:
        made.arg_names = ArrayAttr(StringAttr(name) for name in names)
    return made, tape, forward


def return_values(function: FuncOp, values: Sequence[SSAValue]) -> None:
    """Let a function give other values."""
    returned = function.returned
    function.block.insert_op_before(ReturnOp.make(values), returned)
    returned.detach()
    returned.erase()


def depending(ops: Sequence[Operation], values: Sequence[SSAValue]) -> set[Operation]:
    """The ops that some of the values reach."""
    reached, found = set(values), set[Operation]()
    for op in ops:
        if any(operand in reached for operand in op.operands):
            reached.update(op.results)
            found.add(op)
    return found


class GradientTape:
    """The gradients found so far, of each value that a result depends on."""

    def __init__(self, b: GraphBuilder) -> None:
        self.b = b
        self.gradients: dict[SSAValue, SSAValue] = {}
        self.recomputed = Recomputed(b)

    def of(self, values: Iterable[SSAValue]) -> list[SSAValue]:
        """The gradients of values; zeros where no result depends on one."""
        return [self.gradients[x] if x in self.gradients else zeros(self.b, x) for x in values]

    def add(self, value: SSAValue, gradient: SSAValue) -> None:
        """Count a gradient towards a value's, summed back to its shape where the value was broadcast."""
        gradient = sum_to_shape(self.b, gradient, value)
        known = self.gradients.get(value)
        self.gradients[value] = gradient if known is None else self.b.add(known, gradient)

    def propagate(self, op: Operation) -> None:
        """Take the gradients of an op's results to its operands."""
        if not any(result in self.gradients for result in op.results) or not any(map(is_float, op.operands)):
            return
        if (region := region_of(op)) is not None:
            before = self.b.block.last_op if self.b.before is None else self.b.before.prev_op
            self._propagate_checkpointed(op, region)
            inherit_marks({REGION: op.attributes[REGION]}, ops_after(before, self.b))
        else:
            self.propagate_plain(op)

    def propagate_plain(self, op: Operation) -> None:
        """The same, whether it is checkpointed or not."""
        if isinstance(op, LoopOp) and op.conditional:
            propagate_while(self, op, result_gradients(self, op), GradientTape)
        elif isinstance(op, ControlOp):
            propagate_control(self, op, GradientTape)
        elif isinstance(op, CustomOp):
            propagate_custom(self, op, GradientTape)
        else:
            self._apply(op, op.operands, op.results)

    def _propagate_checkpointed(self, op: Operation, region: str) -> None:
        """The same, where what a rule reads of the op's region is made again."""
        operands = [self.recomputed.of(operand, region) for operand in op.operands]
        results = [self.recomputed.of(result, region) for result in op.results]
        copy = results[0].owner
        if not isinstance(copy, ControlOp | CustomOp):
            self._apply(op, operands, results)
            return
        inner = GradientTape(self.b)
        inner.gradients = {
            new: self.gradients[old] for old, new in zip(op.results, results, strict=True) if old in self.gradients
        }
        inner.propagate_plain(copy)
        sources = dict(zip(copy.operands, op.operands, strict=True))
        for operand, source in sources.items():
            if operand in inner.gradients:
                self.add(source, inner.gradients[operand])

    def _apply(self, op: Operation, operands: Sequence[SSAValue], results: Sequence[SSAValue]) -> None:
        """Append an op's gradient rule, which reads these values."""
        rule: Callable[..., tuple[SSAValue | None, ...]] | None = getattr(type(op), "vjp", None)
        if isinstance(op, OpaqueOp) and (call := rules_of(op)) is not None:
            found = call.vjp(self.b, op, [self.gradients.get(result) for result in op.results], operands, results)
        elif rule is None or not isinstance(op, GraphOp):
            raise no_rule(op, "gradient", "differentiate before grouping into kernels")
        else:
            grads: tuple[Any, ...] = tuple(self.gradients.get(x) or zeros(self.b, x) for x in op.results)
            found = rule(self.b, grads, tuple(operands), tuple(results), **op.params)
        for operand, gradient in zip(op.operands, found, strict=True):
            if gradient is not None and is_float(operand):
                self.add(operand, gradient)


def sum_to_shape(b: GraphBuilder, gradient: SSAValue, value: SSAValue) -> SSAValue:
    """The gradient summed over the dimensions along which `value` was broadcast."""
    source, target = b.tensor(gradient).shape, b.tensor(value).shape
    if source == target:
        return gradient
    added = len(source) - len(target)
    dims = tuple(d for d, size in enumerate(source) if d < added or (target[d - added] == 1 and size != 1))
    return b.reshape(b.sum(gradient, dims=dims, keep=False), shape=target)


def no_rule(op: Operation, what: str, hint: str) -> UnsupportedError:
    """What to say of an op that has no rule for a transformation."""
    if isinstance(op, OpaqueOp):
        name, hint = op.target.data, "torch carries it out, and Weft does not look into it: give it a rule of your own"
        if name.startswith("higher_order::"):
            hint = "torch carries it out, as it does what is in it; compute before it what Weft cannot compile there"
    elif isinstance(op, LaunchOp):
        name, hint = "a kernel in Triton's language", "give the function around it rules, by `weft.func.custom`"
    else:
        name = op.name
    rule = "batch" if what == "batching" else "vjp"
    why = op.NO_RULE.get(rule) if isinstance(op, GraphOp) else None
    return UnsupportedError(
        f"{name} has no {what} rule{f': {why}' if why else ''}", location=line_of(op.location), hint=hint
    )
