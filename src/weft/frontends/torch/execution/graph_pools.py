"""Memory for CUDA graphs: the graphs of a stream share a pool of torch's, from which a capture takes what it needs."""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportPrivateUsage=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportAttributeAccessIssue=false

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Generator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any

import torch

from weft.runtime.collection import without_collection

_CAPTURING = threading.Lock()
"""One capture at a time: they share a stream."""


class GraphPool:
    """Memory that the graphs of one stream share; the lock is held while one of them runs and is copied from.

    torch gives a pool back with its last graph, and takes its handle for no other: one of nothing keeps it.
    """

    def __init__(self, device: int) -> None:
        self.device = device
        # A call may come upon another in its thread: by a signal or a finaliser. That one runs without a graph.
        self.lock, self.is_in_use = threading.RLock(), False
        self.handle, self.keeper = _new_memory(device)

    @contextmanager
    def capture(self, graph: Any) -> Generator[None]:
        """Let a graph record what is launched on the side stream, with memory of the pool's."""
        with _CAPTURING, without_collection():
            torch.cuda.synchronize(self.device)
            side = _side_stream(self.device)
            side.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(side):
                graph.capture_begin(pool=self.handle, capture_error_mode="thread_local")
                try:
                    yield
                finally:
                    try:
                        graph.capture_end()
                    except BaseException:
                        self._recover(graph)
                        raise

    def _recover(self, graph: Any) -> None:
        """Do what torch leaves undone where a capture was invalid: it gives up half-way.

        Its allocator still waits for the capture's memory, and its generators take every random number for one of the
        capture's. A capture that goes well, as that of new memory, ends this for the generators.
        """
        _FAILED.append(graph)  # torch's allocators may still ask it whether a stream is its own
        with suppress(RuntimeError):
            torch._C._cuda_endAllocateToPool(self.device, self.handle)
            torch._C._cuda_releasePool(self.device, self.handle)
        self.handle, self.keeper = _new_memory(self.device)


_FAILED: list[Any] = []
"""Graphs whose capture was invalid."""
_DROPPED: list[Any] = []
"""Graphs that were dropped while the program captured something of its own."""


class ReleasedGraph:
    """A graph of torch's that is not released inside of somebody's capture.

    torch waits for the device when a graph goes, which no capture survives, and garbage is collected at any time.
    """

    def __init__(self, graph: Any) -> None:
        _DROPPED.clear()  # here nothing is captured: a graph is about to be
        self.graph, self.is_captured = graph, torch.cuda.is_current_stream_capturing
        self.replay, self.capture_begin, self.capture_end = graph.replay, graph.capture_begin, graph.capture_end

    def __del__(self) -> None:
        if not sys.is_finalizing() and self.is_captured():
            _DROPPED.append(self.graph)


@lru_cache
def _side_stream(device: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


@lru_cache
def pool_of(device: int, stream: int) -> GraphPool:
    """The memory of all graphs of a stream; graphs of different streams may run at once, so they share none."""
    with _CAPTURING:
        return GraphPool(device)


def _new_memory(device: int) -> tuple[Any, Any]:
    """The handle of a pool of memory, and the graph of nothing that keeps it."""
    handle, keeper = torch.cuda.graph_pool_handle(), torch.cuda.CUDAGraph()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*CUDA Graph is empty.*")
        with torch.cuda.graph(keeper, pool=handle, stream=_side_stream(device), capture_error_mode="thread_local"):
            pass
    return handle, keeper
