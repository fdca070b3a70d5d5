"""Times of attention from the tables: prompts by their length, decoding by batch and context, latent attention too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.planner.grids import Grid, at_sites, captured, filled
from weft.planner.hardware import Gpu
from weft.planner.op_costs import FLOOR, OpCosts
from weft.planner.program import Attention
from weft.planner.tables import Array, Columns

LENGTHS: Array = np.array(
    [
        1,
        16,
        64,
        128,
        256,
        512,
        1024,
        1536,
        2048,
        3072,
        4096,
        6144,
        8192,
        10240,
        12288,
        16384,
        32768,
        65536,
        131072,
        262144,
        524288,
        1048576,
        4194304,
        16777216,
    ],
    dtype=np.float64,
)
BATCHES: Array = 2.0 ** np.arange(13)


@dataclass(frozen=True)
class Surface:
    """Times over batch and length, and the step of the ladder that they are from."""

    batches: Array
    lengths: Array
    seconds: Array
    source: str


def attended(op: Attention, length: Any) -> Any:
    """The tokens that one query looks at, at most."""
    seen = length
    if op.window:
        seen = np.minimum(seen, op.window)
    return np.minimum(seen, op.limit) if op.limit else seen


def decode_roofline(gpu: Gpu, op: Attention, batch: Any, length: Any, kv: float) -> Array:
    """Reading the cache once, or multiplying with it."""
    seen = attended(op, length)
    if op.latent:
        moved = batch * seen * (op.latent + op.rope_dim) * kv
        flops = 2.0 * batch * seen * op.heads * (2 * op.latent + op.rope_dim)
    else:
        moved = batch * seen * op.kv_heads * (op.head_dim + op.value_dim) * kv
        flops = 2.0 * batch * seen * op.heads * (op.head_dim + op.value_dim)
    queries = batch * op.heads * (op.head_dim + op.value_dim) * 2.0
    return np.maximum((moved + queries) / gpu.bandwidth, flops / gpu.bf16)


def prefill_roofline(gpu: Gpu, op: Attention, batch: Any, length: Any, dtype: str = "bf16") -> Array:
    """Causal: half of the products, fewer with a window; each element of queries, keys and values once."""
    seen = attended(op, length)
    pairs = batch * (length * seen - seen * (seen - 1) / 2.0)
    flops = 2.0 * pairs * op.heads * (op.head_dim + op.value_dim)
    moved = (
        2.0 * batch * length * (op.heads * (op.head_dim + op.value_dim) + op.kv_heads * (op.head_dim + op.value_dim))
    )
    return np.maximum(flops / gpu.flops(dtype), moved / gpu.bandwidth)


@dataclass(frozen=True)
class AttentionCosts:
    """Prices attention; a cache's format is `kv`, as the tables call it."""

    costs: OpCosts
    kv: str = "bfloat16"

    @property
    def kv_bytes(self) -> float:
        return 1.0 if self.kv == "fp8" else 2.0

    def decode(self, op: Attention) -> Surface:
        return self._surface(op, "mla" if op.latent else "attention", "generation")

    def prefill(self, op: Attention) -> Surface:
        return self._surface(op, "mla" if op.latent else "attention", "context")

    def roofline(self, gpu: Gpu, op: Attention, phase: str, batch: Any, length: Any) -> Array:
        if phase == "generation":
            return decode_roofline(gpu, op, batch, length, self.kv_bytes)
        return prefill_roofline(gpu, op, batch, length)

    def _surface(self, op: Attention, kind: str, phase: str) -> Surface:
        kept = self.costs.grids
        key = (
            "surface",
            phase,
            self.kv,
            op.heads,
            op.kv_heads,
            op.head_dim,
            op.value_dim,
            op.window,
            op.latent,
            op.limit,
        )
        if key not in kept:
            kept[key] = self._find(op, kind, phase)
        return kept[key]

    def _find(self, op: Attention, kind: str, phase: str) -> Surface:
        gpu, reference = self.costs.gpu, self.costs.reference
        batch, length = BATCHES[:, None], LENGTHS[None, :]
        here = self.roofline(gpu, op, phase, batch, length)
        sites = self._sites(kind, phase)
        if not sites:
            return Surface(BATCHES, LENGTHS, np.maximum(here, 2 * FLOOR), "roofline")
        nearest, distance = _nearest(op, sites)
        measured = sites[nearest]
        like = _like(op, nearest, kind)
        xs, ys, times = measured
        work = self.roofline(reference, like, phase, xs[:, None], ys[None, :])[..., None]
        grid = filled(Grid(xs, ys, times[..., None], work, by_work=True))
        bound = self.roofline(reference, like, phase, batch, length)
        seconds = np.array(
            [[grid.at(b, n, bound[i, j : j + 1])[0][0] for j, n in enumerate(LENGTHS)] for i, b in enumerate(BATCHES)]
        )
        if distance == 0 and not self.costs.moved and not op.limit:
            return Surface(BATCHES, LENGTHS, seconds, "interpolated")
        # The least that the nearest shape takes is what starting it takes, on this shape too.
        least = float(np.nanmin(seconds))
        work = np.maximum(seconds - least, 0.0)
        return Surface(BATCHES, LENGTHS, least + work * here / np.maximum(bound, 1e-30), "transferred")

    def _sites(self, kind: str, phase: str) -> Mapping[tuple[int, ...], tuple[Array, Array, Array]]:
        key = ("sites", kind, phase, self.kv)
        if key not in self.costs.grids:
            self.costs.grids[key] = self._read(kind, phase)
        return self.costs.grids[key]

    def _read(self, kind: str, phase: str) -> Mapping[tuple[int, ...], tuple[Array, Array, Array]]:
        table = self.costs.table(f"{phase}_{kind}")
        if table is None or self.costs.tables is None:
            return {}
        own = attention_sites(table, kind, phase, self.kv)
        least = min(float(np.nanmin(times)) for _, _, times in own.values())
        others = [each.table(f"{phase}_{kind}") for each in self.costs.tables.siblings]
        if not any(each is not None and float(each["latency"].min()) * 1e-3 * 5 < least for each in others):
            return own
        found = [attention_sites(each, kind, phase, self.kv) for each in others if each is not None]
        return {
            shape: (
                xs,
                ys,
                captured(
                    times, [at_sites(each[shape][2], each[shape][:2], (xs, ys)) for each in found if shape in each]
                ),
            )
            for shape, (xs, ys, times) in own.items()
        }


def attention_sites(
    table: Columns, kind: str, phase: str, kv: str
) -> dict[tuple[int, ...], tuple[Array, Array, Array]]:
    """Measured times by shape: (heads, KV heads, head size, window), or (heads,) of latent attention."""
    chosen = table["kv_cache_dtype"] == kv
    if phase == "context" and kind == "attention":
        chosen = chosen & (table["attn_dtype"] == "bfloat16")
    if not chosen.any():
        chosen = np.ones(len(table["latency"]), dtype=bool)
    names = ("num_heads",) if kind == "mla" else ("num_heads", "num_key_value_heads", "head_dim", "window_size")
    shapes = np.stack([table[name][chosen].astype(np.int64) for name in names], axis=1)
    batch = table["batch_size"][chosen].astype(float)
    length = table["isl" if phase == "context" else "step"][chosen].astype(float) + (phase == "generation")
    seconds = table["latency"][chosen].astype(float) * 1e-3
    found: dict[tuple[int, ...], tuple[Array, Array, Array]] = {}
    unique, which = np.unique(shapes, axis=0, return_inverse=True)
    order = np.argsort(which, kind="stable")
    for shape, rows in zip(unique, np.split(order, np.flatnonzero(np.diff(which[order])) + 1), strict=True):
        xs, ys = np.unique(batch[rows]), np.unique(length[rows])
        times = np.full((len(xs), len(ys)), np.inf)
        np.minimum.at(times, (np.searchsorted(xs, batch[rows]), np.searchsorted(ys, length[rows])), seconds[rows])
        times[~np.isfinite(times)] = np.nan
        found[tuple(int(each) for each in shape)] = (xs, ys, times)
    return found


def _nearest(op: Attention, sites: Mapping[tuple[int, ...], Any]) -> tuple[tuple[int, ...], float]:
    wanted = (op.heads,) if op.latent else (op.heads, op.kv_heads, op.head_dim, op.window)

    def distance(shape: tuple[int, ...]) -> float:
        far = sum(abs(np.log2(max(a, 1) / max(b, 1))) for a, b in zip(wanted[:3], shape[:3], strict=True))
        if len(wanted) > 3:
            far += 0.5 * abs(np.log2((wanted[3] or 65536) / (shape[3] or 65536)))
            far += 4.0 * ((wanted[0] == wanted[1]) != (shape[0] == shape[1]))
        return float(far)

    best = min(sites, key=distance)
    return best, distance(best)


def _like(op: Attention, shape: tuple[int, ...], kind: str) -> Attention:
    """The operation that was measured; latent attention was, in DeepSeek-V3's sizes."""
    if kind == "mla":
        return Attention(op.name, shape[0], shape[0], 192, 128, latent=512, rope_dim=64)
    return Attention(op.name, shape[0], shape[1], shape[2], shape[2], window=shape[3])


def site_grids(costs: AttentionCosts, kind: str, phase: str) -> list[Grid]:
    """Every measured shape as a grid, to leave sites out of."""
    table = costs.costs.table(f"{phase}_{kind}")
    found: list[Grid] = []
    for shape, (xs, ys, times) in ({} if table is None else attention_sites(table, kind, phase, costs.kv)).items():
        like = _like(Attention("", 1, 1, 1, 1), shape, kind)
        work = costs.roofline(costs.costs.reference, like, phase, xs[:, None], ys[None, :])
        found.append(Grid(xs, ys, times[..., None], work[..., None], by_work=True))
    return found
