"""Torch's control flow as the graph dialect's: `cond`, `while_loop`, `scan`, `map` and `associative_scan`.

Their functions are graphs of their own, whose nodes are imported like any others, into the regions of `graph.if` and
`graph.loop`. What cannot be converted inside is left to torch there; the loop around it stays Weft's. What is found out
about data inside leaves a region as a number among its results.
"""

# Torch's graphs have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
import torch.utils._pytree as pytree
from torch import fx
from xdsl.ir import Block, SSAValue

from weft.errors import UnsupportedError, WeftError
from weft.frontends.torch.importer.checks import Check, combined, state_again
from weft.frontends.torch.importer.complex_numbers import Complex
from weft.ir.types import Tensor, i64, tensor_of, tensor_type
from weft.ops.control import UNBOUNDED, close_if, close_loop

if TYPE_CHECKING:
    from weft.frontends.torch.importer.builder import ImportBuilder
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
    results: list[list[SSAValue]] = []
    codes: list[SSAValue | None] = []
    checks: list[Check] = []
    for graph, block in zip((then, otherwise), blocks, strict=True):
        with _importing(nodes, block) as inner:
            results.append(list(_inline(nodes, graph, operands)))
            code, stated = combined(inner, len(checks) + 1)
            codes.append(code)
            checks += stated
    types = [[tensor_of(value.type) for value in each] for each in results]
    if types[0] != types[1]:
        raise UnsupportedError("branches whose results differ in type or shape")
    flag = nodes.builder.view(predicate, ())
    if not checks:
        return close_if(nodes.builder, flag, blocks, results)
    for block, found, code in zip(blocks, results, codes, strict=True):
        with nodes.inside(block) as inner:
            found.append(inner.number(0, i64) if code is None else code)
    *outs, number = close_if(nodes.builder, flag, blocks, results)
    state_again(nodes.builder, number, checks)
    return tuple(outs)


def _while_loop(
    nodes: NodeImporter, condition: Any, body: Any, carried: Sequence[Any], captured: Sequence[Any]
) -> tuple[SSAValue, ...]:
    _require_tensors(carried)
    (going,) = _inline(nodes, condition, [*carried, *captured])

    def turn(states: Sequence[SSAValue]) -> tuple[SSAValue, ...]:
        new = _inline(nodes, body, [*states, *captured])
        (again,) = _inline(nodes, condition, [*new, *captured])
        return nodes.builder.view(again, ()), *new  # it may have a dimension of one

    return _loop(nodes, turn, nodes.builder.view(going, ()), carried, (), UNBOUNDED)


def _scan(
    nodes: NodeImporter, combine: Any, init: Sequence[Any], xs: Sequence[Any], captured: Sequence[Any]
) -> tuple[SSAValue, ...]:
    _require_tensors([*init, *xs])
    if not xs:
        raise UnsupportedError("a scan over nothing")

    def turn(values: Sequence[SSAValue]) -> tuple[SSAValue, ...]:
        return _inline(nodes, combine, [*values, *captured])

    return _loop(nodes, turn, None, init, xs, nodes.builder.shape(xs[0])[0])


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

    def turn(values: Sequence[SSAValue]) -> tuple[SSAValue, ...]:
        return 2 * _inline(nodes, combine, [*values, *captured])

    found = _loop(nodes, turn, None, firsts, rest, turns - 1)
    return tuple(b.emit("concat", *pair, dim=0) for pair in zip(parts[0], found[len(xs) :], strict=True))


_IMPORTERS: dict[str, Importer] = {
    "cond": _cond,
    "while_loop": _while_loop,
    "scan": _scan,
    "map_impl": _map,
    "associative_scan": _associative_scan,
}
"""By the names of the higher-order operators."""


def _loop(
    nodes: NodeImporter,
    turn: Callable[[Sequence[SSAValue]], Sequence[SSAValue]],
    going: SSAValue | None,
    carried: Sequence[SSAValue],
    wholes: Sequence[SSAValue],
    turns: Any,
) -> tuple[SSAValue, ...]:
    """What is carried after the last turn, and the stacks, of turns of states and slices.

    A turn gives whether there is another one, where it is known whether the first is `going`, states and slices.
    """
    slices = [Tensor(each.dtype, each.shape[1:]) for each in map(tensor_of, (value.type for value in wholes))]
    types = [tensor_type(Tensor(i64, ())), *(value.type for value in carried), *map(tensor_type, slices)]
    block, count, conditional = Block(arg_types=types), len(carried), int(going is not None)
    with _importing(nodes, block, block.args[0]) as inner:
        yielded = list(turn(block.args[1:]))
        code, checks = combined(inner)
        if code is not None:  # the number of what was found in any turn is carried on, and ends what would go on
            before = block.insert_arg(code.type, 1 + count)
            code = inner.emit("maximum", before, code)
            yielded.insert(conditional + count, code)
            if conditional:
                yielded[0] = inner.emit("logical_and", yielded[0], inner.emit("eq", code, inner.number(0, i64)))
    if code is not None:
        carried = [*carried, nodes.builder.number(0, i64)]
    if [value.type for value in yielded[conditional:][: len(carried)]] != [value.type for value in carried]:
        raise UnsupportedError("a loop that carries on other types or shapes than it begins with")
    finals, stacks = close_loop(
        nodes.builder,
        block,
        yielded,
        [*([] if going is None else [going]), *carried, *wholes],
        trip_count=turns,
        carried=len(carried),
        scanned=(1,) * len(wholes),
        stacked=(1,) * (len(yielded) - len(carried) - conditional),
    )
    if code is not None:
        state_again(nodes.builder, finals[-1], checks)
    return (*finals[:count], *stacks)


@contextmanager
def _importing(nodes: NodeImporter, block: Block, *turn: SSAValue) -> Generator[ImportBuilder]:
    """Let ops go to the end of a region's block."""
    try:
        with nodes.inside(block, *turn) as inner:
            yield inner
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
