"""Where a command writes: its report or one JSON object to stdout, progress to stderr, and its exit code.

With `--json` the last line of stdout is one JSON object; what people read is left out.
"""

from __future__ import annotations

import json as json_module
import os
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from weft.errors import WeftError, missing

# Neither typer nor rich is imported for a command that prints text alone: they take longer than `weft run` does.
if TYPE_CHECKING:
    from rich.console import Console, RenderableType


class UsageError(WeftError):
    """A command line that asks for something there is not: exit code 2."""


def counted(number: int, noun: str) -> str:
    """A number of things, in words: `1 kernel`, `2 kernels`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def scaled(amount: float, unit: str = "") -> str:
    """An amount with the prefix that keeps it short: `1.58 kB`."""
    prefixes = ["", "k", "M", "G", "T"]
    while amount >= 1000 and len(prefixes) > 1:
        amount /= 1000
        prefixes.pop(0)
    return f"{amount:.4g} {prefixes[0]}{unit}".strip()


def parse_shard(text: str | None) -> tuple[int, int] | None:
    """A part of a run: `2/8` is every eighth thing from the third on."""
    if text is None:
        return None
    index, _, count = text.partition("/")
    if not (index.isdigit() and count.isdigit() and int(index) < int(count)):
        raise UsageError(
            f"{text} is not a part of a run", hint="2/8 is every eighth from the third on; 0/8 is the first"
        )
    return int(index), int(count)


def check_folder(folder: Path, option: str) -> None:
    """Make a folder to write to, or say at once that it cannot be one: before hours of work."""
    hint = f"give {option} a folder that you may write to"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"the folder {folder} cannot be made: {error.strerror}", hint=hint) from error
    if not os.access(folder, os.W_OK):
        raise UsageError(f"the folder {folder} cannot be written to", hint=hint)


def check_file(path: Path, option: str, *, exists: bool = False) -> None:
    """Say at once that a file cannot be written, or is not there where it has to be. It makes no file."""
    if exists and not path.is_file():
        raise UsageError(f"there is no file {path}", hint=f"write it first, or give {option} another")
    try:
        there = path.exists()
        with path.open("a"):
            pass
        if not there:
            path.unlink()
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror}", hint=f"give {option} a file in a folder that is there"
        ) from error


@contextmanager
def _missing_packages() -> Generator[None]:
    """Say what to install where a command needs a package that Weft does without."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise missing(error, "this command") or error from None


class Terminal:
    """The output of one run of a command."""

    def __init__(self, *, json: bool = False) -> None:
        self.json = json

    @cached_property
    def out(self) -> Console:
        from rich.console import Console

        # A report in a pipe or a file keeps its tables whole, whatever the terminal was.
        return Console() if sys.stdout.isatty() else Console(width=140, color_system=None)

    @cached_property
    def err(self) -> Console:
        from rich.console import Console

        return Console(stderr=True)

    def show(self, *renderables: RenderableType) -> None:
        """Print for people."""
        if not self.json:
            for each in renderables:
                self.out.print(each)

    def text(self, text: str) -> None:
        """Print text as it is: no markup, no wrapping."""
        if not self.json:
            sys.stdout.write(text if text.endswith("\n") else text + "\n")

    def note(self, text: str) -> None:
        """Print text to stderr as it is: no markup, no wrapping."""
        sys.stderr.write(text if text.endswith("\n") else text + "\n")

    def finish(self, figures: Mapping[str, Any], *, code: int = 0) -> NoReturn:
        """End the command with its figures."""
        if self.json:
            sys.stdout.write(json_module.dumps(dict(figures), default=str) + "\n")
        sys.stdout.flush()
        raise SystemExit(code)

    @contextmanager
    def working(self, what: str) -> Generator[None]:
        """Show that something is being done, where a person is watching."""
        if not self.err.is_terminal or self.json:
            yield
            return
        with self.err.status(what):
            yield

    @contextmanager
    def reporting_errors(self) -> Generator[None]:
        """Turn Weft's errors into a message and exit code 1, wrong command lines into 2; all else is a bug of ours."""
        try:
            with _missing_packages():
                yield
        except WeftError as error:
            from rich.text import Text

            kind = type(error).__name__
            self.err.print(Text.assemble(("error", "bold red"), f" ({kind}): {error}"), soft_wrap=True)
            figures = {"ok": False, "error": kind, "message": error.message}
            if error.location:
                figures["location"] = error.location
            if error.hint:
                figures["hint"] = error.hint
            self.finish(figures, code=2 if isinstance(error, UsageError) else 1)
