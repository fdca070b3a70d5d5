"""What the docs say of the tree is so: paths, modules, make targets, links, instructions, tables and the picture."""

from __future__ import annotations

import importlib
import re
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from weft.backends.nvidia.ir.kernel_passes import FirstThatMatches, KernelPass
from weft.backends.nvidia.kernel_pipeline import nvidia_kernel_passes
from weft.tools.bench.cpu_tables import side_by_side
from weft.tools.bench.gpu_report import markdown
from weft.tools.bench.result_files import chart_of, read_files
from weft.tools.cli import app

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src/weft"
NAMES = ["README.md", "CONTRIBUTING.md", "benchmarks/README.md"]
NAMES += [f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))]
PAGES = {name: (ROOT / name).read_text(encoding="utf-8") for name in NAMES}

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REPOSITORY: str = PROJECT["urls"]["Repository"]
FILES = f"{REPOSITORY}/blob/main/"
RAW = FILES.replace("https://github.com/", "https://raw.githubusercontent.com/").replace("/blob/", "/")

# Of other projects, or of the reader.
FOREIGN = {"tests/ops", "test/transformers", "programs/1-inference-graph.mlir", "reports/fuzz", "reports/ptx"}
SUFFIXES = "py|md|toml|txt|json|svg|mlir"


def prose(page: str) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)


def spans(page: str) -> list[str]:
    """What stands between backticks in a page's prose; a span may go on in the next line."""
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose(page))]


def commands(page: str) -> list[str]:
    """Lines of `sh` blocks, and spans."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return [*(line.partition(" #")[0] for block in blocks for line in block.splitlines()), *spans(page)]


@cache
def top_folders() -> frozenset[str]:
    return frozenset(path.name for place in (ROOT, PACKAGE) for path in place.iterdir() if path.is_dir())


@cache
def file_names() -> frozenset[str]:
    places = (PACKAGE, ROOT / "tests", ROOT / "docs", ROOT / "benchmarks", ROOT / "examples", ROOT / "requirements")
    found = {path.name for place in places for path in place.rglob("*") if path.is_file()}
    return frozenset(found | {path.name for path in ROOT.iterdir()})


def is_path(span: str) -> bool:
    if span in FOREIGN or not re.fullmatch(r"[\w.-]+(?:/[\w.-]+)*/?", span) or "/" not in span:
        return False
    return span.split("/")[0] in top_folders() or re.search(rf"\.(?:{SUFFIXES})$", span) is not None


def exists(span: str, page: str) -> bool:
    places = (ROOT, PACKAGE, PACKAGE / "frontends/torch", (ROOT / page).parent)
    return any((place / span).exists() for place in places)


@pytest.mark.parametrize("name", NAMES)
def test_paths_exist(name: str) -> None:
    missing = [span for span in spans(PAGES[name]) if is_path(span) and not exists(span, name)]
    assert not missing, f"{name} names what is not in the tree; a file that moved has to be renamed here too"


@pytest.mark.parametrize("name", NAMES)
def test_files_that_are_named_without_their_folder_exist(name: str) -> None:
    written = re.findall(r"<!-- file: (\S+) -->", PAGES[name])
    of_readers = {"model.py", "script.py", "kernel.py", "reduced.py", "test_recognize_silu.py", *written}
    named = [span for span in spans(PAGES[name]) if re.fullmatch(rf"[\w.-]+\.(?:{SUFFIXES})", span)]
    missing = [span for span in named if span not in file_names() | of_readers and not span.startswith("my_")]
    assert not missing


@pytest.mark.parametrize("name", NAMES)
def test_modules_and_names_can_be_imported(name: str) -> None:
    for span in spans(PAGES[name]):
        dotted = re.fullmatch(r"(weft(?:\.\w+)+)(?:\(.*\))?", span)
        if dotted is not None:
            assert is_importable(dotted[1]) or dotted[1] in loggers(), span


@pytest.mark.parametrize("name", NAMES)
def test_modules_that_are_run_exist(name: str) -> None:
    for each in commands(PAGES[name]):
        for module in re.findall(r"\bpython3? -m (weft[\w.]*)", each):
            assert find_spec(module), each


@cache
def loggers() -> frozenset[str]:
    return frozenset(re.findall(r"`(weft\.\w+)`", (PACKAGE / "diagnostics.py").read_text()))


def is_importable(dotted: str) -> bool:
    """A module, or an attribute of one."""
    module, _, last = dotted.rpartition(".")
    try:
        if find_spec(dotted) is not None:
            return True
    except ModuleNotFoundError:
        return False
    return hasattr(importlib.import_module(module), last)


@pytest.mark.parametrize("name", NAMES)
def test_make_targets_exist(name: str) -> None:
    known = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    used = {target for each in commands(PAGES[name]) for target in re.findall(r"^make ([a-z0-9-]+)", each)}
    assert used <= known


@pytest.mark.parametrize("name", NAMES)
def test_tests_that_are_run_by_hand_exist(name: str) -> None:
    for each in commands(PAGES[name]):
        if each.startswith("pytest "):
            paths = [word for word in each.split() if "/" in word]
            assert paths and all((ROOT / path).exists() for path in paths), each


def test_every_make_target_has_its_help() -> None:
    makefile = (ROOT / "Makefile").read_text()
    (phony,) = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert set(phony.split()) == set(re.findall(r"^([a-z0-9-]+):.*## ", makefile, re.MULTILINE))


def links(page: str) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", prose(page))


def anchors(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def target_of(link: str, page: str) -> tuple[Path, str] | None:
    """The file of the tree that a link leads to, and the heading in it; None if it leads elsewhere."""
    for prefix in (FILES, RAW):
        if link.startswith(prefix):
            path, _, anchor = link.removeprefix(prefix).partition("#")
            return ROOT / path, anchor
    if link.startswith("https://"):
        return None
    path, _, anchor = link.partition("#")
    return ((ROOT / page).parent / path).resolve() if path else ROOT / page, anchor


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name: str) -> None:
    for link in links(PAGES[name]):
        found = target_of(link, name)
        if found is not None:
            path, anchor = found
            assert path.exists(), link
            assert not anchor or anchor in anchors(path.read_text(encoding="utf-8")), link


def test_one_address_is_used_for_the_repository() -> None:
    texts = {**PAGES, "pyproject.toml": (ROOT / "pyproject.toml").read_text()}
    for name, text in texts.items():
        owners = set(re.findall(r"https://(?:raw\.githubusercontent|github)\.com/([\w-]+/weft)\b", text))
        assert owners <= {REPOSITORY.removeprefix("https://github.com/")}, name
    for name, address in PROJECT["urls"].items():
        found = target_of(address, "README.md")
        assert address.startswith(REPOSITORY), name
        assert found is None or found[0].is_file(), name


def test_links_of_the_readme_work_where_there_is_no_tree() -> None:
    """On the package index nothing stands beside the page, and pictures are fetched as they are."""
    assert all(link.startswith("https://") for link in links(PAGES["README.md"]))
    pictures = re.findall(r"!\[[^\]]+\]\(([^)\s]+)\)", PAGES["README.md"])
    assert len(pictures) == 1 and all(link.startswith(RAW) for link in pictures)


def test_the_readme_is_short() -> None:
    assert len(PAGES["README.md"].splitlines()) <= 150
    assert "| ---" not in PAGES["README.md"], "tables are in docs/performance.md"


def techniques() -> list[list[str]]:
    table = PAGES["docs/nvidia.md"].partition("\n## Where each technique is\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


@pytest.mark.parametrize("row", techniques(), ids=lambda row: row[0][:40])
def test_a_technique_is_where_the_table_says(row: list[str]) -> None:
    _, decided, emitted, instructions = row
    paths = re.findall(r"`([^`]+)`", decided + emitted)
    assert paths and all((PACKAGE / path).is_file() for path in paths)
    for instruction in re.findall(r"`([^`]+)`", instructions):
        assert instruction in backend_text(), instruction


@cache
def backend_text() -> str:
    return "\n".join(path.read_text() for path in sorted((PACKAGE / "backends/nvidia").rglob("*.py")))


def choices(passes: Iterable[KernelPass], inside: str = "") -> Iterator[str]:
    """The alternatives of kernel passes, as rows of the table that lists them."""
    for choice in passes:
        if isinstance(choice, FirstThatMatches):
            place = f', inside of "{inside}"' if inside else ""
            yield f"| `{choice.name}`{place} | {'; '.join(each.name for each in choice.alternatives)} |"
            for each in choice.alternatives:
                yield from choices(each.passes, each.name)


def test_the_alternatives_of_kernels_are_those_of_the_list() -> None:
    table = PAGES["docs/nvidia.md"].partition("\n| choice | ")[2].partition("\n\n")[0]
    assert table.splitlines()[2:] == list(choices(nvidia_kernel_passes()))


def test_the_table_has_the_words_that_are_searched_for() -> None:
    said = " ".join(row[0] for row in techniques())
    for word in (
        *("TMA pipelining", "warp specialization", "software pipelining", "layout assignment", "epilogue fusion"),
        *("epilogue overlap", "split-K", "online softmax", "PDL", "multicast", "swizzle", "dynamic tile scheduler"),
        *("horizontal fusion", "deduplication", "persistent", "grouped GEMM", "ping-pong", "cp.async"),
    ):
        assert word in said, word


def current_results() -> list[Path]:
    folder = ROOT / "benchmarks/results"
    return [folder / name for name in (folder / "current.txt").read_text().split()]


def test_tables_are_those_of_the_result_files() -> None:
    advice = "docs/performance.md says which commands bring it up to date"
    found = read_files(current_results())
    tables = {**side_by_side(found.processors), **markdown(found.gpus)}
    page = PAGES["docs/performance.md"]
    shown = dict(re.findall(r"<!-- bench (\S+) -->\n(.*?)<!-- end -->", page, re.DOTALL))
    assert shown.keys() == tables.keys(), advice
    for suite, table in tables.items():
        assert shown[suite] == f"\n{table}\n", f"{suite}: {advice}"
    assert (ROOT / "docs/speed.svg").read_text(encoding="utf-8") == chart_of(found.ratios()), advice


def test_the_page_of_the_zoo_is_that_of_the_result_files(tmp_path: Path) -> None:
    page = tmp_path / "zoo.md"
    results = str(ROOT / "benchmarks/results")
    run = CliRunner().invoke(app, ["conform", "zoo", "--into", str(page), "--results", results])
    assert run.exit_code == 0, run.output
    advice = "`weft conform zoo --into docs/zoo.md` brings it up to date"
    assert page.read_text(encoding="utf-8") == PAGES["docs/zoo.md"], advice


def test_no_table_of_figures_stands_elsewhere() -> None:
    for name, page in PAGES.items():
        if name != "docs/performance.md":
            assert "<!-- bench " not in page, name
            # Those of the README are compared with the tables by its own tests.
            assert name == "README.md" or "geometric mean" not in page, name
    outside = re.sub(r"<!-- bench .*?<!-- end -->", "", PAGES["docs/performance.md"], flags=re.DOTALL)
    assert not re.search(r"\d\.\d+ ?×|\d+(?:\.\d+)? (?:TFLOP/s|TB/s|tokens/s)", prose(outside)), (
        "a figure without a file"
    )
