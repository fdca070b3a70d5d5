"""Runs a function on several ranks of gloo, forked from a server that has imported all there is to import.

This process itself may not be forked any more: where autograd has started its threads, a child cannot train.
"""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from collections.abc import Callable
from queue import Empty
from typing import Any

import torch
import torch.distributed as dist

from weft.frontends.torch.collectives.failures import TIMEOUT


def on_ranks(count: int, function: Callable[..., Any], *arguments: Any, seconds: float = 300) -> list[Any]:
    """What the function returns on each rank, given its number and the arguments.

    A rank that raised gives the text, one whose process ended before it could return gives None.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([f"{__package__}.preloaded", function.__module__])
    queue: Any = context.Queue()
    # No rank leaves before all have ended: others may still be waiting for what it sends.
    ended = context.Event()
    store = meeting_place()
    # The server may have seen another environment than this process has by now. As under torchrun, ranks meet at a
    # store that none of them keeps.
    meet = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "WORLD_SIZE": str(count),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCH_DIST_INIT_BARRIER": "1",  # none leaves a group that others are still connecting to
    }
    ranks = [
        context.Process(target=_rank, args=(n, count, meet, queue, ended, function, arguments)) for n in range(count)
    ]
    for rank in ranks:
        rank.start()
    results: dict[int, Any] = {}
    end = time.monotonic() + seconds
    try:
        while len(results) < count:
            lived = any(rank.is_alive() for number, rank in enumerate(ranks) if number not in results)
            try:
                number, result = queue.get(timeout=1)
                results[number] = result
            except Empty:
                if time.monotonic() > end:
                    raise TimeoutError(f"ranks {sorted(set(range(count)) - set(results))} gave nothing") from None
                if not lived:
                    break
    finally:
        ended.set()
        for rank in ranks:
            rank.join(timeout=5)
            if rank.is_alive():
                rank.kill()
    return [results.get(number) for number in range(count)]


def meeting_place() -> dist.TCPStore:
    """A store at a port of its own, which no other process can take in between."""
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def _rank(
    number: int,
    count: int,
    environment: dict[str, str],
    queue: Any,
    ended: Any,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    torch.set_num_threads(1)
    os.environ |= {**environment, "RANK": str(number)}
    try:
        dist.init_process_group("gloo", rank=number, world_size=count, timeout=TIMEOUT)
        result = function(number, *arguments)
    except BaseException:
        result = traceback.format_exc()
    queue.put((number, result))
    queue.close()
    queue.join_thread()
    ended.wait()
    os._exit(0)
