"""What the ranks of a mesh agree on before their programs run: that they were called alike, and on random numbers.

Programs of ranks that were given other shapes have collectives that do not fit, on which gloo ends the process and NCCL
waits. What ranks tell each other here goes through a group of its own, so that it never meets a program's collectives.
"""

# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist

from weft.errors import RankError
from weft.frontends.torch.collectives.failures import TIMEOUT, naming_dead_ranks
from weft.frontends.torch.transforms.random_state import RandomState


def group_timeout(group: Any = None) -> timedelta:
    """How long the ranks of a group wait for each other; without one, those of the default group."""
    group = group or dist.distributed_c10d._get_default_group()
    device = next(iter(group._device_types), torch.device("cpu"))
    options: Any = getattr(group._get_backend(device), "options", None)
    return getattr(options, "_timeout", TIMEOUT)


@dataclass(frozen=True)
class Agreement:
    """Some ranks, this one among them, and the group through which they agree; none where there is nobody to ask."""

    ranks: tuple[int, ...]
    group: dist.ProcessGroup | None

    @classmethod
    def among(cls, ranks: Sequence[int]) -> Agreement:
        if len(ranks) < 2 or dist.get_backend() == "fake":
            return cls(tuple(ranks), None)
        with naming_dead_ranks(ranks):
            made: Any = dist.new_group(
                list(ranks), group_timeout(), backend="gloo", use_local_synchronization=True, group_desc="weft"
            )
        return cls(tuple(ranks), made)

    def check(self, what: str) -> None:
        """Raise, on every rank, unless all of them say the same."""
        if self.group is None:
            return
        with naming_dead_ranks(self.ranks):
            own = torch.frombuffer(bytearray(hashlib.sha256(what.encode()).digest()), dtype=torch.uint8)
            every = [torch.empty_like(own) for _ in self.ranks]
            dist.all_gather(every, own, self.group)
            if all(torch.equal(each, own) for each in every):
                return
            said: list[Any] = [None] * len(self.ranks)
            dist.all_gather_object(said, what, self.group)
        usual = Counter(cast(list[str], said)).most_common(1)[0][0]
        odd = tuple(rank for rank, text in zip(self.ranks, said, strict=True) if text != usual)
        one, other = odd[0], self.ranks[said.index(usual)]
        raise RankError(
            f"rank {one} calls the model with {said[self.ranks.index(one)]}, and rank {other} with {usual}",
            hint="give every rank the same inputs, whole or as DTensors: the plan says who takes which part",
            ranks=odd,
        )

    def seed(self) -> int:
        """A seed that the first rank draws, for all."""
        drawn = torch.zeros(1, dtype=torch.int64)
        if dist.get_rank() == self.ranks[0]:
            drawn.random_()
        if self.group is not None:
            with naming_dead_ranks(self.ranks):
                dist.broadcast(drawn, self.ranks[0], self.group)
        return int(drawn)

    @contextmanager
    def same_random_numbers(self, device: torch.device) -> Generator[None]:
        """Let all ranks draw what the first one draws; the generators of the others stay as they are."""
        if self.group is None:
            yield
            return
        state = RandomState.before([torch.empty(0, device=device)])
        for each in (state.host, *state.devices.values()):
            with naming_dead_ranks(self.ranks):
                dist.broadcast(each, self.ranks[0], self.group)
        if dist.get_rank() == self.ranks[0]:
            yield
            return
        with state.replayed():
            yield
