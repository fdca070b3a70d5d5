"""`weft reduce` finds the failing graph, shrinks it, and writes a script."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest

from weft.ops.base import REGISTRY

from .conftest import last_json


@pytest.fixture
def broken_exp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(REGISTRY["exp"].cls, "reference", staticmethod(lambda x: np.exp(x) + 1))


def test_a_graph(weft, softmax: str, tmp_path: Path, broken_exp: None) -> None:
    output = tmp_path / "small.py"
    result = weft("reduce", softmax, "-o", str(output), "--json")
    figures = last_json(result)
    assert result.exit_code == 0 and figures["kind"] == "wrong" and figures["ops"] == 1
    assert '"graph.exp"' in output.read_text() and "reproduce(PROGRAM, seed=0)" in output.read_text()
    assert "graph.exp" in weft("reduce", softmax, "-o", str(output)).stdout


def test_a_script(weft, tmp_path: Path, broken_exp: None) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "user.py"
    script.write_text(
        "import torch\n"
        "f = torch.compile(lambda x: (x.exp() * 2).sum(-1).neg(), backend='weft')\n"
        "with torch.no_grad(): f(torch.randn(4, 6))\n"
    )
    output = tmp_path / "small.py"
    figures = last_json(weft("reduce", str(script), "-o", str(output), "--json"))
    assert figures["ok"], figures
    assert figures["ops"] == 1 and "graph.exp" in figures["program"]


def test_a_script_whose_graph_cannot_be_imported(weft, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from weft.frontends.torch.aten import CONVERTERS
    from weft.testing.reduce.reduce_import import import_failure

    def broken(b, x):
        raise IndexError("no such place")

    monkeypatch.setitem(CONVERTERS, "aten.tanh.default", broken)
    script = tmp_path / "user.py"
    script.write_text(
        "import torch\n"
        "f = torch.compile(lambda x: (x.exp() * 2).tanh().sum(-1), backend='weft')\n"
        "with torch.no_grad(): f(torch.randn(4, 6))\n"
    )
    output = tmp_path / "small.py"
    figures = last_json(weft("reduce", str(script), "-o", str(output), "--json"))
    assert figures["ok"] and figures["kind"] == "raises" and figures["failure"] == "IndexError: no such place"
    scope = runpy.run_path(str(output), run_name="small")
    assert "torch.ops.aten.tanh.default(x0)" in output.read_text()
    assert isinstance(import_failure(scope["call"], scope["INPUTS"]), IndexError)
    monkeypatch.undo()
    assert import_failure(scope["call"], scope["INPUTS"]) is None


def said_by(script: Path, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    assert ended.value.code
    return capsys.readouterr().out


def test_a_script_that_fails_by_its_options(weft, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    torch.compiler.reset()
    script, output = tmp_path / "user.py", tmp_path / "small.py"
    script.write_text(
        "import torch\n"
        "f = torch.compile(lambda x: torch.linalg.svdvals(x * 2) + 1, backend='weft', options={'strict': True})\n"
        "f(torch.randn(4, 4))\n"
    )
    figures = last_json(weft("reduce", str(script), "-o", str(output), "--json"))
    assert figures["ok"] and figures["failure"].startswith("UnsupportedError"), figures
    assert "torch.ops.aten._linalg_svd" in output.read_text() and "options={'strict': True}" in output.read_text()
    assert "_linalg_svd" in said_by(output, capsys)


def test_a_script_that_fails_by_its_inputs(weft, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    torch.compiler.reset()
    script, output = tmp_path / "user.py", tmp_path / "small.py"
    script.write_text(
        "import torch\n"
        "f = torch.compile(lambda x, i: (x.exp() + 1)[i].sum(), backend='weft')\n"
        "with torch.no_grad():\n"
        "    f(torch.randn(7, 3), torch.tensor([1, 2]))\n"
        "    f(torch.randn(7, 3), torch.tensor([1, 9]))\n"
    )
    figures = last_json(weft("reduce", str(script), "-o", str(output), "--json"))
    assert figures["ok"] and figures["kind"] == "raises", figures
    assert "an index is out of range for dimension 0, of size 7" in figures["failure"]
    assert "graph.exp" not in figures["program"]
    assert "out of range" in said_by(output, capsys)


def test_a_script_that_fails_by_its_inputs_before_it_writes(
    weft, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch = pytest.importorskip("torch")
    torch.compiler.reset()
    script, output = tmp_path / "user.py", tmp_path / "small.py"
    script.write_text(
        "import torch\n"
        "def f(x, i):\n"
        "    x.add_(x[i].sum())\n"
        "    return torch.linalg.svdvals(x)\n"
        "f = torch.compile(f, backend='weft')\n"
        "with torch.no_grad(): f(torch.randn(7, 3), torch.tensor([1, 9]))\n"
    )
    figures = last_json(weft("reduce", str(script), "-o", str(output), "--json"))
    assert figures["ok"] and figures["kind"] == "raises", figures
    assert "an index is out of range for dimension 0, of size 7" in figures["failure"]
    assert "out of range" in said_by(output, capsys)


def test_what_works_is_refused(weft, softmax: str, tmp_path: Path) -> None:
    result = weft("reduce", softmax, "-o", str(tmp_path / "small.py"))
    assert result.exit_code == 1 and "the graph does not fail" in result.stderr
    assert not (tmp_path / "small.py").exists()
    missing = weft("reduce", str(tmp_path / "missing.py"))
    assert missing.exit_code == 2 and "no script" in missing.stderr
