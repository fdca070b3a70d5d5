"""What fits: weights, activations and communicators first, and what is left for the cache."""

from __future__ import annotations

from dataclasses import dataclass

from weft.planner.hardware import Gpu
from weft.planner.mapping import Mapping
from weft.planner.model import Model
from weft.planner.program import RankProgram

FRACTION = 0.9
"""The part of a GPU's memory that an engine takes: the default of the engines."""


@dataclass(frozen=True)
class CacheRule:
    """How an engine sizes its cache where it is told nothing else."""

    of_free: bool = False
    """Whether the fraction is of what weights and activations leave, not of all memory."""
    whole_windows: bool = False
    """Whether layers with a window keep all tokens all the same."""


CACHE_RULES = {"trtllm": CacheRule(of_free=True, whole_windows=True)}
"""Engines whose caches are not as `CacheRule()` says. TensorRT-LLM's `KvCacheConfig`: `free_gpu_memory_fraction` is a
part of free memory, and without `max_attention_window` every layer keeps every token."""


@dataclass(frozen=True)
class Memory:
    """A rank's memory, in bytes, and the tokens of cache that a replica has."""

    weights: float
    activations: float
    communicators: float
    cache: float
    total: float
    cache_tokens: int
    per_sequence: float
    """Bytes that a sequence takes whatever its length: states and windows."""

    @property
    def fits(self) -> bool:
        return self.cache > 0 and self.cache_tokens > 0

    def sequences(self, length: float) -> int:
        """Sequences of so many tokens that fit at a time."""
        return int(self.cache_tokens // max(length, 1.0))


def memory(
    model: Model,
    program: RankProgram,
    mapping: Mapping,
    gpu: Gpu,
    tokens: int,
    fraction: float = FRACTION,
    rule: CacheRule | None = None,
) -> Memory:
    """A rank's memory with steps of so many tokens on each rank of attention."""
    rule = rule or CacheRule()
    total = gpu.memory * fraction
    widest = 4.0 * model.hidden + model.vocabulary / mapping.tp / 64
    activations = tokens * widest * 2.0
    ranks = mapping.gpus
    communicators = 0.0 if ranks == 1 else 400e6
    cache = total - program.weight_bytes - activations - communicators
    if rule.of_free:
        cache = (gpu.memory - program.weight_bytes - activations - communicators) * fraction
    windows = () if rule.whole_windows else program.window_tokens
    growing = program.kv_bytes_per_token - sum(size for _, size in windows)
    fixed = program.state_bytes_per_sequence + sum(window * size for window, size in windows)
    per_token = growing if growing > 0 else program.kv_bytes_per_token
    count = int(cache / per_token) * mapping.dp if cache > 0 and per_token > 0 else 0
    if cache > 0 and per_token <= 0:
        count = int(cache / max(fixed, 1.0)) * 1024
    return Memory(program.weight_bytes, activations, communicators, cache, total, count, fixed)


def resident(
    found: Memory, program: RankProgram, mapping: Mapping, length: float, rule: CacheRule | None = None
) -> int:
    """Sequences of so many tokens that a replica holds at a time, with what each takes whatever its length."""
    windows = () if rule is not None and rule.whole_windows else program.window_tokens
    growing = program.kv_bytes_per_token - sum(size for _, size in windows)
    held = growing * length + sum(min(window, length) * size for window, size in windows)
    each = held + program.state_bytes_per_sequence
    return int(found.cache / each) * mapping.dp if each > 0 else 0
