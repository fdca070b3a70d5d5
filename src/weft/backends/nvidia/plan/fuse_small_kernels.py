"""Small-kernel fusion: kernels that need each other become one block, whose warps wait for each other between.

    @a grid [4]   x → y             @a_then_b grid [1], 16 warps {
    @b grid [16]  y → z        →      %w = nvidia.block warp
                                      tile.for %i = %w to 4 step 16   { … what @a does as program %i }
                                      nvidia.barrier
                                      tile.for %i = %w to 16 step 16  { … what @b does as program %i } }

A launch takes longer than what such kernels do. Those that route the tokens of a layer of experts are ten. What only
they read and write is in memory that the block shares. Kernels that do not need each other are done between the same
two barriers, by other warps. What is large and stands between them comes behind them, unless they need it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from math import ceil, prod

from xdsl.dialects.builtin import ArrayAttr, StringAttr
from xdsl.ir import Block, Operation, Region, SSAValue

from weft.backends.nvidia.code import Launch
from weft.backends.nvidia.compile import annotate
from weft.backends.nvidia.ir.accesses import may_be_shared
from weft.backends.nvidia.ir.dialect import APART, SHARED, WARPS, BarrierOp, integer, layout_of, set_integer, set_launch
from weft.backends.nvidia.ir.kernel_passes import KernelPass
from weft.backends.nvidia.ir.layouts import WARP
from weft.backends.nvidia.ir.op_costs import cost_of
from weft.backends.nvidia.ir.programmatic_launch import is_only_read
from weft.backends.nvidia.ir.scratch import ScratchOp
from weft.backends.nvidia.ir.warp_specialization import AffineApplyOp, BlockNumberOp
from weft.backends.nvidia.plan.fuse_horizontally import MOST_POINTERS, is_plain, name_of, on_axes, set_steps
from weft.backends.nvidia.target import NvidiaTarget
from weft.ir.expr import mod, product, symbol
from weft.ir.locations import inherit_locations, sourced
from weft.lower.plan import Planned
from weft.lower.steps import KernelStep, Plan, Step, buffers_of
from weft.tile import dialect as tile

_MOST_WARPS, _MOST_TURNS, _MOST_ELEMENTS = 32, 4, 4096
"""Warps of a block, programs that each does of a kernel, and elements of all: more are sooner done by other
multiprocessors."""
_MOST_READ = 24
"""Elements that a lane reads in a program: with more, the registers of a block of so many warps run out."""
_MOST_LINKS = 16
"""Kernels of a chain, whose code grows with each."""
_MOST_SHARED, _ALIGNMENT = 32 << 10, 128
"""Bytes of what is handed on in a block, and where each begins."""


@dataclass(frozen=True)
class _Link:
    """A step of a chain: its kernel, with layouts, and how many others it comes after."""

    step: KernelStep
    kernel: tile.KernelOp
    written: frozenset[int]
    """The buffers that it may write."""
    level: int = 0

    @property
    def programs(self) -> int:
        assert isinstance(self.step.grid, int)
        return self.step.grid

    def may_share(self, number: int) -> bool:
        """Whether a buffer may be in memory that a block shares, for all that it does with it."""
        pairs = zip(self.kernel.block.args, self.step.buffers, strict=True)
        return all(may_be_shared(use.operation) for a, n in pairs if n == number for use in a.uses)

    def meets(self, step: KernelStep, written: frozenset[int]) -> bool:
        """Whether one of two writes what the other reads or writes."""
        return bool(written & set(self.step.buffers)) or bool(self.written & set(step.buffers))


@dataclass
class _Chain:
    """Small steps that become one, and those that come behind it."""

    links: list[_Link] = field(default_factory=list[_Link])
    behind: list[_Link] = field(default_factory=list[_Link])

    def takes(self, link: _Link) -> bool:
        if len(self.links) == _MOST_LINKS or any(each.meets(link.step, link.written) for each in self.behind):
            return False
        return len({n for each in (*self.links, link) for n in each.step.buffers}) <= MOST_POINTERS

    def add(self, link: _Link) -> None:
        level = max((each.level + 1 for each in self.links if each.meets(link.step, link.written)), default=0)
        self.links.append(replace(link, level=level))


def fuse_small_kernels(planned: Planned, target: NvidiaTarget, passes: Sequence[KernelPass]) -> None:
    """Chain the steps of a plan, in place."""
    links = _Links(planned, target, passes)
    in_company = links.in_company()
    chained: list[Step] = []
    chain = _Chain()

    def finish() -> None:
        nonlocal chain
        chained.extend(_finished(planned, chain))
        chain = _Chain()

    for number, step in enumerate(planned.plan.steps):
        if not isinstance(step, KernelStep):
            finish()
            chained.append(step)
        elif number not in in_company or (link := links.of(step)) is None:
            if chain.links:
                chain.behind.append(links.alone(step))
            else:
                chained.append(step)
        else:
            if not chain.takes(link):
                finish()
            chain.add(link)
    finish()
    set_steps(planned, chained)


@dataclass
class _Links:
    """What steps would be in a chain."""

    planned: Planned
    target: NvidiaTarget
    passes: Sequence[KernelPass]
    known: dict[str, tile.KernelOp | None] = field(default_factory=dict[str, "tile.KernelOp | None"])
    looks: dict[str, bool] = field(default_factory=dict[str, bool])

    def in_company(self) -> set[int]:
        """The places of steps that look small, and are not the only such between two of other kinds.

        What is alone stays as it is, and is not looked into: that takes the modules of every pass over kernels.
        """
        found: set[int] = set()
        for _, run in groupby(enumerate(self.planned.plan.steps), lambda pair: isinstance(pair[1], KernelStep)):
            small = [number for number, step in run if isinstance(step, KernelStep) and self._looks_small(step)]
            found.update(small if len(small) > 1 else ())
        return found

    def of(self, step: KernelStep) -> _Link | None:
        """The step as a warp does it; None if it is not small."""
        if step.function not in self.known:
            self.known[step.function] = self._annotated(step)
        kernel = self.known[step.function]
        return None if kernel is None else replace(self.alone(step), kernel=kernel)

    def alone(self, step: KernelStep) -> _Link:
        kernel = self.planned.kernels[step.function]
        pairs = zip(kernel.block.args, step.buffers, strict=False)
        return _Link(step, kernel, frozenset(number for argument, number in pairs if not is_only_read(argument)))

    def _looks_small(self, step: KernelStep) -> bool:
        """Whether a step is small by what is known of its kernel before the passes over it."""
        known = self.looks.get(step.function)
        if known is None:
            kernel = self.planned.kernels[step.function]
            most = min(_MOST_WARPS * _MOST_TURNS, _MOST_ELEMENTS // _elements(kernel))
            few = isinstance(step.grid, int) and 0 < step.grid <= most
            inner = (op for op in kernel.walk() if op is not kernel)
            known = few and is_plain(kernel, step) and all(cost_of(op).alone is not None for op in inner)
            self.looks[step.function] = known
        return known

    def _annotated(self, step: KernelStep) -> tile.KernelOp | None:
        if not self._looks_small(step):
            return None
        annotated, launch = annotate(self.planned.kernels[step.function], self.target, self.passes)
        reads = [op for op in annotated.walk() if isinstance(op, tile.LoadOp | tile.GatherOp)]
        fits = sum(layout_of(op.out).count for op in reads) <= _MOST_READ
        return annotated if fits and launch.threads == WARP and launch.shared == 0 else None


def _elements(kernel: tile.KernelOp) -> int:
    """Those of the largest tile of a program."""
    types = [result.type for op in kernel.walk() for result in op.results]
    return max((prod(type_.sizes) for type_ in types if isinstance(type_, tile.TileType)), default=1)


def _finished(planned: Planned, chain: _Chain) -> Iterator[Step]:
    if len(chain.links) > 1:
        yield _one(planned, sorted(chain.links, key=lambda link: link.level))
    else:
        yield from (link.step for link in chain.links)
    yield from (link.step for link in chain.behind)


def _one(planned: Planned, links: Sequence[_Link]) -> KernelStep:
    """The step that does what several do, and its kernel, unless others have done the same."""
    scratch, shared = _scratch(planned.plan, links)
    touched = dict.fromkeys(number for link in links for number in link.step.buffers)
    buffers = tuple(number for number in touched if number not in scratch)
    order = [*buffers, *scratch]
    places = [tuple(map(order.index, link.step.buffers)) for link in links], tuple(scratch.values())
    names = [link.step.function for link in links]
    label = "_then_".join(dict.fromkeys(name_of(link.step) for link in links))[:60]
    name = f"{label}_{hashlib.sha256(repr((names, places)).encode()).hexdigest()[:12]}"
    if name not in planned.kernels:
        with sourced(links[0].kernel.location):
            planned.kernels[name] = kernel = _kernel(name, links, buffers, scratch)
        inherit_locations(planned.kernels[name])
        set_integer(kernel, SHARED, shared)
        set_launch(kernel, Launch(WARP * integer(kernel, APART), shared))
        planned.schedules[name] = "; ".join(dict.fromkeys(planned.schedules[each] for each in names))
        planned.sources[name] = set().union(*(planned.sources.get(each, ()) for each in names))
    return KernelStep(name, buffers, (), 1, sum(link.step.work for link in links), False, label)


def _scratch(plan: Plan, links: Sequence[_Link]) -> tuple[dict[int, int], int]:
    """The buffers that nobody but a chain touches, with where they lie in the memory of its block, and its bytes."""
    inside = {id(link.step) for link in links}
    outside = {number for step in plan.steps if id(step) not in inside for number in buffers_of(step)}
    found: dict[int, int] = {}
    start = 0
    for number in dict.fromkeys(number for link in links for number in link.step.buffers):
        buffer = plan.buffers[number]
        size = product(buffer.tensor.shape)
        if buffer.role != "temporary" or number in outside or not isinstance(size, int):
            continue
        end = start + ceil(size * buffer.tensor.dtype.bytes / _ALIGNMENT) * _ALIGNMENT
        if end <= _MOST_SHARED and all(link.may_share(number) for link in links):
            found[number], start = start, end
    return found, start


def _kernel(name: str, links: Sequence[_Link], buffers: Sequence[int], scratch: Mapping[int, int]) -> tile.KernelOp:
    types = {n: a.type for link in links for a, n in zip(link.kernel.block.args, link.step.buffers, strict=True)}
    block = Block(arg_types=[types[number] for number in buffers])
    arguments: dict[int, SSAValue] = dict(zip(buffers, block.args, strict=True))
    for number, start in scratch.items():
        memory = ScratchOp.make(types[number], start)
        block.add_op(memory)
        arguments[number] = memory.out
    levels = [list(level) for _, level in groupby(links, key=lambda link: link.level)]
    warps = min(max(sum(link.programs for link in level) for level in levels), _MOST_WARPS)
    warp = BlockNumberOp.make("warp")
    block.add_op(warp)
    for number, level in enumerate(levels):
        if number:
            block.add_op(BarrierOp.create())
        first = 0
        for link in level:
            with sourced(link.kernel.location):
                block.add_ops(_turns(link, [arguments[n] for n in link.step.buffers], warp.out, first, warps))
            first += link.programs
    block.add_op(tile.ReturnOp.create())
    attributes = {
        "sym_name": StringAttr(name),
        "grid": tile.Sizes((1,)),
        "symbols": ArrayAttr[StringAttr]([]),
        "schedule": StringAttr("chained"),
    }
    kernel = tile.KernelOp.create(attributes=attributes, regions=[Region(block)])
    set_integer(kernel, WARPS, 1)
    set_integer(kernel, APART, warps)
    return kernel


def _turns(link: _Link, arguments: Sequence[SSAValue], warp: SSAValue, first: int, warps: int) -> list[Operation]:
    """What a kernel's programs do, the first of them by a given warp."""
    number = symbol("d0")
    own = AffineApplyOp.make(tile.Sizes((mod(number - first % warps + warps, warps),)), [warp])
    loop = tile.ForOp.make(tile.Sizes((number, link.programs, warps)), [own.out], [])
    mapping: dict[SSAValue, SSAValue] = dict(zip(link.kernel.block.args, arguments, strict=True))
    for op in link.kernel.block.ops:
        if isinstance(op, tile.ProgramOp):
            index = on_axes(op, loop.block.args[0], link.kernel.grid.data)
            loop.block.add_op(index)
            mapping[op.out] = index.out
        elif not isinstance(op, tile.ReturnOp):
            loop.block.add_op(op.clone(mapping))
    loop.block.add_op(tile.YieldOp.create())
    return [own, loop]
