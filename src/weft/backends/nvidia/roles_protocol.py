"""The barrier protocol of a kernel with roles, read off its ops: what `protocol.check` runs.

Stage `s` of ring `r` has the barriers `full r.s` and `empty r.s` and the slots `(r, s, 0), (r, s, 1), …`. The n-th
stage of a ring that a role uses is stage n modulo their number, in phase n over it.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from xdsl.ir import Block, Operation, SSAValue

from weft.backends.nvidia.asynchronous import (
    AcquireOp,
    BlockNumberOp,
    CommitOp,
    FillOp,
    FinishOp,
    IndexOp,
    LiftOp,
    ReleaseOp,
    RolesOp,
    SlotOp,
    TurnOp,
    WaitOp,
    WgmmaOp,
)
from weft.backends.nvidia.dialect import BarrierOp
from weft.backends.nvidia.drawn_programs import DRAWN, NUMBERS
from weft.backends.nvidia.protocol import Protocol
from weft.backends.nvidia.protocol_events import (
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
from weft.ir.attributes import from_attribute
from weft.ir.expr import Size, evaluate
from weft.tile import dialect as tile
from weft.tile import written
from weft.tile.functions import FUNCTIONS

_GROUP_WARPS, _FIRST_TURN = 4, 2
RingOp: TypeAlias = AcquireOp | FillOp | CommitOp | WaitOp | SlotOp | ReleaseOp | LiftOp


def protocol_of(
    kernel: tile.KernelOp,
    sizes: Sequence[int] = (),
    block: int = 0,
    blocks: int = 1,
    scalars: Mapping[int, int] | None = None,
    number: int = 0,
) -> Protocol:
    """What the roles of one block of the grid do.

    `scalars` are the numbers that a kernel takes, by argument; all that it reads from memory are `number`.
    """
    (roles,) = [op for op in kernel.block.ops if isinstance(op, RolesOp)]
    consumers = roles.consumers.value.data
    arguments = kernel.block.args[len(kernel.block.args) - len(kernel.size_names) :]
    known: dict[SSAValue, int] = dict(zip(arguments, sizes, strict=True))
    known.update((kernel.block.args[number], value) for number, value in (scalars or {}).items())
    for op in kernel.block.ops:
        if isinstance(op, BlockNumberOp):
            known[op.out] = {"number": block, "count": blocks}[op.kind.data]
    read = [op.out for op in kernel.walk() if isinstance(op, tile.NumberOp)]
    known.update(dict.fromkeys(read, number))
    for op in kernel.block.ops:
        if isinstance(op, IndexOp):
            names = {f"d{place}": known[operand] for place, operand in enumerate(op.indices)}
            known[op.out] = evaluate(op.value.data[0], names)
    agents = {
        f"producer {number}": list(_Role(roles, known, consumers, produces=True).run(block))
        for number, block in enumerate(roles.producers)
    }
    for number in range(consumers):
        agents[f"consumer {number}"] = list(_Role(roles, known, consumers, number).consume())
    barriers: dict[str, int] = {}
    for ring, type_ in enumerate(roles.rings):
        barriers |= {f"full {ring}.{stage}": 1 for stage in range(type_.count)}
        barriers |= {f"empty {ring}.{stage}": _GROUP_WARPS * consumers for stage in range(type_.count)}
    if kernel.counter is not None:
        barriers |= {f"full number.{stage}": 1 for stage in range(NUMBERS)}
        barriers |= {f"empty number.{stage}": _GROUP_WARPS * consumers for stage in range(NUMBERS)}
    return Protocol(agents, barriers)


@dataclass
class _Role:
    """One agent's way through the rings."""

    roles: RolesOp
    known: Mapping[SSAValue, int]
    consumers: int
    number: int = 0
    produces: bool = False

    def __post_init__(self) -> None:
        self.values = dict(self.known)
        self.slots: dict[SSAValue, tuple[int, int, int]] = {}
        self.turns = [0] * len(self.roles.rings)
        self.under_way: list[list[tuple[int, int, int]]] = []

    def _place(self, op: RingOp) -> tuple[int, int, int, str]:
        """The ring of an op, its stage and phase, and the end of the names of that stage's barriers."""
        ring = op.ring.value.data
        phase, stage = divmod(self.turns[ring], list(self.roles.rings)[ring].count)
        return ring, stage, phase, f"{ring}.{stage}"

    def consume(self) -> Generator[Event]:
        """A consumer's way: the last one gives the first one its turn."""
        block = self.roles.consumer.block
        if self.number == self.consumers - 1 and any(isinstance(op, TurnOp) for op in block.walk()):
            yield Sync(_FIRST_TURN, 2, wait=False)
        yield from self.run(block)

    def run(self, block: Block) -> Generator[Event]:
        for op in block.ops:
            yield from self._events(op)

    def _events(self, op: Operation) -> Generator[Event]:
        match op:
            case IndexOp():
                self.values[op.out] = self._size(op.value.data[0], op.indices)
            case tile.ForOp():
                lower, upper, step = (self._size(size, op.indices) for size in op.bounds.data)
                for turn, number in enumerate(range(lower, upper, step)):
                    self.values[op.block.args[0]] = number
                    yield from self.run(op.block)
                    if DRAWN in op.attributes:
                        yield from self._draw(turn)
            case AcquireOp() | FillOp() | CommitOp() | WaitOp() | SlotOp() | ReleaseOp():
                yield from self._of_ring(op)
            case LiftOp():
                for _ in range(op.parts):
                    yield from self._of_ring(op)
            case WgmmaOp():
                self.under_way.append([self.slots[o] for o in (op.a, op.b) if o in self.slots])
            case FinishOp():
                done = len(self.under_way) - op.pending.value.data
                for slots in self.under_way[:done]:
                    yield from map(AsyncRead, slots)
                del self.under_way[:done]
            case BarrierOp():
                yield Sync(1, self.consumers)
            case TurnOp():
                passes = op.kind.data == "pass"
                turn = (self.number + passes) % self.consumers
                yield Sync(_FIRST_TURN + turn, 2, wait=not passes)
            case written.IndexOp() if op.value in self.values:
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
            case FillOp():
                number = op.slot.value.data
                brought = op.part or list(type_.slots)[number]
                yield AsyncCopy((ring, stage, number), brought.bytes, f"full {name}")
            case WaitOp():
                yield Wait(f"full {name}", phase)
            case SlotOp():
                self.slots[op.out] = (ring, stage, op.slot.value.data)
            case LiftOp():
                yield Wait(f"full {name}", phase)
                yield Read((ring, stage, op.slot.value.data))
                yield ProxyFence()
                yield Arrive(f"empty {name}", _GROUP_WARPS)
                self.turns[ring] += 1
            case ReleaseOp():
                yield Arrive(f"empty {name}", _GROUP_WARPS)
                self.turns[ring] += 1
            case CommitOp():
                self.turns[ring] += 1

    def _size(self, size: Size, operands: Sequence[SSAValue]) -> int:
        return evaluate(size, {f"d{i}": self.values[operand] for i, operand in enumerate(operands)})
