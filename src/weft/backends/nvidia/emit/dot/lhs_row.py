"""A row that a block brings to its shared memory once, in the order in which its lanes multiply it with codes.

%p = tile.for %k (%acc) {                                     %p = tile.for %k (%acc) {
  %x = tile.load %row[%k] {packed, spread}              →       %x = tile.load %row[%k] {packed, spread, held}
  … nvidia.mma %x, (tile.dequantize …), %acc }                  … nvidia.mma %x, (tile.dequantize …), %acc }

Else every iteration of every warp waits for a part of the row, and puts it in the codes' order again. Beside the row
lie the sums of what shares a factor, and zeros for the lanes that have nothing to read (`split_sums`):

    row      for each piece that four lanes hold: the first 16 bytes of each lane, then the next ones
    zeros    as many bytes as a lane reads in an iteration
    sums     a float for each run of neighbours that share a factor
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from xdsl.ir import Operation

from weft.backends.llvm.values import V, i64
from weft.backends.nvidia.emit.block import SHARED_SYMBOL, do, i32, short, shuffle_xor, wide
from weft.backends.nvidia.emit.dot.dequantize import in_order, numbers_of
from weft.backends.nvidia.emit.dot.mma import reads_alone
from weft.backends.nvidia.emit.math import asm
from weft.backends.nvidia.emit.memory.global_memory import load_words
from weft.backends.nvidia.ir.alignment import WIDEST, divisor_of
from weft.backends.nvidia.ir.dialect import integer
from weft.backends.nvidia.ir.layouts import WARP
from weft.backends.nvidia.ir.mma import HELD, LANES, SPREAD, MmaOp
from weft.ir.expr import coefficient_of, evaluate, symbols_of
from weft.ops.matmul.quantized import FORMS
from weft.tile import dialect as tile

if TYPE_CHECKING:
    from weft.backends.nvidia.emit.codegen import KernelCodegen

_CHUNK = 8
"""Neighbours of 16 bits that a thread moves at a time."""
_MOST = 64 << 10
"""Bytes that are held at most."""
_ALIGNMENT = 128


@dataclass(frozen=True)
class LhsRow:
    """The row of a dot, and where in shared memory it lies."""

    op: MmaOp
    load: tile.LoadOp
    loop: tile.ForOp
    turns: int
    length: int
    """Its neighbours; what turns have beyond them is zero."""

    @classmethod
    def of(cls, op: MmaOp) -> LhsRow | None:
        """The row of a dot, if it lies along K from iteration to iteration."""
        load, loop = op.a.owner, op.parent_op()
        if not isinstance(load, tile.LoadOp) or SPREAD not in load.attributes or not isinstance(loop, tile.ForOp):
            return None
        lower, turns, step = loop.bounds.data
        if lower != 0 or step != 1 or not isinstance(turns, int) or turns < 1 or load.parent is not loop.block:
            return None
        owners = [index.owner for index in load.indices]
        inner = [number for number, owner in enumerate(owners) if owner is loop.block]
        computed = any(isinstance(owner, Operation) and owner.parent is loop.block for owner in owners)
        rows, depth = load.extents.data
        if len(inner) != 1 or computed or rows != 1 or not symbols_of(depth) <= {name := f"d{inner[0]}"}:
            return None
        offset, whole = load.offset.data[0], op.fragments.k
        split = coefficient_of(offset, name)
        length = (turns - 1) * whole + evaluate(depth, {name: turns - 1})
        steps = [length, divisor_of(offset, load.indices)]
        along = split is not None and split[0] == whole and not any(each % _CHUNK for each in steps)
        found = cls(op, load, loop, turns, length)
        return found if along and found.bytes <= _MOST else None

    @property
    def total(self) -> int:
        """Its neighbours in shared memory."""
        return self.turns * self.op.fragments.k

    @property
    def form(self) -> str:
        codes = self.op.b.owner
        assert isinstance(codes, tile.DequantizeOp)
        return codes.form.data

    @property
    def run(self) -> int:
        """Neighbours of a lane that have one factor."""
        codes = self.op.b.owner
        assert isinstance(codes, tile.DequantizeOp)
        return min(codes.group.value.data, self.op.fragments.vector)

    @property
    def zeros(self) -> int:
        """Where the zeros begin."""
        return 2 * self.total

    @property
    def sums(self) -> int:
        return self.zeros + 2 * self.op.fragments.depth

    @property
    def bytes(self) -> int:
        size = self.sums + 4 * self.total // self.run
        return ceil(size / _ALIGNMENT) * _ALIGNMENT


def load_lhs_row(codegen: KernelCodegen, held: LhsRow) -> None:
    """All threads read the row, and write it to shared memory."""
    b, threads, fragments = codegen.b, codegen.threads, held.op.fragments
    number = b.add(b.mul(threads.warp, i32(WARP)), threads.lane)
    codegen.scalars[held.loop.block.args[0]] = i64(0)
    start = _start(codegen, held)
    pieces, count = LANES * fragments.vector // _CHUNK, threads.warps * WARP
    base = codegen.size(held.load.offset.data[0], held.load.indices)
    origin = b.add(codegen.pointers[held.load.pointer], b.mul(base, i64(2)))
    words: list[tuple[V, V | None, list[V]]] = []  # all are asked for before one is awaited
    for first in range(0, held.total // _CHUNK, count):
        chunk = b.add(number, i32(first))
        there, kept = (_below(codegen, chunk, first + count, each // _CHUNK) for each in (held.length, held.total))
        source = b.add(origin, b.mul(wide(b, chunk), i64(WIDEST)))
        words.append((chunk, kept, load_words(b, source, 2, _CHUNK, there)))
    each = fragments.vector // _CHUNK
    for chunk, kept, found in words:
        inside = b.binary("and", chunk, i32(pieces - 1))
        lane, part = b.binary("udiv", inside, i32(each)), b.binary("urem", inside, i32(each))
        place = b.add(b.sub(chunk, inside), b.add(b.mul(part, i32(LANES)), lane))
        address = b.add(start, b.mul(place, i32(WIDEST)))
        _store(codegen, address, in_order(b, found, FORMS[held.form].bits), kept)
        if held.form == "int4":
            _store_sum(codegen, held, start, chunk, kept, found)
    for first in range(0, fragments.depth * 2 // WIDEST, count):
        place = b.add(number, i32(first))
        address = b.add(b.add(start, i32(held.zeros)), b.mul(place, i32(WIDEST)))
        _store(codegen, address, [i32(0)] * 4, _below(codegen, place, first + count, fragments.depth * 2 // WIDEST))
    threads.barrier()


def _below(codegen: KernelCodegen, place: V, end: int, limit: int) -> V | None:
    """Whether a place is below a limit; None if all are, up to an end."""
    return codegen.b.icmp("slt", place, i32(limit)) if end > limit else None


def _store_sum(codegen: KernelCodegen, held: LhsRow, start: V, chunk: V, there: V | None, words: list[V]) -> None:
    """The sum of a run of neighbours, which as many lanes have."""
    b, each = codegen.b, held.run // _CHUNK
    numbers = [number for word in words for number in numbers_of(b, word, held.op.dtype.data)]
    while len(numbers) > 1:
        numbers = [b.binary("fadd", one, other) for one, other in zip(numbers[::2], numbers[1::2], strict=True)]
    total = numbers[0]
    for bit in range(each.bit_length() - 1):
        total = b.binary("fadd", total, shuffle_xor(b, total, 1 << bit))
    address = b.add(b.add(start, i32(held.sums)), b.mul(b.binary("udiv", chunk, i32(each)), i32(4)))
    first = b.icmp("eq", b.binary("and", chunk, i32(each - 1)), i32(0)) if each > 1 else None
    guard, given = _guard(codegen.both(there, first), 2)
    do(b, f"{guard}st.shared.b32 [$0], $1;", "r,f" + ",b" * len(given), address, total, *given)


class LhsRowParts:
    """What a lane reads of a held row in an iteration of a loop."""

    def __init__(self, codegen: KernelCodegen, held: LhsRow) -> None:
        b, fragments = codegen.b, held.op.fragments
        self.codegen, self.held, lane = codegen, held, codegen.threads.lane
        start = _start(codegen, held)
        first = b.mul(short(b, codegen.scalars[held.loop.block.args[0]]), i32(held.op.fragments.k))
        if fragments.warps.k > 1:
            mine = codegen.threads.place(fragments.right(), 0)
            mine = b.sub(mine, b.mul(b.binary("and", lane, i32(LANES - 1)), i32(fragments.vector)))
            first = b.add(first, mine)
        member = b.binary("and", lane, i32(LANES - 1))
        place = b.add(b.mul(first, i32(2)), b.mul(member, i32(WIDEST)))
        self.row = b.add(start, b.select(reads_alone(b, lane), place, i32(held.zeros)))
        run = b.add(b.binary("udiv", first, i32(held.run)), b.mul(member, i32(fragments.vector // held.run)))
        self.first_sum = b.add(b.add(start, i32(held.sums)), b.mul(run, i32(4)))

    def words(self, first: int, count: int) -> list[V]:
        """So many words from one on, in the order of codes."""
        fragments = self.held.op.fragments
        words: list[V] = []
        for word in range(first, first + count, _CHUNK // 2):
            chunk, part = divmod(word, fragments.vector // 2)
            ahead = 2 * chunk * LANES * fragments.vector + part // (_CHUNK // 2) * LANES * WIDEST
            words += load_words(self.codegen.b, self.row, 2, _CHUNK, None, "shared", ahead)
        return words

    def sum(self, first: int, x: Sequence[V]) -> V:
        """The sum of the run that begins with a word."""
        fragments = self.held.op.fragments
        chunk, part = divmod(2 * first, fragments.vector)
        place = (chunk * LANES * fragments.vector + part) // self.held.run
        text = f"ld.shared.f32 $0, [$1+{4 * place}];"
        return asm(self.codegen.b, "float", text, "=f,r", self.first_sum, pure=False)


def held_in(loop: tile.ForOp) -> LhsRow | None:
    """The held row that a loop reads itself."""
    products = [op for op in loop.block.ops if isinstance(op, MmaOp)]
    return next((held for op in products if (held := held_by(op)) is not None), None)


def held_by(op: MmaOp) -> LhsRow | None:
    """The row of a dot, if it is held."""
    load = op.a.owner
    return LhsRow.of(op) if isinstance(load, tile.LoadOp) and HELD in load.attributes else None


def _start(codegen: KernelCodegen, held: LhsRow) -> V:
    base = codegen.b.emit("i32", f"ptrtoint ptr addrspace(3) @{SHARED_SYMBOL} to i32")
    return codegen.b.add(base, i32(integer(held.load, HELD)))


def _store(codegen: KernelCodegen, address: V, words: list[V], there: V | None) -> None:
    guard, given = _guard(there, 5)
    text = f"{guard}st.shared.v4.b32 [$0], {{$1, $2, $3, $4}};"
    do(codegen.b, text, "r,r,r,r,r" + ",b" * len(given), address, *words, *given)


def _guard(there: V | None, number: int) -> tuple[str, list[V]]:
    return ("", []) if there is None else (f"@${number} ", [there])
