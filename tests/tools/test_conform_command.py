"""`weft conform opinfo` runs operators of PyTorch's database and says what did not pass."""

from __future__ import annotations

import pytest

from .conftest import last_json

pytest.importorskip("torch")


def test_one_operator(weft) -> None:
    result = weft("conform", "opinfo", "exp", "--jobs", "0", "--samples", "1", "--no-gradients", "--json")
    figures = last_json(result)
    assert result.exit_code == 0, figures
    assert figures["ok"] and figures["cases"] == figures["passed"] == 1 and figures["wrong"] == 0
    assert {"native_targets", "core_targets", "not_native"} <= set(figures)


def test_a_bad_shard_is_explained(weft) -> None:
    result = weft("conform", "opinfo", "--shard", "8/2")
    assert result.exit_code == 2 and "8/2 is not a part" in result.stderr


def test_an_unknown_operator_is_an_error_with_names_like_it(weft) -> None:
    result = weft("conform", "opinfo", "sofmax", "--jobs", "0")
    assert result.exit_code == 2 and "no operator called sofmax" in result.stderr and "softmax" in result.stderr
    assert weft("conform", "opinfo", "exp", "--dtype", "float33", "--jobs", "0").exit_code == 2
