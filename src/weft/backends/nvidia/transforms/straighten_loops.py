"""Loops over the blocks of a row, of which there is often one: for rows that fit a block, the same without loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Block, Operation, Region, SSAValue

from weft.backends.nvidia.ir.kernel_passes import KernelPass, Match, Refused
from weft.backends.nvidia.target import NvidiaTarget
from weft.ir.attributes import from_attribute
from weft.ir.types import boolean
from weft.tile import collective_ops, control_flow, pointer_ops
from weft.tile import dialect as tile
from weft.tile.memory_groups import MemoryGroups

_PURE = (tile.ConstantOp, tile.PositionOp, tile.MapOp, tile.ReduceOp, collective_ops.ViewOp, pointer_ops.IndexOp)


@dataclass(frozen=True)
class StraightenLoops(KernelPass):
    """Loops over the blocks of a row, of which there is often one: for rows that fit a block, the same without loops.

    %s = tile.for %c = 0 to %n by 8192 { … tile.gather %x[%c] … }       tile.if 0 < %n <= 8192 {
    %m = tile.reduce sum %s                                               %x = tile.gather %x[0]
    %t = tile.for %c = 0 to %n by 8192 { … tile.gather %x[%c] … }   →     … of %x, which stays where it is
    …                                                                   } else {
                                                                          as before }

    What several loops read is read once.
    """

    name: ClassVar[str] = "straighten_loops"

    def matches(self, kernel: tile.KernelOp, target: NvidiaTarget) -> Match:
        if not MemoryGroups.of_kernel(kernel).written:
            return Refused("its loops come from a graph")
        ops = list(kernel.block.ops)
        loops = [op for op in ops if isinstance(op, tile.ForOp)]
        if len(loops) < 2 or any(_is_nested(op) for op in ops):
            return Refused("it does not have several loops, and nothing else that nests")
        walks = {_walk(loop) for loop in loops}
        return True if len(walks) == 1 and None not in walks else Refused("its loops do not all walk the same blocks")

    def apply(self, kernel: tile.KernelOp, target: NvidiaTarget) -> None:
        groups, ops = MemoryGroups.of_kernel(kernel), list(kernel.block.ops)
        loops = [op for op in ops if isinstance(op, tile.ForOp)]
        walk = _walk(loops[0])
        assert walk is not None
        rest = ops[ops.index(loops[0]) : -1]
        condition, made = walk.turns_once()
        turned, looped = Block(), Block()
        _straight(rest, turned)
        mapping: dict[SSAValue, SSAValue] = {}
        looped.add_ops(op.clone(mapping) for op in rest)
        for block in (turned, looped):
            block.add_op(tile.YieldOp.create())
        branch = control_flow.IfOp.build(
            operands=[condition], result_types=[[]], regions=[Region(turned), Region(looped)]
        )
        kernel.block.insert_ops_before([*made, branch], rest[0])
        for op in reversed(rest):
            op.detach()
            op.erase(safe_erase=False)
        _merge(ops[: ops.index(rest[0])], turned, groups)


@dataclass(frozen=True)
class _Walk:
    """The blocks that a loop goes through: from a number to a value, in steps."""

    lower: int
    upper: SSAValue
    step: int

    def turns_once(self) -> tuple[SSAValue, list[Operation]]:
        """Whether there is exactly one, and the ops that say so."""
        type_ = tile.tile_type(self.upper)
        bounds = [tile.ConstantOp.make(number, type_) for number in (self.lower, self.lower + self.step)]
        compared = [_map(name, [self.upper, bound.out]) for name, bound in zip(("gt", "le"), bounds, strict=True)]
        both = _map("and", [op.out for op in compared])
        return both.out, [*bounds, *compared, both]


def _map(function: str, operands: Sequence[SSAValue]) -> tile.MapOp:
    attributes = {"function": StringAttr(function)}
    return tile.MapOp.create(operands=operands, attributes=attributes, result_types=[tile.TileType.of((), boolean)])


def _is_nested(op: Operation) -> bool:
    """Whether an op has regions other than those of a plain loop."""
    inner = [each for each in op.walk() if each is not op]
    return bool(op.regions) and (not isinstance(op, tile.ForOp) or any(each.regions for each in inner))


def _walk(loop: tile.ForOp) -> _Walk | None:
    if [str(size) for size in loop.bounds.data] != ["d0", "d1", "d2"]:
        return None
    values = [index.owner.value for index in loop.indices if isinstance(index.owner, pointer_ops.IndexOp)]
    if len(values) != 3:
        return None
    lower, _, step = (
        from_attribute(value.owner.value) if isinstance(value.owner, tile.ConstantOp) else None for value in values
    )
    return _Walk(lower, values[1], step) if isinstance(lower, int) and isinstance(step, int) and step > 0 else None


def _straight(ops: Sequence[Operation], block: Block) -> None:
    """Add copies of ops to a block, of loops their one iteration."""
    mapping: dict[SSAValue, SSAValue] = {}
    for op in ops:
        if not isinstance(op, tile.ForOp):
            block.add_op(op.clone(mapping))
            continue
        starts = [mapping.get(value, value) for value in (op.indices[0], *op.initial)]
        mapping.update(zip(op.block.args, starts, strict=True))
        for inner in op.block.ops:
            if isinstance(inner, tile.YieldOp):
                ends = [mapping.get(value, value) for value in inner.operands]
                mapping.update(zip(op.results, ends, strict=True))
            else:
                block.add_op(inner.clone(mapping))


def _merge(before: Sequence[Operation], block: Block, groups: MemoryGroups) -> None:
    """Let what is computed or read twice be so once; nothing is forgotten of memory but what is written."""
    known: dict[object, Operation] = {_key(op): op for op in before if isinstance(op, _PURE)}
    read: dict[object, tile.GatherOp] = {}
    for op in list(block.ops):
        if isinstance(op, tile.ScatterOp):
            read = {key: each for key, each in read.items() if not groups.meet(each.pointer, op.pointer)}
            continue
        if not isinstance(op, (*_PURE, tile.GatherOp)):
            read = {}
            continue
        table = read if isinstance(op, tile.GatherOp) else known
        same = table.setdefault(_key(op), op)  # type: ignore[arg-type]
        if same is not op:
            for old, new in zip(op.results, same.results, strict=True):
                old.replace_all_uses_with(new)
            op.detach()
            op.erase()


def _key(op: Operation) -> object:
    return type(op), tuple(op.operands), tuple(sorted(op.attributes.items())), tuple(r.type for r in op.results)
