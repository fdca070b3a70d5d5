"""The docs are true: their code runs, what it prints is what they show, and what they name exists."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from dataclasses import fields
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

import weft
from weft.config import Config
from weft.runtime.cache import DiskCache
from weft.runtime.tape import PARALLEL_FROM_NS
from weft.tools.cli import app
from weft.tools.pages.nvidia_op_page import page as nvidia_op_page
from weft.tools.pages.op_page import page as op_page

ROOT = Path(__file__).parents[2]
DOCS = sorted((ROOT / "docs").glob("*.md"))
TEXTS = {path.name: path.read_text(encoding="utf-8") for path in DOCS}
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def _pages() -> Any:
    spec = spec_from_file_location("pages", ROOT / "tests/docs/pages.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules["pages"] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


pages = _pages()


@pytest.mark.parametrize("name", [name for name, text in TEXTS.items() if pages.runs(text)])
def test_a_page_runs_and_prints_what_it_shows(name: str, tmp_path: Path) -> None:
    script, page = ROOT / "tests/docs/pages.py", ROOT / "docs" / name
    environment = {**os.environ, "WEFT_CACHE_DIR": str(tmp_path), "WEFT_CONFIG_DIR": str(tmp_path / "config")}
    done = subprocess.run([sys.executable, script, page], capture_output=True, text=True, env=environment, timeout=600)
    advice = f"`python tests/docs/pages.py --update docs/{name}` brings the page up to date"
    assert done.returncode == 0, f"{advice}\n{done.stdout}\n{done.stderr}"


def test_a_block_that_needs_a_release_is_run_from_it_on(tmp_path: Path) -> None:
    page, seen = tmp_path / "page.md", tmp_path / "seen"
    for release, ran in (("2.0", True), (pages.version("torch"), True), ("9.10", False)):
        seen.unlink(missing_ok=True)
        page.write_text(f"<!-- needs: torch {release} -->\n```python\nopen({str(seen)!r}, 'x').close()\n```\n")
        pages.run_page(page)
        assert seen.exists() == ran


@pytest.mark.parametrize("name", TEXTS)
def test_no_python_block_escapes(name: str) -> None:
    assert not re.search(r"^[ \t]+```", TEXTS[name], re.MULTILINE), "an indented block is not run"
    assert not re.search(r"^```py(?!thon$)", TEXTS[name], re.MULTILINE)


def test_the_page_of_ops_is_current() -> None:
    advice = "`python -m weft.tools.pages.op_page docs/ops.md` brings it up to date"
    assert TEXTS["ops.md"] == op_page(), advice


def test_the_page_of_the_ops_of_gpu_kernels_is_current() -> None:
    advice = "`python -m weft.tools.pages.nvidia_op_page docs/nvidia-ops.md` brings it up to date"
    assert TEXTS["nvidia-ops.md"] == nvidia_op_page(), advice


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as they are made of Markdown."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", TEXTS)
def test_links_lead_somewhere(name: str) -> None:
    prose = re.sub(r"^```.*?^```", "", TEXTS[name], flags=re.MULTILINE | re.DOTALL)
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", prose):
        if target.startswith("https://"):
            continue
        path = (ROOT / "docs" / target).resolve() if target else ROOT / "docs" / name
        assert path.exists(), target
        assert not anchor or anchor in anchors(path.read_text(encoding="utf-8")), f"{target}#{anchor}"


@pytest.mark.parametrize("name", TEXTS)
def test_files_and_modules_exist(name: str) -> None:
    codes = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", TEXTS[name], flags=re.MULTILINE | re.DOTALL))
    for code in codes:
        if re.fullmatch(r"[\w./-]+/[\w.-]+\.(?:py|md|toml|txt)", code) and not code.startswith("my_"):
            places = (ROOT, ROOT / "src/weft", ROOT / "src/weft/frontends/torch")
            assert any((place / code).exists() for place in places), code
        elif re.fullmatch(r"weft(?:\.[a-z_]+)+", code):
            module, _, last = code.rpartition(".")
            assert find_spec(code) if module != "weft" else hasattr(weft, last) or find_spec(code), code


def commands() -> dict[str, typer.core.TyperCommand]:
    """Every command by its words: `cache list`."""
    group: Any = get_command(app)
    found: dict[str, Any] = {}
    for name, command in group.commands.items():
        inner = getattr(command, "commands", None)
        found.update({f"{name} {part}": each for part, each in inner.items()} if inner else {name: command})
    return found


def test_every_command_has_its_section() -> None:
    for name in commands():
        assert f"`weft {name}" in TEXTS["cli.md"], name


@pytest.mark.parametrize("name", [*TEXTS, "../README.md", "../CONTRIBUTING.md", "../benchmarks/README.md"])
def test_commands_and_their_options_exist(name: str) -> None:
    known = commands()
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    for words in re.findall(r"(?:^|`)weft ([a-z][^`\n]*)", text, re.MULTILINE):
        words = words.split(" #")[0].split()
        command = " ".join(words[:2]) if " ".join(words[:2]) in known else words[0]
        assert command in known or any(each.startswith(f"{command} ") for each in known), words
        if command in known:
            given = known[command].params
            options = {option for each in given for option in (*each.opts, *each.secondary_opts)} | {"--help"}
            used = {word.split("=")[0] for word in words if word.startswith("--") and word != "--"}
            assert used <= options | {"--no-gradients"}, words


@pytest.mark.parametrize("name", TEXTS)
def test_environment_variables_exist(name: str) -> None:
    known = {f"WEFT_{field.name.upper()}" for field in fields(Config)}
    known |= {"WEFT_CACHE_DIR", "WEFT_COMMIT", "WEFT_CONFIG_DIR", "WEFT_INTERPRET"}
    assert set(re.findall(r"\bWEFT_[A-Z_]*[A-Z]\b", TEXTS[name])) <= known


def test_every_option_is_explained() -> None:
    for field in fields(Config):
        assert re.search(rf"^\| `{field.name}` \| `WEFT_{field.name.upper()}` \|", TEXTS["troubleshooting.md"], re.M)


def packages(requirements: list[str]) -> set[str]:
    names = {re.split(r"[<>=\[; ]", requirement)[0] for requirement in requirements}
    return names - {"weft"}


def test_every_dependency_is_justified() -> None:
    extras = PROJECT["optional-dependencies"]
    wanted = packages(PROJECT["dependencies"]).union(*map(packages, extras.values()))
    first = re.findall(r"^\| ([^|]+) \| ([^|]*) \|", TEXTS["dependencies.md"], re.MULTILINE)
    named = {name.strip("` ").split("[")[0] for cells in first for cell in cells for name in cell.split(",")}
    assert wanted <= named, wanted - named
    assert set(extras) <= named


def test_supported_versions_are_those_of_the_package() -> None:
    prefix = "Programming Language :: Python :: 3."
    versions = [entry.rpartition(" ")[2] for entry in PROJECT["classifiers"] if entry.startswith(prefix)]
    assert f"| Python | {', '.join(versions)} |" in TEXTS["support.md"]
    least = PROJECT["optional-dependencies"]["torch"][0].removeprefix("torch>=")
    assert f"| torch | {least} and newer |" in TEXTS["support.md"]


def test_figures_are_those_of_the_code() -> None:
    sums, threads = (
        TEXTS["architecture.md"].partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
        for heading in ("How sums are kept accurate", "Threads and forks")
    )
    files = {
        "lower/machine.py": r"^    row_elements: int = (?P<rows>\d+)|^    tile_elements: int = (?P<block>\d+)",
        "lower/groups/columns.py": r"^_SUMMED_IN_TURN = (?P<turn>\d+)",
        "backends/cpu/position.py": r"^_STRETCH = (?P<stretch>\d+)",
        "backends/cpu/dot.py": r"^_LONGEST_SUM = (?P<longest>\d+)|^_LONGEST_SUM_OF_FEW_ROWS = (?P<few>\d+)",
    }
    found: dict[str, str] = {}
    for file, pattern in files.items():
        for match in re.finditer(pattern, (ROOT / "src/weft" / file).read_text(), re.MULTILINE):
            found.update({name: number for name, number in match.groupdict().items() if number})
    assert len(found) == 6
    for number in found.values():
        assert re.search(rf"\b{number}\b", sums), found
    assert f"{PARALLEL_FROM_NS // 1000} µs" in threads
    assert DiskCache().limit_bytes == 2 << 30 and "up to 2 GiB" in TEXTS["troubleshooting.md"]


def test_the_changelog_has_this_version() -> None:
    assert re.search(rf"^## {re.escape(weft.__version__)}\b", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert PROJECT["version"] == weft.__version__


def test_help_of_every_command_works() -> None:
    for name in commands():
        assert CliRunner().invoke(app, [*name.split(), "--help"]).exit_code == 0
