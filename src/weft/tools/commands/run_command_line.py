"""The options of `weft run`, and the quick way to read them: without typer, whose import takes longer than most models.

The command line of all commands states the same options by `stated`. What is not a plain use of them (help, a typo, a
number that is none) is left to it, so that there is one place that says what is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from weft.tools.terminal import Terminal


@dataclass(frozen=True)
class CommandOption:
    """An option: what it takes, and whether it may be repeated; one that takes `bool` is a switch."""

    name: str
    help: str
    takes: type = str
    repeated: bool = False
    least: int | None = None


INPUT = CommandOption("--input", "An array: `x.npy` in order, or `name=x.npy`; may be repeated.", repeated=True)
OUTPUT = CommandOption("--output", "Write the results to this file: `out.npz`.", Path)
TRUST = CommandOption("--trust", "Run the file's machine code, whoever made it.", bool)
DEVICE = CommandOption("--device", "Where to run: cpu, or cuda.")
THREADS = CommandOption("--threads", "How many threads; by default one a core.", int, least=1)
JSON = CommandOption("--json", "Print one JSON object instead of the report.", bool)
RUN_OPTIONS = (INPUT, OUTPUT, TRUST, DEVICE, THREADS, JSON)


@dataclass(frozen=True)
class RunRequest:
    """What `weft run` is asked for; members are named as its options are."""

    artifact: Path
    input: tuple[str, ...] = ()
    output: Path | None = None
    trust: bool = False
    device: str = "cpu"
    threads: int | None = None
    json: bool = False


def parse_run(words: Sequence[str]) -> RunRequest | None:
    """The words behind `weft run`; None where they are not plain."""
    known = {option.name: option for option in RUN_OPTIONS}
    files: list[str] = []
    given: dict[str, Any] = {}
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        option = known.get(name)
        if option is None or (option.takes is bool and equals):
            if word.startswith("-"):
                return None
            files.append(word)
            continue
        if option.takes is not bool and not equals and (value := next(rest, "")).startswith("-"):
            return None
        found = _value(option, value)
        if found is None:
            return None
        key = name.removeprefix("--")
        given[key] = (*given.get(key, ()), found) if option.repeated else found
    return RunRequest(Path(files[0]), **given) if len(files) == 1 else None


def _value(option: CommandOption, text: str) -> Any:
    if option.takes is bool:
        return True
    if not text or (option.takes is int and not text.isdecimal()):
        return None
    value = option.takes(text)
    return None if option.least is not None and value < option.least else value


def run(asked: RunRequest) -> NoReturn:
    """Run an artifact, and end the process."""
    terminal = Terminal(json=asked.json)
    with terminal.reporting_errors():
        from weft.tools.artifacts import RunOptions, run_model

        run_model(
            terminal,
            asked.artifact,
            RunOptions(asked.input, asked.output, asked.trust, asked.device, asked.threads),
        )
    raise SystemExit(0)
