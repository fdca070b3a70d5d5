"""Which values a backward keeps: minimum cuts against every answer of small problems, and the exact one."""

import itertools
import random

import pytest

from weft.passes.remat.exact_choice import exact_choice
from weft.passes.remat.minimum_cut import cheapest, choices
from weft.passes.remat.recompute_problem import Choice, RecomputeProblem, Value


def drawn(seed: int, count: int) -> RecomputeProblem:
    """A problem with arguments, values that cannot be kept, or not be computed again, and some that are read."""
    draw = random.Random(seed)
    values = [Value(0, 0, (), can_be_computed_again=False), Value(0, 0, (), can_be_computed_again=False)]
    for number in range(2, count):
        operands = tuple(draw.sample(range(max(0, number - 4), number), draw.choice((1, 1, 2))))
        kind = draw.random()
        values.append(
            Value(
                draw.randint(1, 40),
                draw.choice((0, draw.randint(1, 9), draw.randint(50, 400))),
                operands,
                is_read=draw.random() < 0.4,
                can_be_kept=kind > 0.1,
                can_be_computed_again=kind < 0.9,
            )
        )
    problem = RecomputeProblem(tuple(values))
    readable = [
        value if value.can_be_kept or problem.is_computable[n] else Value(value.bytes, value.work, value.operands)
        for n, value in enumerate(problem.values)
    ]
    return RecomputeProblem(tuple(readable))


def every_answer(problem: RecomputeProblem) -> list[Choice]:
    places = [n for n, value in enumerate(problem.values) if value.can_be_kept]
    picked = itertools.chain.from_iterable(itertools.combinations(places, k) for k in range(len(places) + 1))
    return [problem.completed(kept) for kept in picked]


@pytest.mark.parametrize("seed", range(12))
def test_no_answer_is_better_than_the_cut_at_its_price(seed) -> None:
    problem = drawn(seed, 11)
    best = choices(problem)
    assert [choice.work for choice in best] == sorted({choice.work for choice in best})
    assert all(one.bytes > other.bytes for one, other in itertools.pairwise(best))
    answers, prices = every_answer(problem), (0, 1, 2, 5, 30)
    assert best[-1].bytes == min(choice.bytes for choice in answers)
    for price, choice in zip(prices, cheapest(problem, prices), strict=True):
        assert choice.bytes + price * choice.work == min(each.bytes + price * each.work for each in answers)


@pytest.mark.parametrize("seed", range(6))
def test_the_exact_answer_is_the_best_of_all_within_the_limit(seed) -> None:
    pytest.importorskip("scipy", reason="SciPy is not installed: pip install weft[solver]")
    problem = drawn(seed, 10)
    answers = every_answer(problem)
    for limit in sorted({choice.bytes for choice in answers})[::5]:
        found = exact_choice(problem, limit)
        assert found is not None
        assert found.choice.bytes <= limit
        assert found.choice.work == min(choice.work for choice in answers if choice.bytes <= limit)
        assert found.gap < 0.01
    assert exact_choice(problem, -1) is None


def test_a_chain_of_equal_layers_has_answers_in_between() -> None:
    values = [Value(0, 0, (), can_be_computed_again=False)]
    for _ in range(24):
        values.append(Value(100, 50, (len(values) - 1,), is_read=True))
        values.append(Value(100, 1000, (len(values) - 1,), is_read=True))
    best = choices(RecomputeProblem(tuple(values)))
    assert best[0].bytes == 4800 or best[0].work < 50
    steps = [one.bytes - other.bytes for one, other in itertools.pairwise(best)]
    assert max(steps) <= 4800 // 8
