"""`weft bench libraries`: first calls and later ones of a library's kernels; what fails is said, a run goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft.tools.bench import libraries as bench_libraries
from weft.tools.bench.libraries import JOURNAL

from .conftest import last_json

FUNCTIONS = """
import torch
import triton
import triton.language as tl


@triton.jit
def squares(x, out, n, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.maximum(tl.load(x + places, mask=places < n), 0.0)
    tl.store(out + places, value * value, mask=places < n)


class Squares(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        squares[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), 1024)
        ctx.save_for_backward(x)
        return out

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * 2 * x.relu()


def liger_relu_squared(x):
    return Squares.apply(x)


def liger_softmax(x):
    raise ValueError("no such softmax")
"""


@pytest.fixture
def library(tmp_path: Path) -> Path:
    folder = tmp_path / "library" / "src" / "liger_kernel" / "transformers"
    folder.mkdir(parents=True)
    (folder / "functional.py").write_text(FUNCTIONS)
    return tmp_path / "library"


def test_a_case_is_measured_one_that_fails_is_said_and_what_is_known_is_not_run_again(
    weft, library, tmp_path, monkeypatch
) -> None:
    cases = ["--case", "liger relu_squared", "--case", "liger softmax"]
    options = ["--from", str(library), "--device", "cpu", "--shrink", "4096", "--seconds", "0"]
    command = ["bench", "libraries", *options, *cases, "--reports", str(tmp_path / "reports"), "--json"]
    run = weft(*command)
    assert run.exit_code == 1, run.output
    measured, failed = last_json(run)["cases"]
    assert measured["name"] == "liger relu_squared" and min(measured["weft"]["first"]) > 0
    assert measured["weft"]["forward"] > 0 and measured["weft"]["backward"] > 0 and "ratio" not in measured
    assert "no such softmax" in failed["failure"]
    assert (tmp_path / "reports" / JOURNAL).read_text().count("\n") == 2

    monkeypatch.setattr(bench_libraries, "_measured", lambda *given: pytest.fail("it is known"))
    again = weft(*command, "--resume")
    assert again.exit_code == 1 and last_json(again)["measured"] == 2


def test_a_ratio_above_one_is_faster_and_results_that_differ_are_not_the_same(monkeypatch) -> None:
    answers = {
        "weft": {"first": [1.0, 1.0], "norms": [1.0, 5.0], "forward": [2.0], "backward": [4.0]},
        "triton": {"first": [2.0, 2.0], "norms": [1.0, 6.0], "forward": [3.0], "backward": [2.0]},
    }
    monkeypatch.setattr(bench_libraries, "_asked", lambda child, what, side: answers[side])
    row = bench_libraries._measured("a case", dict.fromkeys(answers), 0.0)  # pyright: ignore[reportPrivateUsage, reportArgumentType]
    assert row["ratio"] == {"forward": 1.5, "backward": 0.5} and row["first_ratio"] == 2.0
    assert row["same"] is False


@pytest.mark.parametrize("options", [["--device", "tpu"], ["--case", "nothing*"]])
def test_what_cannot_be_measured_is_said_at_once(weft, library, options) -> None:
    assert weft("bench", "libraries", "--from", str(library), *options).exit_code == 2
