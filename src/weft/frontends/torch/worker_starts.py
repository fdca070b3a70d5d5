"""When processes that help to compile for a GPU are started: for large graphs, and not where the cache has all of them.

They take as long to be ready as a large graph takes to be traced, so they are started before that. What the cache holds
is only known after it, by the traced graph's text. So the cache also notes which graphs of Dynamo's were compiled: for
one of these workers are started when a program is missing after all, for others at once.
"""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from weft.backends.nvidia.workers.pool import start_workers
from weft.config import Config
from weft.frontends.torch.devices import kind_of
from weft.runtime import stored_programs
from weft.runtime.cache import cache_key
from weft.runtime.cores import available_cores
from weft.runtime.sources import source_digest, versions

_LARGE = 150
"""Nodes of a graph that takes long enough to compile for other processes to help."""


def start_before_tracing(module: fx.GraphModule, inputs: Sequence[Any], config: Config) -> Callable[[], None]:
    """Start workers for a graph of Dynamo's that was not compiled before; returns what notes that it is now."""
    if not _is_large(module, config) or kind_of(inputs) != "cuda":
        return _nothing
    cache, key = stored_programs.disk_cache(), _key(module, inputs, config) if config.cache else None
    if key is not None and cache.get(key) is not None:
        return _nothing
    start_workers(available_cores())
    return _nothing if key is None else lambda: cache.put(key, {"compiled": True}, {})


def start_for_missing(module: fx.GraphModule, config: Config, device: torch.device) -> None:
    """Start workers, unless there are some, for a traced graph that the cache does not have."""
    if _is_large(module, config) and device.type == "cuda":
        start_workers(available_cores())


def _is_large(module: fx.GraphModule, config: Config) -> bool:
    return config.workers and len(module.graph.nodes) >= _LARGE


def _key(module: fx.GraphModule, inputs: Sequence[Any], config: Config) -> str:
    lies = [
        f"{value.dtype} {tuple(value.shape)} {value.requires_grad}" if isinstance(value, torch.Tensor) else str(value)
        for value in inputs
    ]
    made_with = (*versions(), torch.__version__, str(torch.is_grad_enabled()))
    return cache_key("graph of Dynamo's", module.code, "\n".join(lies), config.key(), made_with, source_digest())


def _nothing() -> None:
    pass
