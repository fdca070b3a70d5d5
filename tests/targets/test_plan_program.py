"""Programs of Weft's own runtime, called as targets load them: what does not fit the plan never gets to a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from xdsl.passes import ModulePass

from weft import pipelines
from weft.backends.cpu.target import checked_target
from weft.backends.target import ALONE, Host
from weft.config import Config
from weft.errors import DTypeError, GuardError, ShapeError
from weft.passes.claim_libraries import ClaimLibraries
from weft.targets.cpu import Cpu
from weft.targets.plan_program import PlanProgram
from weft.tile.text import functions_of, parse_program

ROWS = 'tensor<?x8xf32, #graph.sizes<["s0", "8"]>>'
TEXT = f"""
"graph.func"() ({{
^bb0(%s: {ROWS}, %x: {ROWS}):
  %0 = "graph.add"(%s, %x) : ({ROWS}, {ROWS}) -> {ROWS}
  "graph.return"(%0) : ({ROWS}) -> ()
}}) {{sym_name = "f", arg_names = ["s", "x"]}} : () -> ()
"""
HERE = Config(cache=False)


def _loaded(text: str) -> PlanProgram[np.ndarray]:
    (function,) = functions_of(parse_program(text))
    target = Cpu.here(HERE)
    return target.load(target.compile(function, HERE), HERE)


def _rows(count: int) -> np.ndarray:
    return np.arange(count * 8, dtype=np.float32).reshape(count, 8)


@pytest.mark.parametrize("constants", ["", "constants = [1 : i64], "], ids=["free", "fixed"])
def test_arrays_have_to_fit_the_plan(constants: str) -> None:
    program = _loaded(TEXT.replace("arg_names", f"{constants}arg_names"))
    np.testing.assert_array_equal(program([_rows(3), _rows(3)])[0], 2 * _rows(3))
    with pytest.raises(DTypeError, match="the argument x of f is of type f32, got f64"):
        program([_rows(3), _rows(3).astype(np.float64)])
    with pytest.raises(ShapeError, match="the argument x of f"):
        program([_rows(3), _rows(2)])
    with pytest.raises(ShapeError, match="the argument s of f"):
        program([_rows(3)[:, :4], _rows(3)])
    with pytest.raises(ShapeError, match="the argument s of f"):
        program([_rows(3)[0], _rows(3)])
    with pytest.raises(GuardError, match="takes 2 arguments, got 1"):
        program([_rows(3)])


def test_what_is_read_only_is_not_written_over() -> None:
    program = _loaded(TEXT.replace("arg_names", "replaced = [[0 : i64, 0 : i64]], arg_names"))
    state = _rows(3)
    state.flags.writeable = False
    np.testing.assert_array_equal(program([state, _rows(3)])[0], 2 * _rows(3))
    np.testing.assert_array_equal(state, _rows(3))


def test_sizes_that_no_shape_tells_are_asked_for() -> None:
    program = _loaded(TEXT.replace('"s0"', '"s0*2"'))
    with pytest.raises(GuardError, match="the size s0"):
        program([_rows(4), _rows(4)])
    np.testing.assert_array_equal(program([_rows(4), _rows(4)], {"s0": 2})[0], 2 * _rows(4))
    with pytest.raises(ShapeError, match="the argument s of f"):
        program([_rows(4), _rows(4)], {"s0": 3})


def test_the_passes_of_a_target_are_those_that_it_compiles_by(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[ModulePass]] = []

    def stop(module: Any, passes: Sequence[ModulePass], *given: Any, **options: Any) -> None:
        ran.append(list(passes))
        raise _Stopped

    monkeypatch.setattr(pipelines, "run_passes", stop)
    tiles = Cpu(checked_target("x86_64-unknown-linux-gnu", "sapphirerapids"))
    for host in (ALONE, Host(libraries=True)):
        (function,) = functions_of(parse_program(TEXT))
        with pytest.raises(_Stopped):
            tiles.compile(function, HERE, host)
        assert ran.pop() == tiles.passes(HERE, host)
    (claims,) = (each for each in tiles.passes(HERE, Host(libraries=True)) if isinstance(each, ClaimLibraries))
    assert claims.matrix_tiles


class _Stopped(Exception):
    pass
