"""Programs that stay and walk rows: which of them each one has."""

from __future__ import annotations

import pytest

from weft.ir.expr import evaluate, symbol
from weft.lower.index_space.domain import Run, Variable
from weft.lower.schedule.persistent_rows import PersistentRows
from weft.lower.schedule.schedule import Schedule


@pytest.mark.parametrize(
    ("size", "rows", "parts"), [(8192, 2, 528), (8191, 4, 264), (37, 4, 3), (5, 8, 1), (16384, 1, 132)]
)
def test_programs_take_all_rows_in_turn(size: int, rows: int, parts: int) -> None:
    schedule = Schedule("rows", "c0", 768, "r0", rows, split="r0", parts=parts)
    walked = PersistentRows(schedule, "r0", rows, 4, folds=True)
    first, apart, upper = walked.turns_of(symbol("p"), symbol("n"))
    taken = dict[int, int]()
    for program in range(parts):
        given = {"p": program, "n": size}
        for turn in range(0, evaluate(upper, given), rows):
            taken[evaluate(first, given) + turn * apart] = program
    assert list(sorted(taken)) == list(range(0, size, rows))
    assert [taken[row] for row in sorted(taken)] == [number % parts for number in range(len(taken))]


def test_programs_share_what_several_runs_have_together() -> None:
    runs = [Run((Variable(name, size),)) for name, size in (("r0", 5), ("r1", 3), ("r2", 7))]
    walked = PersistentRows(Schedule("rows", "c0", 96, "r2", 4, split="r2", parts=4), "r2", 4, 4, folds=False)
    assert [walked.blocks_of(run) for run in runs] == [5, 3, 2]
    number, upper = walked.numbers_of(symbol("p"), runs, symbol("t"))
    given = [{"p": program, "t": turn} for program in range(4) for turn in range(evaluate(upper, {"p": program}))]
    assert sorted(evaluate(number, each) for each in given) == list(range(30))
