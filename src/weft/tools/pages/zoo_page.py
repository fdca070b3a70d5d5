"""The page of the docs that says which families are right: made from the result files of `weft conform zoo`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, cast

from weft.tools.conform.zoo import MODES, cause_of, counts
from weft.tools.terminal import Terminal, UsageError, check_file, counted

MARKS = {"right": "✓", "wrong": "✗", "error": "✗", "torch": "t", "none": "–"}
LONG_SECONDS = 10.0
LONGEST_CAUSE = 300
DTYPES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}

_INTRODUCTION = """# The zoo: which models are right

Every model type of transformers, from a small configuration with random weights that `weft conform zoo` makes from its
config class: two calls without gradients and two training steps (forward, a loss over all outputs, backward), compared
with float64, eager's own error being the bound. This page is made by `weft conform zoo --into docs/zoo.md` from the
result files in `benchmarks/results`.

A cell has a group for each element type: inference, then training. ✓ is right, ✗ wrong or failed, `t` is torch's own
(`aot_eager`, which runs the same graphs without Weft, fails or differs in the same way), – is what eager does not run
either, and `·` was not tried.
"""


@dataclass
class Machine:
    """All that is known of a machine: the newest verdict of each check, and whence it is."""

    name: str
    checks: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    sources: list[str] = field(default_factory=list[str])

    def add(self, document: Mapping[str, Any]) -> None:
        versions = ", ".join(f"{name} {number}" for name, number in document["versions"].items())
        self.sources.append(f"{document['date']}, {document['commit']}, {versions}")
        self.checks.update(document["checks"])

    def record(self, family: str, dtype: str) -> dict[str, Any] | None:
        return self.checks.get(f"family {family} {dtype}")

    def cell(self, family: str, dtypes: Sequence[str]) -> str:
        return " ".join(_marks(self.record(family, dtype)) for dtype in dtypes)


def write_page(terminal: Terminal, page: Path, results: Path) -> NoReturn:
    """Make the page from the result files, older ones first."""
    documents = [document for path in sorted(results.glob("*zoo*.json")) if (document := _read(path))]
    if not documents:
        raise UsageError(f"there are no result files of the zoo in {results}", hint="write one: weft conform zoo -o")
    check_file(page, "--into")
    machines: dict[str, Machine] = {}
    for document in sorted(documents, key=lambda each: each["date"]):
        machines.setdefault(document["machine"], Machine(document["machine"])).add(document)
    page.write_text(page_text(list(machines.values())))
    terminal.show(f"{page}: {counted(len(machines), 'machine')}")
    terminal.finish({"ok": True, "machines": list(machines)})


def page_text(machines: Sequence[Machine]) -> str:
    """The whole page."""
    names = sorted({key.split(" ")[1] for machine in machines for key in machine.checks})
    dtypes = [
        each for each in DTYPES if any(key.split(" ")[2] == each for machine in machines for key in machine.checks)
    ]
    ran = [name for name in names if any(_ran(machine, name, dtypes) for machine in machines)]
    parts = [_INTRODUCTION, "## In figures\n", _summary(machines, dtypes)]
    for title, lines in (
        ("What is not right, and why", _failures(machines)),
        ("What is left to torch", _left(machines)),
        ("Compiled again without need", _again(machines)),
        (f"More than {LONG_SECONDS:.0f} s of the processor inside the backend", _long(machines)),
    ):
        parts += [f"## {title}\n", "".join(f"- {line}\n" for line in lines) or "Nothing.\n"]
    head = f"| family | model | {' | '.join(machine.name for machine in machines)} |"
    rows = [
        f"| {name} | {_model(machines, name)} | {' | '.join(machine.cell(name, dtypes) for machine in machines)} |"
        for name in ran
    ]
    order = ", then ".join(DTYPES[each] for each in dtypes)
    parts += [f"## Families\n\nIn {order}.\n", "\n".join([head, f"|---|---|{'---|' * len(machines)}", *rows]) + "\n"]
    parts += ["## No small configuration\n", _without(machines, [name for name in names if name not in ran])]
    return "\n".join(parts)


def _summary(machines: Sequence[Machine], dtypes: Sequence[str]) -> str:
    lines = ["| machine | element type | tried | no small model | eager runs | right | speed | measured |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for machine in machines:
        for dtype in dtypes:
            found = {key: each for key, each in machine.checks.items() if key.split(" ")[2] == dtype}
            if not found:
                continue
            figures = counts(found)
            share = f"{figures['right']} ({figures['right'] / max(figures['ran'], 1):.1%})"
            columns = [machine.name, DTYPES[dtype], figures["checks"], figures["no_config"], figures["ran"], share]
            lines.append(f"| {' | '.join(map(str, columns))} | {_speed(found.values())} | {machine.sources[-1]} |")
    return "\n".join(lines) + "\n"


def _speed(records: Iterable[Mapping[str, Any]]) -> str:
    """The median of the speeds, as times eager's; small models measure what a call costs, not what a kernel does."""
    modes = (record.get(mode, {}).get("speeds", {}).get("weft") for record in records for mode in MODES)
    found = sorted(each for each in modes if each)
    return f"{found[len(found) // 2]:.2f}" if found else "not measured"


def _failures(machines: Sequence[Machine]) -> list[str]:
    return [
        f"{_named(key)} ({machine.name}): {_short(cause_of(record))}"
        for machine in machines
        for key, record in sorted(machine.checks.items())
        if not record["ok"]
    ]


def _left(machines: Sequence[Machine]) -> list[str]:
    families: dict[str, set[str]] = {}
    for machine in machines:
        for key, record in machine.checks.items():
            for mode in MODES:
                for target in record.get(mode, {}).get("left", ()):
                    families.setdefault(target, set()).add(key.split(" ")[1])
    ordered = sorted(families.items(), key=lambda item: (-len(item[1]), item[0]))
    return [f"`{target}`: {_some(sorted(names))}" for target, names in ordered]


def _again(machines: Sequence[Machine]) -> list[str]:
    def said(verdict: Mapping[str, Any]) -> str:
        return counted(verdict["again"], "graph") if verdict.get("again") else ""

    return _where(machines, said)


def _long(machines: Sequence[Machine]) -> list[str]:
    def said(verdict: Mapping[str, Any]) -> str:
        seconds = verdict.get("backend_seconds", 0.0)
        return f"{seconds:.0f} s for {counted(verdict['graphs'], 'graph')}" if seconds > LONG_SECONDS else ""

    return _where(machines, said)


def _where(machines: Sequence[Machine], said: Callable[[Mapping[str, Any]], str]) -> list[str]:
    return [
        f"{_named(key)}, {mode} ({machine.name}): {text}"
        for machine in machines
        for key, record in sorted(machine.checks.items())
        for mode in MODES
        if (text := said(record.get(mode, {})))
    ]


def _without(machines: Sequence[Machine], names: Sequence[str]) -> str:
    reasons: dict[str, str] = {}
    for machine in machines:
        for key, record in machine.checks.items():
            if "no_config" in record:
                reasons.setdefault(key.split(" ")[1], record["no_config"])
    return "".join(f"- {name}: {_short(reasons.get(name, ''))}\n" for name in names) or "None.\n"


def _ran(machine: Machine, family: str, dtypes: Sequence[str]) -> bool:
    records = (machine.record(family, dtype) for dtype in dtypes)
    return any(record is not None and "no_config" not in record for record in records)


def _model(machines: Sequence[Machine], family: str) -> str:
    models = Counter(
        record["model"]
        for machine in machines
        for key, record in machine.checks.items()
        if key.split(" ")[1] == family and "model" in record
    )
    return models.most_common(1)[0][0] if models else ""


def _marks(record: Mapping[str, Any] | None) -> str:
    if record is None or "no_config" in record:
        return "··"
    return "".join(MARKS[record[mode]["status"]] if mode in record else "✗" for mode in MODES)


def _named(key: str) -> str:
    _, family, dtype = key.split(" ")
    return f"{family} in {DTYPES[dtype]}"


def _short(text: str) -> str:
    line = " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
    return line if len(line) <= LONGEST_CAUSE else line[: LONGEST_CAUSE - 1] + "…"


def _some(names: Sequence[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _read(path: Path) -> dict[str, Any] | None:
    try:
        document = cast("dict[str, Any]", json.loads(path.read_text()))
        suite = document.get("suite")
    except (OSError, ValueError, AttributeError) as error:  # the last: it is no object
        raise UsageError(
            f"{path} is no result file: {error}", hint="remove it, or run `weft conform zoo -o` again"
        ) from error
    return document if suite == "zoo" else None
