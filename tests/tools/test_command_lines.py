"""Command lines that are wrong, and machines without torch: said in words, as JSON, and with what to do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import last_json

WITHOUT_TORCH = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "functorch"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
import weft

try:
    weft.compile
except weft.WeftError as error:
    assert isinstance(error, ModuleNotFoundError)
    print(error)

from weft.tools.cli import app

for arguments in (["bench", "cpu"], ["conform", "opinfo"], ["explain", sys.argv[1]]):
    try:
        app([*arguments, "--json"])
    except SystemExit as ended:
        print(ended.code)
"""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["opt", "x", "--lvel", "t"], "--lvel"),
        (["opt"], "file"),
        (["optt"], "optt"),
        (["cache", "list", "--all"], "--all"),
    ],
)
def test_a_wrong_command_line_is_json_too(weft, arguments: list[str], message: str) -> None:
    result = weft(*arguments, "--json")
    figures = last_json(result)
    assert result.exit_code == 2 and not figures["ok"]
    assert figures["error"] == "UsageError" and message in figures["message"]
    assert weft(*arguments).exit_code == 2


def test_a_typo_is_not_handed_to_the_script(weft, tmp_path: Path) -> None:
    script = tmp_path / "user.py"
    script.write_text("import sys; print(sys.argv[1:])")
    for typo in ("--sav", "--sava", "--jsn", "--targt=sm_90a", "--cache"):
        result = weft("explain", str(script), typo, "x", "--json")
        assert result.exit_code == 2 and "did you mean --" in last_json(result)["message"], typo
        assert "put -- before" in last_json(result)["hint"]
    assert "['--sav', 'x']" in weft("explain", str(script), "--", "--sav", "x").stdout
    assert "['--rate', '3', '-v']" in weft("explain", str(script), "--rate", "3", "-v").stdout
    assert "did you mean --output" in last_json(weft("reduce", str(script), "--outptu", "x", "--json"))["message"]


def test_what_a_script_raises_is_in_its_json(weft, tmp_path: Path) -> None:
    script = tmp_path / "user.py"
    script.write_text("raise ValueError('the end')")
    figures = last_json(weft("explain", str(script), "--json"))
    assert (figures["ok"], figures["error"], figures["message"]) == (False, "ValueError", "the end")


def test_without_torch_it_is_said_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text("")
    command = [sys.executable, "-c", WITHOUT_TORCH, str(tmp_path / "user.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    advice = "`pip install weft[torch]`; `weft doctor` says what there is"
    compile_, hint, *rest = done.stdout.splitlines()
    assert compile_ == "weft.compile needs torch, which is not installed" and advice in hint, done.stderr
    assert len(rest) == 6 and rest[1::2] == ["1"] * 3
    for line in rest[::2]:
        assert json.loads(line)["hint"] == advice
    assert "Traceback" not in done.stderr


def test_names_that_are_almost_right_are_suggested(weft, softmax: str) -> None:
    result = weft("opt", softmax, "-p", "simplfy", "--json")
    assert "did you mean simplify?" in last_json(result)["message"] and "hint" not in last_json(result)
    assert "there are" in last_json(weft("opt", softmax, "-p", "xyz", "--json"))["hint"]


def test_a_signature_that_is_no_type_is_said_once(weft, tmp_path: Path) -> None:
    kernel = tmp_path / "kern.py"
    kernel.write_text("import triton\n\n@triton.jit\ndef scale(x):\n    pass\n")
    figures = last_json(weft("explain", f"{kernel}:scale", "--signature", "64", "--json"))
    assert figures["message"] == "64 is not a type"


def test_an_unknown_keyword_of_a_launch_is_shown_in_lines() -> None:
    from weft.frontends.triton.errors import OptionError

    assert str(OptionError("BLOK is no parameter", hint="did you mean BLOCK?")).splitlines() == [
        "BLOK is no parameter",
        "  hint: did you mean BLOCK?",
    ]
