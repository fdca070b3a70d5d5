"""The quick way to read `weft run`'s options takes what the whole command line takes, and leaves it the rest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from weft.tools.cli import app
from weft.tools.commands.run_command_line import RUN_OPTIONS, RunRequest, parse_run


def test_the_options_are_those_of_the_whole_command_line() -> None:
    group: Any = typer.main.get_command(app)
    options = {each.opts[0]: each for each in group.commands["run"].params if each.opts[0].startswith("--")}
    assert set(options) == {option.name for option in RUN_OPTIONS}
    for option in RUN_OPTIONS:
        found = options[option.name]
        assert (found.is_flag, found.multiple, found.help) == (option.takes is bool, option.repeated, option.help)
        default = getattr(RunRequest(Path("m")), option.name.removeprefix("--"))
        assert (found.default or default) == default


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["m.weft"], RunRequest(Path("m.weft"))),
        (["--input", "x.npy", "m.weft", "--input=b=y.npy"], RunRequest(Path("m.weft"), ("x.npy", "b=y.npy"))),
        (["m.weft", "--threads", "3", "--json"], RunRequest(Path("m.weft"), threads=3, json=True)),
        (["m.weft", "--output", "o.npz", "--trust"], RunRequest(Path("m.weft"), output=Path("o.npz"), trust=True)),
    ],
)
def test_plain_command_lines_are_read(words: list[str], expected: RunRequest) -> None:
    assert parse_run(words) == expected


@pytest.mark.parametrize(
    "words",
    [
        *([], ["--help"], ["a", "b"], ["m", "--thread", "3"], ["m", "--threads", "0"], ["m", "--threads", "x"]),
        *(["m", "--input"], ["m", "--trust=yes"], ["m", "--", "x"], ["m", "--device", "--json"], ["m", "-h"]),
    ],
)
def test_all_else_is_left_to_the_whole_command_line(words: list[str]) -> None:
    assert parse_run(words) is None


def test_neither_typer_nor_rich_nor_xdsl_is_imported_for_a_run(tmp_path: Path) -> None:
    make = (
        "import pathlib, numpy as np\n"
        "from weft.artifact.write import Request, write_artifact\n"
        "from weft.testing.hostile_artifacts import layer_inputs, layer_source\n"
        "write_artifact(pathlib.Path('layer.weft'), layer_source(), Request(('host',)))\n"
        "np.save('x.npy', layer_inputs())"
    )
    run = (
        "import sys, atexit\n"
        "atexit.register(lambda: print(sorted({'typer', 'rich', 'xdsl', 'llvmlite', 'torch'} & set(sys.modules))))\n"
        "from weft.__main__ import main\n"
        "sys.argv = ['weft', 'run', 'layer.weft', '--input', 'x.npy']\n"
        "main()"
    )
    for code in (make, run):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
    assert "float32[5, 3]" in done.stdout
