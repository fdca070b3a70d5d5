"""What the tests of the command line share: running a command in this process, with a cache of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from weft.tools.cli import app

SOFTMAX = """\
"graph.func"() ({
^bb0(%x: tensor<6x33xf32>):
  %m = "graph.max"(%x) {dims = [1 : i64], keep = true} : (tensor<6x33xf32>) -> tensor<6x1xf32>
  %d = "graph.sub"(%x, %m) : (tensor<6x33xf32>, tensor<6x1xf32>) -> tensor<6x33xf32>
  %e = "graph.exp"(%d) : (tensor<6x33xf32>) -> tensor<6x33xf32>
  %unused = "graph.tanh"(%d) : (tensor<6x33xf32>) -> tensor<6x33xf32>
  %s = "graph.sum"(%e) {dims = [1 : i64], keep = true} : (tensor<6x33xf32>) -> tensor<6x1xf32>
  %y = "graph.div"(%e, %s) : (tensor<6x33xf32>, tensor<6x1xf32>) -> tensor<6x33xf32>
  "graph.return"(%y) : (tensor<6x33xf32>) -> ()
}) {sym_name = "softmax"} : () -> ()
"""

MATMUL = """\
"graph.func"() ({
^bb0(%a: tensor<4096x4096xbf16>, %b: tensor<4096x4096xbf16>):
  %c = "graph.dot"(%a, %b) : (tensor<4096x4096xbf16>, tensor<4096x4096xbf16>) -> tensor<4096x4096xbf16>
  "graph.return"(%c) : (tensor<4096x4096xbf16>) -> ()
}) {sym_name = "matmul"} : () -> ()
"""


@pytest.fixture
def weft(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Result]:
    """`weft("opt", "file.mlir", stdin="...")` runs a command."""
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    runner = CliRunner()

    def run(*arguments: str, stdin: str | None = None) -> Result:
        return runner.invoke(app, list(arguments), input=stdin)

    return run


@pytest.fixture
def softmax(tmp_path: Path) -> str:
    path = tmp_path / "softmax.mlir"
    path.write_text(SOFTMAX)
    return str(path)


def last_json(result: Result) -> dict[str, Any]:
    return json.loads(result.stdout.splitlines()[-1])
