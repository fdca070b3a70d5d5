"""How far the results of two runs of an ONNX model are apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def difference(mine: Sequence[Any], theirs: Sequence[Any]) -> float:
    """The largest difference of results as a share of the largest value of its tensor; infinite where shapes differ."""
    if len(mine) != len(theirs):
        return float("inf")
    worst = 0.0
    for a, b in zip(mine, theirs, strict=True):
        if isinstance(a, list) or isinstance(b, list):
            worst = max(worst, difference(a, b))  # pyright: ignore[reportUnknownArgumentType]  a sequence's items
            continue
        x, y = np.asarray(a), np.asarray(b)
        if x.shape != y.shape or x.dtype != y.dtype:
            return float("inf")
        if x.dtype.kind not in "biuf":
            worst = max(worst, 0.0 if np.array_equal(x, y) else float("inf"))
            continue
        wide, peer = x.astype(np.float64), y.astype(np.float64)
        if not np.array_equal(np.isfinite(wide), np.isfinite(peer)):
            return float("inf")
        finite = np.isfinite(peer)
        if finite.any():
            apart, largest = np.abs(wide[finite] - peer[finite]).max(), np.abs(peer[finite]).max()
            worst = max(worst, float(apart / max(largest, 1e-30)))
    return worst
