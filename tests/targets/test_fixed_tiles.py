"""A target that is a distribution of its own, found by entry point: its models, what it refuses, and how."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import weft

HERE = Path(__file__).parent
DISTRIBUTION = HERE / "fixed_tiles"
MOST_LINES = 150


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment in which the distribution is as good as installed: its module and its metadata are on the path."""
    project = tomllib.loads((DISTRIBUTION / "pyproject.toml").read_text())["project"]
    folder = tmp_path / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    folder.mkdir()
    folder.joinpath("METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    groups = [f"[{group}]\n" + _lines(points) for group, points in project["entry-points"].items()]
    folder.joinpath("entry_points.txt").write_text("\n".join(groups))
    path = [str(Path(weft.__file__).parents[1]), str(DISTRIBUTION), str(tmp_path), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "WEFT_CACHE_DIR": str(tmp_path / "cache")}


def _lines(points: dict[str, str]) -> str:
    return "".join(f"{name} = {value}\n" for name, value in points.items())


def run(environment: dict[str, str], *arguments: str) -> str:
    command = [sys.executable, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_is_short() -> None:
    lines = [len(path.read_text().splitlines()) for path in DISTRIBUTION.iterdir() if path.is_file()]
    assert sum(lines) < MOST_LINES


def test_two_models_run_on_it(environment: dict[str, str]) -> None:
    report = json.loads(
        run(environment, str(HERE / "run_models.py"), "fixed_tiles", "minilm", "llama").splitlines()[-1]
    )
    assert report["targets"] == ["cpu", "fixed_tiles", "nvidia", "reference"]
    for judged in report["models"].values():
        assert judged["error"] < 1e-5 and judged["kernels"] > 10
        assert judged["graphs"] == 1 and judged["left"] == 0


REFUSED = """
from weft.backends.target import find_target
from weft.config import Config
from weft.errors import UnsupportedError
from weft.tile.text import functions_of, parse_program

(function,) = functions_of(parse_program('''
"graph.func"() ({
^bb0(%x: tensor<?x8xf32, #graph.sizes<["s0", "8"]>>):
  %y = "graph.exp"(%x) : (tensor<?x8xf32, #graph.sizes<["s0", "8"]>>) -> tensor<?x8xf32, #graph.sizes<["s0", "8"]>>
  "graph.return"(%y) : (tensor<?x8xf32, #graph.sizes<["s0", "8"]>>) -> ()
}) {sym_name = "f"} : () -> ()
''', "f.mlir"))
target = find_target("fixed_tiles").here(Config())
try:
    target.compile(function, Config(target="fixed_tiles"))
except UnsupportedError as error:
    print(error)
"""


FROM_TEXT = """
import sys

import numpy as np

from weft.config import Config
from weft.frontends.text import compile_text

multiply = compile_text('''
"graph.func"() ({
^bb0(%x: tensor<5x96xf32>, %w: tensor<96x40xf32>):
  %y = "graph.dot"(%x, %w) : (tensor<5x96xf32>, tensor<96x40xf32>) -> tensor<5x40xf32>
  "graph.return"(%y) : (tensor<5x40xf32>) -> ()
}) {sym_name = "f", arg_names = ["x", "w"]} : () -> ()
''', config=Config(target="fixed_tiles"), constants={"w": np.eye(96, 40, dtype=np.float32)})
x = np.arange(480, dtype=np.float32).reshape(5, 96)
np.testing.assert_array_equal(multiply(x)[0], x[:, :40])
print("torch" in sys.modules)
"""


def test_graphs_from_text_run_on_it_without_a_framework(environment: dict[str, str]) -> None:
    assert run(environment, "-c", FROM_TEXT).strip() == "False"


def test_dynamic_sizes_are_refused_with_what_to_do(environment: dict[str, str]) -> None:
    said = run(environment, "-c", REFUSED)
    assert "has the dynamic size s0, and the target 'fixed_tiles' takes none" in said
    assert "f.mlir:" in said and "dynamic=False" in said and "the target cpu" in said
