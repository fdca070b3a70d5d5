"""What the agents of a barrier protocol do, and what can be wrong with it."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TypeAlias

from weft.backends.nvidia.check.simulator_memory import SimulationError


class DeadlockError(SimulationError):
    """Nobody can go on."""


class PhaseError(SimulationError):
    """A barrier in another phase than an agent takes it to be in, or used in another way than by others."""


class TransactionError(SimulationError):
    """A barrier that waits for more bytes than come, or for fewer."""


class ProxyError(SimulationError):
    """The asynchronous proxy may not see what was written before: `fence.proxy.async` is missing."""


@dataclass(frozen=True)
class Wait:
    """Wait until a phase of an mbarrier is complete: they count from 0, and -1 passes at once.

    The GPU is told only a parity; `parity` is there where it is not that of the phase.
    """

    barrier: str
    phase: int
    parity: int | None = None


@dataclass(frozen=True)
class Arrive:
    """Arrive at an mbarrier, for so many threads or warps."""

    barrier: str
    count: int = 1


@dataclass(frozen=True)
class ExpectTx:
    """Arrive, and announce bytes."""

    barrier: str
    bytes: int


@dataclass(frozen=True)
class AsyncCopy:
    """Let TMA fill a slot; the bytes are counted at a barrier when they have landed."""

    slot: Hashable
    bytes: int
    barrier: str


@dataclass(frozen=True)
class AsyncStore:
    """Let TMA read a slot, as a group of its own."""

    slot: Hashable


@dataclass(frozen=True)
class WaitStores:
    """Wait until TMA has read all but the last so many groups of this agent."""

    left: int = 0


@dataclass(frozen=True)
class AsyncRead:
    """Read a slot by the asynchronous proxy and wait for it, as wgmma does."""

    slot: Hashable


@dataclass(frozen=True)
class Read:
    slot: Hashable


@dataclass(frozen=True)
class Write:
    slot: Hashable


@dataclass(frozen=True)
class ProxyFence:
    """What this agent did before is seen by the asynchronous proxy."""


@dataclass(frozen=True)
class Sync:
    """A named barrier of so many agents; `wait` is false for those that only arrive."""

    number: int
    agents: int
    wait: bool = True


Event: TypeAlias = (
    Wait | Arrive | ExpectTx | AsyncCopy | AsyncStore | WaitStores | AsyncRead | Read | Write | ProxyFence | Sync
)
