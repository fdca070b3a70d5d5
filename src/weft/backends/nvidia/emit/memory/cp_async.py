"""Ops of loops whose threads copy operands to stages of shared memory some iterations ahead, each its own elements.

    nvidia.cp_async %p[%offsets] where %mask → stage %s of a slot       each thread its 16 bytes, without registers
    nvidia.cp_async_commit                                              what was begun is a group
    nvidia.cp_async_wait 2                                              all groups but the last two are there, for all
    %a = nvidia.staged %s                                               a stage as an operand of dots

This is what dots take whose operands TMA cannot bring: it must be told sizes when a kernel is launched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdsl.dialects.builtin import IntegerAttr

from weft.backends.llvm.values import V, i64
from weft.backends.nvidia.emit.block import SHARED_SYMBOL, do, i32, short
from weft.backends.nvidia.emit.emitters import EMITTERS
from weft.backends.nvidia.emit.memory.gather_scatter import address_of
from weft.backends.nvidia.emit.memory.swizzle import CHUNK, swizzled
from weft.backends.nvidia.ir.cp_async import CpAsyncCommitOp, CpAsyncOp, CpAsyncWaitOp, StagedOp
from weft.backends.nvidia.ir.dialect import VECTOR, integer, layouts_of
from weft.backends.nvidia.ir.rings import SlotType
from weft.errors import LoweringError

if TYPE_CHECKING:
    from weft.backends.nvidia.emit.codegen import KernelCodegen


def _stage(codegen: KernelCodegen, slot: SlotType, start: IntegerAttr, stage: V) -> V:
    b = codegen.b
    base = b.emit("i32", f"ptrtoint ptr addrspace(3) @{SHARED_SYMBOL} to i32")
    return b.add(base, b.add(i32(start.value.data), b.mul(short(b, stage), i32(slot.bytes))))


@EMITTERS.register(CpAsyncOp)
def emit_cp_async(codegen: KernelCodegen, op: CpAsyncOp) -> None:
    b, (layout,), width, slot = codegen.b, layouts_of(op), integer(op, VECTOR, 1), op.slot
    size, inner = slot.dtype.bytes, slot.axis
    bytes_ = width * size
    if bytes_ not in (4, 8, CHUNK):
        raise LoweringError(f"threads cannot copy {bytes_} bytes at a time")
    offsets, masks = (codegen.registers_of(value, layout) for value in (op.offsets, op.mask))
    base = _stage(codegen, slot, op.start, codegen.scalars[op.stage])
    kind = "cg" if bytes_ == CHUNK else "ca"
    # Without a branch: dots may be under way.
    wanted = b.icmp("sgt", codegen.scalars[op.left], i64(0))
    for first in range(0, layout.count, width):
        places = (codegen.threads.place(layout, axis) for axis in (1 - inner, inner))
        line, along = (
            b.add(p, i32(layout.offsets[first][axis])) for p, axis in zip(places, (1 - inner, inner), strict=True)
        )
        target = b.add(base, swizzled(b, slot, line, along))
        source = address_of(codegen, codegen.pointers[op.pointer], offsets[first], size)
        condition = codegen.both(wanted, masks[first] if masks else None)
        taken = i32(bytes_) if condition is None else b.select(condition, i32(bytes_), i32(0))
        do(b, f"cp.async.{kind}.shared.global [$0], [$1], {bytes_}, $2;", "r,l,r", target, source, taken)


@EMITTERS.register(CpAsyncCommitOp)
def emit_cp_async_commit(codegen: KernelCodegen, op: CpAsyncCommitOp) -> None:
    do(codegen.b, "cp.async.commit_group;", "")


@EMITTERS.register(CpAsyncWaitOp)
def emit_cp_async_wait(codegen: KernelCodegen, op: CpAsyncWaitOp) -> None:
    do(codegen.b, f"cp.async.wait_group {op.pending.value.data};", "")
    codegen.threads.barrier()
    do(codegen.b, "fence.proxy.async.shared::cta;", "")


@EMITTERS.register(StagedOp)
def emit_staged(codegen: KernelCodegen, op: StagedOp) -> None:
    slot = op.out.type
    assert isinstance(slot, SlotType)
    codegen.slots[op.out] = _stage(codegen, slot, op.start, codegen.scalars[op.stage])
