"""Horizontal fusion: kernels that follow each other and do not need each other become one.

    @a grid [4]   x → y             @a_b grid [20] {
    @b grid [16]  x → z        →      %p = tile.program 0
                                      tile.for %i = max(%p, 0) to min(%p + 1, 4)   { … what @a does as program %i }
                                      tile.for %i = max(%p, 4) to min(%p + 1, 20)  { … what @b does as %i - 4 } }

Such are the two halves of a rotation and the rows of caches, between a dot and attention. Kernels that do the same
for different tensors, of any size, are written down once, as those of an optimizer's step:

    @a grid [64]  x0 → y0           @a_a grid [80] {
    @a grid [16]  x1 → y1      →      %i, %x, %y = nvidia.horizontal_select %p among [0, 64] (%x0, %y0), (%x1, %y1)
                                      … what @a does as program %i of %x and %y }
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import accumulate

from xdsl.dialects.builtin import ArrayAttr, IndexType, IntegerAttr, StringAttr, i64
from xdsl.ir import Block, Region, SSAValue

from weft.backends.nvidia.ir.horizontal_select import HorizontalSelectOp
from weft.backends.nvidia.ir.op_costs import cost_of
from weft.backends.nvidia.ir.programmatic_launch import is_only_read
from weft.backends.nvidia.ir.warp_specialization import AffineApplyOp
from weft.ir.expr import Size, floordiv, maximum, minimum, mod, product, symbol
from weft.ir.locations import inherit_locations, sourced
from weft.lower.plan import Planned
from weft.lower.steps import KernelStep, LaunchStep, Step, all_steps
from weft.tile import dialect as tile

_MOST_KERNELS, _MOST_PROGRAMS = 4, 1024
_DIGEST = re.compile("_[0-9a-f]{12}")
_MOST_TILES = 8
"""Kernels of one kernel that do the same with tiles of different sizes."""
MOST_POINTERS = 480
"""Parameters of a kernel take 4 KB at most."""
_PLAIN = (tile.ProgramOp, tile.ConstantOp, tile.PositionOp, tile.LoadOp, tile.MapOp, tile.StoreOp, tile.ReturnOp)
"""What becomes one kernel for many tensors."""
_COPYING, _CHOOSING = (*_PLAIN, tile.GatherOp), frozenset(("lt", "ge", "and", "select", "cast"))
"""What copies a tensor into another, with something else around it, and the functions that say where it is which."""


@dataclass(frozen=True)
class _Known:
    """What is known of a kernel."""

    kernel: tile.KernelOp
    outline: Hashable
    """What it does, whatever the sizes of its tiles."""
    written: tuple[bool, ...]
    """Which of its arguments it writes."""

    @classmethod
    def of(cls, kernel: tile.KernelOp) -> _Known:
        ops = [op for op in kernel.block.ops if not isinstance(op, tile.ProgramOp)]  # there may be but one program
        outline = tuple((op.name, op.function if isinstance(op, tile.MapOp) else None) for op in ops)
        return cls(kernel, outline, tuple(not is_only_read(argument) for argument in kernel.block.args))

    @property
    def copies(self) -> bool:
        """Whether it moves one tensor to another place: such kernels take few registers, however many they are of."""
        ops = list(self.kernel.block.ops)
        plain = all(isinstance(op, _COPYING) for op in ops)
        chosen = {op.function.data for op in ops if isinstance(op, tile.MapOp)}
        return plain and chosen <= _CHOOSING and sum(isinstance(op, tile.LoadOp | tile.GatherOp) for op in ops) == 1

    def is_same(self, other: _Known) -> bool:
        """Whether a program does the same, for other tensors."""
        one, two = self.kernel, other.kernel
        grids = [(len(kernel.grid.data), kernel.grid.data[1:]) for kernel in (one, two)]
        alike = self.outline == other.outline and grids[0] == grids[1]
        if not alike or not all(isinstance(op, _PLAIN) for op in one.block.ops):
            return False
        return one is two or one.regions[0].is_structurally_equivalent(two.regions[0])


@dataclass
class _Turn:
    """What is written down once: a kernel, and the steps that do what it does."""

    known: _Known
    steps: list[KernelStep]


@dataclass
class _Group:
    """Steps that become one."""

    turns: list[_Turn] = field(default_factory=list[_Turn])
    of: dict[str, _Turn] = field(default_factory=dict[str, _Turn])
    """The turns of kernels, by their names."""
    touched: set[int] = field(default_factory=set[int])
    written: set[int] = field(default_factory=set[int])
    pointers: int = 0

    @property
    def steps(self) -> list[KernelStep]:
        return [step for turn in self.turns for step in turn.steps]

    def takes(self, known: _Known, step: KernelStep) -> bool:
        """Whether a step may be one of them: none writes what another reads or writes, and it does the same for other
        tensors, or all of them are copies, or small."""
        writes = _written(known, step)
        if writes & self.touched or self.written & set(step.buffers):
            return False
        if self.pointers + len(step.buffers) > MOST_POINTERS:
            return False
        count = len(self.turns) + (self._turn(known, step) is None)
        if all(turn.known.outline == known.outline or (turn.known.copies and known.copies) for turn in self.turns):
            return count <= _MOST_TILES
        return count <= _MOST_KERNELS and all(map(_is_small, [step, *self.steps]))

    def add(self, known: _Known, step: KernelStep) -> None:
        turn = self._turn(known, step)
        if turn is None:
            turn = self.of[step.function] = _Turn(known, [])
            self.turns.append(turn)
        turn.steps.append(step)
        self.touched.update(step.buffers)
        self.written |= _written(known, step)
        self.pointers += len(step.buffers)

    def _turn(self, known: _Known, step: KernelStep) -> _Turn | None:
        if step.function not in self.of:
            found = next((turn for turn in self.turns if turn.known.is_same(known)), None)
            if found is None:
                return None
            self.of[step.function] = found
        turn = self.of[step.function]
        return turn if turn.known.is_same(known) else None


def fuse_horizontally(planned: Planned) -> None:
    """Join the steps of a plan, in place."""
    joined: list[Step] = []
    group = _Group()
    known: dict[str, _Known] = {}

    @cache
    def by_threads(name: str) -> bool:
        return all(cost_of(op).alone == "thread" for op in planned.kernels[name].block.ops)

    for step in planned.plan.steps:
        if not isinstance(step, KernelStep) or not _is_simple(planned, step) or not by_threads(step.function):
            joined += [*_finished(planned, group), step]
            group = _Group()
            continue
        found = known.get(step.function) or known.setdefault(step.function, _Known.of(planned.kernels[step.function]))
        if not group.takes(found, step):
            joined += _finished(planned, group)
            group = _Group()
        group.add(found, step)
    joined += _finished(planned, group)
    set_steps(planned, joined)


def set_steps(planned: Planned, steps: Sequence[Step]) -> None:
    """Let a plan have other steps; kernels that none of them runs are dropped."""
    planned.plan = replace(planned.plan, steps=tuple(steps))
    used = {step.function for step in all_steps(steps) if isinstance(step, KernelStep | LaunchStep)}
    for name in [each for each in planned.kernels if each not in used]:
        del planned.kernels[name]


def _finished(planned: Planned, group: _Group) -> list[Step]:
    return [_one(planned, group.turns)] if len(group.steps) > 1 else [*group.steps]


def _is_simple(planned: Planned, step: KernelStep) -> bool:
    kernel = planned.kernels[step.function]
    some = isinstance(step.grid, int) and step.grid > 0
    return some and is_plain(kernel, step)


def is_plain(kernel: tile.KernelOp, step: KernelStep) -> bool:
    """Whether programs of a kernel are done by their numbers alone: no sizes are to be given, in no special order."""
    return not step.symbols and not step.serial and not any((kernel.paired, kernel.limit, kernel.counter))


def _is_small(step: KernelStep) -> bool:
    return isinstance(step.grid, int) and step.grid <= _MOST_PROGRAMS


def _written(known: _Known, step: KernelStep) -> set[int]:
    return {number for written, number in zip(known.written, step.buffers, strict=True) if written}


def name_of(step: KernelStep) -> str:
    """What a step is called among others: as its kernel, which is told from others by a digest."""
    return _DIGEST.sub("", step.function)


def _one(planned: Planned, turns: Sequence[_Turn]) -> KernelStep:
    """The step that does what several do, and its kernel, unless others have done the same."""
    steps = [step for turn in turns for step in turn.steps]
    names = [step.function for step in steps]
    digest = hashlib.sha256(" ".join(names).encode()).hexdigest()[:12]
    label = "_and_".join(dict.fromkeys(map(name_of, steps)))[:60]
    name = f"{label}_{digest}"
    if name not in planned.kernels:
        with sourced(turns[0].known.kernel.location):
            planned.kernels[name] = _kernel(planned, name, turns)
        inherit_locations(planned.kernels[name])
        planned.schedules[name] = "; ".join(dict.fromkeys(planned.schedules[each] for each in names))
        planned.sources[name] = set().union(*(planned.sources.get(each, ()) for each in names))
    programs = sum(step.grid for step in steps if isinstance(step.grid, int))
    buffers = tuple(number for step in steps for number in step.buffers)
    return KernelStep(name, buffers, (), programs, max(step.work for step in steps), False, label)


def _kernel(planned: Planned, name: str, turns: Sequence[_Turn]) -> tile.KernelOp:
    kernels = [planned.kernels[step.function] for turn in turns for step in turn.steps]
    block = Block(arg_types=[argument.type for kernel in kernels for argument in kernel.block.args])
    program = tile.ProgramOp.create(attributes={"axis": IntegerAttr(0, i64)}, result_types=[IndexType()])
    block.add_op(program)
    first, arguments = 0, list(block.args)
    for turn in turns:
        counts = [step.grid for step in turn.steps if isinstance(step.grid, int)]
        starts = list(accumulate(counts, initial=first))
        own = [[arguments.pop(0) for _ in turn.known.kernel.block.args] for _ in turn.steps]
        with sourced(turn.known.kernel.location):
            if len(turns) == 1:
                _write(block, turn.known.kernel, own, program.out, starts[:-1])
            else:
                block.add_op(_where(turn.known.kernel, own, program.out, starts))
        first = starts[-1]
    block.add_op(tile.ReturnOp.create())
    attributes = {
        "sym_name": StringAttr(name),
        "grid": tile.Sizes((first,)),
        "symbols": ArrayAttr[StringAttr]([]),
        "schedule": StringAttr("joined"),
    }
    return tile.KernelOp.create(attributes=attributes, regions=[Region(block)])


def _where(
    kernel: tile.KernelOp, arguments: Sequence[Sequence[SSAValue]], program: SSAValue, starts: Sequence[int]
) -> tile.ForOp:
    """What a kernel's programs do, once if the program is one of them."""
    number = symbol("d0")
    bounds = tile.Sizes((maximum(number, starts[0]), minimum(number + 1, starts[-1]), 1))
    turn = tile.ForOp.make(bounds, [program], [])
    _write(turn.block, kernel, arguments, turn.block.args[0], starts[:-1])
    turn.block.add_op(tile.YieldOp.create())
    return turn


def _write(
    block: Block,
    kernel: tile.KernelOp,
    arguments: Sequence[Sequence[SSAValue]],
    program: SSAValue,
    starts: Sequence[int],
) -> None:
    """What a kernel does, with the arguments of the stretch that a program is in."""
    (start, *others), (own, *_) = starts, arguments
    if others:
        pick = HorizontalSelectOp.make(program, starts, arguments)
        block.add_op(pick)
        program, start, own = pick.number, 0, list(pick.picked)
    mapping: dict[SSAValue, SSAValue] = dict(zip(kernel.block.args, own, strict=True))
    for op in kernel.block.ops:
        if isinstance(op, tile.ProgramOp):
            index = on_axes(op, program, kernel.grid.data, start)
            block.add_op(index)
            mapping[op.out] = index.out
        elif not isinstance(op, tile.ReturnOp):
            block.add_op(op.clone(mapping))


def on_axes(op: tile.ProgramOp, program: SSAValue, grid: Sequence[Size], start: int = 0) -> AffineApplyOp:
    """The number along an axis of the grid that a program has, whose first is `start`."""
    number, axis = symbol("d0"), op.axis.value.data
    value = floordiv(number - start, product(grid[axis + 1 :])) if axis + 1 < len(grid) else number - start
    return AffineApplyOp.make(tile.Sizes((mod(value, grid[axis]) if axis else value,)), [program])
