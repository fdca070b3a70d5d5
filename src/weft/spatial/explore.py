"""Asks what other machines would do with a graph: every combination of some fields' values, scheduled anew.

A variant is compared by its time, its energy and a proxy of its area: transistors of memory and multipliers. What no
other variant beats in all three is the Pareto front.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context
from typing import Any

import numpy as np

from weft.errors import WeftError
from weft.spatial.energy import energy_of
from weft.spatial.machine import StreamingMachine, streaming_machine
from weft.spatial.scheduler.compile import compile_graph
from weft.tile.text import functions_of, parse_program

SRAM_BIT, MULTIPLIER = 6, 1000
"""Transistors, about: a cell of memory, and an 8-bit multiplier with its adder."""


@dataclass(frozen=True)
class Variant:
    """A machine and what it does with the graph, or why it cannot."""

    overrides: Mapping[str, Any]
    microseconds: float = 0.0
    cycles: int = 0
    area: float = 0.0
    """Millions of transistors."""
    joules: float = 0.0
    binding: str = ""
    """The unit that is busy longest, and its share of the cycles."""
    problem: str = ""

    @property
    def figures(self) -> tuple[float, float, float]:
        return self.microseconds, self.area, self.joules


def area_of(machine: StreamingMachine) -> float:
    """Millions of transistors in memory and multipliers."""
    return (machine.memory_bytes * 8 * SRAM_BIT + machine.int8_macs * MULTIPLIER) / 1e6


def explore(
    text: str, constants: Mapping[str, np.ndarray], machine: str, vary: Mapping[str, Sequence[Any]], workers: int
) -> list[Variant]:
    """All combinations, in order; `text` is a graph."""
    points = [dict(zip(vary, values, strict=True)) for values in product(*vary.values())]
    streaming_machine(machine, {path: values[0] for path, values in vary.items()})  # a field that is not there
    if workers < 2 or len(points) < 2:
        _start(text, constants)
        return [_variant(machine, point) for point in points]
    given = (text, constants)
    with ProcessPoolExecutor(workers, get_context("spawn"), initializer=_start, initargs=given) as pool:
        jobs = [pool.submit(_variant, machine, point) for point in points]
        return [job.result() for job in jobs]


_graph: dict[str, Any] = {}
"""What a process schedules on all its variants: the function and its constants, read once."""


def _start(text: str, constants: Mapping[str, np.ndarray]) -> None:
    _graph.update(function=functions_of(parse_program(text))[0], constants=constants)


def _variant(name: str, overrides: Mapping[str, Any]) -> Variant:
    try:
        machine = streaming_machine(name, overrides)
        program = compile_graph(_graph["function"], machine, _graph["constants"])
    except WeftError as error:
        return Variant(overrides, problem=str(error).splitlines()[0])
    busy = {unit: cycles for unit, cycles in program.bounds.items() if unit != "MACs"}
    binding = max(busy, key=lambda unit: busy[unit])
    share = f"{binding} {busy[binding] / max(1, program.cycles):.0%}"
    time, joules = program.cycles / machine.clock_hz * 1e6, sum(energy_of(program).values())
    return Variant(overrides, time, program.cycles, area_of(machine), joules, share)


def pareto_front(variants: Sequence[Variant]) -> list[int]:
    """The numbers of those that no other is as good as in everything and better in something."""
    fine = [number for number, each in enumerate(variants) if not each.problem]
    points = np.array([variants[number].figures for number in fine]).reshape(-1, 3)
    kept: list[int] = []
    for number, point in zip(fine, points, strict=True):
        if not np.any(np.all(points <= point, axis=1) & np.any(points < point, axis=1)):
            kept.append(number)
    return kept


def page_of(title: str, variants: Sequence[Variant]) -> str:
    """A page of its own that draws time against area, the front in colour; pointing at a dot says what it is."""
    front, fine = set(pareto_front(variants)), [each for each in variants if not each.problem]
    times, areas = [each.microseconds for each in fine], [each.area for each in fine]
    dots = "\n".join(
        f'<circle cx="{_scaled(each.area, areas, 60, 780)}" cy="{_scaled(each.microseconds, times, 440, 40)}" r="5" '
        f'fill="{"#c33" if number in front else "#999"}"><title>{_told(each)}</title></circle>'
        for number, each in enumerate(variants)
        if not each.problem
    )
    rows = "\n".join(f"<li>{_told(variants[number])}</li>" for number in sorted(front))
    scale = f"{min(times, default=0):.2f} … {max(times, default=0):.2f} µs (up)"
    wide = f"{min(areas, default=0):,.0f} … {max(areas, default=0):,.0f} million transistors (right)"
    return f"""<!doctype html><meta charset="utf-8"><title>{_escaped(title)}</title>
<body style="font-family: sans-serif"><h1>{_escaped(title)}</h1>
<p>{len(variants)} machines, {len(front)} on the front (red). {scale}; {wide}.</p>
<svg width="840" height="480" style="border: 1px solid #ccc">
{dots}
</svg>
<ul>
{rows}
</ul></body>
"""


def _scaled(value: float, values: Sequence[float], low: float, high: float) -> str:
    least, most = min(values), max(values)
    share = (value - least) / (most - least) if most > least else 0.5
    return f"{low + (high - low) * share:.1f}"


def _told(each: Variant) -> str:
    fields = ", ".join(f"{path} = {value}" for path, value in each.overrides.items())
    figures = f"{each.microseconds:.3f} µs, {each.area:,.0f} M transistors, {each.joules * 1e6:.1f} µJ"
    return _escaped(f"{fields}: {figures}, {each.binding} busy")


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
