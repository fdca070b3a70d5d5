"""Grids of measured times over two axes, and how a time between, beside or without a measured site is had.

Between sites a kernel's time is close to linear in its work, so times are joined linearly along each axis: in the size,
or in the roofline's time where work is not linear in it (attention). Beyond the
last site the share of the roofline that was reached there is kept. A grid's last axis is free: a whole curve each site.
Every time keeps the step of the ladder that it is from, so that what fills a hole is never told as measured.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.planner.tables import Array

STEPS = ("measured", "interpolated", "transferred")
"""What a grid's times are from, the surest first; a grid keeps their places in here."""
_MEASURED, _INTERPOLATED, _TRANSFERRED = range(len(STEPS))


@dataclass(frozen=True)
class Grid:
    """Times over `xs` and `ys` (and a free axis of curves), NaN where nothing was measured."""

    xs: Array
    ys: Array
    times: Array  # len(xs) × len(ys) × free
    roofline: Array  # the same shape: what no kernel can beat; it carries times beyond the last site
    by_work: bool = False
    steps: NDArray[np.int64] | None = None
    """The same shape: where each time's step is in `STEPS`; None where all that there is was measured."""

    def at(self, x: float, y: float, roofline: Array) -> tuple[Array, str]:
        """The curve at a site, and the step of its least sure time."""
        rows = [self._along_y(index, y, roofline if self.xs[index] == x else None) for index in _around(self.xs, x)]
        i = [float(self.xs[index]) for index in _around(self.xs, x)]
        if len(rows) == 1:
            times, bound = rows[0]
        else:
            share = (x - i[0]) / (i[1] - i[0])
            times = _blend(rows[0][0], rows[1][0], share)
            bound = _blend(rows[0][1], rows[1][1], share)
        if _inside(self.xs, x) and _inside(self.ys, y):
            return times, self._step(x, y)
        with np.errstate(invalid="ignore", divide="ignore"):
            return roofline * (times / bound), STEPS[_TRANSFERRED]

    def _step(self, x: float, y: float) -> str:
        """The step of a curve inside of the grid: no surer than any time that it is made of."""
        sites = np.ix_(_around(self.xs, x), _around(self.ys, y))
        least = _MEASURED if sites[0].size == sites[1].size == 1 else _INTERPOLATED
        return STEPS[least if self.steps is None else max(least, int(self.steps[sites].max()))]

    def _along_y(self, index: int, y: float, roofline: Array | None) -> tuple[Array, Array]:
        around = _around(self.ys, y)
        if len(around) == 1:
            return self.times[index, around[0]], self.roofline[index, around[0]]
        share: Array | float = (y - self.ys[around[0]]) / (self.ys[around[1]] - self.ys[around[0]])
        if self.by_work and roofline is not None:
            share = _share(self.roofline[index, around[0]], self.roofline[index, around[1]], roofline)
        return (
            _blend(self.times[index, around[0]], self.times[index, around[1]], share),
            _blend(self.roofline[index, around[0]], self.roofline[index, around[1]], share),
        )

    def without(self, i: int, j: int) -> Array | None:
        """What its neighbours say of a site, as if it had not been measured; None at a corner.

        Measured times have slow runs among them, one in ten by a fifth in the worst tables, so that many guesses are
        made and the middle one is taken: between each of the nearest sites below and above, along both axes, and from
        rectangles that the site is a corner of, whose other corners say how time grows along either side.
        """
        count = _NEAR_IN_WORK if self.by_work else _NEAR
        x, y = _near(self.times[:, j], i, count), _near(self.times[i], j, count)
        across = self.times[:, j], self.roofline[:, j]
        along = self.times[i], self.roofline[i]
        found = [self._between(self.xs, i, x, *across), self._between(self.ys, j, y, *along)]
        if not any(len(guesses) for guesses, _ in found):
            return None
        found.append(self._corners(i, j, np.concatenate(x), np.concatenate(y)))
        return np.exp(_middle(np.concatenate([each for each, _ in found]), np.concatenate([each for _, each in found])))

    def _between(
        self, positions: Array, index: int, near: tuple[Array, Array], line: Array, work: Array
    ) -> tuple[Array, Array]:
        """Logarithms of times between each site below and each above, and their weights: the nearer, the more."""
        low, high = (each.ravel() for each in np.meshgrid(*near, indexing="ij"))
        share = ((positions[index] - positions[low]) / (positions[high] - positions[low]))[:, None]
        if self.by_work:
            share = _share(work[low], work[high], work[index])
        return np.log(_blend(line[low], line[high], share)), 1.0 / np.log2(positions[high] / positions[low])

    def _corners(self, i: int, j: int, x: Array, y: Array) -> tuple[Array, Array]:
        """The same from rectangles: t(i, j) / t(i, b) as t(a, j) / t(a, b)."""
        times = np.log(self.times[:, y][x])
        guesses = np.log(self.times[x, j])[:, None] + np.log(self.times[i, y])[None] - times
        far = np.abs(np.log2(self.xs[x] / self.xs[i]))[:, None] + np.abs(np.log2(self.ys[y] / self.ys[j]))[None]
        return guesses.reshape(-1, guesses.shape[-1]), _CORNER / far.ravel()


_NEAR, _NEAR_IN_WORK = 3, 1
"""Sites on each side of a left-out one that say something of it: of attention, whose measured sizes are twice each
other and whose work is not linear in them, the nearest alone."""
_CORNER = 2 / 3
"""What a rectangle counts against a pair of sites as far away: it carries the noise of three times, not of two."""


def _near(line: Array, index: int, count: int) -> tuple[Array, Array]:
    """The nearest measured sites of a line below a place, and those above it."""
    known = np.flatnonzero(np.isfinite(line).any(axis=-1))
    return known[known < index][-count:], known[known > index][:count]


def _middle(values: Array, weights: Array) -> Array:
    """The weighted median of each column, between the two values around it; NaN where a column has none."""
    order = np.argsort(values, axis=0, kind="stable")  # NaN last
    ordered = np.take_along_axis(values, order, axis=0)
    given = np.where(np.isfinite(ordered), weights[order], 0.0)
    center = np.cumsum(given, axis=0) - given / 2
    half = given.sum(axis=0) / 2
    above = np.argmax((center >= half) & (given > 0), axis=0)[None]
    below = np.maximum(above - 1, 0)
    low, high = (np.take_along_axis(center, each, axis=0) for each in (below, above))
    share = np.clip((half - low) / np.maximum(high - low, 1e-30), 0.0, 1.0)
    return _blend(np.take_along_axis(ordered, below, axis=0), np.take_along_axis(ordered, above, axis=0), share)[0]


def filled(known: Grid) -> Grid:
    """A grid with no holes: what was not measured is had from its neighbours, or from their share of the roofline."""
    xs, ys, times, roofline = known.xs, known.ys, known.times, known.roofline
    result = times.copy()
    measured = np.isfinite(times)
    for i, j in np.argwhere(~np.isfinite(times).all(axis=-1)):
        guess = known.without(int(i), int(j))
        if guess is not None:
            result[i, j] = np.where(np.isfinite(result[i, j]), result[i, j], guess)
    steps = np.where(measured, _MEASURED, np.where(np.isfinite(result), _INTERPOLATED, _TRANSFERRED))
    with np.errstate(invalid="ignore", divide="ignore"):
        share = roofline / result
    # Larger ones first: of sites as far away as each other these are nearer to where shares level off.
    sites = np.argwhere(np.isfinite(share).any(axis=-1))[::-1]
    for i, j in np.argwhere(~np.isfinite(result).all(axis=-1)):
        distance = np.hypot(np.log2(xs[sites[:, 0]] / xs[i]), np.log2(ys[sites[:, 1]] / ys[j]))
        # Processors differ in the last bit of a logarithm, and in what a sort makes of ties.
        for a, b in sites[np.argsort(np.round(distance, 9), kind="stable")]:
            hole = ~np.isfinite(result[i, j])
            if not hole.any():
                break
            with np.errstate(invalid="ignore", divide="ignore"):
                result[i, j] = np.where(hole, roofline[i, j] / share[a, b], result[i, j])
    return Grid(xs, ys, result, roofline, known.by_work, steps)


def _inside(positions: Array, wanted: float) -> bool:
    return bool(positions[0] <= wanted <= positions[-1])


def _around(positions: Array, wanted: float) -> list[int]:
    index = int(np.searchsorted(positions, wanted))
    if index < len(positions) and positions[index] == wanted:
        return [index]
    if index == 0:
        return [0]
    if index == len(positions):
        return [len(positions) - 1]
    return [index - 1, index]


def _share(low: Array, high: Array, wanted: Array) -> Array:
    """Where a work lies between two others."""
    return np.clip((wanted - low) / np.maximum(high - low, 1e-30), 0.0, 1.0)


def _blend(low: Array, high: Array, share: Array | float) -> Array:
    return low + (high - low) * share


_HOST_BOUND = 5.0
"""How many times another engine's shortest time a table's own is, where the host was in the way of the kernels."""


def captured(own: Array, others: list[Array]) -> Array:
    """Times as in captured graphs: where a table's shortest time is many times another engine's, the host that
    launched its kernels was measured, which decoding does not wait for; the others' kernels stand in where they are
    quicker. All arrays are over the same sites."""
    found = [each for each in others if np.isfinite(each).any()]
    if not found or not np.isfinite(own).any():
        return own
    least = min(float(np.nanmin(each)) for each in found)
    if float(np.nanmin(own)) < _HOST_BOUND * least:
        return own
    logs = np.log(np.stack(found))
    with np.errstate(invalid="ignore"):
        stand_in = np.exp(np.nansum(logs, axis=0) / np.isfinite(logs).sum(axis=0))
    return np.fmin(own, stand_in)


def at_sites(times: Array, axes: tuple[Array, ...], wanted: tuple[Array, ...]) -> Array:
    """Times of one grid at the sites of another, NaN where it has none."""
    places = [np.searchsorted(mine, theirs).clip(max=len(mine) - 1) for mine, theirs in zip(axes, wanted, strict=True)]
    found = times[np.ix_(*places)].copy()
    for axis, (mine, theirs, place) in enumerate(zip(axes, wanted, places, strict=True)):
        absent = np.flatnonzero(mine[place] != theirs)
        found[(slice(None),) * axis + (absent,)] = np.nan
    return found
