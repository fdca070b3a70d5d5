"""Torch's control flow as the graph dialect's: `cond`, `while_loop`, `scan`, `map` and `associative_scan`.

Their functions are graphs of their own, whose nodes are imported like any others, into the regions of `graph.if` and
`graph.loop`. What cannot be converted inside is left to torch there; the loop around it stays Weft's.
"""

# Torch's graphs have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
import torch.utils._pytree as pytree
from torch import fx
from xdsl.ir import Block, SSAValue

from weft.errors import UnsupportedError, WeftError
from weft.frontends.torch.importer.complex_numbers import Complex
from weft.ir.types import Tensor, i64, tensor_of, tensor_type
from weft.ops.control import UNBOUNDED, close_if, close_loop

if TYPE_CHECKING:
    from weft.frontends.torch.importer.import_nodes import NodeImporter

Importer: TypeAlias = Callable[..., tuple[SSAValue, ...]]


def is_control(node: fx.Node) -> bool:
    """Whether a node runs other graphs, as branches or turns."""
    return getattr(node.target, "_name", None) in _IMPORTERS and type(node.target).__module__.startswith("torch.")


def import_control(nodes: NodeImporter, node: fx.Node, args: Sequence[Any]) -> tuple[SSAValue, ...]:
    """The results of a node that `is_control`, of the values of its arguments."""
    given = pytree.tree_map_only(Complex, lambda value: value.interleaved, list(args))
    found = _IMPORTERS[str(getattr(node.target, "_name", ""))](nodes, *given)
    return tuple(_as_traced(nodes, value, meta) for value, meta in zip(found, node.meta["val"], strict=True))


def _as_traced(nodes: NodeImporter, value: Any, meta: Any) -> Any:
    """A value that goes into a region or comes out of one: parts of complex numbers alternate there."""
    is_complex = isinstance(meta, torch.Tensor) and meta.is_complex() and isinstance(value, SSAValue)
    return Complex(nodes.builder, joined=value) if is_complex else value


def _cond(nodes: NodeImporter, predicate: Any, then: Any, otherwise: Any, operands: Sequence[Any]) -> tuple[Any, ...]:
    if isinstance(predicate, bool):  # tracing knows which
        return _inline(nodes, then if predicate else otherwise, operands)
    _require_tensors([predicate])
    blocks = (Block(), Block())
    results = [_import(nodes, graph, block, operands) for graph, block in zip((then, otherwise), blocks, strict=True)]
    types = [[tensor_of(value.type) for value in each] for each in results]
    if types[0] != types[1]:
        raise UnsupportedError("branches whose results differ in type or shape")
    flag = nodes.builder.view(predicate, ())
    return close_if(nodes.builder, flag, blocks, results)


def _while_loop(
    nodes: NodeImporter, condition: Any, body: Any, carried: Sequence[Any], captured: Sequence[Any]
) -> tuple[SSAValue, ...]:
    _require_tensors(carried)
    (going,) = _inline(nodes, condition, [*carried, *captured])
    block, states, _ = _block(carried, ())
    new = _import(nodes, body, block, [*states, *captured])
    with nodes.inside(block):
        (again,) = _inline(nodes, condition, [*new, *captured])
        again = nodes.builder.view(again, ())  # it may have a dimension of one
    going = nodes.builder.view(going, ())
    return _loop(nodes, block, [again, *new], [going, *carried], UNBOUNDED, len(carried), 0)


def _scan(
    nodes: NodeImporter, combine: Any, init: Sequence[Any], xs: Sequence[Any], captured: Sequence[Any]
) -> tuple[SSAValue, ...]:
    _require_tensors([*init, *xs])
    if not xs:
        raise UnsupportedError("a scan over nothing")
    block, states, slices = _block(init, xs)
    made = _import(nodes, combine, block, [*states, *slices, *captured])
    return _loop(nodes, block, made, [*init, *xs], nodes.builder.shape(xs[0])[0], len(init), len(xs))


def _map(nodes: NodeImporter, body: Any, xs: Sequence[Any], captured: Sequence[Any]) -> tuple[SSAValue, ...]:
    return _scan(nodes, body, [], xs, captured)


def _associative_scan(
    nodes: NodeImporter, combine: Any, xs: Sequence[Any], captured: Sequence[Any]
) -> tuple[SSAValue, ...]:
    """The first elements, and what is combined of all results so far and the next."""
    _require_tensors(xs)
    b = nodes.builder
    turns = b.shape(xs[0])[0] if xs else 0
    if not isinstance(turns, int) or not turns:
        raise UnsupportedError("an associative scan over an unknown number of elements")
    parts: list[list[SSAValue]] = [[], []]
    for x in xs:
        ones = (1,) * b.rank(x)
        for start, count, found in zip((0, 1), (1, turns - 1), parts, strict=True):
            starts = (start, *(0 for _ in ones[1:]))
            found.append(b.emit("slice", x, starts=starts, shape=(count, *b.shape(x)[1:]), steps=ones))
    firsts, rest = [b.view(first, b.shape(first)[1:]) for first in parts[0]], parts[1]
    block, states, slices = _block(firsts, rest)
    made = _import(nodes, combine, block, [*states, *slices, *captured])
    found = _loop(nodes, block, [*made, *made], [*firsts, *rest], turns - 1, len(xs), len(xs))
    return tuple(b.emit("concat", *pair, dim=0) for pair in zip(parts[0], found[len(xs) :], strict=True))


_IMPORTERS: dict[str, Importer] = {
    "cond": _cond,
    "while_loop": _while_loop,
    "scan": _scan,
    "map_impl": _map,
    "associative_scan": _associative_scan,
}
"""By the names of the higher-order operators."""


def _block(carried: Sequence[SSAValue], wholes: Sequence[SSAValue]) -> tuple[Block, list[SSAValue], list[SSAValue]]:
    """The block of a loop's body, with its states and slices."""
    slices = [Tensor(each.dtype, each.shape[1:]) for each in map(tensor_of, (value.type for value in wholes))]
    types = [tensor_type(Tensor(i64, ())), *(value.type for value in carried), *map(tensor_type, slices)]
    block = Block(arg_types=types)
    return block, list(block.args[1 : 1 + len(carried)]), list(block.args[1 + len(carried) :])


def _loop(
    nodes: NodeImporter,
    block: Block,
    yielded: Sequence[SSAValue],
    operands: Sequence[SSAValue],
    turns: Any,
    carried: int,
    scanned: int,
) -> tuple[SSAValue, ...]:
    conditional = len(operands) > carried + scanned
    values = [tensor_of(value.type) for value in yielded[int(conditional) :][:carried]]
    first = [tensor_of(value.type) for value in operands[int(conditional) :][:carried]]
    if values != first:
        raise UnsupportedError("a loop that carries on other types or shapes than it begins with")
    stacked = len(yielded) - carried - int(conditional)
    finals, stacks = close_loop(
        nodes.builder,
        block,
        yielded,
        operands,
        trip_count=turns,
        carried=carried,
        scanned=(1,) * scanned,
        stacked=(1,) * stacked,
    )
    return (*finals, *stacks)


def _import(nodes: NodeImporter, graph: Any, block: Block, values: Sequence[Any]) -> list[SSAValue]:
    """The results of a graph whose ops go to the end of a region's block."""
    try:
        with nodes.inside(block):
            return list(_inline(nodes, graph, values))
    except WeftError:  # what is left to torch as a whole must not be read from here
        for op in reversed(list(block.ops)):
            block.erase_op(op)
        raise


def _inline(nodes: NodeImporter, graph: Any, values: Sequence[Any]) -> tuple[Any, ...]:
    if not isinstance(graph, fx.GraphModule):
        raise UnsupportedError(f"a {type(graph).__name__} as a function")
    metas = [node.meta.get("val") for node in graph.graph.nodes if node.op == "placeholder"]
    given = [_as_traced(nodes, value, meta) for value, meta in zip(values, metas, strict=True)]
    results = nodes.traced(graph, given, nodes.call)
    joined = tuple(value.interleaved if isinstance(value, Complex) else value for value in results)
    _require_tensors(joined)
    return joined


def _require_tensors(values: Sequence[Any]) -> None:
    for value in values:
        if not isinstance(value, SSAValue):
            raise UnsupportedError(f"control flow over {type(value).__name__}")
