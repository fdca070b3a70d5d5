"""Control flow → steps with steps inside: regions are planned in the memory of the function around them.

A region's captures are read where they lie, weights packed once for all turns. What a loop carries has one place: a
turn writes over it where it can (`passes/update_in_place.py`) or makes the new state there, once nothing reads the old
one, and else copies what it has made there at its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from xdsl.ir import OpResult, SSAValue

from weft.errors import LoweringError
from weft.ir.expr import symbols_of
from weft.ir.types import Tensor, tensor_of
from weft.lower.steps import Buffer, IfStep, LoopStep, Place, SlicePlace
from weft.ops.control import ControlOp, IfOp, LoopOp, functions_run
from weft.ops.graph import FuncOp
from weft.ops.layouts import StridedLayout, contiguous
from weft.passes.grouping.build_groups import readers, result_targets

if TYPE_CHECKING:
    from weft.lower.plan import Planner
    from weft.passes.grouping.build_groups import Target


def plan_if(planner: Planner, op: IfOp, outputs: dict[SSAValue, Target]) -> None:
    """Both branches write to the memory of the op's results."""
    condition, *captures = (planner.places[operand] for operand in op.operands)
    results = [planner.result(result, outputs) for result in op.results]
    then, otherwise = (planner.region(each, captures, results) for each in _functions(op, len(captures)))
    for branch in (then, otherwise):
        _bring(branch, [planner.places[result] for result in op.results])
    planner.steps.append(IfStep(condition.buffer, tuple(then.steps), tuple(otherwise.steps), "if"))


def plan_loop(planner: Planner, op: LoopOp, outputs: dict[SSAValue, Target]) -> None:
    """States are set to their first values, turned over by the body, and are the results where they are."""
    condition = None
    if op.condition is not None:
        condition = _memory(planner, tensor_of(op.condition.type))
        planner.copy(planner.places[op.condition], condition)
    states: list[Place] = []
    for start in op.starts:
        states.append(_memory(planner, tensor_of(start.type)))
        planner.copy(planner.places[start], states[-1])
    for result in op.stacks:
        planner.result(result, outputs)
        if op.conditional:
            planner.clear(planner.places[result])
    taken = [_slice(planner, planner.places[v], d) for v, d in zip(op.wholes, op.scanned, strict=True)]
    made = [_slice(planner, planner.places[v], d) for v, d in zip(op.stacks, op.stacked, strict=True)]
    captures = [planner.places[value] for value in op.captures]
    arguments = [*states, *(place for place, _ in taken), *captures]
    wanted = [*([] if condition is None else [condition]), *states, *(place for place, _ in made)]
    (function,) = _functions(op, len(arguments))
    first = 0 if condition is None else 1
    made_there = {first + number for number in _unread_states(function, len(states), first)}
    fixed = [place.buffer if n in made_there or place not in states else None for n, place in enumerate(wanted)]
    body = planner.region(function, arguments, fixed, captures)
    _bring(body, wanted)
    planner.symbols |= symbols_of(op.trip_count)
    slices = tuple(moving for _, moving in (*taken, *made))
    end = -1 if condition is None else condition.buffer
    planner.steps.append(LoopStep(tuple(body.steps), op.trip_count, end, slices, "loop"))
    for result, state in zip(op.finals, states, strict=True):
        if result in outputs:
            planner.result(result, outputs)
            planner.copy(state, planner.places[result])
        else:
            planner.places[result] = state


def _unread_states(function: FuncOp, count: int, first: int) -> list[int]:
    """The states of a loop that no op of a turn reads from when the op begins that makes the new one.

    Results from `first` on are the new states, and the first arguments the old ones.
    """
    order = {op: place for place, op in enumerate(function.block.ops)}
    roots = {target.result: root for root, target in result_targets(function).items()}
    unread: list[int] = []
    for number in range(count):
        root = roots.get(function.returned.operands[first + number])
        if root is not None and isinstance(root, OpResult):
            since = order[root.op]
            if all(order[reader] < since for reader in readers(function.block.args[number])):
                unread.append(number)
    return unread


def _functions(op: ControlOp, arguments: int) -> list[FuncOp]:
    functions = functions_run(op)
    if not functions or any(len(each.block.args) != arguments for each in functions):
        raise LoweringError(f"{op.name} has regions that are no functions", hint="run outline_regions first")
    return functions


def _bring(region: Planner, wanted: Sequence[Place]) -> None:
    """Copy results to their places that were not made there, all of them when everything has been read."""
    for value, place in zip(region.function.returned.operands, wanted, strict=True):
        if region.places[value].buffer != place.buffer:
            region.copy(region.places[value], place)


def _memory(planner: Planner, tensor: Tensor) -> Place:
    """New memory for a tensor."""
    planner.buffers.append(Buffer("temporary", tensor, contiguous(tensor)))
    return Place(len(planner.buffers) - 1, tensor, contiguous(tensor))


def _slice(planner: Planner, whole: Place, direction: int) -> tuple[Place, SlicePlace]:
    """The place of what is a slice of a tensor in a turn, and how it moves on."""
    tensor = Tensor(whole.tensor.dtype, whole.tensor.shape[1:])
    layout = StridedLayout(whole.layout.strides[1:])
    planner.buffers.append(Buffer("slice", tensor, layout))
    number = len(planner.buffers) - 1
    return Place(number, tensor, layout), SlicePlace(number, whole, direction)
