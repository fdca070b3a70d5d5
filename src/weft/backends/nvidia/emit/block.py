"""The threads of a block as LLVM values: who a thread is, where its elements lie, and what passes between threads."""

from __future__ import annotations

from typing import TypeAlias

from weft.backends.llvm.builder import Function
from weft.backends.llvm.values import V
from weft.backends.nvidia.ir.layouts import WARP, Layout, Mode

SHARED_SYMBOL = "shared"

Places: TypeAlias = tuple[tuple[Mode, ...], ...]


def i32(value: int) -> V:
    return V("i32", str(value))


class Threads:
    """What a thread knows of itself: its lane, and its warp among those that work together.

    Asked for once, in the first block of what they do. Those that are not the whole block have a barrier of their own.
    """

    def __init__(
        self, b: Function, warps: int, lane: V, warp: V, barrier_number: int = 0, rank: V | None = None
    ) -> None:
        self.b = b
        self.warps = warps
        self.lane, self.warp, self.rank = lane, warp, rank or i32(0)
        self.barrier_number = barrier_number
        self._away = False
        self._places: dict[tuple[Places, int], V] = {}
        self._owners: dict[Places, V | None] = {}

    @classmethod
    def of_block(cls, b: Function, warps: int, cluster: int = 1) -> Threads:
        """All threads of a block, which may be one of a cluster."""
        number = b.call("llvm.nvvm.read.ptx.sreg.tid.x", "i32")
        rank = b.call("llvm.nvvm.read.ptx.sreg.cluster.ctarank", "i32") if cluster > 1 else None
        if warps == 1:
            return cls(b, warps, number, i32(0), rank=rank)
        return cls(b, warps, b.binary("and", number, i32(WARP - 1)), b.binary("lshr", number, i32(5)), rank=rank)

    @classmethod
    def of_warp(cls, b: Function) -> Threads:
        """Those of a warp that does what it does by itself; its barrier is the whole block's."""
        lane = b.binary("and", b.call("llvm.nvvm.read.ptx.sreg.tid.x", "i32"), i32(WARP - 1))
        return cls(b, 1, lane, i32(0))

    def _numbers(self, layout: Layout) -> tuple[tuple[V, tuple[Mode, ...]], ...]:
        return (self.lane, layout.lanes), (self.warp, layout.warps), (self.rank, layout.blocks)

    def barrier(self) -> None:
        """They all wait for each other."""
        barrier(self.b, self.barrier_number, self.warps * WARP)

    def cluster_barrier(self) -> None:
        """All threads of the cluster wait for each other."""
        do(self.b, "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;", "")

    def leave(self) -> None:
        """This thread has read what it wanted of other blocks' memory; it goes on while others still do."""
        do(self.b, "barrier.cluster.arrive.aligned;", "")
        self._away = True

    def gather(self) -> None:
        """Nobody reads this block's memory any more: it may be written again, or given up."""
        if self._away:
            do(self.b, "barrier.cluster.wait.aligned;", "")
        self._away = False

    def prepare(self, layouts: list[Layout]) -> None:
        """Compute what a kernel's layouts need where it is there for all of it."""
        for layout in layouts:
            for axis in range(layout.rank):
                self.place(layout, axis)
            self.owner(layout)

    def digit(self, number: V, modes: tuple[Mode, ...], position: int) -> V:
        """Which step of a mode a lane or warp takes."""
        before = 1
        for mode in modes[:position]:
            before *= mode.size
        size, after = modes[position].size, 1
        for mode in modes[position + 1 :]:
            after *= mode.size
        value = self.b.binary("lshr", number, i32(before.bit_length() - 1)) if before > 1 else number
        return self.b.binary("and", value, i32(size - 1)) if after > 1 else value

    def place(self, layout: Layout, axis: int) -> V:
        """Where a thread's first element lies along an axis (i32)."""
        key = ((layout.lanes, layout.warps, layout.blocks), axis)
        if key not in self._places:
            total = i32(0)
            for number, modes in self._numbers(layout):
                for position, mode in enumerate(modes):
                    if mode.axis == axis and mode.size > 1:
                        digit = self.digit(number, modes, position)
                        total = self.b.add(total, self.b.mul(digit, i32(mode.step)))
            self._places[key] = total
        return self._places[key]

    def owner(self, layout: Layout) -> V | None:
        """Whether this thread is the first of those that hold the same elements; None if no two do."""
        key = (layout.lanes, layout.warps, layout.blocks)
        if key not in self._owners:
            result: V | None = None
            for number, modes in self._numbers(layout):
                for position, mode in enumerate(modes):
                    if mode.axis is None and mode.size > 1:
                        first = self.b.icmp("eq", self.digit(number, modes, position), i32(0))
                        result = first if result is None else self.b.binary("and", result, first)
            self._owners[key] = result
        return self._owners[key]


def meet(b: Function, cluster: int) -> None:
    """All threads of the block, or of its cluster, wait for each other, wherever they come from."""
    if cluster > 1:
        do(b, "barrier.cluster.arrive; barrier.cluster.wait;", "")
    else:
        barrier(b)


def barrier(b: Function, number: int = 0, threads: int = 0) -> None:
    """The threads of the block wait for each other, or so many of them at a barrier of their own."""
    which = f"{number}, {threads}" if number else "0"
    b.do(f'call void asm sideeffect "bar.sync {which};", "~{{memory}}"() #1')


def shuffle_xor(b: Function, value: V, mask: int) -> V:
    """The value of the lane whose number differs in the bits of a mask."""
    return shuffle(b, value, "bfly", mask, WARP)


def shuffle(b: Function, value: V, kind: str, amount: int, width: int) -> V:
    """The value of another lane of the same `width` neighbouring ones: `up` and `down` by an amount, `idx` the one of
    that number, `bfly` the one whose number differs in these bits. Where there is none, it is the lane's own."""
    match value.type:
        case "float":
            return b.bitcast(shuffle(b, b.bitcast(value, "i32"), kind, amount, width), "float")
        case "double":
            return b.bitcast(shuffle(b, b.bitcast(value, "i64"), kind, amount, width), "double")
        case "i64":
            low = b.convert("trunc", value, "i32")
            high = b.convert("trunc", b.binary("lshr", value, V("i64", "32")), "i32")
            low, high = (b.convert("zext", shuffle(b, half, kind, amount, width), "i64") for half in (low, high))
            return b.binary("or", low, b.binary("shl", high, V("i64", "32")))
        case "i32":
            clamp = (WARP - width) << 8 | (0 if kind == "up" else WARP - 1)
            text = f"shfl.sync.{kind}.b32 $0, $1, {amount}, {clamp}, -1;"
            return b.emit("i32", f'call i32 asm sideeffect "{text}", "=r,r"({value}) #1')
        case _:
            return b.convert("trunc", shuffle(b, b.convert("zext", value, "i32"), kind, amount, width), value.type)


def shared_pointer(b: Function, offset: int, index: V, size: int) -> V:
    """The address of an element of shared memory; `index` counts elements of `size` bytes (i32)."""
    scaled = b.mul(index, i32(size))
    place = b.add(scaled, i32(offset))
    return b.emit("ptr addrspace(3)", f"getelementptr i8, ptr addrspace(3) @{SHARED_SYMBOL}, {place}")


def store_shared(b: Function, value: V, offset: int, index: V, size: int) -> None:
    raw = b.convert("zext", value, f"i{8 * size}") if value.type.startswith("i") else value
    pointer = shared_pointer(b, offset, index, size)
    b.do(f"store {raw.type} {raw.name}, {pointer.type} {pointer.name}, align {size}")


def load_shared(b: Function, type_: str, offset: int, index: V, size: int) -> V:
    pointer = shared_pointer(b, offset, index, size)
    memory = f"i{8 * size}" if type_.startswith("i") else type_
    value = b.emit(memory, f"load {memory}, {pointer.type} {pointer.name}, align {size}")
    return b.convert("trunc", value, type_) if type_.startswith("i") else value


def elected(b: Function) -> V:
    """True in one lane of a warp, always the same: then one thread is known to run what follows."""
    text = "{ .reg .pred p; elect.sync _|p, -1; selp.u32 $0, 1, 0, p; }"
    return b.icmp("ne", converged(b, "i32", text, "=r"), i32(0))


def converged(b: Function, result: str, text: str, constraints: str, *args: V) -> V:
    """A piece of PTX that all threads of a warp run together."""
    operands = ", ".join(map(str, args))
    return b.emit(result, f'call {result} asm sideeffect "{text}", "{constraints}"({operands}) #1')


def do(b: Function, text: str, constraints: str, *args: V) -> None:
    """A piece of PTX that gives nothing, and stays where it is."""
    operands = ", ".join(map(str, args))
    clobber = f"{constraints},~{{memory}}" if constraints else "~{memory}"
    b.do(f'call void asm sideeffect "{text}", "{clobber}"({operands}) #1')


def load_of_block(b: Function, type_: str, offset: int, index: V, size: int, rank: V) -> V:
    """An element of the shared memory of another block of the cluster."""
    pointer = shared_pointer(b, offset, index, size)
    own = b.emit("i32", f"ptrtoint {pointer} to i32")
    place = converged(b, "i32", "mapa.shared::cluster.u32 $0, $1, $2;", "=r,r,r", own, rank)
    if size == 8:
        raw = converged(b, "i64", "ld.shared::cluster.b64 $0, [$1];", "=l,r,~{memory}", place)
        return raw if type_ == "i64" else b.bitcast(raw, type_)
    width = 8 * size
    register = "i32" if size == 4 else "i16"
    code = "=r,r,~{memory}" if size == 4 else "=h,r,~{memory}"
    raw = converged(b, register, f"ld.shared::cluster.b{width} $0, [$1];", code, place)
    if type_.startswith("i"):
        return b.convert("trunc", raw, type_)
    return b.bitcast(raw, type_)


def short(b: Function, value: V) -> V:
    """A number that fits 32 bits."""
    return b.convert("trunc", value, "i32") if value.name.startswith("%") else V("i32", value.name)


def wide(b: Function, value: V) -> V:
    """A number of 64 bits."""
    if value.type == "i64":
        return value
    return b.convert("sext", value, "i64") if value.name.startswith("%") else V("i64", value.name)


def fitted(b: Function, value: V, element: str) -> V:
    """A 64-bit integer as a number of another type."""
    if element == "i64":
        return value
    if element.startswith("i"):
        return b.convert("trunc", value, element) if value.name.startswith("%") else V(element, value.name)
    return b.convert("sitofp", value, element)
