"""The barrier protocol of a kernel with roles, read off its ops: what `protocol.check` runs.

Stage `s` of ring `r` has the barriers `full r.s` and `empty r.s` and the slots 0, 1, …. The n-th
stage of a ring that a role uses is stage n modulo their number, in phase n over it. Of a cluster there are all blocks,
with barriers and slots of their own, into which the others copy.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from xdsl.ir import Block, Operation, SSAValue

from weft.backends.nvidia.check.protocol import Protocol
from weft.backends.nvidia.check.protocol_events import (
    Arrive,
    AsyncCopy,
    AsyncRead,
    Event,
    ExpectTx,
    ProxyFence,
    Read,
    Sync,
    Wait,
    Write,
)
from weft.backends.nvidia.ir.dialect import BarrierOp
from weft.backends.nvidia.ir.dynamic_tile_scheduler import DYNAMIC, NUMBERS
from weft.backends.nvidia.ir.rings import AcquireOp, CommitOp, ReleaseOp, RingToRegistersOp, SlotOp, TmaLoadOp, WaitOp
from weft.backends.nvidia.ir.warp_specialization import (
    AffineApplyOp,
    BlockNumberOp,
    PingPongBarrierOp,
    WarpSpecializeOp,
)
from weft.backends.nvidia.ir.wgmma import WgmmaOp, WgmmaWaitOp
from weft.ir.attributes import from_attribute
from weft.ir.expr import Size, evaluate
from weft.tile import dialect as tile
from weft.tile import pointer_ops
from weft.tile.functions import FUNCTIONS

_GROUP_WARPS, _FIRST_TURN = 4, 2
_NAMED_BARRIERS = 16
"""Of a block."""
Slot: TypeAlias = tuple[int, int, int, int, int]
"""A block of a cluster, a ring of its, a stage, a slot, and a part of that."""
RingOp: TypeAlias = AcquireOp | TmaLoadOp | CommitOp | WaitOp | SlotOp | ReleaseOp | RingToRegistersOp


def protocol_of(
    kernel: tile.KernelOp,
    sizes: Sequence[int] = (),
    block: int = 0,
    blocks: int = 1,
    scalars: Mapping[int, int] | None = None,
    number: int = 0,
) -> Protocol:
    """What the roles of one block of the grid do, or of one cluster of blocks.

    `scalars` are the numbers that a kernel takes, by argument; all that it reads from memory are `number`.
    """
    (roles,) = [op for op in kernel.block.ops if isinstance(op, WarpSpecializeOp)]
    agents: dict[str, list[Event]] = {}
    barriers: dict[str, int] = {}
    for rank in range(roles.cluster.value.data):
        numbers = {"number": block, "count": blocks, "cluster": block, "clusters": blocks, "rank": rank}
        known = _known(kernel, sizes, numbers, scalars or {}, number)
        agents |= _agents(roles, known, rank)
        barriers |= _barriers(roles, rank, drawn=kernel.counter is not None)
    return Protocol(agents, barriers)


def _known(
    kernel: tile.KernelOp,
    sizes: Sequence[int],
    numbers: Mapping[str, int],
    scalars: Mapping[int, int],
    number: int,
) -> dict[SSAValue, int]:
    """What a block knows before its roles begin."""
    arguments = kernel.block.args[len(kernel.block.args) - len(kernel.size_names) :]
    known: dict[SSAValue, int] = dict(zip(arguments, sizes, strict=True))
    known.update((kernel.block.args[number], value) for number, value in scalars.items())
    for op in kernel.block.ops:
        if isinstance(op, BlockNumberOp):
            known[op.out] = numbers[op.kind.data]
    read = [op.out for op in kernel.walk() if isinstance(op, tile.NumberOp)]
    known.update(dict.fromkeys(read, number))
    for op in kernel.block.ops:
        if isinstance(op, AffineApplyOp):
            names = {f"d{place}": known[operand] for place, operand in enumerate(op.indices)}
            known[op.out] = evaluate(op.value.data[0], names)
    return known


def _agents(roles: WarpSpecializeOp, known: Mapping[SSAValue, int], rank: int) -> dict[str, list[Event]]:
    """The roles of one block."""
    consumers, of = roles.consumers.value.data, _of_block(rank)
    agents = {
        f"producer {number}{of}": list(_Role(roles, known, consumers, rank=rank, produces=True).run(block))
        for number, block in enumerate(roles.producers)
    }
    for number in range(consumers):
        agents[f"consumer {number}{of}"] = list(_Role(roles, known, consumers, number, rank).consume())
    return agents


def _barriers(roles: WarpSpecializeOp, rank: int, *, drawn: bool) -> dict[str, int]:
    """How many arrivals complete a phase of each barrier of one block."""
    warps, of = _GROUP_WARPS * roles.consumers.value.data, _of_block(rank)
    counts = {str(ring): type_.count for ring, type_ in enumerate(roles.rings)}
    barriers: dict[str, int] = {}
    for ring, count in counts.items():
        barriers |= {f"full {ring}.{stage}{of}": 1 for stage in range(count)}
        barriers |= {f"empty {ring}.{stage}{of}": warps * roles.cluster.value.data for stage in range(count)}
    if drawn:
        barriers |= {f"full number.{stage}": 1 for stage in range(NUMBERS)}
        barriers |= {f"empty number.{stage}": warps for stage in range(NUMBERS)}
    return barriers


def _of_block(rank: int) -> str:
    """What the names of a block's roles and barriers end with."""
    return f" of {rank}" if rank else ""


@dataclass
class _Role:
    """One agent's way through the rings."""

    roles: WarpSpecializeOp
    known: Mapping[SSAValue, int]
    consumers: int
    number: int = 0
    rank: int = 0
    produces: bool = False

    def __post_init__(self) -> None:
        self.values = dict(self.known)
        self.slots: dict[SSAValue, list[Slot]] = {}
        self.blocks = range(self.roles.cluster.value.data)
        self.first_barrier = self.rank * _NAMED_BARRIERS
        self.turns = [0] * len(self.roles.rings)
        self.under_way: list[list[Slot]] = []

    def _place(self, op: RingOp) -> tuple[int, int, int, str]:
        """The ring of an op, its stage and phase, and the end of the names of that stage's barriers."""
        ring = op.ring.value.data
        phase, stage = divmod(self.turns[ring], list(self.roles.rings)[ring].count)
        return ring, stage, phase, f"{ring}.{stage}{_of_block(self.rank)}"

    def consume(self) -> Generator[Event]:
        """A consumer's way: the last one gives the first one its iteration."""
        block = self.roles.consumer.block
        if self.number == self.consumers - 1 and any(isinstance(op, PingPongBarrierOp) for op in block.walk()):
            yield Sync(self.first_barrier + _FIRST_TURN, 2, wait=False)
        yield from self.run(block)

    def run(self, block: Block) -> Generator[Event]:
        for op in block.ops:
            yield from self._events(op)

    def _events(self, op: Operation) -> Generator[Event]:
        match op:
            case AffineApplyOp():
                self.values[op.out] = self._size(op.value.data[0], op.indices)
            case tile.ForOp():
                lower, upper, step = (self._size(size, op.indices) for size in op.bounds.data)
                for turn, number in enumerate(range(lower, upper, step)):
                    self.values[op.block.args[0]] = number
                    yield from self.run(op.block)
                    if DYNAMIC in op.attributes:
                        yield from self._draw(turn)
            case AcquireOp() | TmaLoadOp() | CommitOp() | WaitOp() | SlotOp() | ReleaseOp():
                yield from self._of_ring(op)
            case RingToRegistersOp():
                for _ in range(op.parts):
                    yield from self._of_ring(op)
            case WgmmaOp():
                self.under_way.append([slot for o in (op.a, op.b) for slot in self.slots.get(o, ())])
            case WgmmaWaitOp():
                done = len(self.under_way) - op.pending.value.data
                for slots in self.under_way[:done]:
                    yield from map(AsyncRead, slots)
                del self.under_way[:done]
            case BarrierOp():
                yield Sync(self.first_barrier + 1, self.consumers)
            case PingPongBarrierOp():
                passes = op.kind.data == "pass"
                turn = (self.number + passes) % self.consumers
                yield Sync(self.first_barrier + _FIRST_TURN + turn, 2, wait=not passes)
            case pointer_ops.IndexOp() if op.value in self.values:
                self.values[op.out] = self.values[op.value]
            case tile.ConstantOp() | tile.PositionOp() | tile.MapOp() if not tile.tile_type(op.out).sizes:
                self._compute(op)
            case _:
                pass

    def _draw(self, turn: int) -> Generator[Event]:
        """The next program's number goes from the producer to the consumers."""
        phase, stage = divmod(turn, NUMBERS)
        place, full, empty = ("number", stage), f"full number.{stage}", f"empty number.{stage}"
        if self.produces:
            yield from (Wait(empty, phase - 1), Write(place), Arrive(full))
        else:
            yield from (Wait(full, phase), Read(place), Arrive(empty, _GROUP_WARPS))

    def _compute(self, op: tile.ConstantOp | tile.PositionOp | tile.MapOp) -> None:
        """A scalar that places or the bounds of loops may come from; others are not known."""
        match op:
            case tile.ConstantOp():
                number = from_attribute(op.value)
                if isinstance(number, int):
                    self.values[op.out] = number
            case tile.PositionOp():
                self.values[op.out] = self._size(op.offset.data[0], op.indices)
            case tile.MapOp() if all(arg in self.values for arg in op.args):
                args = [np.int64(self.values[arg]) for arg in op.args]
                same = op.function.data == "cast"
                self.values[op.out] = int(args[0] if same else FUNCTIONS[op.function.data].numpy(*args))
            case _:
                pass

    def _of_ring(self, op: RingOp) -> Generator[Event]:
        ring, stage, phase, name = self._place(op)
        type_ = list(self.roles.rings)[ring]
        match op:
            case AcquireOp():
                yield Wait(f"empty {name}", phase - 1)
                yield ExpectTx(f"full {name}", type_.stage_bytes if op.bytes is None else op.bytes.value.data)
            case TmaLoadOp():
                brought = op.part or list(type_.slots)[op.slot.value.data]
                for rank in [self.rank] if op.sharers is None else self.blocks:
                    full = f"full {ring}.{stage}{_of_block(rank)}"
                    parts = self._parts(op, stage, rank)
                    for slot in parts if op.sharers is None else [parts[self.rank]]:
                        yield AsyncCopy(slot, brought.bytes // len(self.blocks), full)
            case WaitOp():
                yield Wait(f"full {name}", phase)
            case SlotOp():
                self.slots[op.out] = self._parts(op, stage, self.rank)
            case RingToRegistersOp():
                yield Wait(f"full {name}", phase)
                yield from map(Read, self._parts(op, stage, self.rank))
                yield ProxyFence()
                yield from self._release(ring, stage)
            case ReleaseOp():
                yield from self._release(ring, stage)
            case CommitOp():
                self.turns[ring] += 1

    def _parts(self, op: TmaLoadOp | SlotOp | RingToRegistersOp, stage: int, rank: int) -> list[Slot]:
        """A slot of a block in as many parts as there are blocks, each of which may bring one."""
        return [(rank, op.ring.value.data, stage, op.slot.value.data, part) for part in self.blocks]

    def _release(self, ring: int, stage: int) -> Generator[Event]:
        for rank in self.blocks:
            yield Arrive(f"empty {ring}.{stage}{_of_block(rank)}", _GROUP_WARPS)
        self.turns[ring] += 1

    def _size(self, size: Size, operands: Sequence[SSAValue]) -> int:
        return evaluate(size, {f"d{i}": self.values[operand] for i, operand in enumerate(operands)})
