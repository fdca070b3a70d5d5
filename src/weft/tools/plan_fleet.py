"""`weft plan --fleet FILE`: many services on mixed racks, who gets which GPUs, and what is not served."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from weft.planner.fleet import FleetPlan, plan_fleet, read_fleet
from weft.planner.fleet_page import dollars, fleet_page
from weft.planner.plan import quantiles
from weft.tools.terminal import Terminal, UsageError, check_file, counted


def fleet(terminal: Terminal, file: Path, tables: Path | None, html: Path | None = None) -> None:
    """Share a fleet out and print who has what; the status is 1 where some demand is not served."""
    if tables is not None and not tables.is_dir():
        raise UsageError(f"there is no folder {tables}", hint="give --tables a folder of kernel tables")
    if html is not None:
        check_file(html, "--html")
    given = read_fleet(file)
    total = len(given.services) * len(given.pools)
    with terminal.working(f"planning {counted(total, 'pair')} of service and GPU"):
        found = plan_fleet(given, tables)
    _show(terminal, found)
    if html is not None:
        html.write_text(fleet_page(found), encoding="utf-8")
        terminal.show(f"The page is {html}.")
    terminal.finish(figures(found), code=1 if found.unserved else 0)


def figures(found: FleetPlan) -> dict[str, Any]:
    """All of a fleet's plan, as JSON has it."""
    return {
        "ok": not found.unserved,
        "gpus": sum(pool.gpus for pool in found.fleet.pools),
        "dollars_per_hour": found.dollars,
        "least_dollars_per_hour": found.least_dollars,
        "pools": [
            {"name": pool.name, "gpu": pool.gpu.device, "gpus": pool.gpus, "used": found.used(pool),
             "one_more_gpu": asdict(found.worth[pool.name]) if pool.name in found.worth else None}
            for pool in found.fleet.pools
        ],
        "shares": [
            {"service": each.service.name, "pool": each.pool.name, "mapping": str(each.choice.mapping),
             "replicas": each.replicas, "spare_replicas": each.spare, "gpus": each.gpus,
             "requests_s": each.rate, "requests_s_per_replica": each.choice.rate,
             "ttft_ms": {name: value * 1e3 for name, value in quantiles(each.choice.load.outcome.ttft).items()},
             "tpot_ms": {name: value * 1e3 for name, value in quantiles(each.choice.load.outcome.tpot).items()}}
            for each in found.shares
        ],
        "unserved_requests_s": found.unserved,
        "missing_spares": found.missing_spares,
        "cannot_be": found.refused,
        "assumptions": {pair: list(told) for pair, told in found.assumptions.items()},
    }  # fmt: skip


def _show(terminal: Terminal, found: FleetPlan) -> None:
    for name, rate in found.unserved.items():
        terminal.show(Text(f"{name}: {rate:.2f} requests/s are not served: no pool has room", style="bold yellow"))
    for name, count in found.missing_spares.items():
        terminal.show(Text(f"{name}: no room for {counted(count, 'spare replica')}", style="yellow"))
    table = Table(
        "service", "pool", "mapping", "replicas", "spare", "GPUs", "requests/s", "TTFT p90 ms", "TPOT p90 ms",
        title="the most that replicas bear, and what users see there",
    )  # fmt: skip
    for each in found.shares:
        seen = each.choice.load.outcome
        table.add_row(
            each.service.name, each.pool.name, str(each.choice.mapping), str(each.replicas), str(each.spare),
            str(each.gpus), f"{each.rate:.1f}", f"{quantiles(seen.ttft)['p90'] * 1e3:.0f}",
            f"{quantiles(seen.tpot)['p90'] * 1e3:.1f}",
        )  # fmt: skip
    terminal.show(table)
    for pair, told in found.assumptions.items():
        for words in told:
            terminal.show(Text(f"{pair}: {words}", style="yellow"))
    table = Table("pool", "GPUs", "used", "one more GPU")
    for pool in found.fleet.pools:
        worth = str(found.worth.get(pool.name, "changes nothing"))
        table.add_row(pool.name, f"{pool.gpus:,}", f"{found.used(pool):,}", worth)
    terminal.show(table)
    terminal.show(dollars(found))
    for pair, reason in found.refused.items():
        terminal.show(f"{pair}: {reason}")
