"""Times of a rank's experts: the measured model's own curve, or the share of the roofline that the nearest reach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from weft.planner.hardware import Gpu
from weft.planner.op_costs import DTYPES, FLOOR, ROWS, Curve, OpCosts, gemm_roofline
from weft.planner.program import BYTES, WEIGHTS_ONLY, Experts, Gemm
from weft.planner.tables import Array, Columns

Shape = tuple[int, int, int, int, int, int]
"""Hidden size, width, experts per token, experts, tensor parallel, expert parallel."""
_NEAREST = 3
_SLOW = 3.0
"""How many times the middle of its like a measured layer may take before it counts as a slow run."""


def experts_roofline(gpu: Gpu, op: Experts, tokens: Any) -> Array:
    """The weights of the experts that some token goes to, and their products; tokens are of the whole group."""
    local = op.experts / op.ep
    width = op.width / op.tp
    hit = local * (1.0 - (1.0 - op.per_token / op.experts) ** tokens)
    pairs = tokens * op.per_token / op.ep
    weights = hit * op.matrices * op.hidden * width * BYTES[op.weights]
    moved = weights + pairs * (2 * op.hidden + (op.matrices - 1) * width) * 2.0
    return np.maximum(2.0 * pairs * op.matrices * op.hidden * width / gpu.flops(op.weights), moved / gpu.bandwidth)


def expert_curve(costs: OpCosts, op: Experts) -> Curve:
    """The time of one layer's experts on one rank, over the tokens of its group."""
    key = ("experts", op.hidden, op.width, op.per_token, op.experts, op.tp, op.ep, op.weights, costs.distribution)
    if key not in costs.kept:
        costs.kept[key] = _sustained(costs, op, _curve(costs, op))
    return costs.kept[key]


def _sustained(costs: OpCosts, op: Experts, curve: Curve) -> Curve:
    """No less than products in bf16 take when the GPU has been at work for a while, as of other matmuls."""
    if not costs.sustained or costs.gpu.flops(op.weights) != costs.gpu.bf16:
        return curve
    flops = 2.0 * ROWS * op.per_token / op.ep * op.matrices * op.hidden * op.width / op.tp
    return replace(curve, seconds=np.maximum(curve.seconds, flops / (costs.gpu.bf16 * costs.gpu.sustained)))


def _as_matmuls(costs: OpCosts, op: Experts, here: Array) -> Curve:
    """Without a table of experts: the share of the roofline that matmuls reach with as many weights and operations as
    the experts have together that some token goes to, each with its tokens for rows."""
    chosen = _chosen(op, ROWS)
    rows = np.maximum(ROWS * op.per_token / op.ep / chosen, 1.0)
    width, sources = op.width / op.tp, set[str]()
    bound, taken = np.zeros_like(ROWS), np.zeros_like(ROWS)
    for index, experts in enumerate(chosen):
        for n, k in (((op.matrices - 1) * width, op.hidden), (op.hidden, width)):
            shape = Gemm(op.name, max(round(n * experts), 1), max(round(k), 1), op.weights)
            curve = costs.gemm(shape)
            sources.add(curve.source)
            taken[index] += float(curve.at(rows[index]))
            bound[index] += float(gemm_roofline(costs.gpu, rows[index], shape.n, shape.k, op.weights))
    seconds = np.maximum(here * np.maximum(taken / bound, 1.0), 4 * FLOOR)
    return Curve(seconds, "roofline" if "roofline" in sources else "transferred")


def _chosen(op: Experts, tokens: Any) -> Array:
    """Experts of a rank that some token goes to, one at least."""
    local = op.experts / op.ep
    return np.maximum(local * (1.0 - (1.0 - op.per_token / op.experts) ** tokens), min(local, 1.0))


def _curve(costs: OpCosts, op: Experts) -> Curve:
    here = experts_roofline(costs.gpu, op, ROWS)
    if op.weights in WEIGHTS_ONLY.values():
        # No table has these: bf16's, with as many bytes of weights as there are.
        wide = replace(op, weights="bf16")
        curve = expert_curve(costs, wide)
        seconds = curve.seconds * here / experts_roofline(costs.gpu, wide, ROWS)
        return Curve(np.maximum(seconds, FLOOR), "roofline" if curve.source == "roofline" else "transferred")
    sites = expert_sites(costs, op.weights)
    if not sites:
        return _as_matmuls(costs, op, here)
    there = experts_roofline(costs.reference, op, ROWS)
    wanted: Shape = (op.hidden, op.width, op.per_token, op.experts, op.tp, op.ep)
    if wanted in sites:
        seconds = _over_rows(*sites[wanted], costs.reference, op)
        if not costs.moved:
            return Curve(seconds, "interpolated")
        return Curve(np.maximum(seconds * here / there, FLOOR), "transferred")
    near = sorted(sites, key=lambda shape: _distance(wanted, shape))[:_NEAREST]
    weights = np.array([1.0 / max(_distance(wanted, shape), 0.05) for shape in near])
    shares = np.stack([_share(costs.reference, op, shape, *sites[shape]) for shape in near])
    share = np.exp((np.log(shares) * weights[:, None]).sum(axis=0) / weights.sum())
    least = min(float(np.min(sites[shape][1])) for shape in near)
    return Curve(np.maximum(here / share, least), "transferred")


def _share(gpu: Gpu, op: Experts, shape: Shape, tokens: Array, seconds: Array) -> Array:
    like = Experts(op.name, *shape[:2], shape[2], shape[3], shape[4], shape[5], op.weights, op.matrices)
    return experts_roofline(gpu, like, ROWS) / _over_rows(tokens, seconds, gpu, like)


def _over_rows(tokens: Array, seconds: Array, gpu: Gpu, op: Experts) -> Array:
    found = np.interp(ROWS, tokens, seconds)
    beyond = tokens[-1] < ROWS
    if beyond.any():
        bound = experts_roofline(gpu, op, ROWS)
        last = experts_roofline(gpu, op, tokens[-1])
        found[beyond] = seconds[-1] * bound[beyond] / last
    return found


def _distance(wanted: Shape, shape: Shape) -> float:
    """How unlike two layers are to one rank: sizes of a matmul, experts at home, tokens for each."""

    def of(each: Shape) -> tuple[float, ...]:
        hidden, width, per_token, experts, tp, ep = each
        return hidden, width / tp, experts / ep, per_token / experts

    same = 0.0 if wanted[:4] == shape[:4] else 0.5
    return same + sum(abs(float(np.log2(a / b))) for a, b in zip(of(wanted), of(shape), strict=True))


def expert_sites(costs: OpCosts, weights: str) -> Mapping[Shape, tuple[Array, Array]]:
    """Curves over tokens by shape, of the engine's fastest kernel."""
    key = ("expert_sites", weights, costs.distribution)
    if key not in costs.grids:
        table = costs.table("moe")
        found = {} if table is None else _read(table, DTYPES[weights], costs.distribution)
        if not found and weights == "fp8_block":
            found = {} if table is None else _read(table, "fp8", costs.distribution)
        costs.grids[key] = _without_slow_runs(found)
    return costs.grids[key]


def _without_slow_runs(sites: dict[Shape, tuple[Array, Array]]) -> dict[Shape, tuple[Array, Array]]:
    """Sites less those that took many times what the same layer, split over as many ranks in other ways, took.

    Each such rank reads as many weights. With a few tokens for every expert all of them are read, and how unevenly
    tokens go to ranks does not show yet. Public tables have layers there that ran five times as long as their like, at
    every number of tokens: a kernel that was not tuned.
    """
    like: dict[tuple[int, ...], list[Shape]] = {}
    for shape in sites:
        like.setdefault((*shape[:4], shape[4] * shape[5]), []).append(shape)
    slow: set[Shape] = set()
    for (_, _, per_token, experts, _), shapes in like.items():
        tokens = 4.0 * experts / per_token
        taken = {shape: float(np.interp(tokens, *sites[shape])) for shape in shapes}
        for shape in shapes:
            others = [taken[each] for each in shapes if each != shape]
            if len(others) > 1 and taken[shape] > _SLOW * float(np.median(others)):
                slow.add(shape)
    return {shape: curve for shape, curve in sites.items() if shape not in slow}


def _read(table: Columns, dtype: str, distribution: str) -> dict[Shape, tuple[Array, Array]]:
    chosen = (table["moe_dtype"] == dtype) & (table["distribution"] == distribution)
    names = ("hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size")
    shapes = np.stack([table[name][chosen].astype(np.int64) for name in names], axis=1)
    tokens = table["num_tokens"][chosen].astype(float)
    seconds = table["latency"][chosen].astype(float) * 1e-3
    found: dict[Any, tuple[Array, Array]] = {}
    if not len(tokens):
        return found
    unique, which = np.unique(shapes, axis=0, return_inverse=True)
    order = np.lexsort((seconds, tokens, which))
    for shape, rows in zip(unique, np.split(order, np.flatnonzero(np.diff(which[order])) + 1), strict=True):
        points, first = np.unique(tokens[rows], return_index=True)
        found[tuple(int(each) for each in shape)] = (points, seconds[rows][first])
    return found
