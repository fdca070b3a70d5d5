"""Times of single operations by a ladder, and which step of it gave each.

1. `measured`: the very shape is in the tables, at each of their rows; 2. `interpolated`: between measured shapes;
3. `transferred`: the share of the roofline that the nearest measured shapes reach, at this shape or on this GPU;
4. `roofline`: a bound, with a band. All curves are over the rows of a step, in seconds; a curve is of the step of its
least sure row.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from weft.planner.grids import Grid, at_sites, captured, filled
from weft.planner.hardware import Gpu
from weft.planner.program import BYTES, WIDENED, Elementwise, Gemm, LinearAttention
from weft.planner.tables import Array, Columns, KernelTables

ROWS: Array = np.array(
    [
        *(1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 448, 512, 640, 768),
        *(1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 32768, 65536),
    ],
    dtype=np.float64,
)
"""The rows at which curves are kept; between them times are linear."""
BANDS = {"measured": 0.03, "interpolated": 0.05, "transferred": 0.20, "roofline": 0.60, "specification": 0.50}
"""The part by which a time of each step is taken to be off. `interpolated` is over twice the median error of sites left
out of public tables (`weft plan --evaluate`: 1.6 to 2.0 %; one in ten matmuls is off by 9 % or more). The others are
assumptions that no measurement here stands behind: `measured` for runs that differ, the rest for how far they reach."""
DTYPES = {
    "bf16": "bfloat16",
    "fp8": "fp8",
    "fp8_block": "fp8_block",
    "nvfp4": "fp8",
    "int4": "int4_wo",
    "mxfp4": "w4a16_mxfp4",
}
"""What tables call a format."""
STREAMED = 0.83
"""The share of an H200's bandwidth that Weft's own norm kernel reaches (`weft bench gpu`, add_rms_norm: 3.99 TB/s)."""
FLOOR = 2.4e-6
"""The shortest kernel in any table of GEMMs: what starting and ending one takes."""


def over_rows(rows: Any, seconds: Array) -> Any:
    """Times over `ROWS` at any rows: linear between them, and on beyond the last, where work is all that grows."""
    wanted = np.asarray(rows, dtype=float)
    slope = (seconds[-1] - seconds[-2]) / (ROWS[-1] - ROWS[-2])
    return np.interp(wanted, ROWS, seconds) + np.maximum(wanted - ROWS[-1], 0.0) * slope


@dataclass(frozen=True)
class Curve:
    """Times over `ROWS` and the step of the ladder that they are from."""

    seconds: Array
    source: str

    def at(self, rows: Any) -> Any:
        return over_rows(rows, self.seconds)


@dataclass
class OpCosts:
    """Prices operations on one GPU with one engine's tables; every answer is kept."""

    gpu: Gpu
    tables: KernelTables | None
    reference: Gpu
    """The GPU that the tables were measured on."""
    static_scales: bool = True
    """fp8 with scales of the checkpoint: no time goes into computing them."""
    distribution: str = "power_law_1.01"
    sustained: bool = False
    """Whether matmuls keep to the clocks that a GPU has under load: in training, which never pauses, and with tables of
    short runs."""
    kept: dict[Any, Curve] = field(default_factory=dict[Any, Curve])
    grids: dict[Any, Any] = field(default_factory=dict[Any, Any])

    @cached_property
    def moved(self) -> bool:
        """Whether the tables are another GPU's, so that only shares of the roofline are taken from them."""
        return not (self.gpu.bandwidth == self.reference.bandwidth and self.gpu.bf16 == self.reference.bf16)

    def table(self, name: str) -> Columns | None:
        return None if self.tables is None else self.tables.table(name)

    def _moved(self, seconds: Array, here: Array, there: Array, source: str) -> Curve:
        """Times of the tables' GPU on this one, by its roofline."""
        if not self.moved:
            return Curve(seconds, source)
        return Curve(np.maximum(seconds * here / there, FLOOR), "transferred")

    # --- matmuls ---------------------------------------------------------------------------------------------------

    def gemm(self, op: Gemm) -> Curve:
        key = ("gemm", op.n, op.k, op.weights)
        if key not in self.kept:
            self.kept[key] = self._sustained(self._gemm(op.n, op.k, op.weights), op)
        return self.kept[key]

    def _sustained(self, curve: Curve, op: Gemm) -> Curve:
        """No less than a matmul in bf16 takes when the GPU has been at work for a while."""
        if not self.sustained or self.gpu.flops(op.weights) != self.gpu.bf16:
            return curve
        least = 2.0 * ROWS * op.n * op.k / (self.gpu.bf16 * self.gpu.sustained)
        return replace(curve, seconds=np.maximum(curve.seconds, least))

    def _gemm(self, n: int, k: int, weights: str) -> Curve:
        here = gemm_roofline(self.gpu, ROWS, n, k, weights)
        there = gemm_roofline(self.reference, ROWS, n, k, weights)
        dtype = "bf16" if weights in WIDENED else weights
        grid = self.gemm_grid(dtype)
        if grid is None:
            return Curve(np.maximum(here, FLOOR), "roofline")
        rows, sites = grid
        curve, source = sites.at(n, k, gemm_roofline(self.reference, rows, n, k, dtype))
        seconds = np.interp(ROWS, rows, curve)
        beyond = rows[-1] < ROWS
        seconds[beyond] = seconds[~beyond][-1] * (there / there[~beyond][-1])[beyond]
        if dtype == "fp8" and self.static_scales:
            seconds = np.maximum(seconds - self._scales(k), FLOOR)
        if dtype != weights:
            source = "transferred"
            seconds = np.maximum(seconds * there / gemm_roofline(self.reference, ROWS, n, k, dtype), FLOOR)
        return self._moved(seconds, here, there, source)

    def gemm_grid(self, weights: str) -> tuple[Array, Grid] | None:
        key = ("gemm_grid", weights)
        if key not in self.grids:
            raw = self._gemm_sites(self.tables, weights)
            if raw is not None and self.tables is not None:
                found = [self._gemm_sites(each, weights) for each in self.tables.siblings]
                axes = raw[1].xs, raw[1].ys, raw[0]
                others = [at_sites(each[1].times, (each[1].xs, each[1].ys, each[0]), axes) for each in found if each]
                times = captured(raw[1].times, others)
                raw = raw[0], filled(replace(raw[1], times=times))
            self.grids[key] = raw
        return self.grids[key]

    def _gemm_sites(self, tables: KernelTables | None, weights: str) -> tuple[Array, Grid] | None:
        table = None if tables is None else tables.table("gemm")
        return gemm_sites(table, DTYPES[weights], self.reference, weights)

    def _scales(self, k: int) -> Array:
        table = self.table("computescale")
        if table is None:
            return np.zeros_like(ROWS)
        if "scales" not in self.grids:
            ms, ks = np.unique(table["m"]).astype(float), np.unique(table["k"]).astype(float)
            times = np.full((len(ms), len(ks)), np.nan)
            times[np.searchsorted(ms, table["m"]), np.searchsorted(ks, table["k"])] = table["latency"] * 1e-3
            self.grids["scales"] = ms, ks, times
        ms, ks, times = self.grids["scales"]
        column = np.array([np.interp(k, ks, row) for row in times])
        return np.interp(ROWS, ms, column)

    # --- what is bound by memory -----------------------------------------------------------------------------------

    def elementwise(self, op: Elementwise) -> Curve:
        return Curve(np.maximum(op.bytes_per_row * ROWS / (self.gpu.bandwidth * STREAMED), FLOOR), "transferred")

    def linear_attention(self, op: LinearAttention) -> Curve:
        """By sequences of a decoding step: the state is read and written."""
        moved = op.state * 4 * 2 * ROWS / self.gpu.bandwidth
        return Curve(np.maximum(np.maximum(moved, op.flops_per_token * ROWS / self.gpu.bf16), FLOOR), "roofline")

    def linear_prefill(self, op: LinearAttention) -> Curve:
        """By tokens of one prompt, in chunks of 64 that are multiplied: twice the recurrence's operations."""
        return Curve(np.maximum(2 * op.flops_per_token * ROWS / self.gpu.bf16, FLOOR), "roofline")


def gemm_roofline(gpu: Gpu, m: Any, n: Any, k: Any, weights: str) -> Array:
    """What no matmul can beat: operations at the peak, or weights and activations at the bandwidth."""
    activations = 1 if weights in ("fp8", "fp8_block", "nvfp4") else 2
    moved = m * k * activations + n * k * BYTES[weights] + m * n * 2
    return np.maximum(2.0 * m * n * k / gpu.flops(weights), moved / gpu.bandwidth)


def gemm_sites(table: Columns | None, dtype: str, gpu: Gpu, weights: str) -> tuple[Array, Grid] | None:
    """The measured (n, k) sites of a dtype, each a curve over m; the fastest kernel of each shape."""
    if table is None:
        return None
    chosen = table["gemm_dtype"] == dtype
    if not chosen.any():
        return None
    m, n, k = (table[name][chosen].astype(float) for name in ("m", "n", "k"))
    ms, ns, ks = np.unique(m), np.unique(n), np.unique(k)
    times = np.full((len(ns), len(ks), len(ms)), np.inf)
    place = np.searchsorted(ns, n), np.searchsorted(ks, k), np.searchsorted(ms, m)
    np.minimum.at(times, place, table["latency"][chosen].astype(float) * 1e-3)
    times[~np.isfinite(times)] = np.nan
    bound = gemm_roofline(gpu, ms[None, None, :], ns[:, None, None], ks[None, :, None], weights)
    return ms, Grid(ns, ks, times, bound)
