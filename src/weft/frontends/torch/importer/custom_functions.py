"""Functions with rules of their own as `graph.custom`, and what is stated of nodes as annotations of their ops."""

# Torch's graphs have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Attribute, Block, OpResult, SSAValue

from weft.frontends.torch.aten.table import aten
from weft.frontends.torch.capture.custom_calls import CALLS
from weft.frontends.torch.importer.builder import ImportBuilder
from weft.frontends.torch.importer.checks import Check, combined, state_again
from weft.frontends.torch.importer.complex_numbers import Complex
from weft.frontends.torch.locations import location_of
from weft.ir.types import i64, tensor_of
from weft.ops.control import isolate, outside_values
from weft.ops.custom import CustomOp
from weft.ops.graph import GraphBuilder, YieldOp
from weft.ops.rules import zeros

if TYPE_CHECKING:
    from weft.frontends.torch.importer.import_nodes import NodeImporter

MARKS = "weft"
"""The entry of a node's `custom` notes that has annotations for its ops, by name."""


def marks_of(node: fx.Node) -> dict[str, Attribute]:
    """Annotations for the ops that a node becomes."""
    said: Any = (node.meta.get("custom") or {}).get(MARKS) or {}
    return {key: StringAttr(value) for key, value in said.items()}


def is_custom(node: fx.Node) -> bool:
    return node.target is torch.ops.weft.custom.default


def import_custom(nodes: NodeImporter, node: fx.Node) -> tuple[SSAValue | Complex, ...]:
    """The results of a call of a function with rules of its own."""
    tensors, key = node.args
    assert isinstance(tensors, list | tuple) and isinstance(key, str), "traced"
    call = CALLS[key]
    sources: list[fx.Node] = [each for each in tensors if isinstance(each, fx.Node)]
    operands = [_joined(nodes.values[each]) for each in sources]
    nodes.builder.location = location_of(node)
    location = nodes.builder.location
    blocks: dict[str, Block] = {}
    found: dict[str, list[SSAValue]] = {}
    types = [value.type for value in operands]
    results: list[Attribute] = []
    returned: list[Any] = []
    checks: tuple[Check, ...] = ()
    for name, graph in call.graphs([each.meta["val"] for each in sources]).items():
        floats = [[each for each in some if tensor_of(each).dtype.is_float] for some in (types, results)]
        extra = {"body": [], "vjp": [*results, *floats[1]], "jvp": floats[0]}[name]
        blocks[name] = Block(arg_types=[*types, *extra])
        with nodes.inside(blocks[name]) as inner:
            places = graph.graph.find_nodes(op="placeholder")
            own = list(blocks[name].args)
            if name == "vjp" and checks:
                del own[len(types) + len(returned)]  # the code of the body's checks, of which rules know nothing
            given = [nodes.incoming(x, at.meta["val"]) for x, at in zip(own, places, strict=True)]
            found[name] = [_joined(each) for each in nodes.traced(graph, given, nodes.call)]
            code, stated = combined(inner, 1)
            if name == "body":
                ends: Any = graph.graph.output_node().args[0]
                returned = [each.meta["val"] for each in ends]
                found[name] += [] if code is None else [code]
                checks, results = stated, [value.type for value in found[name]]
            elif code is not None:
                found[name] = [_unless_failed(inner, code, each) for each in found[name]]
    captures = list(dict.fromkeys(x for name in blocks for x in outside_values(blocks[name], found[name])))
    for name, block in blocks.items():
        _isolate(block, captures, found[name], len(operands))
    body = blocks.pop("body")
    made = CustomOp.make([*operands, *captures], body, blocks, len(captures), call.batching, location)
    outs = list(nodes.builder.insert(made).results)
    if checks:
        call.has_checks = True
        state_again(nodes.builder, outs.pop(), checks)
    return tuple(nodes.incoming(out, meta) for out, meta in zip(outs, returned, strict=True))


def _unless_failed(b: ImportBuilder, code: SSAValue, value: SSAValue) -> SSAValue:
    """What a rule gives: NaN where its data is not what it may be, as nobody looks at what is found out in a rule."""
    fine = b.emit("eq", code, b.number(0, i64))
    shape, nan = b.shape(value), b.number(math.nan, b.dtype(value))
    return b.emit("where", b.expand(fine, shape), value, b.expand(nan, shape))


def _joined(value: Any) -> SSAValue:
    """A value as an operand: of complex numbers, parts alternate."""
    return value.interleaved if isinstance(value, Complex) else value


def _isolate(block: Block, captures: list[SSAValue], yielded: list[SSAValue], place: int) -> None:
    """Let a block read captures from arguments, which stand behind the operands, and end it."""
    isolate(block, captures, yielded)
    given = list(block.args)
    first = len(given) - len(captures)
    for number, old in enumerate(given[first:]):
        new = block.insert_arg(old.type, place + number)
        old.replace_all_uses_with(new)
    for old in reversed(given[first:]):
        block.erase_arg(old)


@aten("weft.without_gradients")
def without_gradients(b: ImportBuilder, x: SSAValue) -> SSAValue:
    """A value as itself, with rules of its own: a gradient of zeros, and the tangent that it has."""
    body, gradient, tangent = (Block(arg_types=[x.type] * count) for count in (1, 3, 2))
    inner = GraphBuilder(gradient)
    ends = (body, body.args[0]), (gradient, zeros(inner, gradient.args[0])), (tangent, tangent.args[1])
    for block, value in ends:
        block.add_op(YieldOp.create(operands=[value]))
    made = CustomOp.make([x], body, {"vjp": gradient, "jvp": tangent}, location=b.location)
    return b.insert(made).results[0]


@aten("weft.gradients_of")
def gradients_of(b: ImportBuilder, x: SSAValue, before: SSAValue) -> SSAValue:
    """A value as itself, with the tangent that it has, and whose gradient is that of what was there before."""
    body, gradient, tangent = (Block(arg_types=[x.type] * count) for count in (2, 4, 4))
    inner = GraphBuilder(gradient)
    ends = (
        (body, [body.args[0]]),
        (gradient, [zeros(inner, gradient.args[0]), gradient.args[3]]),
        (tangent, [tangent.args[2]]),
    )
    for block, values in ends:
        block.add_op(YieldOp.create(operands=values))
    made = CustomOp.make([x, before], body, {"vjp": gradient, "jvp": tangent}, location=b.location)
    return b.insert(made).results[0]


@aten("weft.named")
def name(b: ImportBuilder, x: SSAValue, name: str) -> SSAValue:
    """A value that the user has a name for: an op of its own, so that it can be told apart."""
    if not tensor_of(x.type).dtype.is_float:
        return x
    found: OpResult = b.emit("reduce_precision", x)
    found.op.attributes["weft.name"] = StringAttr(name)
    return found
