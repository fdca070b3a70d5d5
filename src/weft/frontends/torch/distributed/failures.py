"""Who is missing when a collective fails: a rank that died is named, and nobody waits for it for ever."""

# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from weft.errors import RankError

TIMEOUT = timedelta(seconds=45)
"""How long a rank waits for the others in a collective."""
_ANSWER = timedelta(seconds=8)
"""How long the living have to say so, after a collective has failed."""


@contextmanager
def naming_dead_ranks() -> Iterator[None]:
    """Turns the error of a collective into one that says which ranks do not answer."""
    try:
        yield
    except (RuntimeError, dist.DistBackendError) as error:
        if isinstance(error, RankError | torch.OutOfMemoryError) or not _of_a_collective(error):
            raise
        missing = silent_ranks()
        who = f"rank {missing[0]} does" if len(missing) == 1 else f"ranks {', '.join(map(str, missing))} do"
        what = f"{who} not answer" if missing else "a collective failed, though all ranks answer"
        raise RankError(
            f"{what}; this is rank {dist.get_rank()} of {dist.get_world_size()}",
            hint=f"look at that rank's own output; torch.distributed says: {str(error).partition(chr(10))[0]}",
            ranks=tuple(missing),
        ) from error


def _of_a_collective(error: BaseException) -> bool:
    words = ("gloo", "NCCL", "Connection closed", "Connection reset", "timeout", "Timed out", "process group", "c10d")
    return dist.is_initialized() and any(word.lower() in str(error).lower() for word in words)


def silent_ranks() -> list[int]:
    """The ranks that do not say that they live within a few seconds."""
    try:
        store = dist.distributed_c10d._get_default_store()
        store.set_timeout(_ANSWER)
        store.set(f"weft/alive/{dist.get_rank()}", "1")
    except RuntimeError:
        return [0]  # who keeps the store is gone
    found: list[int] = []
    for rank in range(dist.get_world_size()):
        try:
            store.wait([f"weft/alive/{rank}"], timedelta(seconds=1) if found else _ANSWER)
        except RuntimeError:
            found.append(rank)
    return found
