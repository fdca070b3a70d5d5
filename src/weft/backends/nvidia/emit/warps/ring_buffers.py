"""Rings of stages as LLVM code: where slots and barriers lie in shared memory, and how roles wait and arrive."""

from __future__ import annotations

from dataclasses import dataclass

from weft.backends.llvm.builder import Function
from weft.backends.llvm.values import V
from weft.backends.nvidia.emit.block import do, i32
from weft.backends.nvidia.ir.rings import SlotType
from weft.backends.nvidia.ir.row_streams import PieceType


@dataclass
class Ring:
    """Where the stages and their barriers lie in shared memory, and at which stage and phase a role is."""

    stages: int
    slots: tuple[SlotType, ...] | tuple[PieceType, ...]
    base: V
    stage: V
    phase: V
    turn: V | None = None
    """Of blocks in a cluster: how often they have exchanged something."""
    arriving: V | None = None
    """The bytes that come for a stage, where they are not known before."""
    barriers: V | None = None
    """Where the barriers are, if not behind the slots."""
    sharers: int = 1
    """The blocks whose consumers release a stage."""

    @property
    def state(self) -> list[V]:
        """What goes on from iteration to iteration of a loop."""
        return [*([self.stage] if self.stages > 1 else []), self.phase, *([] if self.turn is None else [self.turn])]

    @state.setter
    def state(self, values: list[V]) -> None:
        left = list(values)
        if self.stages > 1:
            self.stage = left.pop(0)
        self.phase = left.pop(0)
        self.turn = left[0] if left else None

    @property
    def stage_bytes(self) -> int:
        return sum(slot.bytes for slot in self.slots)

    def slot(self, b: Function, number: int) -> V:
        """The address of a slot of this stage: stages lie one after the other."""
        start = sum(slot.bytes for slot in self.slots[:number])
        return b.add(self.base, b.add(b.mul(self.stage, i32(self.stage_bytes)), i32(start)))

    def full(self, b: Function) -> V:
        first = self.barriers or b.add(self.base, i32(self.stages * self.stage_bytes))
        return b.add(first, b.mul(self.stage, i32(8)))

    def empty(self, b: Function) -> V:
        return b.add(self.full(b), i32(8 * self.stages))

    def advance(self, b: Function) -> None:
        if self.stages == 1:
            self.phase = b.binary("xor", self.phase, i32(1))
            return
        wrap = b.icmp("eq", self.stage, i32(self.stages - 1))
        self.stage = b.select(wrap, i32(0), b.add(self.stage, i32(1)))
        self.phase = b.binary("xor", self.phase, b.convert("zext", wrap, "i32"))

    def rewind(self, b: Function, count: int) -> None:
        """Go back by some stages, no more than there are."""
        if self.stages > 1:
            before = b.sub(self.stage, i32(count))
            wrap = b.icmp("slt", before, i32(0))
            self.stage = b.select(wrap, b.add(before, i32(self.stages)), before)
            self.phase = b.binary("xor", self.phase, b.convert("zext", wrap, "i32"))
        elif count:
            self.phase = b.binary("xor", self.phase, i32(1))


def expect(b: Function, address: V, size: V) -> None:
    """Arrive at a barrier that completes when so many bytes have come as well."""
    if size.name.isdigit():
        do(b, f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], {size.name};", "r", address)
    else:
        do(b, "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;", "r,r", address, size)


def wait_for(b: Function, address: V, parity: V) -> None:
    """Until the phase of that parity is complete; a fresh barrier lets parity 1 pass."""
    text = "{ .reg .pred p; W: mbarrier.try_wait.parity.shared::cta.b64 p, [$0], $1; @p bra D; bra W; D: }"
    do(b, text, "r,r", address, parity)
