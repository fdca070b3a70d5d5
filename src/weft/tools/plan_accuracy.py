"""`weft plan --evaluate FOLDER`: the planner against measurements, an error for each family, and how quick it is."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from weft.planner.tables import KernelTables
from weft.testing.planner_accuracy import LOST, Errors, left_out_operations, services
from weft.testing.planner_speed import planner_speed
from weft.testing.planner_throughput import throughput
from weft.tools.terminal import Terminal, UsageError

_NEAR = 0.05
"""A choice that loses no more than this is as good as the best."""


def evaluate(terminal: Terminal, folder: Path) -> None:
    """Print the errors of operations, services and throughput, which nothing is fitted to, and the planner's speed."""
    if not KernelTables.systems(folder / "kernel_tables"):
        raise UsageError(f"{folder} holds no kernel tables", hint="there has to be kernel_tables/SYSTEM/system.json")
    figures: dict[str, object] = {"ok": True}
    for make in (
        lambda: left_out_operations(folder / "kernel_tables"),
        lambda: services(folder),
        lambda: throughput(folder),
    ):
        with terminal.working("comparing"):
            found = list(make())
        for errors in found:
            _show(terminal, errors)
            if errors.title.startswith(LOST):
                share = errors.within(_NEAR)
                terminal.show(f"within {_NEAR * 100:.0f} % of the best measured in {share * 100:.1f} % of the groups")
                figures[f"{errors.title}, share within 5 %"] = share
            figures[errors.title] = [
                dict(zip(("family", "rows", "median", "mean", "p90", "worst", "bias"), row, strict=True))
                for row in errors.rows()
            ]
    with terminal.working("timing"):
        speed = planner_speed()
    terminal.show(
        f"{speed['configurations_s']:,.0f} configurations and {speed['iterations_s']:,.0f} iterations "
        "a second of this machine's CPU time"
    )
    figures["speed"] = speed
    terminal.finish(figures)


def _show(terminal: Terminal, errors: Errors) -> None:
    table = Table("family", "rows", "median", "mean", "p90", "worst", "bias", title=errors.title)
    for name, count, *parts, bias in errors.rows():
        table.add_row(name, str(count), *(f"{each * 100:.1f} %" for each in parts), f"{bias * 100:+.1f} %")
    terminal.show(table)
    for reason, count in errors.left_out.items():
        terminal.show(f"left out: {count} rows, {reason}")
