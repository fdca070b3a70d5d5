"""A schedule as a trace that Perfetto and Chrome show: a row for each queue, a slice for each group of instructions."""

from __future__ import annotations

from typing import Any

from weft.spatial.isa import Function, Opcode
from weft.spatial.program import Program


def trace_of(program: Program) -> dict[str, Any]:
    """The trace as JSON; a cycle is a nanosecond, and times are in microseconds as the format has it."""
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": 0, "name": "process_name", "args": {"name": f"{program.machine.name}, chip 0"}}
    ]
    for queue in sorted({int(queue) for queue in program.instructions["queue"]}):
        name = {"name": program.units.name(queue)}
        events.append({"ph": "M", "pid": 0, "tid": queue, "name": "thread_name", "args": name})
    for row in program.instructions:
        opcode = Opcode(int(row["opcode"]))
        last = int(row["cycle"]) + (int(row["count"]) - 1) * int(row["period"])
        kind = Function(int(row["function"])).name if opcode == Opcode.ALU else opcode.name
        events.append(
            {
                "ph": "X",
                "pid": 0,
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
    return {"traceEvents": events, "displayTimeUnit": "ns"}
