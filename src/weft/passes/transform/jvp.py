"""Forward-mode differentiation of a graph function: the derivative along a direction, computed beside the values.

Ops need no rule of their own for it, and may have one where that is cheaper. A gradient is linear in the gradients of
the results, so differentiating the gradient rule with respect to these once more is the derivative along a direction:
jvp = vjp of vjp. What the detour made beside that is dead. An op whose class has a rule `jvp(b, tangents, operands,
results, **params)` is derived by that: the tangents of the results from those of the operands, None where one does not
change. One whose class has `jvp_with_values(b, tangents, operands, **params)` gives its place to ops that compute both,
unless that gives None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

from weft.errors import ShapeError
from weft.ir.locations import line_of, sourced
from weft.ops.base import GraphOp
from weft.ops.call_rules import rules_of
from weft.ops.control import ControlOp
from weft.ops.custom import CustomOp
from weft.ops.graph import FuncOp, GraphBuilder, OpaqueOp, module_of
from weft.ops.rules import zeros
from weft.passes.custom_derivatives import check_linear, custom_rule, push_custom
from weft.passes.differentiate import (
    GradientTape,
    depending,
    is_float,
    no_rule,
    return_values,
    transform_functions,
    with_floats,
)
from weft.passes.recompute import inherit_marks, marks_of, ops_after
from weft.passes.simplify.eliminate_dead import EliminateDead
from weft.passes.transform.jvp_regions import push_control


@dataclass(frozen=True)
class Jvp(ModulePass):
    """graph.func @f(%x) { … }   →   graph.func @f_jvp(%x, %t) { … results and tangents where that of %x is %t }"""

    name: ClassVar[str] = "jvp"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        transform_functions(op, lambda function: jvp_function(with_floats(function, "tangent")))


_HINT = "`detach` what is not to be differentiated, or give a rule of your own"
Tangents = dict[SSAValue, SSAValue]


def jvp_function(function: FuncOp, wanted: Sequence[int] | None = None, *, apart: bool = False) -> FuncOp:
    """The function that takes arguments and their tangents, and gives results and their tangents.

        graph.func @f(%x, %y) {            graph.func @f_jvp(%x, %y, %tx, %ty) {
          %p = graph.mul %x, %y              %p = graph.mul %x, %y
          graph.return %p             →      %t = graph.add (graph.mul %tx, %y), (graph.mul %x, %ty)
        }                                    graph.return %p, %t
                                           }

    Arguments of floats have tangents, of which only those at the `wanted` places are taken, and results of floats.
    With them `apart`, no value is computed by an op that takes tangents, so that values can be had before these.
    """
    made = function.clone()
    block, returned = made.block, made.returned
    forward = [op for op in block.ops if op is not returned]
    arguments = list(block.args)
    names = [name.data for name in function.arg_names] if function.arg_names else []
    tangents: Tangents = {}
    for place, argument in enumerate(arguments):
        if is_float(argument) and (wanted is None or place in wanted):
            tangent = block.insert_arg(argument.type, len(block.args))
            names.append(f"tangent{place}")
            tangent.name_hint = names[-1]
            tangents[argument] = tangent
    for op in forward:
        after = op.next_op
        assert after is not None, "the return comes last"
        marks, before = marks_of(op), op.prev_op
        with sourced(op.location):
            b = GraphBuilder(block, before=after)
            if apart and (isinstance(op, ControlOp) or hasattr(type(op), "jvp_with_values")):
                _push_apart(b, op, tangents)
            else:
                push(b, op, tangents)
            inherit_marks(marks, ops_after(before, b))
    b = GraphBuilder(block, before=returned)
    results = [tangents[x] if x in tangents else zeros(b, x) for x in returned.operands if is_float(x)]
    return_values(made, [*returned.operands, *results])
    made.sym_name = StringAttr(f"{function.sym_name.data}_jvp")
    if function.arg_names:
        made.arg_names = ArrayAttr(StringAttr(name) for name in names)
    for stale in ("result_strides", "mutated", "replaced", "donated"):
        made.attributes.pop(stale, None)
    if made.parent is None:
        EliminateDead().apply(Context(), module_of(made))
        made.detach()
    return made


def _push_apart(b: GraphBuilder, op: Operation, tangents: Tangents) -> None:
    """Tangents by an op that computes the values again, beside the one that they are taken from."""
    copy = GraphBuilder(b.block, before=op).insert(op.clone())
    for value, kept in zip(push(b, op, tangents), copy.results, strict=True):
        if value in tangents:
            tangents[kept] = tangents[value]
        value.replace_all_uses_with(kept)


def push(b: GraphBuilder, op: Operation, tangents: Tangents) -> Sequence[SSAValue]:
    """Take the tangents of an op's operands to its results: entries of `tangents`, which lacks what does not change.

    It gives the results, which are those of another op where one with tangents took its place.
    """
    if not any(operand in tangents for operand in op.operands) or not any(map(is_float, op.results)):
        return op.results
    if isinstance(op, ControlOp):
        return push_control(b, op, tangents, push)
    if isinstance(op, CustomOp):
        if op.rule("jvp") is not None or op.rule("vjp") is None:
            return push_custom(b, op, tangents, push)
        check_linear(op)
        return _keep(b, op, _transposed(b, op, tangents), tangents)
    if isinstance(op, OpaqueOp) and rules_of(op) is not None:
        return _keep(b, op, _transposed(b, op, tangents), tangents)
    if not isinstance(op, GraphOp):
        raise no_rule(op, "derivative", _HINT)
    given = tuple(tangents.get(operand) for operand in op.operands)
    joint: Callable[..., tuple[Sequence[SSAValue], Sequence[SSAValue]] | None] | None
    joint = getattr(type(op), "jvp_with_values", None)
    if joint is not None and (pair := joint(b, given, tuple(op.operands), **op.params)) is not None:
        return _replace(op, *pair, tangents)
    own: Callable[..., Sequence[SSAValue | None]] | None = getattr(type(op), "jvp", None)
    if own is not None:
        found = list(own(b, given, tuple(op.operands), tuple(op.results), **op.params))
    else:
        found = _transposed(b, op, tangents)
    return _keep(b, op, found, tangents)


def _replace(
    op: Operation, values: Sequence[SSAValue], found: Sequence[SSAValue], tangents: Tangents
) -> Sequence[SSAValue]:
    """Let other values take the place of an op's."""
    for old, new, tangent in zip(op.results, values, found, strict=True):
        old.replace_all_uses_with(new)
        tangents[new] = tangent
    op.detach()
    op.erase()
    return values


def _keep(b: GraphBuilder, op: Operation, found: Sequence[SSAValue | None], tangents: Tangents) -> Sequence[SSAValue]:
    """Note the tangents of results, which have their types."""
    for result, tangent in zip(op.results, found, strict=True):
        if tangent is None or not is_float(result):
            continue
        if tangent.type != result.type:
            raise ShapeError(
                f"the jvp rule of {op.name} gives {b.tensor(tangent)} for a result of {b.tensor(result)}",
                location=line_of(op.location),
                hint="a tangent has the type and the shape of its value",
            )
        tangents[result] = tangent
    return op.results


def _transposed(
    b: GraphBuilder, op: GraphOp | CustomOp | OpaqueOp, tangents: Mapping[SSAValue, SSAValue]
) -> list[SSAValue | None]:
    """The tangents of the results, by the gradient rule: it is linear in the gradients, and this is its transpose."""
    rule: Callable[..., tuple[SSAValue | None, ...]] | None = getattr(type(op), "vjp", None)
    if rule is None and isinstance(op, GraphOp):
        raise no_rule(op, "derivative", _HINT)
    first = b.block.last_op if b.before is None else b.before.prev_op
    seeds: list[Any] = [zeros(b, result) for result in op.results]  # stand-ins: what is linear does not read them
    if isinstance(op, CustomOp):
        found = custom_rule(b, op, seeds, op.operands, op.results)
    elif isinstance(op, OpaqueOp):
        call = rules_of(op)
        assert call is not None, "asked before"
        floats = [seed if is_float(seed) else None for seed in seeds]
        found = call.vjp(b, op, floats, op.operands, op.results)
    else:
        assert rule is not None, "asked before"
        found = rule(b, tuple(seeds), tuple(op.operands), tuple(op.results), **op.params)
    detour = list(ops_after(first, b))[::-1]
    reached = depending(detour, seeds)
    tape = GradientTape(b)
    for operand, gradient in zip(op.operands, found, strict=True):
        if gradient is None or operand not in tangents or not is_float(operand):
            continue
        tangent = tangents[operand]
        if gradient.type != tangent.type:  # the rule leaves summing over broadcast dimensions to its caller
            tangent = b.broadcast(tangent, shape=b.tensor(gradient).shape)
        tape.add(gradient, tangent)
    for each in reversed(detour):
        if each in reached:
            tape.propagate(each)
    return [tape.gradients.get(seed) for seed in seeds]
