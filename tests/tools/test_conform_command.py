"""`weft conform opinfo` and `hops` run operators of PyTorch's databases and say what did not pass."""

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


def test_a_higher_order_operator(weft, tmp_path) -> None:
    result = weft("conform", "hops", "cond", "--jobs", "1", "--reports", str(tmp_path), "--json")
    figures = last_json(result)
    assert result.exit_code == 0, figures
    assert figures["whole"] == 1 and figures["wrong"] == figures["error"] == 0
    (entry,) = figures["entries"].values()
    assert entry["modes"] == ["inference", "training"]
    assert (tmp_path / "conform-hops.jsonl").read_text()


def test_an_unknown_higher_order_operator_is_an_error_with_the_names(weft) -> None:
    result = weft("conform", "hops", "scann")
    assert result.exit_code == 2 and "no entry called scann" in result.stderr and "scan_simple" in result.stderr
    assert weft("conform", "hops", "cond", "--dtype", "float33").exit_code == 2
