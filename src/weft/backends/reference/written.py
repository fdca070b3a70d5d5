"""What the ops of kernels that people write mean, in NumPy: the other half of `weft.backends.reference.tile`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from xdsl.ir import Block, Operation, SSAValue

from weft.errors import UnsupportedError
from weft.tile import collective_ops, control_flow, pointer_ops
from weft.tile import dialect as tile
from weft.tile.functions import FUNCTIONS

if TYPE_CHECKING:
    from weft.backends.reference.tile import ProgramInstance

_UPDATES = {"add": "add", "max": "fmax", "min": "fmin", "and": "and", "or": "or", "xor": "xor"}


class CheckError(UnsupportedError):
    """A condition that a kernel checks is false."""


def run_written(program: ProgramInstance, op: Operation) -> None:
    """Run one op of a program."""
    tiles = program.tiles
    match op:
        case pointer_ops.IndexOp():
            program.indices[op.out] = int(tiles[op.value])
        case collective_ops.ViewOp():
            tiles[op.out] = _viewed(op, tiles[op.value])
        case collective_ops.TakeOp():
            indices = tiles[op.indices].astype(np.int64)
            program.set(op.out, np.take_along_axis(tiles[op.value], indices, op.axis.value.data))
        case collective_ops.FoldOp():
            for out, partial in zip(op.results, _scanned(program, op, reverse=False), strict=True):
                program.set(out, np.take(partial, [-1], op.axis.value.data))
        case collective_ops.ScanOp():
            for out, partial in zip(op.results, _scanned(program, op, op.reverse is not None), strict=True):
                program.set(out, partial)
        case collective_ops.OrderOp():
            ordered = np.sort(tiles[op.value], axis=-1)  # NaN last
            program.set(op.out, ordered[..., ::-1] if op.descending is not None else ordered)
        case collective_ops.HistogramOp():
            _count(program, op)
        case pointer_ops.AtomicOp():
            _update(program, op)
        case control_flow.IfOp():
            block = op.then.block if tiles[op.condition] else op.otherwise.block
            tiles.update(zip(op.results, _yielded(program, block), strict=True))
        case control_flow.WhileOp():
            _repeat(program, op)
        case control_flow.CheckOp():
            wrong = ~tiles[op.condition]
            if (wrong if op.mask is None else wrong & tiles[op.mask]).any():
                raise CheckError(f"check {op.number.value.data} of {program.kernel}, program {program.numbers}")
        case control_flow.PrintOp():
            for value in op.values:
                print(program.numbers, op.prefix.data, tiles[value])
        case _:
            raise UnsupportedError(f"{op.name} has no meaning in NumPy")


def _viewed(op: collective_ops.ViewOp, value: np.ndarray) -> np.ndarray:
    flat = np.ascontiguousarray(value).reshape(-1)
    shape, places = tile.tile_type(op.out).sizes, np.asarray(op.offset.value.data)
    for axis, (size, step) in enumerate(zip(shape, op.steps, strict=True)):
        places = places + (step * np.arange(size)).reshape([-1 if a == axis else 1 for a in range(len(shape))])
    return flat[np.broadcast_to(places, shape)]


def _scanned(
    program: ProgramInstance, op: collective_ops.FoldOp | collective_ops.ScanOp, reverse: bool
) -> list[np.ndarray]:
    """All partial results of joining elements along an axis."""
    axis = op.axis.value.data
    values = [np.moveaxis(program.tiles[value], axis, 0) for value in op.values]
    order = range(len(values[0]))
    state, partial = None, [np.empty_like(value) for value in values]
    for place in reversed(order) if reverse else order:
        current = [value[place] for value in values]
        state = current if state is None else _joined(program, op.block, [*state, *current])
        for result, element in zip(partial, state, strict=True):
            result[place] = element
    return [np.moveaxis(result, 0, axis) for result in partial]


def _joined(program: ProgramInstance, block: Block, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What a block of scalar ops makes of arrays, element by element."""
    values: dict[SSAValue, Any] = dict(zip(block.args, arguments, strict=True))
    for op in block.ops:
        match op:
            case tile.YieldOp():
                return [np.broadcast_to(values[v], np.shape(arguments[0])) for v in op.operands]
            case tile.MapOp():
                args = [values.get(arg, program.tiles.get(arg)) for arg in op.args]
                values[op.out] = program.apply(op, args)
            case _:
                program.run(op)
    raise AssertionError("a block without an end")


def _count(program: ProgramInstance, op: collective_ops.HistogramOp) -> None:
    value, bins = program.tiles[op.value], tile.tile_type(op.out).sizes[0]
    counted = (value >= 0) & (value < bins)
    if op.mask is not None:
        counted &= program.tiles[op.mask]
    program.set(op.out, np.bincount(value[counted], minlength=bins))


def _update(program: ProgramInstance, op: pointer_ops.AtomicOp) -> None:
    """One element after the other."""
    buffer = program.buffers[op.pointer]
    offsets, value = np.atleast_1d(program.tiles[op.offsets]), np.atleast_1d(program.tiles[op.value])
    mask = np.ones(offsets.shape, bool) if op.mask is None else np.atleast_1d(program.tiles[op.mask])
    expected = value if op.expected is None else np.atleast_1d(program.tiles[op.expected])
    result = np.zeros_like(value)
    for place in np.ndindex(offsets.shape):
        if not mask[place]:
            continue
        (at,) = program.checked(op, op.pointer, offsets[place].reshape(1))
        old, new = buffer[at].astype(value.dtype), value[place]
        result[place] = old
        match op.kind.data:
            case "xchg":
                buffer[at] = new
            case "cas":
                buffer[at] = new if old == expected[place] else old
            case kind:
                buffer[at] = FUNCTIONS[_UPDATES[kind]].numpy(np.asarray(old), np.asarray(new))
    program.tiles[op.out] = result.reshape(tile.tile_type(op.out).sizes)


def _yielded(program: ProgramInstance, block: Block) -> list[np.ndarray]:
    program.block(list(block.ops))
    last = block.last_op
    assert last is not None
    return [program.tiles[value] for value in last.operands]


def _repeat(program: ProgramInstance, op: control_flow.WhileOp) -> None:
    test, body = op.condition.block, op.body.block
    carried = [program.tiles[value] for value in op.initial]
    while True:
        program.tiles.update(zip(test.args, carried, strict=True))
        (holds,) = _yielded(program, test)
        if not holds:
            break
        program.tiles.update(zip(body.args, carried, strict=True))
        carried = _yielded(program, body)
    program.tiles.update(zip(op.results, carried, strict=True))
