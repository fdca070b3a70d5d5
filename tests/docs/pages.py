"""Runs a page of the docs: its Python blocks and its commands, and compares what they print with what the page says.

    python tests/docs/pages.py docs/architecture.md            # exits with 1 and the difference where the page is wrong
    python tests/docs/pages.py --update docs/architecture.md   # writes what is printed into the page

Blocks of a page run in order, in one module, in an empty folder. A comment on the line before a block says more:

    <!-- output of: previous block -->    the block is what the Python block or the commands before it print
    <!-- file: model.py -->               the block is a file, for the blocks after it
    <!-- run -->                          the lines of this `sh` block that start with `weft` are run
    <!-- needs: torch 2.13 -->            the block is run from this release on, with older ones nothing is
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import io
import os
import re
import shlex
import sys
import tempfile
import types
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

_BLOCK = re.compile(r"(?:^<!-- (?P<mark>[^>]+) -->\n+)?^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_OUTPUT, _FILE, _RUN, _NEEDS = "output of: previous block", "file: ", "run", "needs: "


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the comment before it, its text, and where in the page the text stands."""

    kind: str
    mark: str
    text: str
    span: tuple[int, int]
    line: int


def blocks_of(page: str) -> list[Block]:
    """The fenced blocks of a page's text."""
    return [
        Block(
            match["kind"],
            (match["mark"] or "").strip(),
            match["text"],
            match.span("text"),
            page.count("\n", 0, match.start("text")),
        )
        for match in _BLOCK.finditer(page)
    ]


def runs(page: str) -> bool:
    """Whether there is something to run."""
    return any(block.kind == "python" or block.mark == _RUN for block in blocks_of(page))


def run_page(path: Path) -> str:
    """Run a page in the current folder; gives its text with the outputs that were really printed."""
    page = path.read_text(encoding="utf-8")
    module = types.ModuleType("page")
    sys.modules["page"] = module
    printed: str | None = None
    replaced: list[tuple[tuple[int, int], str]] = []
    for block in blocks_of(page):
        if block.mark == _OUTPUT:
            if printed is None:
                raise ValueError(f"{path}:{block.line}: there is nothing that prints before this output")
            replaced.append((block.span, printed))
        elif block.mark.startswith(_FILE):
            Path(block.mark.removeprefix(_FILE)).write_text(block.text, encoding="utf-8")
        elif block.mark == _RUN:
            printed = _trimmed(run_commands(block.text))
        elif block.mark.startswith(_NEEDS) and not is_installed(block.mark.removeprefix(_NEEDS)):
            printed = None
        elif block.kind == "python":
            # The empty lines let tracebacks, and the locations that Weft reports, name the page's own lines.
            code = compile("\n" * block.line + block.text, str(path), "exec")
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(code, module.__dict__)
            printed = _trimmed(out.getvalue())
    for (start, end), text in reversed(replaced):
        page = page[:start] + text + page[end:]
    return page


def is_installed(needed: str) -> bool:
    """Whether a package is of a release, `torch 2.13` for example, or of a newer one."""
    name, release = needed.split()
    return _numbers(version(name)) >= _numbers(release)


def _numbers(release: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", release)[:2]]


def _trimmed(printed: str) -> str:
    return "".join(line.rstrip() + "\n" for line in printed.strip("\n").splitlines())


def run_commands(text: str) -> str:
    """Run the lines that are calls of `weft`, each of which must succeed; gives what they print."""
    from typer.testing import CliRunner

    from weft.tools.cli import app

    printed: list[str] = []
    for line in text.splitlines():
        if not line.startswith("weft "):
            continue
        done = CliRunner().invoke(app, shlex.split(line, comments=True)[1:])
        if done.exit_code != 0:
            raise RuntimeError(f"`{line}` exits with {done.exit_code}: {done.output}") from done.exception
        printed.append(done.stdout)
    return "".join(printed)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--update", action="store_true")
    parser.add_argument("pages", nargs="+", type=Path)
    options = parser.parse_args()
    wrong = False
    for path in [page.resolve() for page in options.pages]:
        before = path.read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            after = run_page(path)
            os.chdir(path.parent)
        if options.update:
            path.write_text(after, encoding="utf-8")
        elif after != before:
            wrong = True
            lines = difflib.unified_diff(
                before.splitlines(), after.splitlines(), str(path), "what is printed", lineterm=""
            )
            sys.stdout.write("\n".join(lines) + "\n")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
