"""Runs a graph function on NumPy arrays, op by op: the meaning of the graph dialect, and the oracle of every test."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import numpy as np
from xdsl.ir import Block, Operation, SSAValue

from weft.backends.reference.launch import run_launch
from weft.errors import GuardError, UnsupportedError
from weft.ir.expr import Expr, evaluate, symbols_of
from weft.ir.types import Tensor, tensor_of
from weft.ops.base import GraphOp
from weft.ops.control import ControlOp, IfOp, LoopOp, functions_run
from weft.ops.custom import CustomOp
from weft.ops.graph import FuncOp, GroupOp, LaunchOp, OpaqueOp, ReturnOp, YieldOp

Arrays: TypeAlias = list[np.ndarray]
Opaque: TypeAlias = Callable[[OpaqueOp, Sequence[np.ndarray]], Sequence[np.ndarray]]
"""Carries out a call that Weft does not look into, on the arrays of its operands."""


def run(
    function: FuncOp,
    arguments: Sequence[np.ndarray],
    symbols: Mapping[str, int] | None = None,
    opaque: Opaque | None = None,
) -> Arrays:
    """The results of the function. Symbolic sizes take their values from the arguments' shapes, and from `symbols`."""
    tensors = [tensor_of(value.type) for value in function.block.args]
    bound = bind_symbols(tensors, arguments, symbols or {})
    with np.errstate(all="ignore"):
        return _run_block(function.block, arguments, bound, opaque)


def bind_symbols(
    tensors: Sequence[Tensor], arguments: Sequence[np.ndarray], symbols: Mapping[str, int]
) -> dict[str, int]:
    """The value of every symbol; raises where an argument does not have the type it should."""
    if len(tensors) != len(arguments):
        raise GuardError(f"the function takes {len(tensors)} arguments, got {len(arguments)}")
    bound = dict(symbols)
    for position, (tensor, array) in enumerate(zip(tensors, arguments, strict=True)):
        if tensor.rank != array.ndim or tensor.dtype.numpy != array.dtype:
            raise GuardError(f"argument {position} is {array.dtype}{list(array.shape)}, the function takes {tensor}")
        for size, actual in zip(tensor.shape, array.shape, strict=True):
            if isinstance(size, Expr) and str(size) in size.symbols:
                bound.setdefault(str(size), actual)
    for position, (tensor, array) in enumerate(zip(tensors, arguments, strict=True)):
        known = [size if symbols_of(size) - bound.keys() else evaluate(size, bound) for size in tensor.shape]
        if known != list(array.shape):
            raise GuardError(
                f"argument {position} has shape {list(array.shape)}, the function takes {tensor}",
                hint=f"sizes known so far: {bound}; give the others in `symbols`",
            )
    return bound


def _run_block(
    block: Block, arguments: Sequence[np.ndarray], symbols: Mapping[str, int], opaque: Opaque | None
) -> Arrays:
    values: dict[SSAValue, np.ndarray] = dict(zip(block.args, arguments, strict=True))
    for op in block.ops:
        operands = [values[operand] for operand in op.operands]
        if isinstance(op, ReturnOp | YieldOp):
            return operands
        values.update(zip(op.results, run_op(op, operands, symbols, opaque), strict=True))
    raise UnsupportedError("the block has no return or yield at its end")


def run_op(op: Operation, operands: Arrays, symbols: Mapping[str, int], opaque: Opaque | None) -> Arrays:
    """The results of one op."""
    match op:
        case GroupOp():
            return _run_block(op.block, operands, symbols, opaque)
        case CustomOp():
            return _run_block(op.body, operands, symbols, opaque)
        case OpaqueOp():
            if opaque is None:
                raise UnsupportedError(f"no one carries out the call of {op.target.data}", hint="pass `opaque` to run")
            return [np.asarray(result) for result in opaque(op, operands)]
        case LaunchOp():
            return run_launch(op, operands, symbols)
        case IfOp():
            chosen = _blocks(op)[0 if operands[0] else 1]
            return _run_block(chosen, operands[1:], symbols, opaque)
        case LoopOp():
            return _run_loop(op, operands, symbols, opaque)
        case GraphOp():
            reference: Callable[..., np.ndarray | Sequence[np.ndarray]] | None = getattr(type(op), "reference", None)
            if reference is None:
                raise UnsupportedError(f"{op.name} has no reference")
            results = reference(*operands, **{key: _with_numbers(value, symbols) for key, value in op.params.items()})
            return [np.asarray(result) for result in (results if isinstance(results, tuple) else (results,))]
        case _:
            raise UnsupportedError(f"{op.name} has no meaning in NumPy")


def _run_loop(op: LoopOp, operands: Arrays, symbols: Mapping[str, int], opaque: Opaque | None) -> Arrays:
    (block,) = _blocks(op)
    values = dict(zip(op.operands, operands, strict=True))
    going = op.condition is None or bool(values[op.condition])
    states, wholes, captures = ([values[v] for v in each] for each in (op.starts, op.wholes, op.captures))
    turns = evaluate(op.trip_count, symbols)
    stacks: Arrays = []
    for result in op.stacks:
        tensor = tensor_of(result.type)
        stacks.append(np.zeros([evaluate(size, symbols) for size in tensor.shape], tensor.dtype.numpy))
    turn = 0
    while going and turn != turns:
        at = {1: turn, -1: turns - 1 - turn}
        slices = [whole[at[direction]] for whole, direction in zip(wholes, op.scanned, strict=True)]
        number = [np.asarray(turn, np.int64)] if op.bodies else []  # functions are given it as one more state
        made = _run_block(block, [*number, *states, *slices, *captures], symbols, opaque)
        if op.conditional:
            going = bool(made.pop(0))
        states, new = made[: len(states)], made[len(states) :]
        for stack, direction, each in zip(stacks, op.stacked, new, strict=True):
            stack[at[direction]] = each
        turn += 1
    return [*states, *stacks]


def _blocks(op: ControlOp) -> list[Block]:
    """What an op of control flow runs: its regions, or the functions that they have become."""
    if op.bodies:
        return [region.block for region in op.bodies]
    return [function.block for function in functions_run(op)]


def _with_numbers(value: Any, symbols: Mapping[str, int]) -> Any:
    """A parameter with every symbolic size replaced by its value."""
    if isinstance(value, tuple):
        return tuple(_with_numbers(item, symbols) for item in cast(tuple[Any, ...], value))
    return evaluate(value, symbols) if isinstance(value, Expr) else value
