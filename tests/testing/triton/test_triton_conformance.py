"""`weft conform triton` on a checkout of our own making."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from weft.testing.triton.triton_conformance import TESTS, CheckoutError, TritonRun, run_triton

CONFTEST = """
import pytest

def pytest_configure(config):
    config.addinivalue_line("markers", "interpreter: runs in the interpreter")

def pytest_addoption(parser):
    parser.addoption("--device", action="store", default="cuda")

@pytest.fixture
def device(request):
    return request.config.getoption("--device")
"""

TEST = """
import subprocess, sys, time
import pytest, torch
import triton, triton.language as tl


SOURCE = '''
@triton.jit
def made(out_ptr, BLOCK: tl.constexpr):
    tl.store(out_ptr + tl.arange(0, BLOCK), 7)
'''

@pytest.mark.interpreter
def test_made_by_exec(device):
    scope = {}
    exec(SOURCE, globals(), scope)
    out = torch.zeros(8, device=device)
    scope["made"][(1,)](out, BLOCK=8)
    assert (out == 7).all()

@pytest.mark.interpreter
def test_in_a_child():
    subprocess.run([sys.executable, "-c", "import triton; assert triton.__file__.find('weft') > 0"], check=True)

@pytest.mark.interpreter
@pytest.mark.parametrize("n", [1, 2])
def test_wrong(n):
    assert n == 0

@pytest.mark.interpreter
def test_skipped():
    pytest.skip("needs 8 things")

@pytest.mark.interpreter
def test_slow():
    time.sleep(100)

def test_unmarked():
    pass
"""


def test_verdicts_are_counted_and_grouped(tmp_path: Path) -> None:
    folder = tmp_path / TESTS
    folder.mkdir(parents=True)
    (tmp_path / "python" / "test" / "conftest.py").write_text(CONFTEST)
    (folder / "test_language.py").write_text(TEST)
    (folder / "test_broken.py").write_text(textwrap.dedent("import triton.no_such_module"))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    report = run_triton(TritonRun(tmp_path, jobs=1, time_limit=20))
    figures = report.to_json()
    assert (figures["passed"], figures["failed"], figures["skipped"]) == (2, 3, 1)
    assert figures["by_cause"] == {"wrong result in test_wrong": 2, "TimeLimitError: took more than # s": 1}
    assert figures["skipped_by_cause"] == {"needs # things": 1}
    assert figures["others"]["tests"] == 1
    assert [name.rpartition("/")[2] for name in figures["not_imported"]] == ["test_broken.py"]
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_folder_that_is_no_checkout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckoutError, match="no checkout of Triton"):
        run_triton(TritonRun(tmp_path))
