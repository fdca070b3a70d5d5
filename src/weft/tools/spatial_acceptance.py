"""What `weft spatial acceptance` does: every target of the streaming machine beside what is reached now."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from weft.errors import WeftError
from weft.spatial.machine import streaming_machine
from weft.tools.spatial_targets import ROWS, Outcome
from weft.tools.terminal import Terminal, UsageError


def show_acceptance(terminal: Terminal, rows: list[int], machine_name: str, overrides: dict[str, Any]) -> None:
    """Schedule and prove what each row asks for, and tell which targets are met."""
    if unknown := [row for row in rows if row not in ROWS]:
        raise UsageError(f"there is no row {unknown[0]}", hint=f"rows are {min(ROWS)} to {max(ROWS)}")
    machine = streaming_machine(machine_name, overrides)
    table = Table("row", "what", "target", "reached", "", title=f"{machine.name}@{machine.digest}")
    figures: list[dict[str, Any]] = []
    for number in rows or ROWS:
        with terminal.working(f"row {number}"):
            try:
                found = list(ROWS[number](machine))
            except WeftError as error:
                found = [Outcome(ROWS[number].__name__, "", f"{type(error).__name__}: {error.message}", False)]
        for each in found:
            table.add_row(str(number), each.what, each.target, each.reached, "met" if each.ok else "missed")
            figures.append({"row": number, **vars(each)})
    terminal.show(table)
    met = all(each["ok"] for each in figures)
    terminal.finish({"ok": met, "machine": f"{machine.name}@{machine.digest}", "rows": figures}, code=int(not met))
