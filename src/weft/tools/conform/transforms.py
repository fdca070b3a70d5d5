"""`weft conform transforms`: every ordered pair of transformations of every op, judged in float64."""

from __future__ import annotations

from rich.text import Text

import weft.ops  # noqa: F401  # pyright: ignore[reportUnusedImport] - fills the registry
from weft.testing.conformance.journal import part
from weft.testing.conformance.transform_pairs import run_pairs
from weft.testing.transform_checks import samples
from weft.tools.terminal import Terminal, UsageError, parse_shard


def conform_transforms(terminal: Terminal, ops: tuple[str, ...], at_most: int, shard: str | None) -> None:
    """Judge the pairs, print what is wrong and why some do not exist, and exit with 1 if one is wrong."""
    known = samples(at_most)
    if missing := next((name for name in ops if all(name != each.spec.name for each in known)), None):
        raise UsageError(f"no op is called {missing}", hint="docs/ops.md lists them")
    chosen = part([each for each in known if not ops or each.spec.name in ops], parse_shard(shard))
    report = run_pairs(chosen)
    figures = report.to_json()
    for each in figures["wrong"]:
        terminal.show(Text.assemble(("wrong", "red"), f" {each}"))
    for reason, count in report.exclusions().items():
        terminal.show(Text(f"{count} excluded: {reason}"))
    if report.without:
        terminal.show(Text(f"no float64: {', '.join(report.without)}"))
    terminal.show(Text(str(report), style="bold"))
    terminal.finish({"ok": not figures["wrong"], **figures}, code=1 if figures["wrong"] else 0)
