"""An `Explanation`: what compilations did, as people read it, as plain data and as files of programs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from weft.backends.cpu.target import compile_assembly, target_for
from weft.backends.llvm.stated_lines import with_source
from weft.backends.nvidia.ir.kernel_passes import PassNote
from weft.config import Config
from weft.runtime.profile import StepEvent
from weft.runtime.record import CompilationRecord, Fallback
from weft.tools.explain.device import DeviceKernel, choices_table, device_figures, device_kernels, device_table, sass
from weft.tools.terminal import counted, scaled

_LEAST_SHARE = 0.02
"""Of the time of all stages: those that took less stand in one line."""
_SUFFIXES = {"llvm": "ll", "ptx": "ptx", "sass": "sass"}


@dataclass(frozen=True)
class Explanation:
    """The compilations of a run, and where tracing had to stop. `str()` of it is the report."""

    records: tuple[CompilationRecord, ...]
    graph_breaks: Mapping[str, int] = field(default_factory=dict[str, int])
    config: Config = field(default_factory=Config)
    seconds: float = 0.0
    steps: Sequence[StepEvent] = ()
    """What ran on a GPU, and for how long."""
    failure: Exception | None = None
    """What the script raised at its end."""

    @property
    def fallbacks(self) -> list[Fallback]:
        """Every call that is left to the framework."""
        return [fallback for record in self.records for fallback in record.fallbacks]

    @cached_property
    def device_kernels(self) -> dict[int, list[DeviceKernel]]:
        """The kernels of each graph that is for a GPU, by the graph's number."""
        return {
            number: device_kernels(record, self.steps)
            for number, record in enumerate(self.records, 1)
            if record.device is not None
        }

    def figures(self) -> dict[str, Any]:
        """The explanation as plain data."""
        return {
            "graphs": [
                {**record.figures(), "device_kernels": device_figures(self.device_kernels.get(number, ()))}
                for number, record in enumerate(self.records, 1)
            ],
            "graph_breaks": dict(self.graph_breaks),
            "config": vars(self.config),
            "seconds": self.seconds,
            "compile_seconds": sum(sum(record.seconds.values()) for record in self.records),
        }

    def save(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write the programs that were kept to files, which `weft opt`, `weft explain` and `weft reduce` read."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        saved: list[Path] = []
        for number, record in enumerate(self.records, 1):
            for level, text in _levels(record).items():
                saved.append(folder / f"{number}-{record.name}-{level}.{_SUFFIXES.get(level, 'mlir')}")
                saved[-1].write_text(text)
        return saved

    def programs(self) -> str:
        """The program of each graph at every level that was kept."""
        parts: list[str] = []
        for number, record in enumerate(self.records, 1):
            for level, text in _levels(record).items():
                parts.append(f"// graph {number} ({record.name}) as {level}\n{text}")
        return "\n".join(parts)

    def code(self) -> str:
        """The assembly or PTX of each graph, with the lines of the program that it came of."""
        parts: list[str] = []
        for number, record in enumerate(self.records, 1):
            text = record.programs.get("ptx") or _assembly(record)
            if text:
                parts.append(f"// graph {number} ({record.name})\n{with_source(text)}")
        return "\n".join(parts)

    def __rich__(self) -> RenderableType:
        return Group(*_report(self))

    def __str__(self) -> str:
        console = Console(width=120, color_system=None)
        with console.capture() as captured:
            console.print(self)
        return captured.get()


def _levels(record: CompilationRecord) -> dict[str, str]:
    """The texts that a record kept; for a GPU also what its own instructions are, where a tool can tell."""
    instructions = sass(record.device) if "ptx" in record.programs else None
    return record.programs if instructions is None else {**record.programs, "sass": instructions}


def _assembly(record: CompilationRecord) -> str:
    """A graph's code for a processor, which is not kept as text."""
    if "llvm" not in record.programs:
        return ""
    return compile_assembly(record.programs["llvm"], target_for((record.config or Config()).cpu))


def _report(explanation: Explanation) -> list[RenderableType]:
    records = explanation.records
    parts: list[RenderableType] = []
    if not records:
        parts.append(
            "No graph reached Weft. Is a function compiled with backend='weft', and called? If so, Dynamo handed over"
            " nothing of it: it leaves LSTM, GRU and RNN modules, sparse tensors and what stands around graph breaks to"
            " eager. `fullgraph=True` makes that an error."
        )
    for number, record in enumerate(records, 1):
        parts.append(_graph(number, record))
        parts.extend(Text(f"  repeated: {block}") for block in record.blocks)
    if records:
        parts.append(_times(records))
    if kernels := _kernels(records):
        parts.append(kernels)
    if on_device := device_table(explanation.device_kernels):
        parts.append(on_device)
    if choices := choices_table(_passes_of_kernels(records)):
        parts.append(choices)
    if records:
        parts.append(_claims(records))
        parts.append(_fallbacks(explanation.fallbacks))
    if explanation.graph_breaks:
        parts.append(_breaks(explanation.graph_breaks))
    if records:
        parts.append(_assumptions(records))
    if changed := _changed(explanation.config):
        parts.append(Text(f"options: {changed}", style="dim"))
    return parts


def _passes_of_kernels(records: Sequence[CompilationRecord]) -> list[tuple[str, Sequence[PassNote]]]:
    """What came of each pass over kernels, by what they are called in the report."""
    labels = {kernel.name: kernel.label for record in records for kernel in record.kernels}
    found = {name: notes for record in records for name, notes in record.kernel_passes.items()}
    return [(labels.get(name, name), notes) for name, notes in found.items()]


def _changed(config: Config) -> str:
    """The options that are not what they are by default, without the cache, which explaining turns off."""
    default = vars(Config())
    return ", ".join(f"{k}={v!r}" for k, v in vars(config).items() if v != default[k] and k != "cache")


def _graph(number: int, record: CompilationRecord) -> RenderableType:
    took = sum(record.seconds.values())
    nodes = f"{counted(record.nodes, 'node')} → " if record.nodes else ""
    drawn = sum(claim.uses for claim in record.claims if claim.library == "generator")
    claimed, left = sum(claim.uses for claim in record.claims) - drawn, len(record.fallbacks)
    made = f"{nodes}{counted(record.ops, 'op')} → {counted(len(record.kernels), 'kernel')}"
    made += f", launched {counted(record.launches, 'time')} a call"
    made += f", {counted(claimed, 'library call')}, {counted(left, 'call')} left to torch"
    made += f", {counted(drawn, 'call')} of torch's generator" if drawn else ""
    for sizes, size in record.arenas.items():
        made += f"; {scaled(size, 'B')} of temporaries" + (f" at {sizes}" if sizes else "")
    if record.peak is not None:
        made += f"; {scaled(record.peak, 'B')} at most in a step"
    match record.source:
        case "torch":
            text = f"runs uncompiled, {record.error}"
        case "cache":
            text = f"from the disk cache in {took:.3f} s: {made}"
        case _ if record.error:
            text = f"failed, {record.error}"
        case _:
            text = f"compiled in {took:.3f} s: {made}"
    return Text(f"graph {number}, {record.name}: {text}", style="red" if record.error else "bold")


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _times(records: Sequence[CompilationRecord]) -> RenderableType:
    seconds: dict[str, float] = {}
    for record in records:
        for stage, took in record.seconds.items():
            seconds[stage] = seconds.get(stage, 0.0) + took
    total = sum(seconds.values()) or 1.0
    table = _table("Time by stage", "stage", "ms", "share")
    shown = {stage: took for stage, took in seconds.items() if took >= _LEAST_SHARE * total}
    for stage, took in shown.items():
        table.add_row(stage, f"{took * 1e3:.1f}", f"{took / total:.0%}")
    if others := len(seconds) - len(shown):
        took = sum(seconds.values()) - sum(shown.values())
        table.add_row(f"{others} others", f"{took * 1e3:.1f}", f"{took / total:.0%}")
    table.add_row("all", f"{total * 1e3:.1f}", "100%", style="bold")
    return table


def _kernels(records: Sequence[CompilationRecord]) -> RenderableType | None:
    table = _table("Kernels", "graph", "uses", "computes", "schedule", "programs")
    for number, record in enumerate(records, 1):
        for kernel in record.kernels:
            label = kernel.label.replace("_", " ")
            table.add_row(str(number), str(kernel.uses), label, Text(kernel.schedule), Text(kernel.grid))
    return table if table.row_count else None


def _claims(records: Sequence[CompilationRecord]) -> RenderableType:
    table = _table("Done by libraries", "graph", "uses", "library", "op", "types")
    for number, record in enumerate(records, 1):
        for claim in record.claims:
            table.add_row(str(number), str(claim.uses), claim.library, claim.op, Text(claim.types))
    return table if table.row_count else Text("Nothing is done by libraries.")


def _fallbacks(fallbacks: Sequence[Fallback]) -> RenderableType:
    if not fallbacks:
        return Text("Nothing is left to torch.")
    table = _table(
        "Left to torch",
        "calls",
        "target",
        "line",
        "why",
    )
    for fallback, count in Counter(fallbacks).items():
        table.add_row(str(count), Text(fallback.target), Text(fallback.line or "unknown"), Text(fallback.reason))
    return table


def _breaks(breaks: Mapping[str, int]) -> RenderableType:
    table = _table("Graph breaks", "times", "why")
    for reason, count in breaks.items():
        # Dynamo's reasons are long; the first lines say what it met and why it stopped.
        table.add_row(str(count), Text("\n".join(reason.strip().splitlines()[:2])))
    return table


def _assumptions(records: Sequence[CompilationRecord]) -> RenderableType:
    symbols = {text: None for record in records for text in record.symbols.values()}
    guards = {text: None for record in records for text in record.guards}
    if not symbols and not guards:
        return Text("Every size is fixed: other sizes are compiled anew.")
    table = _table("What is assumed of sizes", "symbols", "guards")
    table.add_row(Text("\n".join(symbols)), Text("\n".join(guards)))
    return table
