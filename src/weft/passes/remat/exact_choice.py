"""The answer to a `RecomputeProblem` with the least work that keeps at most so many bytes, as an integer program.

It asks for a solver, HiGHS in SciPy, and says how far the answer is from what no answer can beat:

    minimize Σ work · computed      where    kept + computed >= 1 for what the backward reads,
                                             computed(v) <= kept(u) + computed(u) for each operand u of v,
                                             Σ bytes · kept <= limit
"""

# SciPy is no dependency of Weft's own, and has no types.
# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportUnknownVariableType=false
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportMissingTypeStubs=false
# pyright: reportArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from weft.errors import UnsupportedError
from weft.passes.remat.minimum_cut import choices
from weft.passes.remat.recompute_problem import Choice, RecomputeProblem

SECONDS = 60.0


@dataclass(frozen=True)
class ExactChoice:
    """An answer, and the work that no answer within the limit can go below."""

    choice: Choice
    bound: float

    @property
    def gap(self) -> float:
        """By what share the answer may be worse than the best."""
        return max(0.0, 1 - self.bound / self.choice.work) if self.choice.work else 0.0

    def __str__(self) -> str:
        kept, work = self.choice.bytes, self.choice.work
        return f"{kept} bytes kept, {work} of work again, at least {self.bound:.0f} (gap {self.gap:.2%})"


def exact_choices(problem: RecomputeProblem, known: Sequence[Choice], *, seconds: float = SECONDS) -> list[ExactChoice]:
    """The answers of least work that keep no more than each of those that are known."""
    found = [exact_choice(problem, choice.bytes, seconds=seconds / max(len(known), 1)) for choice in known]
    return [each for each in found if each is not None]


def exact_choice(problem: RecomputeProblem, limit: int, *, seconds: float = SECONDS) -> ExactChoice | None:
    """The answer of least work within a limit, as good as it is found in this time; None where there is none."""
    try:
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import coo_array
    except ImportError:
        raise UnsupportedError(
            "the exact choice of what to keep needs SciPy", hint="pip install weft[solver]"
        ) from None
    values, count = problem.values, len(problem.values)
    rows: list[tuple[dict[int, float], float, float]] = []
    for number, value in enumerate(values):
        if value.is_read:
            rows.append(({number: 1.0, count + number: 1.0}, 1.0, np.inf))
        for operand in set(value.operands):
            rows.append(({operand: 1.0, count + operand: 1.0, count + number: -1.0}, 0.0, np.inf))
    scale = max(limit, 1)
    rows.append(({number: value.bytes / scale for number, value in enumerate(values)}, -np.inf, limit / scale))
    places = [(row, column, factor) for row, (factors, _, _) in enumerate(rows) for column, factor in factors.items()]
    at, columns, factors = zip(*places, strict=True)
    matrix = coo_array((factors, (at, columns)), shape=(len(rows), 2 * count)).tocsr()
    largest = max(max((value.work for value in values), default=0), 1)
    cost = np.array([0.0] * count + [value.work / largest for value in values])
    upper = [float(value.can_be_kept) for value in values] + [float(known) for known in problem.is_computable]
    found = milp(
        cost,
        integrality=np.ones(2 * count),
        bounds=Bounds(0, np.array(upper)),
        constraints=LinearConstraint(matrix, np.array([low for _, low, _ in rows]), np.array([up for *_, up in rows])),
        options={"time_limit": seconds, "mip_rel_gap": 1e-4},
    )
    if found.status == 2:  # what HiGHS calls infeasible
        return None
    bound = max(0.0, float(found.mip_dual_bound or 0.0) * largest)
    # What minimum cuts find may be better where time has run out, and is there where the solver has nothing yet.
    known = [choice for choice in choices(problem) if choice.bytes <= limit]
    if found.x is not None:
        known.append(problem.completed(np.flatnonzero(found.x[:count] > 0.5).tolist()))
    within = [choice for choice in known if choice.bytes <= limit]
    best = min(within, key=lambda choice: (choice.work, choice.bytes), default=None)
    return None if best is None else ExactChoice(best, bound)
