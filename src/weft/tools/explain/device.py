"""The kernels of a GPU's code in a report: what each takes of a multiprocessor, and how near the roofline it is.

Registers are those of the driver where the program was loaded, else of ptxas where that is installed. The limit of a
kernel is the time in which the card's memory moves the tensors that it touches, or its units do the arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from weft.backends.nvidia.code import DeviceCode, Launch
from weft.backends.nvidia.driver.assembler import Assembly, assemble, disassemble
from weft.backends.nvidia.ir.kernel_passes import PassNote
from weft.backends.nvidia.target import NvidiaTarget, target_named
from weft.errors import WeftError
from weft.lower.steps import KernelStep, all_steps
from weft.runtime.profile import StepEvent, work_of
from weft.runtime.record import CompilationRecord, Resources
from weft.tile.operations import Operations, count_operations
from weft.tools.terminal import UsageError, scaled


def known_target(name: str) -> NvidiaTarget:
    """The GPU that a command line names."""
    try:
        return target_named(name)
    except WeftError as error:
        raise UsageError(error.message, hint=error.hint) from error


@dataclass(frozen=True)
class DeviceKernel:
    """One kernel of a GPU's code. What is not known is None: registers without driver and ptxas, work without sizes."""

    name: str
    label: str
    uses: int
    threads: int
    shared: int
    cluster: int
    registers: int | None
    spilled: int | None
    blocks: int | None
    """That a multiprocessor holds at once."""
    occupancy: float | None
    """Its threads as a share of those that a multiprocessor holds."""
    bytes: int | None = None
    operations: int | None = None
    limit: float | None = None
    """Seconds that the card needs for the bytes or the operations, whichever takes longer."""
    seconds: float | None = None
    """Measured, where the kernel ran."""

    @property
    def share(self) -> float | None:
        return self.limit / self.seconds if self.limit and self.seconds else None


def device_kernels(record: CompilationRecord, events: Iterable[StepEvent] = ()) -> list[DeviceKernel]:
    """The kernels of a record that has device code, in the order of its steps."""
    if record.device is None or record.plan is None:
        return []
    code, plan, target = record.device, record.plan, target_named(record.device.arch)
    taken = record.loaded or _assembled(assemble(code.ptx, code.arch))
    sizes = record.sizes if set(plan.symbols) <= record.sizes.keys() else None
    times = _times(events, record)
    uses = {kernel.name: kernel.uses for kernel in record.kernels}
    steps = {step.function: step for step in all_steps(plan.steps) if isinstance(step, KernelStep)}
    rows: list[DeviceKernel] = []
    for name, step in steps.items():
        moved, work = (None, None) if sizes is None else (work_of(step, plan, sizes)["bytes"], _work(record, name))
        rows.append(
            replace(
                _kernel(name, step.label or "copy", code.launches[name], taken.get(name), target),
                uses=uses[name],
                bytes=moved,
                operations=work.products + work.others if work else None,
                limit=_limit(target, moved, work) if moved is not None and work else None,
                seconds=times.get(name),
            )
        )
    return rows


def single_kernel(name: str, code: DeviceCode) -> DeviceKernel:
    """A kernel that is in no graph, of which nothing is known but its code."""
    taken = _assembled(assemble(code.ptx, code.arch))
    return _kernel(name, name, code.launches[name], taken.get(name), target_named(code.arch))


def _kernel(name: str, label: str, launch: Launch, taken: Resources | None, target: NvidiaTarget) -> DeviceKernel:
    """What a kernel takes of a multiprocessor."""
    blocks = target.blocks(launch.threads, taken.registers, launch.shared) if taken else None
    return DeviceKernel(
        name,
        label,
        uses=1,
        threads=launch.threads,
        shared=launch.shared,
        cluster=launch.cluster,
        registers=taken.registers if taken else None,
        spilled=taken.spilled if taken else None,
        blocks=blocks,
        occupancy=blocks * launch.threads / target.threads if blocks is not None else None,
    )


def _assembled(assembly: Assembly) -> dict[str, Resources]:
    return {name: Resources(each.registers, each.spilled) for name, each in assembly.kernels.items()}


def _times(events: Iterable[StepEvent], record: CompilationRecord) -> dict[str, float]:
    seconds: dict[str, list[float]] = {}
    for event in events:
        if event.plan is record.plan and isinstance(event.step, KernelStep):
            seconds.setdefault(event.step.function, []).append((event.end - event.start) / 1e9)
    return {name: median(each) for name, each in seconds.items()}


def _work(record: CompilationRecord, name: str) -> Operations:
    return count_operations(record.tiles[name], record.sizes)


def _limit(target: NvidiaTarget, moved: int, work: Operations) -> float:
    """8-bit products take half the time of 16-bit ones; wider ones are done without tensor cores."""
    bits = work.dtype.bits if work.dtype is not None else 32
    rate = target.plain_flops if bits > 16 else target.tensor_flops * 16 / max(bits, 8)
    return max(moved / target.bandwidth, work.products / rate, work.others / target.plain_flops)


def sass(code: DeviceCode | None) -> str | None:
    """The instructions of code for a GPU, where there are an assembler and a disassembler."""
    if code is None or not code.ptx:
        return None
    cubin = assemble(code.ptx, code.arch).cubin
    return disassemble(cubin) if cubin else None


def device_figures(kernels: Sequence[DeviceKernel]) -> list[dict[str, Any]]:
    """The kernels as plain data."""
    return [{**asdict(kernel), "share": kernel.share} for kernel in kernels]


def device_table(kernels: Mapping[int, Sequence[DeviceKernel]]) -> RenderableType | None:
    """A table of the kernels of each graph, by its number."""
    taken = ("threads", "registers", "shared", "blocks/SM", "bytes", "FLOP", "limit", "took", "share")
    table = Table("graph", "kernel", title="On the GPU", title_justify="left")
    for column in taken:
        table.add_column(column, overflow="fold", justify="right")
    for number, rows in kernels.items():
        for row in rows:
            threads = f"{row.threads}" if row.cluster == 1 else f"{row.threads} × {row.cluster}"
            registers = "?" if row.registers is None else f"{row.registers}"
            if row.spilled:
                registers += f", {row.spilled} B spilled"
            blocks = "?" if row.blocks is None or row.occupancy is None else f"{row.blocks} ({row.occupancy:.0%})"
            table.add_row(
                str(number),
                Text(row.label.replace("_", " ")),
                threads,
                registers,
                scaled(row.shared, "B"),
                blocks,
                _amount(row.bytes, "B"),
                _amount(row.operations),
                _time(row.limit),
                _time(row.seconds),
                "" if row.share is None else f"{row.share:.0%}",
            )
    return table if table.row_count else None


def choices_table(kernels: Iterable[tuple[str, Sequence[PassNote]]]) -> RenderableType | None:
    """How kernels were made, by what each is called: the alternatives that were tried, and why one was not taken.

    Kernels of which the same is said stand together.
    """
    said: dict[tuple[PassNote, ...], list[str]] = {}
    for label, notes in kernels:
        said.setdefault(tuple(note for note in notes if note.is_alternative), []).append(label)
    table = Table("kernel", "way to make it", "taken", title="Alternatives of kernels", title_justify="left")
    for choices, labels in said.items():
        named = ", ".join(dict.fromkeys(label.replace("_", " ") for label in labels))
        reasons: dict[tuple[str, ...], str | None] = {(*note.inside, note.name): note.refused for note in choices}
        for note in choices:
            answer = "yes" if note.refused is None else f"no: {note.refused}"
            if note.refused is not None and reasons.get(note.inside[:-1]) == note.refused:
                answer = "no: as above"
            table.add_row(Text(named), Text("  " * (len(note.inside) // 2) + note.name), Text(answer))
            named = ""
    return table if table.row_count else None


def _amount(count: float | None, unit: str = "") -> str:
    return "?" if count is None else scaled(count, unit)


def _time(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e6:.1f} µs"
