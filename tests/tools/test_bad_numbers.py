"""Numbers that no command can do anything with are said to be out of range before the work begins."""

from __future__ import annotations

import pytest

from .conftest import last_json


@pytest.mark.parametrize(
    "line",
    [
        ("conform", "opinfo", "exp", "--samples", "0"),
        ("conform", "opinfo", "exp", "--jobs", "-1"),
        ("conform", "opinfo", "exp", "--timeout", "0"),
        ("conform", "opinfo", "exp", "--budget", "-1"),
        ("conform", "models", "bert", "--budget", "-1"),
        ("conform", "training", "--budget", "-0.5"),
        ("conform", "tutorials", "--from", ".", "--budget", "-1"),
        ("conform", "triton", "--from", ".", "--jobs", "0"),
        ("conform", "triton", "--from", ".", "--timeout", "-1"),
        ("bench", "cpu", "--seconds", "-1"),
        ("bench", "gpu", "--seconds", "-1"),
        ("bench", "gpu", "--budget", "-1"),
        ("reduce", "graph.mlir", "--timeout", "0"),
        ("reduce", "graph.mlir", "--seed", "-1"),
    ],
    ids=" ".join,
)
def test_numbers_out_of_range_are_usage_errors(weft, line: tuple[str, ...]) -> None:
    result = weft(*line)
    assert result.exit_code == 2
    assert f"Invalid value for '{line[-2]}'" in result.stderr


def test_no_operator_is_begun_where_there_is_no_time(weft) -> None:
    found = last_json(weft("conform", "opinfo", "exp", "--jobs", "0", "--budget", "0", "--json"))
    assert found["cases"] == 0 and found["not_begun"] == ["exp[float32]"]
