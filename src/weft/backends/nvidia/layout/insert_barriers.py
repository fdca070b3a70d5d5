"""Insert barriers: the threads of a block wait for each other where one reads or writes what another has touched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.ir import Block, Operation, SSAValue

from weft.backends.nvidia.ir.cp_async import CpAsyncOp
from weft.backends.nvidia.ir.dialect import BarrierOp, layout_of
from weft.backends.nvidia.ir.kernel_passes import KernelPass, Match, Refused
from weft.backends.nvidia.ir.shared_bytes import shared_bytes
from weft.backends.nvidia.target import NvidiaTarget
from weft.tile import control_flow, pointer_ops
from weft.tile import dialect as tile
from weft.tile.memory_groups import MemoryGroups


@dataclass(frozen=True)
class _Access:
    pointer: SSAValue
    offsets: SSAValue
    writes: bool


@dataclass(frozen=True)
class InsertBarriers(KernelPass):
    """Insert barriers: the threads of a block wait for each other where one reads or writes what another has touched.

    tile.scatter %v, %p[%i]                  tile.scatter %v, %p[%i]
    %x = tile.gather %p[%j]           →      nvidia.barrier
                                             %x = tile.gather %p[%j]

    A program of a kernel that people write is one after the other; its threads are not. Where a thread itself wrote
    what it reads (the same places in the same layout), nothing has to be waited for. What a program wrote before an
    atomic update of a scalar is there for those that see the update, so all threads have written by then.
    """

    name: ClassVar[str] = "insert_barriers"

    def matches(self, kernel: tile.KernelOp, target: NvidiaTarget) -> Match:
        written = MemoryGroups.of_kernel(kernel).written
        return True if written else Refused("kernels of graphs do not read what they write")

    def apply(self, kernel: tile.KernelOp, target: NvidiaTarget) -> None:
        _Order(MemoryGroups.of_kernel(kernel)).block(kernel.block, frozenset(), dry=False)


@dataclass(frozen=True)
class _Order:
    groups: MemoryGroups

    def block(self, block: Block, pending: frozenset[_Access], dry: bool) -> frozenset[_Access]:
        """`pending` is what other threads may still be doing; returns that at the block's end."""
        for op in list(block.ops):
            access = _access(op)
            if isinstance(op, BarrierOp):
                pending = frozenset()
            elif access is not None:
                if any(self._collide(other, access) for other in pending) or (_is_update(op) and pending):
                    if not dry:
                        block.insert_op_before(BarrierOp.create(), op)
                    pending = frozenset()
                pending = frozenset() if shared_bytes(op) else pending
                pending |= {access}
            elif shared_bytes(op):
                pending = frozenset()
            pending = self._inside(op, pending, dry)
        return pending

    def _inside(self, op: Operation, pending: frozenset[_Access], dry: bool) -> frozenset[_Access]:
        blocks = [inner for region in op.regions for inner in region.blocks]
        if isinstance(op, tile.ForOp | control_flow.WhileOp):
            for inner in blocks:  # an iteration may start where the last one ended
                pending |= self.block(inner, pending, dry=True)
        for inner in blocks:
            pending |= self.block(inner, pending, dry)
        return pending

    def _collide(self, a: _Access, b: _Access) -> bool:
        if not (a.writes or b.writes) or not self.groups.meet(a.pointer, b.pointer):
            return False
        own = a.pointer is b.pointer and a.offsets is b.offsets
        return not own or layout_of(a.offsets).has_repetition()


def _access(op: Operation) -> _Access | None:
    match op:
        case tile.GatherOp() | CpAsyncOp():
            return _Access(op.pointer, op.offsets, False)
        case tile.ScatterOp() | pointer_ops.AtomicOp():
            return _Access(op.pointer, op.offsets, True)
        case _:
            return None


def _is_update(op: Operation) -> bool:
    return (
        isinstance(op, pointer_ops.AtomicOp) and not tile.tile_type(op.offsets).sizes and "relaxed" not in op.attributes
    )
