"""A schedule as a trace that Perfetto and Chrome show: a row for each queue, a slice for each group of instructions."""

from __future__ import annotations

from typing import Any

from weft.spatial.isa import Function, Opcode
from weft.spatial.program import Program, expanded
from weft.spatial.system import System


def trace_of(program: Program) -> dict[str, Any]:
    """The trace as JSON; a cycle is a nanosecond, and times are in microseconds as the format has it."""
    return {"traceEvents": _events(program, 0), "displayTimeUnit": "ns"}


def system_trace(system: System) -> dict[str, Any]:
    """The trace of many chips: a process for each, and beside its queues how many of its links are sending."""
    events: list[dict[str, Any]] = []
    for chip, program in enumerate(system.programs):
        events += [*_events(program, chip), *_sending(program, chip)]
    return {"traceEvents": events, "displayTimeUnit": "ns"}


def _sending(program: Program, chip: int) -> list[dict[str, Any]]:
    """Links at work, as a counter: a vector keeps one busy for some cycles."""
    issues = expanded(program.instructions)
    sent = issues["cycle"][issues["opcode"] == Opcode.SEND].tolist()
    changes = sorted([(cycle, 1) for cycle in sent] + [(cycle + program.machine.link_period, -1) for cycle in sent])
    events: list[dict[str, Any]] = []
    busy = 0
    for number, (cycle, change) in enumerate(changes):
        busy += change
        if number + 1 == len(changes) or changes[number + 1][0] != cycle:
            args = {"links": busy}
            events.append({"ph": "C", "pid": chip, "name": "links sending", "ts": cycle / 1000, "args": args})
    return events


def _events(program: Program, chip: int) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": chip, "name": "process_name", "args": {"name": f"{program.machine.name}, chip {chip}"}}
    ]
    for queue in sorted({int(queue) for queue in program.instructions["queue"]}):
        name = {"name": program.units.name(queue)}
        events.append({"ph": "M", "pid": chip, "tid": queue, "name": "thread_name", "args": name})
    for row in program.instructions:
        opcode = Opcode(int(row["opcode"]))
        last = int(row["cycle"]) + (int(row["count"]) - 1) * int(row["period"])
        kind = Function(int(row["function"])).name if opcode == Opcode.ALU else opcode.name
        events.append(
            {
                "ph": "X",
                "pid": chip,
                "tid": int(row["queue"]),
                "name": f"{kind} × {row['count']}",
                "ts": int(row["cycle"]) / 1000,
                "dur": (last + 1 - int(row["cycle"])) / 1000,
                "args": {
                    "op": program.origins[int(row["origin"])],
                    "cycle": int(row["cycle"]),
                    "count": int(row["count"]),
                    "period": int(row["period"]),
                    "address": int(row["address"]),
                },
            }
        )
    return events
