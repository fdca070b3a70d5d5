"""Whether a plan that was read back can be run: nothing in it may surprise the first call, which would be too late.

What the codec gives has the right types; here its numbers are checked against each other.
"""

from __future__ import annotations

from collections.abc import Iterable

from weft.errors import ParseError
from weft.ir.expr import Size, symbols_of
from weft.ir.types import Tensor
from weft.lower.preparation import Preparation
from weft.lower.steps import CallStep, DotStep, IfStep, KernelStep, LaunchStep, LoopStep, Place, Plan, Step, all_steps
from weft.ops.base import REGISTRY
from weft.ops.layouts import StridedLayout

ROLES = ("input", "output", "temporary", "external", "constant", "slice")


def check_plan(plan: Plan) -> None:
    """Raise `ParseError` where a plan refers to what it does not have."""
    buffers, symbols = range(len(plan.buffers)), set(plan.symbols)
    for buffer in plan.buffers:
        _require(buffer.role in ROLES, f"a buffer with the role {buffer.role!r}")
        _check_memory(buffer.tensor, buffer.layout, symbols)
    for step in all_steps(plan.steps):
        _check_step(step, symbols)
        _check_numbers(_buffers(step), buffers, "a step's buffer")
    arguments = range(len(plan.inputs) + len(plan.fixed))
    _check_numbers(plan.inputs, buffers, "an input")
    _check_numbers(plan.outputs, buffers, "an output")
    _check_numbers(plan.fixed, arguments, "a constant argument")
    _check_numbers(plan.donated, arguments, "a donated argument")
    _check_numbers(plan.replacing, range(len(plan.outputs)), "an output that replaces")
    _check_numbers((constant.buffer for constant in plan.constants), buffers, "a constant")
    _require(0 <= plan.decided_after <= len(plan.steps), f"its data checked after {plan.decided_after} steps")
    _require(len(symbols) == len(plan.symbols), "symbols that occur twice")
    _require(len({*plan.inputs}) == len(plan.inputs), "inputs that are one")
    _require(len({*plan.fixed}) == len(plan.fixed), "constant arguments that are one")
    _require(all(plan.buffers[number].role == "input" for number in plan.inputs), "inputs that are none")
    made = {"input", "output", "external", "constant"}
    _require(all(plan.buffers[number].role in made for number in plan.outputs), "outputs that are not kept")
    if plan.preparation is not None:
        _check_preparation(plan, plan.preparation)
    elif not plan.prepare:
        _check_numbers((constant.source for constant in plan.constants), range(len(plan.fixed)), "a source")


def _check_preparation(plan: Plan, preparation: Preparation) -> None:
    """Each op reads what is there, and what it makes is what kernels read."""
    tensors = list(preparation.arguments)
    _require(len(tensors) == len(plan.fixed), "constants that are prepared of others than it has")
    for op in preparation.ops:
        _require(op.op in REGISTRY.specs, f"a constant that is prepared by {op.op!r}")
        _check_numbers(op.operands, range(len(tensors)), "a value of a constant")
        tensors += op.results
    _check_numbers(preparation.results, range(len(tensors)), "a prepared constant")
    sources = [*preparation.arguments, *(tensors[number] for number in preparation.results)]
    for constant in plan.constants:
        _check_numbers([constant.source], range(len(sources)), "a source")
        fits = constant.packing is not None or plan.buffers[constant.buffer].tensor == sources[constant.source]
        _require(fits, f"a constant that is {sources[constant.source]}")


def _check_step(step: Step, symbols: set[str]) -> None:
    match step:
        case KernelStep():
            _require(symbols.issuperset(step.symbols), f"a kernel that takes the sizes {step.symbols}")
            _check_sizes([step.grid], symbols)
        case CallStep():
            _check_places(step.operands, symbols)
        case DotStep():
            places = (step.a, step.b, step.out)
            _check_places(places, symbols)
            _require(all(place.tensor.rank >= 2 for place in places), "a product of other things than matrices")
            _check_sizes([step.partial_sums], symbols)
        case LaunchStep():
            _check_places(step.places, symbols)
            _check_sizes([step.grid, *(a for a in step.arguments if not isinstance(a, Place))], symbols)
        case LoopStep():
            wholes = [each.whole for each in step.slices]
            _check_places(wholes, symbols)
            _require(all(each.direction in (1, -1) for each in step.slices), "slices in no direction")
            _require(all(each.tensor.shape[:1] == (step.trip_count,) for each in wholes), "other slices than turns")
            _require(step.condition >= 0 or step.trip_count != -1, "a loop without an end")
            _require(
                not isinstance(step.trip_count, int) or step.trip_count >= -1, f"a loop of {step.trip_count} turns"
            )
            _check_sizes([step.trip_count], symbols)
        case IfStep():
            _require(step.condition >= 0, "a branch without a condition")


def _buffers(step: Step) -> tuple[int, ...]:
    match step:
        case KernelStep():
            return step.buffers
        case CallStep():
            return (*(place.buffer for place in step.operands), *step.results)
        case DotStep():
            return (step.a.buffer, step.b.buffer, step.out.buffer)
        case LaunchStep():
            return tuple(place.buffer for place in step.places)
        case LoopStep():
            slices = [number for each in step.slices for number in (each.buffer, each.whole.buffer)]
            return (*slices, *([step.condition] if step.condition != -1 else []))
        case IfStep():
            return (step.condition,)


def _check_places(places: Iterable[Place], symbols: set[str]) -> None:
    for place in places:
        _check_memory(place.tensor, place.layout, symbols)


def _check_memory(tensor: Tensor, layout: StridedLayout, symbols: set[str]) -> None:
    _require(len(layout.strides) == tensor.rank, f"{len(layout.strides)} strides of {tensor.rank} dimensions")
    _require(all(not isinstance(size, int) or size >= 0 for size in tensor.shape), "a negative size")
    _check_sizes((*tensor.shape, *layout.strides, layout.offset), symbols)


def _check_sizes(sizes: Iterable[Size], symbols: set[str]) -> None:
    for size in sizes:
        _require(symbols_of(size) <= symbols, f"the size {size}, of symbols that nobody knows")


def _check_numbers(numbers: Iterable[int], known: range, what: str) -> None:
    for number in numbers:
        _require(number in known, f"{what} that is number {number} of {len(known)}")


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise ParseError(f"a stored plan has {otherwise}")
