"""Small kernels that follow each other and do not need each other become one: a launch takes longer than they do.

    @a grid [4]   x → y             @a_b grid [20] {
    @b grid [16]  x → z        →      %p = tile.program 0
                                      tile.for %i = max(%p, 0) to min(%p + 1, 4)   { … what @a does as program %i }
                                      tile.for %i = max(%p, 4) to min(%p + 1, 20)  { … what @b does as %i - 4 } }

Such are the two halves of a rotation and the rows of caches, between a product and attention.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence, Set
from dataclasses import replace

from xdsl.dialects.builtin import ArrayAttr, IndexType, IntegerAttr, StringAttr, i64
from xdsl.ir import Block, Region, SSAValue

from weft.backends.nvidia.asynchronous import IndexOp
from weft.backends.nvidia.early_start import is_only_read
from weft.ir.expr import floordiv, maximum, minimum, mod, product, symbol
from weft.lower.plan import Planned
from weft.lower.steps import KernelStep, LaunchStep, Step
from weft.tile import dialect as tile

_MOST_KERNELS, _MOST_PROGRAMS = 4, 1024
_SIMPLE = (
    *(tile.ProgramOp, tile.ConstantOp, tile.PositionOp, tile.LoadOp, tile.GatherOp, tile.NumberOp),
    *(tile.MapOp, tile.StoreOp, tile.ScatterOp, tile.ReturnOp),
)
"""What is done element by element: such kernels take any number of warps."""


def join_kernels(planned: Planned) -> None:
    """Join the steps of a plan, in place."""
    joined: list[Step] = []
    together: list[KernelStep] = []

    def finish() -> None:
        if together:
            joined.append(_one(planned, together) if len(together) > 1 else together[0])
        together.clear()

    for step in planned.plan.steps:
        if not isinstance(step, KernelStep) or not _is_small(planned, step):
            finish()
            joined.append(step)
            continue
        full = len(together) == _MOST_KERNELS
        if full or not all(_are_apart(planned, other, step) for other in together):
            finish()
        together.append(step)
    finish()
    planned.plan = replace(planned.plan, steps=tuple(joined))
    used = {step.function for step in joined if isinstance(step, KernelStep | LaunchStep)}
    for name in [each for each in planned.kernels if each not in used]:
        del planned.kernels[name]


def _is_small(planned: Planned, step: KernelStep) -> bool:
    kernel = planned.kernels[step.function]
    few = isinstance(step.grid, int) and 0 < step.grid <= _MOST_PROGRAMS
    plain = not step.symbols and not step.serial and kernel.paired is None
    return few and plain and all(isinstance(op, _SIMPLE) for op in kernel.block.ops)


def _are_apart(planned: Planned, one: KernelStep, other: KernelStep) -> bool:
    """Whether neither of two steps writes what the other reads or writes."""
    first, second = _written(planned, one), _written(planned, other)
    return not (first & set(other.buffers) or second & set(one.buffers))


def _written(planned: Planned, step: KernelStep) -> Set[int]:
    arguments = zip(planned.kernels[step.function].block.args, step.buffers, strict=True)
    return {number for argument, number in arguments if not is_only_read(argument)}


def _one(planned: Planned, steps: Sequence[KernelStep]) -> KernelStep:
    """The step that does what several do, and its kernel, unless others have done the same."""
    names = [step.function for step in steps]
    digest = hashlib.sha256(" ".join(names).encode()).hexdigest()[:12]
    label = "_and_".join(step.label for step in steps)[:60]
    name = f"{label}_{digest}"
    kernels = [planned.kernels[each] for each in names]
    if name not in planned.kernels:
        planned.kernels[name] = _kernel(name, kernels)
        planned.schedules[name] = "; ".join(planned.schedules[each] for each in names)
        planned.sources[name] = set().union(*(planned.sources.get(each, ()) for each in names))
    programs = sum(step.grid for step in steps if isinstance(step.grid, int))
    buffers = tuple(number for step in steps for number in step.buffers)
    return KernelStep(name, buffers, (), programs, max(step.work for step in steps), False, label)


def _kernel(name: str, kernels: Sequence[tile.KernelOp]) -> tile.KernelOp:
    block = Block(arg_types=[argument.type for kernel in kernels for argument in kernel.block.args])
    program = tile.ProgramOp.create(attributes={"axis": IntegerAttr(0, i64)}, result_types=[IndexType()])
    block.add_op(program)
    start, arguments = 0, list(block.args)
    for kernel in kernels:
        count = product(kernel.grid.data)
        assert isinstance(count, int)
        own = [arguments.pop(0) for _ in kernel.block.args]
        block.add_op(_turn(kernel, own, program.out, start, count))
        start += count
    block.add_op(tile.ReturnOp.create())
    attributes = {
        "sym_name": StringAttr(name),
        "grid": tile.Sizes((start,)),
        "symbols": ArrayAttr[StringAttr]([]),
        "schedule": StringAttr("joined"),
    }
    return tile.KernelOp.create(attributes=attributes, regions=[Region(block)])


def _turn(
    kernel: tile.KernelOp, arguments: Sequence[SSAValue], program: SSAValue, start: int, count: int
) -> tile.ForOp:
    """What a kernel's programs do, once if the program is one of them."""
    number = symbol("d0")
    bounds = tile.Sizes((maximum(number, start), minimum(number + 1, start + count), 1))
    turn = tile.ForOp.make(bounds, [program], [])
    mapping: dict[SSAValue, SSAValue] = dict(zip(kernel.block.args, arguments, strict=True))
    grid = kernel.grid.data
    for op in kernel.block.ops:
        if isinstance(op, tile.ProgramOp):
            axis = op.axis.value.data
            value = floordiv(number - start, product(grid[axis + 1 :])) if axis + 1 < len(grid) else number - start
            index = IndexOp.make(tile.Sizes((mod(value, grid[axis]) if axis else value,)), [turn.block.args[0]])
            turn.block.add_op(index)
            mapping[op.out] = index.out
        elif not isinstance(op, tile.ReturnOp):
            turn.block.add_op(op.clone(mapping))
    turn.block.add_op(tile.YieldOp.create())
    return turn
