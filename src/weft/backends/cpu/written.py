"""Code for kernels that people write: scalars, branches, loops that carry anything, writes in any order.

What a loop or a branch gives lies in slots: buffers of which LLVM makes registers where it can. What is computed into a
buffer inside of a region is known only there, since the region may not run.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from xdsl.ir import Block, Operation, SSAValue

from weft.backends.cpu.atomics import emit_atomic
from weft.backends.cpu.buffers import Buffer
from weft.backends.cpu.clusters import Fill, cost_of, is_scalar
from weft.backends.cpu.combining import emit_extremum, emit_fold, emit_histogram, emit_order, emit_scan
from weft.backends.cpu.computed import all_of, conjuncts, pointer_address
from weft.backends.cpu.dot import accumulates_in_place, buffered_operands
from weft.backends.cpu.lookups import at_lane
from weft.backends.cpu.memory_order import LAZY
from weft.backends.cpu.messages import emit_check, emit_print
from weft.backends.cpu.position import Position
from weft.backends.llvm.builder import mangle
from weft.backends.llvm.cast import emit_cast, store_convert
from weft.backends.llvm.values import V, i64, memory_type
from weft.errors import LoweringError
from weft.ir.types import DType
from weft.ir.types import i64 as index_dtype
from weft.tile import collective_ops, control_flow, pointer_ops
from weft.tile import dialect as tile

if TYPE_CHECKING:
    from weft.backends.cpu.codegen import KernelCodegen

_CHEAP = 10
"""What is computed again in every turn of a loop costs less than this."""


def emit_written(codegen: KernelCodegen, op: Operation) -> None:
    """The code of one op that is not part of a loop over positions."""
    if is_scalar(op):
        codegen.prepare([op.results[0]])
        codegen.fixed[op.results[0]] = codegen.at(op.results[0], scalar_position())
        return
    match op:
        case tile.NumberOp():
            codegen.scalars[op.out] = _number(codegen, op)
        case pointer_ops.IndexOp():
            codegen.scalars[op.out] = codegen.at(op.value, scalar_position())
        case pointer_ops.PointerOp():
            address = codegen.at(op.value, scalar_position())
            codegen.pointers[op.out] = codegen.b.emit("ptr", f"inttoptr {address} to ptr")
        case pointer_ops.AddressOp():
            codegen.fixed[op.out] = codegen.b.emit("i64", f"ptrtoint {codegen.pointers[op.pointer]} to i64")
        case tile.ScatterOp():
            store_unordered(codegen, op, codegen.at(op.value, scalar_position()), scalar_position())
        case tile.ForOp():
            _for_loop(codegen, op)
        case control_flow.WhileOp():
            _while_loop(codegen, op)
        case control_flow.IfOp():
            _branch(codegen, op)
        case tile.ReduceOp():
            emit_extremum(codegen, op)
        case collective_ops.FoldOp():
            emit_fold(codegen, op)
        case collective_ops.ScanOp():
            emit_scan(codegen, op)
        case collective_ops.OrderOp():
            emit_order(codegen, op)
        case collective_ops.HistogramOp():
            emit_histogram(codegen, op)
        case pointer_ops.AtomicOp():
            emit_atomic(codegen, op)
        case control_flow.CheckOp():
            emit_check(codegen, op)
        case control_flow.PrintOp():
            emit_print(codegen, op)
        case _:
            raise LoweringError(f"the CPU backend has no code for {op.name}")


def _number(codegen: KernelCodegen, op: tile.NumberOp) -> V:
    b, pointer = codegen.b, op.pointer.type
    assert isinstance(pointer, tile.PointerType)
    dtype = pointer.dtype
    address = b.gep(codegen.pointers[op.pointer], codegen.size(op.offset.data[0], op.indices), memory_type(dtype))
    found = emit_cast(b, b.load(memory_type(dtype), address, dtype.bytes), dtype, index_dtype)
    bounded = b.intrinsic("smin", b.intrinsic("smax", found, i64(-op.MOST)), i64(op.MOST))
    return b.sub(bounded, i64(op.LEAST))


def scalar_position() -> Position:
    return Position((), 0, 1)


# -- writing ---------------------------------------------------------------------------------------------------------


def store_unordered(codegen: KernelCodegen, op: tile.ScatterOp, value: V, here: Position) -> None:
    """Write elements at a position: a vector where they lie side by side, otherwise one by one."""
    b, inner, lanes = codegen.b, here.inner, here.lanes
    assert isinstance(op.pointer.type, tile.PointerType)
    dtype = op.pointer.type.dtype
    raw = b.splat(store_convert(b, value, dtype), lanes)
    if lanes == 1:
        mask = None if op.mask is None else codegen.at(op.mask, here)
        with b.when(mask) if mask is not None else _always():
            # What is computed under the mask is not known to the writes that come after it.
            offset = codegen.at(op.offsets, here if mask is None else here.copy())
            b.store(raw, pointer_address(codegen, op.pointer, offset), dtype.bytes)
        return
    if codegen.neighbours.step_along(op.offsets, inner) != 1:
        _one_by_one(codegen, op, raw, here, dtype)
        return
    address = pointer_address(codegen, op.pointer, at_lane(codegen, op.offsets, here, set(), 0))
    if op.mask is None or here.known(op.mask):
        b.store(raw, address, dtype.bytes)
        return
    if codegen.neighbours.is_still(op.mask, inner):
        with b.when(codegen.at(op.mask, here)):
            b.store(raw, address, dtype.bytes)
        return
    parts = conjuncts(codegen, op.mask, inner)
    if parts is None:
        mask = b.splat(codegen.at(op.mask, here), lanes)
        whole = b.call(f"llvm.vector.reduce.and.{mangle(mask.type)}", "i1", mask)
    else:
        mask = None
        whole = all_of(b, [at_lane(codegen, p, here, set(), lane) for p in parts for lane in (0, lanes - 1)])
    every, part, after = b.label("every"), b.label("part"), b.label("after")
    b.branch_if(whole, every, part)
    b.start(every)
    b.store(raw, address, dtype.bytes)
    b.branch(after)
    b.start(part)
    if mask is None:
        mask = b.splat(codegen.at(op.mask, here.copy()), lanes)
    suffix = mangle(raw.type)
    b.call(f"llvm.masked.store.{suffix}.p0", "void", raw, address, V("i32", str(dtype.bytes)), mask)
    b.branch(after)
    b.start(after)


def _one_by_one(codegen: KernelCodegen, op: tile.ScatterOp, raw: V, here: Position, dtype: DType) -> None:
    b, lanes = codegen.b, here.lanes
    offsets = b.splat(codegen.at(op.offsets, here), lanes)
    mask = None if op.mask is None or here.known(op.mask) else b.splat(codegen.at(op.mask, here), lanes)
    for lane in range(lanes):
        with b.when(b.extract(mask, lane)) if mask is not None else _always():
            b.store(b.extract(raw, lane), pointer_address(codegen, op.pointer, b.extract(offsets, lane)), dtype.bytes)


@contextmanager
def _always() -> Generator[None]:
    yield


# -- control flow ----------------------------------------------------------------------------------------------------


@contextmanager
def _region(codegen: KernelCodegen) -> Generator[None]:
    """What is made inside is not known outside."""
    buffers, fixed = dict(codegen.buffers), dict(codegen.fixed)
    yield
    codegen.buffers, codegen.fixed = buffers, fixed


def _slots(codegen: KernelCodegen, values: Sequence[SSAValue]) -> list[Buffer]:
    types = map(tile.tile_type, values)
    return [Buffer.allocate(codegen.b, type_.sizes, type_.dtype) for type_ in types]


def _bind(codegen: KernelCodegen, values: Sequence[SSAValue], slots: Sequence[Buffer]) -> None:
    """Let values be what their slots hold now."""
    for value, slot in zip(values, slots, strict=True):
        if slot.shape:
            codegen.buffers[value] = slot
        else:
            codegen.fixed[value] = slot.read(codegen.b, (), 1)


def _fill(codegen: KernelCodegen, values: Sequence[SSAValue], slots: Sequence[Buffer]) -> None:
    """Write values to slots that none of them is computed from."""
    scalars = [(codegen.at(v, scalar_position()), s) for v, s in zip(values, slots, strict=True) if not s.shape]
    codegen.block([Fill(v, s) for v, s in zip(values, slots, strict=True) if s.shape and codegen.buffers.get(v) != s])
    for value, slot in scalars:
        slot.write(codegen.b, value, ())


def _carry(
    codegen: KernelCodegen, values: Sequence[SSAValue], arguments: Sequence[SSAValue], slots: Sequence[Buffer]
) -> None:
    """Write what a turn gives to the slots it was computed from.

    A slot is written when nothing left to be written reads it; where there is no such order, copies are made first.
    Values of one shape share a loop, which computes all at a position before it writes them; that is no help where a
    value reads another position than its own.
    """
    scalars = [(codegen.at(v, scalar_position()), s) for v, s in zip(values, slots, strict=True) if not s.shape]
    left: list[tuple[SSAValue, Buffer]] = [
        (v, s) for v, s in zip(values, slots, strict=True) if s.shape and codegen.buffers.get(v) != s
    ]
    owner = dict(zip(arguments, slots, strict=True))
    reads = {id(slot): _slots_read(codegen, value, owner) for value, slot in left}
    while left:
        shapes = dict.fromkeys(slot.shape for _, slot in left)
        ready = next((shape for shape in shapes if _is_free(shape, left, reads)), None)
        if ready is None:
            value, slot = left.pop(0)
            copy = Buffer.allocate(codegen.b, slot.shape, slot.dtype)
            codegen.block([Fill(value, copy)])
            # From now on the value is what was copied.
            codegen.buffers[value] = copy
            reads[id(slot)] = {}
            left.append((value, slot))
            continue
        codegen.block([Fill(v, s) for v, s in left if s.shape == ready])
        left = [(v, s) for v, s in left if s.shape != ready]
    for value, slot in scalars:
        slot.write(codegen.b, value, ())


def _slots_read(codegen: KernelCodegen, value: SSAValue, owner: dict[SSAValue, Buffer]) -> dict[int, bool]:
    """The slots that computing a value reads, and whether it may do so at other positions than its own."""
    result: dict[int, bool] = {}
    pending, seen = [(value, False)], set[tuple[SSAValue, bool]]()
    while pending:
        current, moved = pending.pop()
        if (current, moved) in seen:
            continue
        seen.add((current, moved))
        buffer = codegen.buffers.get(current)
        if current in owner and owner[current].shape:
            slot = owner[current]
            result[id(slot)] = result.get(id(slot), False) or moved
        elif buffer is None and isinstance(current.owner, Operation):
            through = moved or isinstance(current.owner, collective_ops.ViewOp | collective_ops.TakeOp)
            if isinstance(current.owner, LAZY):
                operands = [v for v in current.owner.operands if isinstance(v.type, tile.TileType)]
                pending += [(operand, through) for operand in operands]
    return result


def _is_free(
    shape: tuple[int, ...], left: Sequence[tuple[SSAValue, Buffer]], reads: dict[int, dict[int, bool]]
) -> bool:
    """Whether the slots of a shape may be written now."""
    mine = {id(slot) for _, slot in left if slot.shape == shape}
    for _, slot in left:
        for read, moved in reads[id(slot)].items():
            if read in mine and (slot.shape != shape or moved):
                return False
    return True


def _for_loop(codegen: KernelCodegen, op: tile.ForOp) -> None:
    b = codegen.b
    carried, yielded = op.block.args[1:], op.block.last_op
    assert isinstance(yielded, tile.YieldOp)
    slots = _slots(codegen, carried)
    _fill(codegen, op.initial, slots)
    _before_loop(codegen, op)
    lower, upper, step = (codegen.size(size, op.indices) for size in op.bounds.data)
    with _region(codegen), b.loop(lower, upper, step) as variable:
        codegen.scalars[op.block.args[0]] = variable
        _turn(codegen, op.block, carried, yielded, slots)
    _bind(codegen, op.results, slots)


def _turn(
    codegen: KernelCodegen, block: Block, carried: Sequence[SSAValue], yielded: tile.YieldOp, slots: list[Buffer]
) -> None:
    _bind(codegen, carried, slots)
    for value, argument, slot in zip(yielded.operands, carried, slots, strict=True):
        if slot.shape and accumulates_in_place(value, argument):
            codegen.buffers[value] = slot
    codegen.block(list(block.ops))
    _carry(codegen, yielded.operands, carried, slots)


def _before_loop(codegen: KernelCodegen, op: Operation) -> None:
    """Compute what every turn of a loop would compute again."""
    outer: dict[SSAValue, None] = {}
    for inner in op.walk():
        if isinstance(inner, tile.DotOp):
            outer |= dict.fromkeys(v for v in buffered_operands(codegen, inner) if not op.is_ancestor(v.owner))
        if inner is not op:
            outer |= dict.fromkeys(v for v in inner.operands if _is_costly(codegen, v) and not op.is_ancestor(v.owner))
    for value in outer:
        codegen.materialise(value)


def _is_costly(codegen: KernelCodegen, value: SSAValue) -> bool:
    tiled = isinstance(value.type, tile.TileType) and bool(value.type.sizes)
    return tiled and value not in codegen.buffers and cost_of(value) >= _CHEAP


def _while_loop(codegen: KernelCodegen, op: control_flow.WhileOp) -> None:
    b = codegen.b
    test, body = op.condition.block, op.body.block
    holds, yielded = test.last_op, body.last_op
    assert isinstance(holds, tile.YieldOp) and isinstance(yielded, tile.YieldOp)
    slots = _slots(codegen, op.initial)
    _fill(codegen, op.initial, slots)
    _before_loop(codegen, op)
    head, turn, after = b.label("head"), b.label("turn"), b.label("after")
    b.branch(head)
    b.start(head)
    with _region(codegen):
        _bind(codegen, test.args, slots)
        codegen.block(list(test.ops))
        condition = codegen.at(holds.operands[0], scalar_position())
    b.branch_if(condition, turn, after)
    b.start(turn)
    with _region(codegen):
        _turn(codegen, body, body.args, yielded, slots)
    b.branch(head)
    b.start(after)
    _bind(codegen, op.results, slots)


def _branch(codegen: KernelCodegen, op: control_flow.IfOp) -> None:
    b = codegen.b
    slots = _slots(codegen, op.results)
    condition = codegen.at(op.condition, scalar_position())
    yes, no, after = b.label("then"), b.label("else"), b.label("after")
    b.branch_if(condition, yes, no)
    for label, block in ((yes, op.then.block), (no, op.otherwise.block)):
        yielded = block.last_op
        assert isinstance(yielded, tile.YieldOp)
        b.start(label)
        with _region(codegen):
            codegen.block(list(block.ops))
            _fill(codegen, yielded.operands, slots)
        b.branch(after)
    b.start(after)
    _bind(codegen, op.results, slots)
