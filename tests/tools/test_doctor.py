"""`weft doctor` says what it finds and fails where Weft cannot work."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from weft.tools import doctor as doctor_module
from weft.tools.doctor import Finding

from .conftest import last_json


def test_this_machine_is_healthy(weft) -> None:
    result = weft("doctor", "--json")
    report = last_json(result)
    assert result.exit_code == 0, report
    assert report["ok"]
    found = report["findings"]
    assert found["processor"]["vector_bits"] in (128, 256, 512)
    assert found["llvm"]["llvm"] and found["python"]["version"]
    assert found["self-test"]["relative_error"] < 1e-5
    assert {"cpu", "nvidia", "reference"} <= set(found["targets"]["found"]) and not found["targets"]["broken"]
    assert set(found) == set(doctor_module.EXAMINATIONS)


def test_the_report_is_a_table(weft) -> None:
    result = weft("doctor")
    assert "self-test" in result.stdout and "Weft works here" in result.stdout


def test_a_failure_is_reported_with_exit_code_1(weft, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Finding:
        raise OSError("libLLVM is gone")

    monkeypatch.setitem(doctor_module.EXAMINATIONS, "llvm", broken)
    result = weft("doctor", "--json")
    report = last_json(result)
    assert result.exit_code == 1 and not report["ok"]
    assert "libLLVM is gone" in report["findings"]["llvm"]["text"]
    assert report["findings"]["llvm"]["advice"]


def test_a_wrong_result_fails_the_self_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_module, "SOFTMAX", doctor_module.SOFTMAX.replace("graph.exp", "graph.exp2"))
    assert doctor_module.self_test().status == "failed"


def test_help_is_quick_and_loads_no_compiler() -> None:
    code = "import sys; from weft.tools.cli import app; print(*sys.modules)"
    least = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600)
        least = min(least, time.perf_counter() - start)
    assert not {"torch", "numpy", "xdsl", "llvmlite"} & set(done.stdout.split())
    assert least < 2


def test_version(weft) -> None:
    from weft import __version__

    assert weft("--version").stdout.strip() == f"weft {__version__}"
