"""`tile.for` as LLVM code: with what it carries, the rings of a role in it, and loads an iteration ahead."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from xdsl.ir import SSAValue

from weft.backends.llvm.values import V, i64
from weft.backends.nvidia.emit.dot.lhs_row import held_in, load_lhs_row
from weft.backends.nvidia.emit.emitters import EMITTERS
from weft.backends.nvidia.emit.loops import loop_with
from weft.backends.nvidia.emit.warps.programmatic_launch import grid_dependency_wait
from weft.backends.nvidia.emit.warps.ring_buffers import Ring
from weft.backends.nvidia.emit.warps.ring_ops import RING_OPS
from weft.backends.nvidia.ir.carried_tiles import kept_axes
from weft.backends.nvidia.ir.dialect import layout_of
from weft.backends.nvidia.ir.dynamic_tile_scheduler import DYNAMIC
from weft.backends.nvidia.ir.mma import AHEAD
from weft.backends.nvidia.ir.wgmma import WgmmaWaitOp
from weft.ir.expr import floordiv
from weft.tile import dialect as tile

if TYPE_CHECKING:
    from weft.backends.nvidia.emit.codegen import KernelCodegen


@EMITTERS.register(tile.ForOp)
def emit_for(codegen: KernelCodegen, op: tile.ForOp) -> None:
    if any(AHEAD in inner.attributes for inner in op.block.ops):
        _loop_ahead(codegen, op)
        return
    lower, upper, step = (codegen.size(size, op.indices) for size in op.bounds.data)
    initial = [codegen.tiles[value] for value in op.initial]
    rings = _rings_of(codegen, op)
    drawing = codegen.drawing if DYNAMIC in op.attributes else None
    rings += [] if drawing is None else [drawing.ring]
    initial += [ring.state for ring in rings]
    drawn: list[V] = []

    def body(variable: V, carried: list[list[V]]) -> list[list[V]]:
        codegen.scalars[op.block.args[0]] = variable
        for ring in reversed(rings):
            ring.state = carried.pop()
        codegen.tiles.update(zip(op.block.args[1:], carried, strict=True))
        asked = None if drawing is None else drawing.ask(codegen.b, upper, step)
        codegen.block(op.block)
        if drawing is not None:
            drawn.append(drawing.following(codegen.b, asked))
        return [*_yielded(codegen, op), *(ring.state for ring in rings)]

    following = None if drawing is None else drawn.pop
    results = loop_with(codegen.b, lower, upper, step, initial, body, following=following)
    for ring in reversed(rings):
        ring.state = results.pop()
    codegen.tiles.update(zip(op.results, results, strict=True))


def _rings_of(codegen: KernelCodegen, op: tile.ForOp) -> list[Ring]:
    """The rings of a loop: where a role is in them goes from iteration to iteration too."""
    numbers = sorted({inner.ring.value.data for inner in op.walk() if isinstance(inner, RING_OPS)})
    return [codegen.rings[number] for number in numbers]


def _loop_ahead(codegen: KernelCodegen, op: tile.ForOp) -> None:
    """A loop that makes some loads for its next iteration before it does this one; the last iteration follows
    behind it.
    """
    b, variable = codegen.b, op.block.args[0]
    start, end, step = op.bounds.data
    assert isinstance(step, int)
    lower, last = (codegen.size(size, op.indices) for size in (start, start + floordiv(end - 1 - start, step) * step))
    early = [inner for inner in op.block.ops if AHEAD in inner.attributes]
    count, rings = len(op.initial), _rings_of(codegen, op)
    behind = count + len(rings)
    waits = next((inner for inner in op.block.ops if isinstance(inner, WgmmaWaitOp)), None)

    def load(number: V) -> list[list[V]]:
        codegen.scalars[variable] = number
        for inner in early:
            codegen.visit(inner)
        return [codegen.tiles[inner.results[0]] for inner in early]

    def turn(number: V, carried: list[list[V]], beside: Callable[[], None] | None = None) -> list[list[V]]:
        codegen.scalars[variable] = number
        codegen.tiles.update(zip(op.block.args[1:], carried[:count], strict=True))
        for ring, state in zip(rings, carried[count:behind], strict=True):
            ring.state = state
        codegen.tiles.update(zip((inner.results[0] for inner in early), carried[behind:], strict=True))
        for inner in op.block.ops:
            if inner is waits and beside is not None:
                beside()
                codegen.scalars[variable] = number
            if inner not in early:
                codegen.visit(inner)
        return [*_yielded(codegen, op), *(ring.state for ring in rings)]

    def body(number: V, carried: list[list[V]]) -> list[list[V]]:
        if rings:  # a slot is given back when all that was asked for is there: the loads come behind that
            yielded = turn(number, carried)
            return [*yielded, *load(b.add(number, i64(step)))]
        if waits is not None:  # fences of what is staged would wait for loads that are under way
            brought: list[list[V]] = []
            yielded = turn(number, carried, lambda: brought.extend(load(b.add(number, i64(step)))))
            return [*yielded, *brought]
        following = load(b.add(number, i64(step)))
        return [*turn(number, carried), *following]

    initial = [*(codegen.tiles[value] for value in op.initial), *(ring.state for ring in rings), *load(lower)]
    if op is codegen.early:
        grid_dependency_wait(b)
        for each in codegen.late:
            codegen.visit(each)
    if (held := held_in(op)) is not None and not codegen.rings:
        load_lhs_row(codegen, held)
    results = loop_with(b, lower, last, i64(step), initial, body, unrolled=False)
    codegen.tiles.update(zip(op.results, turn(last, results)[:count], strict=True))


def _yielded(codegen: KernelCodegen, loop: tile.ForOp) -> list[list[V]]:
    """The tiles that a loop carries on: what a smaller one lacks stays as it was where somebody may read it."""
    last = loop.block.last_op
    assert last is not None
    pairs = zip(last.operands, loop.block.args[1:], strict=True)
    return [
        _kept(codegen, value, codegen.tiles[before], kept_axes(loop, number, codegen.limits))
        for number, (value, before) in enumerate(pairs)
    ]


def _kept(codegen: KernelCodegen, value: SSAValue, before: list[V], along: Collection[int]) -> list[V]:
    values = codegen.tiles[value]
    if not along:
        return values
    exists = codegen.existing(value, layout_of(value), along)
    exists = exists[:: len(exists) // len(values)]  # a word of two neighbours is there where its first is
    rows = zip(exists, values, before, strict=True)
    return [new if there is None else codegen.b.select(there, new, old) for there, new, old in rows]
