"""The barrier protocol of a kernel with roles, read off its ops: what `protocol.check` runs.

A stage `s` has the barriers `full s` and `empty s` and the slots `(s, 0), (s, 1), …`. The n-th stage that a role uses
is stage n modulo their number, in phase n over it.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass

from xdsl.ir import Block, Operation, SSAValue

from weft.backends.nvidia.asynchronous import (
    AcquireOp,
    BlockNumberOp,
    CommitOp,
    FillOp,
    IndexOp,
    ReleaseOp,
    RolesOp,
    SlotOp,
    WaitOp,
    WgmmaOp,
)
from weft.backends.nvidia.dialect import BarrierOp
from weft.backends.nvidia.protocol import Protocol
from weft.backends.nvidia.protocol_events import Arrive, AsyncCopy, AsyncRead, Event, ExpectTx, Sync, Wait
from weft.ir.expr import Size, evaluate
from weft.tile import dialect as tile

_GROUP_WARPS = 4


def protocol_of(kernel: tile.KernelOp, sizes: Sequence[int] = (), block: int = 0, blocks: int = 1) -> Protocol:
    """What the roles of one block of the grid do."""
    (roles,) = [op for op in kernel.block.ops if isinstance(op, RolesOp)]
    stages, consumers = roles.stages.value.data, roles.consumers.value.data
    arguments = kernel.block.args[len(kernel.block.args) - len(kernel.size_names) :]
    known: dict[SSAValue, int] = dict(zip(arguments, sizes, strict=True))
    for op in kernel.block.ops:
        if isinstance(op, BlockNumberOp):
            known[op.out] = {"number": block, "count": blocks}[op.kind.data]
    agents = {"producer": list(_Role(roles, known, consumers).run(roles.producer.block))}
    for number in range(consumers):
        agents[f"consumer {number}"] = list(_Role(roles, known, consumers).run(roles.consumer.block))
    barriers = {f"full {stage}": 1 for stage in range(stages)}
    barriers |= {f"empty {stage}": _GROUP_WARPS * consumers for stage in range(stages)}
    return Protocol(agents, barriers)


@dataclass
class _Role:
    """One agent's way through the ring."""

    roles: RolesOp
    known: Mapping[SSAValue, int]
    consumers: int
    turn: int = 0

    def __post_init__(self) -> None:
        self.values = dict(self.known)
        self.slots: dict[SSAValue, tuple[int, int]] = {}

    @property
    def stage(self) -> int:
        return self.turn % self.roles.stages.value.data

    @property
    def phase(self) -> int:
        return self.turn // self.roles.stages.value.data

    def run(self, block: Block) -> Generator[Event]:
        for op in block.ops:
            yield from self._events(op)

    def _events(self, op: Operation) -> Generator[Event]:
        slots = list(self.roles.slots)
        match op:
            case IndexOp():
                self.values[op.out] = self._size(op.value.data[0], op.indices)
            case tile.ForOp():
                lower, upper, step = (self._size(size, op.indices) for size in op.bounds.data)
                for number in range(lower, upper, step):
                    self.values[op.block.args[0]] = number
                    yield from self.run(op.block)
            case AcquireOp():
                yield Wait(f"empty {self.stage}", self.phase - 1)
                yield ExpectTx(f"full {self.stage}", sum(slot.bytes for slot in slots))
            case FillOp():
                number = op.slot.value.data
                yield AsyncCopy((self.stage, number), slots[number].bytes, f"full {self.stage}")
            case WaitOp():
                yield Wait(f"full {self.stage}", self.phase)
            case SlotOp():
                self.slots[op.out] = (self.stage, op.slot.value.data)
            case WgmmaOp():
                yield AsyncRead(self.slots[op.a])
                yield AsyncRead(self.slots[op.b])
            case ReleaseOp():
                yield Arrive(f"empty {self.stage}", _GROUP_WARPS)
                self.turn += 1
            case CommitOp():
                self.turn += 1
            case BarrierOp():
                yield Sync(1, self.consumers)
            case _:
                pass

    def _size(self, size: Size, operands: Sequence[SSAValue]) -> int:
        return evaluate(size, {f"d{i}": self.values[operand] for i, operand in enumerate(operands)})
