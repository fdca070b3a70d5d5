"""Loops that make loads before the turn that needs them: a turn ahead in registers, or several in shared memory.

%c = tile.load %w[%k] {nvidia.packed, nvidia.ahead, nvidia.stages = 3}

What lies in shared memory is each thread's own: it copies pieces of 16 bytes (`cp.async`) to places that no other
thread reads, so that nobody waits for anything but these. Codes of few bits take long to widen: that takes many warps,
whose registers are few, and the memory is only busy if a block has more under way than its registers hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdsl.ir import SSAValue

from weft.backends.llvm.builder import V, i64
from weft.backends.nvidia.alignment import WIDEST, pointer_dtype
from weft.backends.nvidia.block import SHARED_SYMBOL, do, i32
from weft.backends.nvidia.dialect import RESIDENT, WARPS, integer, layout_of, set_integer
from weft.backends.nvidia.early_start import wait_for_kernel
from weft.backends.nvidia.global_memory import load_words
from weft.backends.nvidia.layouts import WARP
from weft.backends.nvidia.loops import loop_with
from weft.backends.nvidia.mma import AHEAD
from weft.backends.nvidia.shared_memory import shared_bytes
from weft.backends.nvidia.strided_memory import chunk_width, chunks
from weft.backends.nvidia.target import NvidiaTarget
from weft.tile import dialect as tile

if TYPE_CHECKING:
    from weft.backends.nvidia.codegen import KernelCodegen

_STAGES = "nvidia.stages"
"""On a load ahead: how many turns of it lie in shared memory."""
_LEAST, _MOST = 2, 8
_RESERVED, _ALIGNMENT = 1024, 128
"""Shared memory of a block that the system takes, and what places of it are multiples of."""


def stage_codes(kernel: tile.KernelOp, target: NvidiaTarget) -> int:
    """Let the codes of a product's weights lie in shared memory for as many turns as there is room for.

    Returns the bytes that this takes of a block, from the first on.
    """
    codes = [op.codes.owner for op in kernel.walk() if isinstance(op, tile.DequantizeOp)]
    loads = [op for op in codes if isinstance(op, tile.LoadOp) and AHEAD in op.attributes]
    if len(loads) != 1 or chunk_width(loads[0], layout_of(loads[0].out)) * pointer_dtype(loads[0]).bytes != WIDEST:
        return 0
    largest = max(-(-shared_bytes(op) // _ALIGNMENT) * _ALIGNMENT for op in kernel.walk())
    room = (target.shared_per_block + _RESERVED) // integer(kernel, RESIDENT, 1) - _RESERVED - 2 * largest
    each = WARP * integer(kernel, WARPS) * _own_bytes(loads[0])
    stages = min(room // each, _MOST)
    if stages < _LEAST:
        return 0
    set_integer(loads[0], _STAGES, stages)
    return stages * each


def _own_bytes(op: tile.LoadOp) -> int:
    """What a thread has of a load."""
    return layout_of(op.out).count * pointer_dtype(op).bytes


def emit_loop_ahead(codegen: KernelCodegen, op: tile.ForOp) -> None:
    """A loop that makes some loads for its next turns before it does this one; the last turn follows behind it."""
    b, variable = codegen.b, op.block.args[0]
    lower, upper, step = (size for size in op.bounds.data if isinstance(size, int))
    last = lower + (upper - 1 - lower) // step * step
    early = [inner for inner in op.block.ops if AHEAD in inner.attributes]
    staged = [_Staged(codegen, inner) for inner in early if isinstance(inner, tile.LoadOp) and integer(inner, _STAGES)]
    early = [inner for inner in early if not integer(inner, _STAGES)]
    count, rings = len(op.initial), codegen.rings_of(op)
    behind = count + len(rings) + len(staged)

    def load(number: V) -> list[list[V]]:
        codegen.scalars[variable] = number
        for inner in early:
            codegen.visit(inner)
        return [codegen.tiles[inner.results[0]] for inner in early]

    def turn(number: V, carried: list[list[V]]) -> list[list[V]]:
        codegen.tiles.update(zip(op.block.args[1:], carried[:count], strict=True))
        for ring, state in zip(rings, carried[count:], strict=False):
            ring.state = state
        for each, state in zip(staged, carried[count + len(rings) :], strict=False):
            each.take(variable, number, i64(upper), step, state[0])
        codegen.scalars[variable] = number
        codegen.tiles.update(zip((inner.results[0] for inner in early), carried[behind:], strict=True))
        for inner in op.block.ops:
            if AHEAD not in inner.attributes:
                codegen.visit(inner)
        end = op.block.last_op
        assert end is not None
        pairs = zip(end.operands, op.block.args[1:], strict=True)
        yielded = [codegen.kept_of(value, codegen.tiles[before]) for value, before in pairs]
        return [*yielded, *(ring.state for ring in rings), *([each.stage] for each in staged)]

    def body(number: V, carried: list[list[V]]) -> list[list[V]]:
        if rings:  # a slot is given back when all that was asked for is there: the loads come behind that
            yielded = turn(number, carried)
            return [*yielded, *load(b.add(number, i64(step)))]
        following = load(b.add(number, i64(step)))
        return [*turn(number, carried), *following]

    for each in staged:
        each.begin(variable, lower, upper, step)
    initial = [
        *(codegen.tiles[value] for value in op.initial),
        *(ring.state for ring in rings),
        *([each.stage] for each in staged),
        *load(i64(lower)),
    ]
    if op is codegen.early:
        wait_for_kernel(b)
        for each in codegen.late:
            codegen.visit(each)
    results = loop_with(b, i64(lower), i64(last), i64(step), initial, body, unrolled=False)
    codegen.tiles.update(zip(op.results, turn(i64(last), results)[:count], strict=True))


class _Staged:
    """A load whose next turns lie in a thread's own places of shared memory."""

    def __init__(self, codegen: KernelCodegen, op: tile.LoadOp) -> None:
        self.codegen, self.op = codegen, op
        self.count = integer(op, _STAGES)
        self.threads = WARP * codegen.threads.warps
        self.stage = i32(0)

    def begin(self, variable: SSAValue, lower: int, upper: int, step: int) -> None:
        """Ask for the first turns."""
        for number in range(self.count):
            self.stage = i32(number)
            self._ask(variable, i64(lower + number * step), i64(upper))
        self.stage = i32(0)

    def take(self, variable: SSAValue, number: V, upper: V, step: int, stage: V) -> None:
        """Read a turn's part when it is there, and ask for the one that comes to its place."""
        codegen, b = self.codegen, self.codegen.b
        self.stage = stage
        do(b, f"cp.async.wait_group {self.count - 1};", "")
        pieces = _own_bytes(self.op) // WIDEST
        codegen.tiles[self.op.out] = [
            word for piece in range(pieces) for word in load_words(b, self._place(piece), 4, 4, None, "shared")
        ]
        self._ask(variable, b.add(number, i64(self.count * step)), upper)
        wrap = b.icmp("eq", stage, i32(self.count - 1))
        self.stage = b.select(wrap, i32(0), b.add(stage, i32(1)))

    def _place(self, piece: int) -> V:
        """Neighbouring threads have neighbouring places."""
        b, threads = self.codegen.b, self.codegen.threads
        base = b.emit("i32", f"ptrtoint ptr addrspace(3) @{SHARED_SYMBOL} to i32")
        mine = b.mul(b.add(b.mul(threads.warp, i32(WARP)), threads.lane), i32(WIDEST))
        first = b.mul(self.stage, i32(self.threads * _own_bytes(self.op)))
        return b.add(b.add(base, mine), b.add(first, i32(piece * self.threads * WIDEST)))

    def _ask(self, variable: SSAValue, number: V, upper: V) -> None:
        codegen, b = self.codegen, self.codegen.b
        codegen.scalars[variable] = number
        comes = b.icmp("slt", number, upper)
        for piece, (_, address, predicate) in enumerate(chunks(codegen, self.op, layout_of(self.op.out))):
            taken = b.select(codegen.both(comes, predicate) or comes, i32(WIDEST), i32(0))
            text = f"cp.async.cg.shared.global [$0], [$1], {WIDEST}, $2;"
            do(b, text, "r,l,r", self._place(piece), address, taken)
        do(b, "cp.async.commit_group;", "")
