"""Programmatic dependent launch (PDL): kernels start before the one ahead of them has ended, on Hopper and later.

    griddepcontrol.launch_dependents     the next kernel's blocks may come as soon as these leave room
    griddepcontrol.wait                  the kernel ahead has ended, and what it wrote is there

Every kernel waits before it ends, so all kernels before the one ahead have ended, too, when a wait is over. Before it,
only memory is read that no step of a program writes: it is the same as behind it. The weights of a dot are such
memory: TMA brings the first of them while kernels ahead still compute what they are multiplied with, and
the memory is busy when it would else have nothing to do.

The first kernel of a program waits before it lets the next one come: what programs before it write is there then.
"""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.dialects.builtin import UnitAttr
from xdsl.ir import BlockArgument, Operation, SSAValue

from weft.backends.nvidia.code import Launch
from weft.backends.nvidia.ir.horizontal_select import HorizontalSelectOp
from weft.backends.nvidia.ir.mma import AHEAD
from weft.backends.nvidia.ir.rings import TmaLoadOp
from weft.backends.nvidia.ir.row_streams import BulkCopyRowsOp, StreamOp
from weft.backends.nvidia.ir.warp_specialization import WarpSpecializeOp
from weft.ir.attributes import from_attribute, to_attribute
from weft.lower.steps import CallStep, DotStep, IfStep, KernelStep, LaunchStep, LoopStep, Plan, all_steps
from weft.tile import dialect as tile

FIXED = "nvidia.fixed"
"""On a kernel: the arguments whose memory no step of the program writes."""
FOLLOWS = "nvidia.follows"
"""On a kernel: it is never the first of a program."""


def mark_fixed(plan: Plan, kernels: Mapping[str, tile.KernelOp]) -> None:
    """Say of every kernel which of its arguments it may read before the kernel ahead has ended.

    The first kernel of a program does not know what is ahead of it: it starts early only where that is found out
    (`weft.runtime.cuda.captures`).
    """
    written = _written(plan, kernels)
    fixed: dict[str, set[int]] = {}
    first: set[str] = set()
    launched = False
    outermost = {id(step) for step in plan.steps}
    for step in all_steps(plan.steps):
        if not isinstance(step, KernelStep):
            continue
        first |= set() if launched else {step.function}
        given = enumerate(step.buffers)
        found = {i for i, n in given if n not in written and plan.buffers[n].role in ("input", "constant")}
        fixed[step.function] = fixed.get(step.function, found) & found
        # What is inside of control flow may not run at all.
        launched = launched or (id(step) in outermost and isinstance(step.grid, int) and step.grid > 0)
    for name, arguments in fixed.items():
        if arguments:
            kernels[name].attributes[FIXED] = to_attribute(tuple(sorted(arguments)))
        if name not in first:
            kernels[name].attributes[FOLLOWS] = UnitAttr()


def is_fixed(kernel: tile.KernelOp, pointer: SSAValue) -> bool:
    """Whether an argument's memory is the same before the kernel ahead has ended."""
    given = from_attribute(kernel.attributes[FIXED]) if FIXED in kernel.attributes else ()
    assert isinstance(given, tuple)
    return isinstance(pointer, BlockArgument) and pointer.index in given


def loop_that_asks_early(kernel: tile.KernelOp) -> tile.ForOp | None:
    """The loop whose first loads ahead may come before the kernel ahead has ended: all read memory that stays as it is,
    at places that are known without reading memory."""
    loop = next((op for op in kernel.block.ops if isinstance(op, tile.ForOp)), None)
    ahead = [inner for inner in loop.block.ops if AHEAD in inner.attributes] if loop is not None else []
    fixed = all(isinstance(each, tile.LoadOp) and is_fixed(kernel, each.pointer) for each in ahead)
    late = set(ops_behind_wait(kernel, loop)) if loop is not None else set[Operation]()
    places = [value for each in ahead for value in each.operands[1:]]
    return loop if ahead and fixed and not any(value.owner in late for value in places) else None


def ops_behind_wait(kernel: tile.KernelOp, loop: tile.ForOp | None) -> list[Operation]:
    """The ops before a loop that must wait for the kernel ahead: those that read memory, and what is made of that."""
    found: list[Operation] = []
    for op in kernel.block.ops:
        if op is loop or loop is None:
            return found
        simple = isinstance(op, tile.ProgramOp | tile.ConstantOp | tile.PositionOp | tile.MapOp)
        if not simple or any(value.owner in found for value in op.operands):
            found.append(op)
    return found


def asked_early(kernel: tile.KernelOp, launch: Launch) -> tuple[int, ...]:
    """The arguments of a kernel with roles and layouts whose memory it reads before the kernel ahead has ended."""
    found: set[int] = set()
    for op in kernel.block.ops:
        match op:
            case WarpSpecializeOp() if op.early is not None:
                fills = (inner for inner in op.early.walk() if isinstance(inner, TmaLoadOp))
                found.update(launch.maps[fill.map.value.data].argument for fill in fills)
            case StreamOp() if op.early is not None:
                copies = [inner.pointer for inner in op.producer.walk() if isinstance(inner, BulkCopyRowsOp)]
                found.update(pointer.index for pointer in copies if isinstance(pointer, BlockArgument))
            case _:
                pass
    loop = loop_that_asks_early(kernel)
    loads = (
        [op.pointer for op in loop.block.ops if isinstance(op, tile.LoadOp) and AHEAD in op.attributes] if loop else []
    )
    found.update(pointer.index for pointer in loads if isinstance(pointer, BlockArgument))
    return tuple(sorted(found))


def written_by(kernel: tile.KernelOp) -> tuple[int, ...]:
    """The pointers of a kernel whose memory it may write."""
    pointers = [argument for argument in kernel.block.args if isinstance(argument.type, tile.PointerType)]
    return tuple(pointer.index for pointer in pointers if not is_only_read(pointer))


def _written(plan: Plan, kernels: Mapping[str, tile.KernelOp]) -> set[int]:
    """The buffers that steps may write."""
    found: set[int] = set()
    for step in all_steps(plan.steps):
        match step:
            case KernelStep():
                arguments = zip(kernels[step.function].block.args, step.buffers, strict=False)
                found.update(number for argument, number in arguments if not is_only_read(argument))
            case CallStep():
                found.update(place.buffer for place in step.operands)
            case LaunchStep():
                found.update(place.buffer for place in step.places)
            case DotStep():
                found.add(step.out.buffer)
            case LoopStep():
                found.update(each.whole.buffer for each in step.slices)
            case IfStep():
                continue
    return found


def is_only_read(pointer: SSAValue) -> bool:
    """Whether a kernel does not write the memory of an argument."""
    kernel = pointer.block.parent_op() if isinstance(pointer, BlockArgument) else None
    if isinstance(kernel, tile.KernelOp) and kernel.counter_pointer is pointer:
        return False
    for use in pointer.uses:
        if isinstance(use.operation, HorizontalSelectOp):
            if not is_only_read(use.operation.becomes(use.index)):
                return False
        elif not isinstance(use.operation, tile.LoadOp | tile.GatherOp | tile.NumberOp):
            return False
    return True
