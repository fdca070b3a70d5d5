"""What a compilation did, kept for those who ask: stages and their time, kernels, claims, fallbacks, guards, programs.

    with recording() as compilations:
        model(x)
    for each in compilations:
        print(each.name, each.seconds, each.kernels)

A compilation opens its record with `compilation(name)`; one inside another (the target's inside the front end's) adds
to the same record. Programs are only printed into a record where a recording asks for them.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from xdsl.ir import Attribute, Operation

from weft.backends.nvidia.code import DeviceCode
from weft.config import Config
from weft.ir.attributes import from_attribute
from weft.ir.expr import symbols_of
from weft.ir.types import tensor_of
from weft.lower.steps import CallStep, DotStep, IfStep, KernelStep, LaunchStep, LoopStep, Plan, all_steps
from weft.ops.graph import FuncOp
from weft.tile.dialect import KernelOp

if TYPE_CHECKING:
    from weft.backends.nvidia.ir.kernel_passes import PassNote

_INTERNAL = (
    "captured",
    "config",
    "wants_inputs",
    "inputs",
    "checks",
    "plan",
    "wants_programs",
    "wants_passes",
    "schedules",
    "started",
    "thread",
    "device",
    "tiles",
)
"""Fields of a record that are no figures."""


@dataclass(frozen=True)
class Fallback:
    """A call that the framework carries out: which, where in the user's program, and why Weft does not."""

    target: str
    line: str | None
    reason: str
    node: str = ""
    """The name of the call in the captured graph, by which a program from the cache finds the line anew."""

    def __str__(self) -> str:
        return f"{self.target} at {self.line or 'an unknown line'}: {self.reason}"


@dataclass(frozen=True)
class KernelRecord:
    """A kernel: what it computes, how it is scheduled, how many programs it has, and how often a call runs it."""

    name: str
    label: str
    schedule: str
    grid: str
    uses: int


@dataclass(frozen=True)
class ClaimRecord:
    """Work that a library does: which op on which types, and how often a call runs it."""

    library: str
    op: str
    types: str
    uses: int


@dataclass(frozen=True)
class Resources:
    """What a thread of a kernel takes: registers, and bytes of memory for what did not fit in them."""

    registers: int
    spilled: int


@dataclass
class CompilationRecord:
    """One compilation. `source` is where the code came from: `compiled`, `cache`, or `torch` for a graph left whole."""

    name: str
    wants_programs: bool = False
    wants_passes: bool = False
    source: str = "compiled"
    nodes: int = 0
    ops: int = 0
    arguments: dict[str, str] = field(default_factory=dict[str, str])
    symbols: dict[str, str] = field(default_factory=dict[str, str])
    guards: list[str] = field(default_factory=list[str])
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    schedules: dict[str, str] = field(default_factory=dict[str, str])
    kernels: list[KernelRecord] = field(default_factory=list[KernelRecord])
    claims: list[ClaimRecord] = field(default_factory=list[ClaimRecord])
    blocks: list[str] = field(default_factory=list[str])
    """Regions that stand several times in the program, and share their kernels."""
    fallbacks: list[Fallback] = field(default_factory=list[Fallback])
    arenas: dict[str, int] = field(default_factory=dict[str, int])
    """Bytes of temporaries for each set of sizes that the program ran with."""
    peak: int | None = None
    """Bytes that a training step takes at most at once, beyond its arguments, where there is a budget for them."""
    programs: dict[str, str] = field(default_factory=dict[str, str])
    """The text at each level: graph, grouped, tile, llvm, and for a GPU nvidia and ptx; that after each pass, too."""
    error: str | None = None
    captured: Any = None
    """The front end's graph, where programs are kept and it could not be imported."""
    config: Config | None = None
    """What it was compiled with."""
    wants_inputs: bool = False
    inputs: list[np.ndarray] | None = None
    """What the program was called with first, or when it failed, where a recording asks for it;"""
    checks: list[str] = field(default_factory=list[str])
    """and what is wrong with that for each number which its last result can be, from 1 on."""
    plan: Plan | None = None
    device: DeviceCode | None = None
    """The code for a GPU, where it is for one."""
    tiles: Mapping[str, KernelOp] = field(default_factory=dict[str, KernelOp])
    """The kernels at the level of tiles."""
    kernel_passes: Mapping[str, Sequence[PassNote]] = field(default_factory=dict[str, "Sequence[PassNote]"])
    """What came of each pass over a kernel of a GPU, and why alternatives were or were not taken."""
    loaded: dict[str, Resources] = field(default_factory=dict[str, Resources])
    """What the driver says that kernels take, once it has compiled them."""
    sizes: dict[str, int] = field(default_factory=dict[str, int])
    """The symbols as the program ran with them last."""
    started: int = field(default_factory=time.perf_counter_ns)
    thread: int = field(default_factory=threading.get_native_id)

    def measure(self, stage: str, start: float) -> float:
        """Count the time since `start` towards a stage; returns the time now."""
        now = time.perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - start
        return now

    def imported(self, function: FuncOp) -> None:
        """The function as it came in, before any pass."""
        self.ops = len(list(function.block.ops)) - 1
        names = [name.data for name in function.arg_names] if function.arg_names else []
        for position, value in enumerate(function.block.args):
            name = names[position] if position < len(names) else f"argument {position}"
            self.arguments[name] = str(tensor_of(value.type))
            for size in tensor_of(value.type).shape:
                self.symbols.update({symbol: f"0 ≤ {symbol}" for symbol in symbols_of(size)})
        ranges: Mapping[str, Attribute] = function.symbols.data if function.symbols else {}
        for name, attribute in ranges.items():
            match from_attribute(attribute):
                case (low, None):
                    self.symbols[name] = f"{low} ≤ {name}"
                case (low, high):
                    self.symbols[name] = f"{low} ≤ {name} ≤ {high}"
                case other:
                    self.symbols[name] = f"{name}: {other}"
        self.program("graph", function)

    def planned(self, plan: Plan, schedules: Mapping[str, str]) -> None:
        """The program that came out."""
        self.plan = plan
        self.schedules = dict(schedules)
        self.kernels, self.claims = _steps(plan, schedules)

    def made_of_tiles(self, tiles: Mapping[str, KernelOp]) -> None:
        """The kernels at the level of tiles."""
        self.program("tile", tiles.values())
        if is_recording():
            self.tiles = tiles

    def made_for_device(
        self, code: DeviceCode, tiles: Mapping[str, KernelOp], passes: Mapping[str, Sequence[PassNote]]
    ) -> None:
        """The code for a GPU that came out, kept where someone may ask what its kernels take and how they came."""
        if self.wants_programs:
            self.program("ptx", code.ptx)
        if is_recording():
            self.device, self.tiles, self.kernel_passes = code, tiles, passes

    def program(self, level: str, text: str | Operation | Iterable[Operation]) -> None:
        """Keep the program's text at a level, if someone asked for it."""
        if self.wants_programs:
            parts = [text] if isinstance(text, str | Operation) else text
            self.programs[level] = "\n".join(map(str, parts)) + "\n"

    def after_pass(self, position: int, name: str, functions: Iterable[Operation]) -> None:
        """Keep the program's text after a pass that changed it, if someone asked for it."""
        if self.wants_passes:
            before = next(reversed(self.programs.values()), None)
            level = f"graph-{position:02}-{name}"
            self.program(level, functions)
            if self.programs.get(level) == before:
                del self.programs[level]

    @property
    def launches(self) -> int:
        """How many kernels a call runs."""
        return sum(kernel.uses for kernel in self.kernels)

    def figures(self) -> dict[str, Any]:
        """The record as plain data."""
        plain = {key: value for key, value in vars(self).items() if key not in _INTERNAL}
        for key in ("kernels", "claims", "fallbacks"):
            plain[key] = [asdict(each) for each in plain[key]]
        plain["kernel_passes"] = {name: list(map(asdict, notes)) for name, notes in self.kernel_passes.items()}
        plain["loaded"] = {name: asdict(each) for name, each in self.loaded.items()}
        return plain


def _steps(plan: Plan, schedules: Mapping[str, str]) -> tuple[list[KernelRecord], list[ClaimRecord]]:
    uses = Counter(step.function for step in all_steps(plan.steps) if isinstance(step, KernelStep | LaunchStep))
    kernels: dict[str, KernelRecord] = {}
    claims: Counter[tuple[str, str, str]] = Counter()
    for step in all_steps(plan.steps):
        match step:
            case KernelStep(function=name) | LaunchStep(function=name):
                schedule = schedules.get(name, "")
                kernels[name] = KernelRecord(name, step.label or "copy", schedule, str(step.grid), uses[name])
            case DotStep():
                claims["blas", step.label, f"{step.a.tensor} · {step.b.tensor}"] += 1
            case CallStep(claimed=claimed) if claimed:
                library = "torch" if claimed == "library" else claimed
                claims[library, step.label, " · ".join(str(place.tensor) for place in step.operands)] += 1
            case CallStep():
                continue  # listed with the fallbacks, which know the user's line
            case LoopStep() | IfStep():
                continue  # what is inside is listed
    return list(kernels.values()), [ClaimRecord(*key, count) for key, count in claims.items()]


@dataclass
class _Recording:
    records: list[CompilationRecord]
    programs: bool
    passes: bool
    blocks: bool
    inputs: bool


_recordings: list[_Recording] = []
_current: ContextVar[CompilationRecord | None] = ContextVar("weft_compilation", default=None)


@contextmanager
def recording(
    *, programs: bool = False, passes: bool = False, blocks: bool = False, inputs: bool = False
) -> Generator[list[CompilationRecord]]:
    """Collect the records of all compilations inside the `with`, on any thread.

    `programs` keeps their texts, `passes` those after each pass, too, `blocks` looks for the regions that repeat, which
    takes a while, `inputs` keeps what programs are called with.
    """
    mine = _Recording([], programs or passes, passes, blocks, inputs)
    _recordings.append(mine)
    try:
        yield mine.records
    finally:
        _recordings[:] = [other for other in _recordings if other is not mine]


def wants_blocks() -> bool:
    """Whether someone asks which regions of a program repeat."""
    return any(each.blocks for each in _recordings)


def is_recording() -> bool:
    return bool(_recordings)


@contextmanager
def compilation(name: str) -> Generator[CompilationRecord]:
    """The record of the compilation that runs here: a new one, or that of the compilation around."""
    outer = _current.get()
    if outer is not None:
        yield outer
        return
    record = CompilationRecord(name, wants_programs=any(each.programs for each in _recordings))
    record.wants_passes = any(each.passes for each in _recordings)
    record.wants_inputs = any(each.inputs for each in _recordings)
    for each in _recordings:
        each.records.append(record)
    token = _current.set(record)
    try:
        yield record
    except BaseException as error:
        record.error = f"{type(error).__name__}: {error}"
        raise
    finally:
        _current.reset(token)


def note_fallback_here(fallback: Fallback) -> None:
    """The compilation that runs here, if one does, leaves a call to the framework."""
    record = _current.get()
    if record is not None:
        record.fallbacks.append(fallback)


def note_arena(plan: Plan, sizes: Mapping[str, int], size: int) -> None:
    """A program was bound to sizes, for which it needs so many bytes of temporaries."""
    for each in _recordings:
        for record in each.records:
            if record.plan is plan:
                record.arenas[", ".join(f"{name}={sizes[name]}" for name in plan.symbols)] = size
                record.sizes.update(sizes)


def note_loaded(plan: Plan, resources: Mapping[str, Resources]) -> None:
    """The driver has compiled a program's kernels."""
    for each in _recordings:
        for record in each.records:
            if record.plan is plan:
                record.loaded.update(resources)
