"""The tests of a library of Triton kernels, run with Weft as Triton: verdicts, causes, crashes, samples, resuming."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from weft.errors import WeftError
from weft.testing.triton.kernel_libraries import (
    LibraryReport,
    LibraryResult,
    LibraryRun,
    library_at,
    run_library,
    sampled,
)
from weft.tools.cli import app

LIBRARY = """
import torch
import triton
import triton.language as tl

assert triton.__name__ == "weft.triton"


@triton.jit
def double_kernel(x, out, n, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + places, tl.load(x + places, mask=places < n) * 2, mask=places < n)


def double(x):
    out = torch.empty_like(x)
    double_kernel[(triton.cdiv(x.numel(), 16),)](x, out, x.numel(), BLOCK=16)
    return out
"""
TESTS = """
import os
import signal
import time

import pytest
import torch
from doubling import double


@pytest.mark.parametrize("size", [3, 40])
def test_right(size):
    x = torch.randn(size, device="cuda")
    torch.cuda.synchronize()
    assert torch.equal(double(x.cuda()), x * 2)


def test_wrong():
    assert double(torch.ones(3)).sum() == 7


def test_error():
    raise ValueError("not 3 but 4")


def test_skipped():
    pytest.skip("needs a GPU")


def test_that_takes_the_process_with_it():
    os.kill(os.getpid(), signal.SIGKILL)


def test_that_hangs():
    time.sleep(60)
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    folder = tmp_path / "library"
    (folder / "src").mkdir(parents=True)
    (folder / "tests" / "ops").mkdir(parents=True)
    (folder / "src" / "doubling.py").write_text(LIBRARY)
    (folder / "tests" / "ops" / "test_double.py").write_text(TESTS)
    (folder / "tests" / "conftest.py").write_text("import doubling\n")  # before pytest has taken its options
    (folder / "tests" / "ops" / "test_broken.py").write_text("import not_there\n")
    return folder


@pytest.mark.slow
def test_every_test_of_a_library_gets_a_verdict(library: Path, tmp_path: Path) -> None:
    journal = tmp_path / "verdicts.jsonl"
    report = run_library(LibraryRun(library, journal, jobs=1, time_limit=2.0))
    verdicts = {result.test.rpartition("::")[2]: result.verdict for result in report.results}
    assert verdicts == {
        **{f"test_right[{size}]": "right" for size in (3, 40)},
        **{"test_wrong": "wrong", "test_error": "error", "test_skipped": "skipped", "test_that_hangs": "error"},
        "test_that_takes_the_process_with_it": "error",
    }
    causes = report.by_cause("weft", "wrong", "error")
    assert set(causes) == {
        *("wrong result in test_wrong", "ValueError: not # but #", "TimeLimitError: took more than # s"),
        "the process ended with signal SIGKILL",
    }
    assert report.counts("weft") == {"right": 2, "wrong": 1, "error": 3, "skipped": 1, "missing": 0}
    assert list(report.modules) == ["tests/ops/test_broken.py"] and report.share == 2 / 6
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    assert len(lines) == 7 and {line["record"]["side"] for line in lines} == {"weft"}
    again = run_library(LibraryRun(library, journal, jobs=1, time_limit=2.0, resume=True, budget=0.0))
    assert again.counts("weft") == report.counts("weft"), "the journal has them all"


def test_a_sample_is_the_same_for_a_seed_and_shards_divide_it() -> None:
    tests = [f"test_{number}" for number in range(50)]
    sample = sampled(tests, 10, 1, None)
    assert len(set(sample)) == 10 and sample == sampled(tests[::-1], 10, 1, None) != sampled(tests, 10, 2, None)
    shards = [sampled(tests, 10, 1, (index, 3)) for index in range(3)]
    assert sorted(test for shard in shards for test in shard) == sample and sampled(tests, 60, 1, None) == sorted(tests)


def test_a_folder_without_tests_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WeftError, match="no tests"):
        run_library(LibraryRun(tmp_path, tmp_path / "none.jsonl"))
    with pytest.raises(WeftError, match="neither a folder nor"):
        library_at("not_there_at_all")
    assert library_at("rich").name == "rich"


def test_what_counts_is_what_passes_under_triton() -> None:
    def result(test: str, side: str, verdict: str, seconds: float = 1.0) -> LibraryResult:
        return LibraryResult(test, side, verdict, None, seconds)  # type: ignore[arg-type]

    report = LibraryReport([result("a", "weft", "right", 2.0), result("a", "triton", "right", 3.0)], chosen=3)
    report.results += [result("b", "weft", "error"), result("b", "triton", "right")]
    report.results += [result("c", "weft", "error"), result("c", "triton", "error")]
    assert (report.share, len(report.judged)) == (0.5, 2)
    assert report.seconds_of_both == {"tests": 1, "weft": 2.0, "triton": 3.0}


@pytest.mark.parametrize("options", [["--device", "tpu"], ["--side", "jax"], ["--side", "triton"], ["--sample", "0"]])
def test_what_cannot_be_run_is_said_at_once(library: Path, tmp_path: Path, options: list[str]) -> None:
    command = ["conform", "kernels", "--from", str(library), "--reports", str(tmp_path / "reports"), *options]
    assert CliRunner().invoke(app, command).exit_code == 2
