"""Code for branches, loops and their bounds: all threads of a block go the same way, as scalars are the same in all."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import TYPE_CHECKING

from xdsl.ir import Block

from weft.backends.llvm.builder import Function
from weft.backends.llvm.cast import emit_cast
from weft.backends.llvm.values import V
from weft.backends.llvm.values import i64 as i64_of
from weft.backends.nvidia.emit.block import short
from weft.backends.nvidia.emit.emitters import EMITTERS
from weft.backends.nvidia.emit.memory.global_memory import address_of, load_chunk
from weft.backends.nvidia.ir.dialect import BarrierOp
from weft.backends.nvidia.ir.warp_specialization import WarpSpecializeOp
from weft.ir.types import i64
from weft.tile import control_flow
from weft.tile import dialect as tile

if TYPE_CHECKING:
    from weft.backends.nvidia.emit.codegen import KernelCodegen


def program_numbers(b: Function, block: V, sizes: Sequence[V]) -> list[V]:
    """The number along each axis of a grid that a block has, from its own: all fit 32 bits.

    A grid that turns out to have one axis is not worth the divisions.
    """
    outer = [size for size in sizes[:-1] if size.name != "1"]
    if not outer or not any(size.name.startswith("%") for size in outer):
        return _divided(b, block, sizes)
    before, divided, after = b.block, b.label("divided"), b.label("after")
    b.branch_if(b.icmp("eq", reduce(b.mul, outer), i64_of(1)), after, divided)
    b.start(divided)
    numbers = _divided(b, block, sizes)
    b.branch(after)
    b.start(after)
    pairs = zip([*["0"] * (len(sizes) - 1), block.name], numbers, strict=True)
    return [b.emit("i32", f"phi i32 [ {first}, %{before} ], [ {n.name}, %{divided} ]") for first, n in pairs]


def _divided(b: Function, block: V, sizes: Sequence[V]) -> list[V]:
    numbers: list[V] = []
    rest = block
    for size in reversed(sizes[1:]):
        size = short(b, size)
        quotient = b.binary("udiv", rest, size)
        numbers.append(b.sub(rest, b.mul(quotient, size)))
        rest = quotient
    return [rest, *reversed(numbers)]


@contextmanager
def where_programs_are(codegen: KernelCodegen) -> Generator[None, None, None]:
    """What only those programs do that memory says there are; roles find out by themselves."""
    b, pointer, last = codegen.b, codegen.kernel.limit_pointer, len(codegen.kernel.grid.data) - 1
    if pointer is None or any(isinstance(op, WarpSpecializeOp) for op in codegen.kernel.block.ops):
        yield
        return
    assert isinstance(pointer.type, tile.PointerType)
    dtype = pointer.type.dtype
    (count,) = load_chunk(b, address_of(b, codegen.pointers[pointer], dtype.bytes, i64_of(0)), dtype, 1, None)
    numbers = [
        op.out for op in codegen.kernel.block.ops if isinstance(op, tile.ProgramOp) and op.axis.value.data == last
    ]
    with b.when(b.icmp("slt", codegen.scalars[numbers[0]], emit_cast(b, count, dtype, i64))):
        yield


def _yielded(codegen: KernelCodegen, block: Block) -> list[list[V]]:
    codegen.block(block)
    last = block.last_op
    assert isinstance(last, tile.YieldOp)
    return [codegen.tiles[value] for value in last.operands]


@EMITTERS.register(control_flow.IfOp)
def emit_branch(codegen: KernelCodegen, op: control_flow.IfOp) -> None:
    b = codegen.b
    (condition,) = codegen.tiles[op.condition]
    yes, no, after = b.label("then"), b.label("else"), b.label("after")
    b.branch_if(condition, yes, no)
    ends: list[tuple[str, list[list[V]]]] = []
    for label, block in ((yes, op.then.block), (no, op.otherwise.block)):
        b.start(label)
        values = _yielded(codegen, block)
        ends.append((b.block, values))
        b.branch(after)
    b.start(after)
    (first, these), (second, those) = ends
    for result, mine, others in zip(op.results, these, those, strict=True):
        pairs = zip(mine, others, strict=True)
        codegen.tiles[result] = [
            b.emit(x.type, f"phi {x.type} [ {x.name}, %{first} ], [ {y.name}, %{second} ]") for x, y in pairs
        ]


@EMITTERS.register(control_flow.WhileOp)
def emit_while(codegen: KernelCodegen, op: control_flow.WhileOp) -> None:
    b = codegen.b
    initial = [codegen.tiles[value] for value in op.initial]
    before, head, inside, after = b.block, b.label("head"), b.label("turn"), b.label("after")
    b.branch(head)
    b.start(head)
    carried = [[V(value.type, b.fresh()) for value in values] for values in initial]
    position = len(b.lines)
    b.lines += [""] * sum(map(len, carried))
    codegen.tiles.update(zip(op.condition.block.args, carried, strict=True))
    ((condition,),) = _yielded(codegen, op.condition.block)
    b.branch_if(condition, inside, after)
    b.start(inside)
    codegen.tiles.update(zip(op.body.block.args, carried, strict=True))
    ends = _yielded(codegen, op.body.block)
    latch = b.block
    b.branch(head)
    triples = [
        each
        for names, firsts, nexts in zip(carried, initial, ends, strict=True)
        for each in zip(names, firsts, nexts, strict=True)
    ]
    for number, (name, first, following) in enumerate(triples):
        text = f"phi {name.type} [ {first.name}, %{before} ], [ {following.name}, %{latch} ]"
        b.lines[position + number] = f"  {name.name} = {text}"
    b.start(after)
    codegen.tiles.update(zip(op.results, carried, strict=True))


@EMITTERS.register(BarrierOp)
def emit_barrier(codegen: KernelCodegen, op: BarrierOp) -> None:
    codegen.threads.barrier()
