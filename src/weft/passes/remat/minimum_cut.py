"""Answers to a `RecomputeProblem` by minimum cuts: the best for each price of work against memory.

At a price, keeping a value costs its bytes and computing it again its work times the price; the least sum is a minimum
cut of a network with two nodes for each value:

    source ──price · work──► in(v) ──bytes──► out(v) ──∞──► in(w), for each w computed from v
                                              out(v) ──∞──► sink, where the backward reads v

`in(v)` on the sink's side means that v is computed again, `out(v)` alone that it is kept. A higher price only raises
the capacities at the source, so one flow is made larger from price to price (parametric maximum flow), and what is
computed again at a price is computed again at every lower one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from weft.passes.remat.flow_network import FlowNetwork
from weft.passes.remat.recompute_problem import Choice, RecomputeProblem

_STEPS = 48
"""Prices tried, each a constant factor above the last."""
_LOWEST, _HIGHEST = 1e-3, 1e3
"""Prices, as shares of the price at which all bytes are worth all work."""
_FINE = 16
"""Answers in between are made where neighbours differ by more than this share of the bytes."""
_ENDLESS = 1 << 62


def choices(problem: RecomputeProblem) -> list[Choice]:
    """Answers from the least work to the fewest bytes, none worse than another in both."""
    base = problem.bytes_of_all / max(problem.work_of_all, 1)
    prices = [base * _LOWEST * (_HIGHEST / _LOWEST) ** (k / (_STEPS - 1)) for k in range(_STEPS)]
    sides = _computed_at(problem, prices)[::-1]
    found = [problem.choice(*_answer(problem, side)) for side in sides]
    step = max((choice.bytes for choice in found), default=0) // _FINE
    for less, more in pairwise(sides):
        found += _between(problem, less, more, step)
    return _undominated(found)


def choices_by_peak(problem: RecomputeProblem) -> list[Choice]:
    """Answers from the least work to the lowest peak, few enough to try each.

    What is computed again from the very beginning is there for as long as if it had been kept. So there are answers
    that keep what all layers, or every second, or fourth, begin with: those of one layer are computed again by
    themselves.
    """
    return lowest_peaks(problem, [choice for each in problems_by_layer(problem) for choice in choices(each)])


def problems_by_layer(problem: RecomputeProblem) -> list[RecomputeProblem]:
    """The problem, where what all layers begin with is kept, or every second of them, or every fourth."""
    narrows = problem.narrows()
    return [problem.keeping(narrows[every - 1 :: every]) for every in (1, 2, 4)]


def lowest_peaks(problem: RecomputeProblem, found: Sequence[Choice]) -> list[Choice]:
    """Answers from the least work to the lowest peak, each with a peak that is clearly below the last one's."""
    rated = sorted(((problem.peak(choice), choice) for choice in found), key=lambda each: (each[1].work, each[0]))
    taken: list[tuple[int, Choice]] = []
    for peak, choice in rated:
        if not taken or peak < taken[-1][0] * (1 - 1 / _FINE):
            taken.append((peak, choice))
    return [choice for _, choice in taken]


def cheapest(problem: RecomputeProblem, prices: Sequence[float]) -> list[Choice]:
    """The answers with the least bytes plus work times each of these prices, which rise."""
    return [problem.choice(*_answer(problem, side)) for side in _computed_at(problem, prices)]


def _computed_at(problem: RecomputeProblem, prices: Sequence[float]) -> list[set[int]]:
    network = _Network(problem)
    return [network.computed_at(price) for price in prices]


def _between(problem: RecomputeProblem, less: set[int], more: set[int], step: int) -> Iterator[Choice]:
    """Answers between two neighbours: the first values are treated as by the one that computes more.

    Both sides hold, with a value, all that it is computed from; so does this mix of them.
    """
    added = sorted(more - less)
    begin, end = (problem.choice(*_answer(problem, side)).bytes for side in (less, more))
    parts = min(len(added), (begin - end) // step if step else 0)
    for k in range(1, parts):
        limit = added[k * len(added) // parts]
        yield problem.choice(*_answer(problem, less | {n for n in more if n <= limit}))


def _answer(problem: RecomputeProblem, computed: set[int]) -> tuple[set[int], set[int]]:
    """What is kept where these values are computed again; of them, those that nothing needs are left out."""
    kept, used = set[int](), set[int]()
    left = [number for number, value in enumerate(problem.values) if value.is_read]
    while left:
        number = left.pop()
        if number in kept or number in used:
            continue
        if number in computed:
            used.add(number)
            left += problem.values[number].operands
        else:
            kept.add(number)
    return kept, used


def _undominated(found: list[Choice]) -> list[Choice]:
    kept: list[Choice] = []
    for choice in sorted(found, key=lambda each: (each.work, each.bytes)):
        if not kept or choice.bytes < kept[-1].bytes:
            kept.append(choice)
    return kept


class _Network:
    """The network of a problem and a flow through it, which grows with the price."""

    def __init__(self, problem: RecomputeProblem) -> None:
        self.problem = problem
        count = len(problem.values)
        self.flow = FlowNetwork(2 * count + 2, source=2 * count, sink=2 * count + 1)
        self.entries: list[int] = []
        self.taken: list[int] = [0] * count
        for number, value in enumerate(problem.values):
            into, out = 2 * number, 2 * number + 1
            computable = problem.is_computable[number]
            self.entries.append(self.flow.add_edge(self.flow.source, into, 0 if computable else _ENDLESS))
            self.flow.add_edge(into, out, value.bytes if value.can_be_kept else _ENDLESS)
            if value.is_read:
                self.flow.add_edge(out, self.flow.sink, _ENDLESS)
            for operand in dict.fromkeys(value.operands):
                self.flow.add_edge(2 * operand + 1, into, _ENDLESS)

    def computed_at(self, price: float) -> set[int]:
        """The values that are computed again at a price, which is no lower than those before it."""
        for number, value in enumerate(self.problem.values):
            if self.problem.is_computable[number]:
                wanted = round(value.work * price)
                self.flow.room[self.entries[number]] += max(0, wanted - self.taken[number])
                self.taken[number] = max(wanted, self.taken[number])
        self.flow.saturate()
        side = self.flow.before_the_sink()
        return {number for number in range(len(self.problem.values)) if 2 * number in side}
