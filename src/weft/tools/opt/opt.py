"""`weft opt`: run passes over the text of a program and print it at any level, like `mlir-opt`."""

from __future__ import annotations

import difflib
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.table import Table
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from weft.backends.cpu.compile import emit_kernels
from weft.backends.cpu.target import CpuTarget, checked_target, compile_assembly, host_target
from weft.backends.nvidia.ir.registry import Nvidia, parse_kernels
from weft.backends.nvidia.target import NvidiaTarget
from weft.backends.nvidia.target import target_named as gpu_named
from weft.backends.target import find_target
from weft.config import Config
from weft.discovery import is_target, unknown_target
from weft.errors import ParseError, WeftError
from weft.lower.constants import programs_among
from weft.lower.machine import CPU, machine_of
from weft.lower.plan import build_plan
from weft.ops.base import REGISTRY
from weft.passes.registry import read_pipeline
from weft.pipelines import cpu_passes, nvidia_passes
from weft.tile.registry import Tile
from weft.tile.text import functions_of, kernels_of, parse_program, print_program, verify_program
from weft.tools.opt import nvidia as opt_nvidia
from weft.tools.opt.nvidia import NvidiaOptions
from weft.tools.terminal import Terminal, UsageError

LEVELS = ("graph", "tile", "llvm", "asm", *opt_nvidia.LEVELS)

# Processors by the beginning of their names, for those who give a processor and no triple.
_TRIPLES = {
    "x86_64-unknown-linux-gnu": (
        *(
            "x86-64",
            "nehalem",
            "sandybridge",
            "ivybridge",
            "haswell",
            "broadwell",
            "skylake",
            "cascadelake",
            "cooperlake",
        ),
        *("cannonlake", "icelake", "tigerlake", "sapphirerapids", "emeraldrapids", "graniterapids", "diamondrapids"),
        *("alderlake", "raptorlake", "meteorlake", "arrowlake", "lunarlake", "sierraforest", "znver"),
    ),
    "aarch64-unknown-linux-gnu": ("neoverse", "cortex", "apple", "ampere", "a64fx", "thunderx", "grace", "oryon"),
}


@dataclass
class Options:
    """What the command line asks for."""

    passes: str = ""
    stop_after: str | None = None
    level: str = "graph"
    verify: bool = False
    time: bool = False
    locations: bool = False
    cpu: str = "native"
    triple: str | None = None
    strict: bool = False
    target: str = "cpu"
    """A target's name, or a GPU by the name of its architecture."""
    print_after_all: bool = False
    seconds: dict[str, float] = field(default_factory=dict[str, float])


def opt(terminal: Terminal, file: str, options: Options) -> None:
    """Read, run, print."""
    module = read_program(*read_source(file))
    text = at_level(module, options, terminal.note)
    terminal.text(text)
    if options.time:
        terminal.err.print(_times(options.seconds))
    terminal.finish({"ok": True, "level": options.level, "seconds": options.seconds, "text": text})


def read_source(file: str) -> tuple[str, str]:
    """The text of a program and the name of where it stands; `-` is standard input."""
    if file == "-":
        return sys.stdin.read(), "<stdin>"
    try:
        return Path(file).read_text(), file
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise UsageError(f"cannot read {file}: {reason}") from error


def read_program(text: str, name: str) -> ModuleOp:
    """The module that a text is; what is wrong with it is said with what a person can do about it."""
    if (spatial := re.search(r'"(?:stream|schedule)\.program"', text)) is not None:
        return _read_spatial(text, name, spatial[0])
    try:
        return parse_kernels(text, name)
    except ParseError as error:
        message, hint = error.message, error.hint
        unknown = re.search(r"Operation ((?:graph|tile|nvidia)\.\w+) is not registered", message)
        if not text.strip():
            message = "not a graph or tile program: it is empty"
        elif unknown:
            known = [f"graph.{spec.name}" for spec in REGISTRY]
            known += [each.name for dialect in (Tile, Nvidia) for each in dialect.operations]
            close = difflib.get_close_matches(unknown[1], known)
            hint = f"did you mean {' or '.join(close)}?" if close else "docs/ops.md lists the ops"
        elif _at_the_end(text, error.location):
            message = "not a graph or tile program: it ends before it is complete"
        raise ParseError(message, location=error.location, hint=hint) from error


def _read_spatial(text: str, name: str, op: str) -> ModuleOp:
    """A program for a spatial machine: its streams, or its schedule."""
    from weft.spatial.schedule_dialect import Schedule
    from weft.spatial.stream_dialect import Streams

    return parse_program(text, name, [Streams if "stream" in op else Schedule])


def _at_the_end(text: str, location: str | None) -> bool:
    """Whether a complaint about syntax (`file:line:column`) is about the end of the text."""
    found = re.fullmatch(r".*:(\d+):(\d+)", location or "")
    if found is None:
        return False
    line, column = int(found[1]), int(found[2])
    lines = text.rstrip().splitlines()
    # Values that are used and not defined are noticed at the end, too; those programs are closed.
    closed = lines[-1].rstrip().endswith("()") and text.count("{") == text.count("}")
    return not closed and (line > len(lines) or (line == len(lines) and column >= len(lines[-1])))


def at_level(module: ModuleOp, options: Options, told: Callable[[str], None] = print) -> str:
    """Run the passes and give the program's text at the level that is asked for; `told` takes what passes say."""
    if options.level not in LEVELS:
        raise UsageError(f"no level is called {options.level}", hint=f"levels are {', '.join(LEVELS)}")
    config = Config.from_options({"strict": True} if options.strict else None)
    gpu = _gpu_of(options)
    own = "nvidia" if gpu is not None else options.target
    pipelines = {"cpu": cpu_passes(config), "nvidia": nvidia_passes(config, (gpu or NvidiaTarget()).capabilities)}
    if own not in pipelines:
        pipelines[own] = _passes_of(options, config)
    # Below the graph there are kernels only: without a list of passes, the target's own makes them.
    last = options.stop_after
    asked, kernel_passes = opt_nvidia.divided(options.passes, last) if gpu is not None else (options.passes, None)
    asked = asked or (own if options.level != "graph" and functions_of(module) else "")
    try:
        passes = read_pipeline(asked, pipelines)
    except ParseError as error:
        raise UsageError(error.message, hint=error.hint) from error
    of_kernels = last is not None and opt_nvidia.is_among(last, kernel_passes)
    if (kernel_passes is not None or of_kernels) and options.level not in opt_nvidia.LEVELS:
        over_kernels = last if of_kernels or kernel_passes is None else kernel_passes[0].name
        raise UsageError(f"{over_kernels} is a pass over kernels for a GPU", hint="--level nvidia prints them")
    if of_kernels and options.level == "ptx":
        raise UsageError(
            f"PTX is made of kernels after all passes, not after {last}", hint="--level nvidia prints them"
        )
    more = opt_nvidia.names_of(kernel_passes) if options.level == "nvidia" else []
    _run(module, passes if of_kernels else _until(passes, last, more), options, told)
    if gpu is not None and options.level in opt_nvidia.LEVELS:
        wanted = NvidiaOptions(gpu, options.level, options.verify, options.locations, told, options.print_after_all)
        wanted.stop_after, wanted.seconds = last if of_kernels else None, options.seconds
        return opt_nvidia.print_kernels(module, kernel_passes, wanted)
    if options.level == "graph":
        return print_program(module, locations=options.locations)
    if options.level == "tile":
        return print_program(_tiles(module, options, gpu), locations=options.locations)
    target = target_named(options.cpu, options.triple)
    text = _llvm(module, target, options)
    if options.level == "llvm":
        return text
    start = time.perf_counter()
    assembly = compile_assembly(text, target)
    options.seconds["llvm"] = time.perf_counter() - start
    return assembly


def _gpu_of(options: Options) -> NvidiaTarget | None:
    """The GPU that a program is for: the levels of one are for Hopper where no other is named."""
    if options.target == "cpu":
        return NvidiaTarget() if options.level in opt_nvidia.LEVELS else None
    if options.target != "nvidia" and is_target(options.target):
        return None
    if options.level in ("llvm", "asm"):
        raise UsageError(f"{options.level} is of processors", hint="for a GPU there are nvidia and ptx")
    if options.target == "nvidia":
        return NvidiaTarget()
    try:
        return gpu_named(options.target)
    except WeftError as error:
        hint = f"{unknown_target(options.target).hint}; for GPUs: {error.hint}"
        raise UsageError(f"no target is called {options.target}", hint=hint) from error


def _passes_of(options: Options, config: Config) -> list[ModulePass]:
    """The list of a target that is neither a processor nor a GPU: what is below graphs is its own concern."""
    if options.level != "graph":
        raise UsageError(f"the level {options.level} is printed for cpu and nvidia", hint="`weft explain` shows others")
    return find_target(options.target).here(config).passes(config)


def _until(passes: list[ModulePass], last: str | None, more: Sequence[str]) -> list[ModulePass]:
    """The passes up to the last one that is to run; `more` are those over kernels, of which it may be one."""
    if last is None:
        return passes
    names = [each.name for each in passes]
    if last not in names:
        raise UsageError(f"{last} is not among the passes", hint=f"they are {', '.join([*names, *more]) or 'none'}")
    return passes[: names.index(last) + 1]


def _run(module: ModuleOp, passes: list[ModulePass], options: Options, told: Callable[[str], None]) -> None:
    context = Context()
    before = print_program(module, locations=options.locations) if options.print_after_all else ""
    for each in passes:
        start = time.perf_counter()
        each.apply(context, module)
        if options.verify:
            verify_program(module)
        options.seconds[each.name] = options.seconds.get(each.name, 0.0) + time.perf_counter() - start
        if options.print_after_all and (text := print_program(module, locations=options.locations)) != before:
            told(f"// after {each.name}\n{text}")
            before = text


def _tiles(module: ModuleOp, options: Options, gpu: NvidiaTarget | None = None) -> ModuleOp:
    """The kernels of a program: those it has, and those its functions are lowered to."""
    start = time.perf_counter()
    kernels = [kernel.clone() for kernel in kernels_of(module)]
    machine = CPU if gpu is None else machine_of(gpu.capabilities, gpu.multiprocessors)
    for function in programs_among(functions_of(module)):
        kernels.extend(build_plan(function, machine=machine).kernels.values())
    options.seconds["lower_to_tile"] = time.perf_counter() - start
    tiles = ModuleOp([])
    for kernel in kernels:
        tiles.body.block.add_op(kernel)
    if options.verify:
        verify_program(tiles)
    return tiles


def _llvm(module: ModuleOp, target: CpuTarget, options: Options) -> str:
    """LLVM IR of the kernels."""
    functions = programs_among(functions_of(module))
    if len(functions) > 1:
        raise UsageError("LLVM code is printed for one function at a time", hint="keep one graph.func in the file")
    if functions:
        start = time.perf_counter()
        planned = build_plan(functions[0])
        options.seconds["lower_to_tile"] = time.perf_counter() - start
        start = time.perf_counter()
        text = emit_kernels(planned.kernels, target, debug_lines=options.locations)
    else:
        start = time.perf_counter()
        kernels = {kernel.sym_name.data: kernel for kernel in kernels_of(module)}
        text = emit_kernels(kernels, target, debug_lines=options.locations)
    options.seconds["emit_llvm"] = time.perf_counter() - start
    return text


def target_named(cpu: str, triple: str | None) -> CpuTarget:
    """The processor of that name: this one, or one to compile for without running."""
    host = host_target()
    if cpu in ("native", host.cpu) and triple in (None, host.triple):
        return host
    if triple is None:
        triple = next((each for each, names in _TRIPLES.items() if cpu.startswith(names)), None)
    if triple is None:
        raise UsageError(f"no triple is known for the processor {cpu}", hint="give it with --triple, as LLVM names it")
    if not triple.startswith(("x86_64", "aarch64")):
        raise UsageError(f"{triple} is not a target of the CPU backend", hint="it makes code for x86_64 and aarch64")
    try:
        return checked_target(triple, "generic" if cpu == "native" else cpu)
    except WeftError as error:
        raise UsageError(error.message, hint=error.hint) from error


def _times(seconds: dict[str, float]) -> Table:
    table = Table("stage", "ms", title="time", title_justify="left")
    for name, each in seconds.items():
        table.add_row(name, f"{each * 1e3:.2f}")
    table.add_row("all", f"{sum(seconds.values()) * 1e3:.2f}", style="bold")
    return table
