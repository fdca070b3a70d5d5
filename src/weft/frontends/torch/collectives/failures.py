"""Who is missing when a collective fails: a rank that died is named, and nobody waits for it for ever."""

# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from threading import Thread
from time import sleep
from typing import Any

import torch
import torch.distributed as dist
from torch import fx

from weft.errors import RankError
from weft.frontends.torch.execution.first_call import Boxed

TIMEOUT = timedelta(seconds=45)
"""How long a rank waits for the others in a collective, unless the user says otherwise."""
_ANSWER = timedelta(seconds=8)
"""How long the living have to say so, after a collective has failed."""
_POLL = 0.5
"""Seconds between two looks at whether somebody asks."""
_REDUCTIONS = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor")
_calls: Counter[tuple[int, ...]] = Counter()
"""How many calls of programs the ranks of a mesh have begun: all of them begin the same ones."""


@contextmanager
def naming_dead_ranks(ranks: Sequence[int]) -> Generator[None]:
    """Turns the error of a collective among these ranks into one that says which of them do not answer."""
    among = tuple(ranks)
    _calls[among] += 1
    _answer_others(among)
    try:
        yield
    except (RuntimeError, dist.DistBackendError) as error:
        if isinstance(error, RankError | torch.OutOfMemoryError) or not _of_a_collective(error):
            raise
        missing = silent_ranks(among, _calls[among])
        behind = [] if missing else ranks_behind(among, _calls[among])
        if missing:
            what = f"{_numbered(missing, 'does', 'do')} not answer"
        elif behind:
            what = f"{_numbered(behind, 'lives but has', 'live but have')} not come to this call"
        else:
            what = "a collective failed, though all ranks answer"
        raise RankError(
            f"{what}; this is rank {dist.get_rank()} of {dist.get_world_size()}",
            hint=f"look at that rank's own output; torch.distributed says: {str(error).partition(chr(10))[0]}",
            ranks=tuple(missing or behind),
        ) from error


def _numbered(ranks: Sequence[int], one: str, many: str) -> str:
    return f"rank {ranks[0]} {one}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))} {many}"


def naming_dead_ranks_of(call: Boxed, module: fx.GraphModule) -> Boxed:
    """The callable of a captured graph; where that has collectives, their errors say which ranks do not answer."""
    groups = {
        argument
        for node in module.graph.nodes
        if isinstance(node.target, torch._ops.OpOverload) and node.target.namespace == "_c10d_functional"
        for argument in node.args
        if isinstance(argument, str) and argument.lower() not in _REDUCTIONS
    }
    if not groups:
        return call
    from torch.distributed import distributed_c10d as c10d

    resolve: Any = c10d._resolve_process_group  # pyright: ignore[reportPrivateImportUsage]
    ranks = sorted({rank for group in groups for rank in dist.get_process_group_ranks(resolve(group))})

    def called(arguments: list[Any]) -> Sequence[Any]:
        with naming_dead_ranks(ranks):
            return call(arguments)

    called._boxed_call = True  # pyright: ignore[reportFunctionMemberAccess]
    return called


def _of_a_collective(error: BaseException) -> bool:
    words = ("gloo", "NCCL", "Connection closed", "Connection reset", "timeout", "Timed out", "process group", "c10d")
    return dist.is_initialized() and any(word.lower() in str(error).lower() for word in words)


_answering: dict[tuple[int, ...], Any] = {}


def _answer_others(ranks: tuple[int, ...]) -> None:
    """Say that this rank lives whenever one of these asks, though it may itself be waiting for another: those that a
    failure has not reached yet are not dead."""
    if not dist.is_initialized() or dist.get_backend() == "fake":
        return
    store: Any = dist.distributed_c10d._get_default_store()
    if _answering.get(ranks) is store:
        return
    _answering[ranks] = store
    try:
        own = store.clone()
    except (RuntimeError, NotImplementedError, AttributeError):
        return  # a store of another kind: ranks answer when they fail
    Thread(target=_answer, args=(own, ranks, dist.get_rank()), daemon=True, name="weft-answers").start()


def _answer(store: Any, ranks: tuple[int, ...], rank: int) -> None:
    said = b""
    try:
        while True:
            sleep(_POLL)
            if store.check([_asked(ranks)]) and (call := store.get(_asked(ranks))) != said:
                store.set(f"{_topic(ranks, int(call))}/{rank}", str(_calls[ranks]))
                said = call
    except RuntimeError:
        return  # who keeps the store is gone


def _topic(ranks: Sequence[int], call: int) -> str:
    return f"weft/alive/{'.'.join(map(str, ranks))}/{call}"


def _asked(ranks: Sequence[int]) -> str:
    return f"weft/asked/{'.'.join(map(str, ranks))}"


def silent_ranks(ranks: Sequence[int], call: int) -> list[int]:
    """The ranks that do not say within a few seconds that they live.

    What they say is of one call: an answer after an earlier failure is none after this one.
    """
    topic = _topic(ranks, call)
    try:
        store: Any = dist.distributed_c10d._get_default_store()  # its stub lacks the timeout
        before = store.timeout
        store.set_timeout(_ANSWER)
    except RuntimeError:
        return [0]  # who keeps the store is gone
    try:
        store.set(f"{topic}/{dist.get_rank()}", str(call))
        store.set(_asked(ranks), str(call))
        found = _verdict(store, topic)
        if found is None:
            found = _without_answer(store, topic, ranks)
            store.set(f"{topic}/missing", ",".join(map(str, found)))
        store.set(f"{topic}/told/{dist.get_rank()}", "1")
        if dist.get_rank() == 0:
            _stay_for(store, topic, [rank for rank in ranks if rank not in found])
        return found
    except RuntimeError:
        return [0]
    finally:
        store.set_timeout(before)


def ranks_behind(ranks: Sequence[int], call: int) -> list[int]:
    """Of ranks that all have answered, those that had not begun this call when they did."""
    try:
        store: Any = dist.distributed_c10d._get_default_store()
        return [rank for rank in ranks if int(store.get(f"{_topic(ranks, call)}/{rank}")) < call]
    except RuntimeError:
        return []


def _verdict(store: Any, topic: str) -> list[int] | None:
    """Who is missing, if another rank has found out already."""
    if not store.check([f"{topic}/missing"]):
        return None
    return [int(word) for word in store.get(f"{topic}/missing").decode().split(",") if word]


def _stay_for(store: Any, topic: str, ranks: Sequence[int]) -> None:
    """Who keeps the store is the last to leave: the others ask it yet."""
    try:
        store.wait([f"{topic}/told/{rank}" for rank in ranks], _ANSWER)
    except RuntimeError:
        return  # they have not noticed, and find the store gone


def _without_answer(store: Any, topic: str, ranks: Sequence[int]) -> list[int]:
    found: list[int] = []
    for rank in ranks:
        try:
            store.wait([f"{topic}/{rank}"], timedelta(seconds=1) if found else _ANSWER)
        except RuntimeError:
            found.append(rank)
    return found
