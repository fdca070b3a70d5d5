"""Derivatives of functions with rules of their own: by their rules, or by their bodies where they have none.

A function with a rule for gradients alone has tangents by the transpose of that rule, which must be linear in the
gradients it takes: a rule that clips them, for example, says nothing of tangents, and is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.ir import Block, Operation, SSAValue

from weft.errors import UnsupportedError
from weft.ir.locations import line_of
from weft.ir.types import is_float
from weft.ops.base import GraphOp, Movement
from weft.ops.custom import CustomOp, inline_block, yielded
from weft.ops.graph import GraphBuilder
from weft.ops.rules import zeros
from weft.passes.differentiate_regions import Gradients
from weft.passes.recompute import ops_after

_LINEAR = frozenset({"add", "sub", "neg", "sum", "cast", "cumsum", "reduce_precision", "sum_pool", "fold"})
_BILINEAR = frozenset({"mul", "dot", "convolution"})


def custom_rule(
    b: GraphBuilder, op: CustomOp, grads: Sequence[SSAValue], operands: Sequence[SSAValue], results: Sequence[SSAValue]
) -> tuple[SSAValue | None, ...]:
    """The gradients of all operands by the rule `vjp`, None for those that have none."""
    rule = op.rule("vjp")
    assert rule is not None, "asked before"
    seeds = [grad for grad, result in zip(grads, op.results, strict=True) if is_float(result)]
    found = iter(inline_block(b, rule, [*operands, *results, *seeds]))
    own = set(range(len(op.own)))
    return tuple(next(found) if n in own and is_float(x) else None for n, x in enumerate(op.operands))


def propagate_custom(tape: Gradients, op: CustomOp, make: Callable[[GraphBuilder], Gradients]) -> None:
    """Take the gradients of the results of a function to its operands."""
    if op.rule("vjp") is not None:
        known = [tape.gradients.get(result) for result in op.results]
        grads = [zeros(tape.b, r) if g is None else g for g, r in zip(known, op.results, strict=True)]
        found = custom_rule(tape.b, op, grads, op.operands, op.results)
        for operand, gradient in zip(op.operands, found, strict=True):
            if gradient is not None:
                tape.add(operand, gradient)
        return
    b, before = tape.b, tape.b.block.last_op if tape.b.before is None else tape.b.before.prev_op
    again = inline_block(b, op.body, list(op.operands))
    ops = list(ops_after(before, b))
    inner = make(b)
    for result, value in zip(op.results, again, strict=True):
        if result in tape.gradients:
            inner.add(value, tape.gradients[result])
    for each in ops:
        inner.propagate(each)
    for operand in dict.fromkeys(op.operands):
        if operand in inner.gradients:
            tape.add(operand, inner.gradients[operand])


def check_linear(op: CustomOp) -> None:
    """Raise unless the rule for gradients is seen to be linear in the gradients that it takes."""
    rule = op.rule("vjp")
    assert rule is not None, "asked before"
    count = sum(map(is_float, op.results))
    moving = set[SSAValue](rule.args[len(rule.args) - count :])
    for each in rule.ops:
        reached = [n for n, operand in enumerate(each.operands) if operand in moving]
        if not reached or not each.results:
            continue
        if not _is_linear(each, reached):
            raise UnsupportedError(
                f"a function with a gradient rule of its own has no tangents: {each.name} is not linear",
                location=line_of(op.location),
                hint="give it a rule `jvp` as well",
            )
        moving.update(each.results)


def _is_linear(op: Operation, reached: Sequence[int]) -> bool:
    name = op.name.removeprefix("graph.")
    if name in _BILINEAR or (isinstance(op, GraphOp) and op.name == "graph.pad"):
        return len(reached) == 1
    if name == "div":
        return list(reached) == [0]
    if name == "where":
        return 0 not in reached
    return name in _LINEAR or (isinstance(op, Movement) and 0 in reached and len(op.operands) == 1)


def push_custom(
    b: GraphBuilder,
    op: CustomOp,
    tangents: dict[SSAValue, SSAValue],
    push: Callable[[GraphBuilder, Operation, dict[SSAValue, SSAValue]], Sequence[SSAValue]],
) -> Sequence[SSAValue]:
    """Tangents of the results by the rule `jvp`, or by the body: the values are then its, and those are given."""
    rule = op.rule("jvp")
    floats = [result for result in op.results if is_float(result)]
    if rule is not None:
        moving = [tangents[x] if x in tangents else zeros(b, x) for x in op.own if is_float(x)]
        tangents.update(zip(floats, inline_block(b, rule, [*op.operands, *moving]), strict=True))
        return op.results
    values: dict[SSAValue, SSAValue] = dict(zip(op.body.args, op.operands, strict=True))
    known = dict(tangents)
    for each in _inner(op.body):
        copy = b.insert(each.clone(value_mapper=values))
        values.update(zip(each.results, push(b, copy, known), strict=True))
    for result, value in zip(op.results, yielded(op.body), strict=True):
        if is_float(result) and values[value] in known:
            tangents[result] = known[values[value]]
    return op.results


def _inner(block: Block) -> list[Operation]:
    return [op for op in block.ops if op.results]
