"""`weft explain` and `weft.explain`: what compilations did, for people to read.

An `Explanation` is a list of compilation records with what Dynamo says about graph breaks. It prints as a report:
graphs, time by stage, kernels, what libraries and the framework do instead of generated code, and what was assumed of
sizes.
"""

from __future__ import annotations

import os
import runpy
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
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
from weft.backends.nvidia.target import NvidiaTarget
from weft.config import MODES, Config
from weft.errors import UnsupportedError, WeftError
from weft.runtime.profile import Profile, StepEvent, profile
from weft.runtime.record import CompilationRecord, Fallback, recording
from weft.tools.explain.breaks import GraphBreaks
from weft.tools.explain.device import DeviceKernel, choices_table, device_figures, device_kernels, device_table, sass
from weft.tools.terminal import counted, scaled


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


def explain(
    function: Callable[..., Any],
    *inputs: Any,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
    dynamic: bool | None = None,
    fullgraph: bool = False,
    **named: Any,
) -> Explanation:
    """Compile a function or module with Weft, call it with the inputs, and say what was done.

    Where gradients are wanted of what it gives, they are computed as well, and go nowhere: the backward graph is
    explained too. Nothing is taken from the disk cache, so that times are those of a compilation. `options` are fields
    of `Config`; these, `mode`, `dynamic` and `fullgraph` are what `torch.compile` takes, all else goes to the function.
    """
    if not callable(function):
        raise WeftError(
            f"weft.explain takes a module or a function, got {type(function).__name__}",
            hint="give it what is to be compiled, then its inputs: weft.explain(model, x)",
        )
    import torch

    from weft.frontends.torch.backend import weft_backend
    from weft.frontends.torch.settings import settings

    given = {**MODES[mode or "default"], **(options or {}), "cache": False} if mode in (None, *MODES) else {}
    config = settings(given, mode)

    # A backend of our own, or Dynamo would find what it compiled for `function` before.
    def backend(module: Any, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        return weft_backend(module, example_inputs, options=given)

    breaks, start = GraphBreaks(), time.perf_counter()
    with recording(programs=True, blocks=True) as records, _timing() as ran:
        compiled: Any = torch.compile(  # pyright: ignore[reportUnknownMemberType]
            function, backend=backend, dynamic=dynamic, fullgraph=fullgraph
        )
        _differentiate(function, (inputs, named), compiled(*inputs, **named))
    return Explanation(tuple(records), breaks.since(), config, time.perf_counter() - start, ran.steps)


def _differentiate(function: Any, given: Any, results: Any) -> None:
    """Compute the gradients of results, if there are any, without leaving them on what they are of."""
    import torch
    from torch.utils import _pytree as pytree

    def wanted(values: Any) -> list[Any]:
        leaves = pytree.tree_leaves(values)
        return [each for each in leaves if isinstance(each, torch.Tensor) and each.requires_grad]

    outputs = [each for each in wanted(results) if each.grad_fn is not None]
    parameters = list(function.parameters()) if isinstance(function, torch.nn.Module) else []
    leaves = {id(each): each for each in (*wanted(given), *wanted(parameters), *_leaves(outputs))}
    if outputs:
        ones = [torch.ones_like(each) for each in outputs]
        torch.autograd.grad(outputs, list(leaves.values()), ones, allow_unused=True)


def _leaves(outputs: Sequence[Any]) -> list[Any]:
    """The tensors that gradients of others would be added up on: what functions close over, too."""
    seen: set[Any] = set()
    pending, found = [each.grad_fn for each in outputs], list[Any]()
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        found += [node.variable] if hasattr(node, "variable") else []
        pending += [following for following, _ in node.next_functions]
    return found


def explain_script(
    path: str, arguments: Sequence[str], *, programs: bool, cached: bool, inputs: bool = False
) -> tuple[Explanation, int]:
    """Run a Python script and explain what it compiled; also gives the script's exit code.

    With `inputs`, records keep what the programs were called with.
    """
    if not Path(path).is_file():
        raise UnsupportedError(f"there is no script {path}", location=path)
    if not cached:
        os.environ["WEFT_CACHE"] = "0"
    breaks, start, code, failure = GraphBreaks(), time.perf_counter(), 0, None
    kept = sys.argv, sys.path
    sys.argv, sys.path = [path, *arguments], [str(Path(path).resolve().parent), *sys.path]
    with recording(programs=programs, blocks=True, inputs=inputs) as records, _timing() as ran:
        try:
            runpy.run_path(path, run_name="__main__")
        except SystemExit as stopped:
            code = stopped.code if isinstance(stopped.code, int) else int(stopped.code is not None)
        except Exception as error:
            # The script's own failure is shown as Python would, and what was compiled until then is explained.
            traceback.print_exc()
            code, failure = 1, error
        finally:
            sys.argv, sys.path = kept
    seconds = time.perf_counter() - start
    return Explanation(tuple(records), breaks.since(), Config.from_options(), seconds, ran.steps, failure), code


def explain_program(text: str, name: str, *, programs: bool, target: NvidiaTarget | None = None) -> Explanation:
    """Compile the functions of a graph program, for the configured target or a GPU that need not be there."""
    from weft.backends.target import find_target
    from weft.targets.nvidia import Nvidia
    from weft.tile.text import functions_of, parse_program

    config, start = Config.from_options(), time.perf_counter()
    made_for = Nvidia(target) if target is not None else find_target(config.target).here(config)
    functions = functions_of(parse_program(text, name))
    if not functions:
        raise UnsupportedError(
            "there is no graph.func to compile", location=name, hint="`weft opt` takes tile programs"
        )
    with recording(programs=programs, blocks=True) as records:
        for function in functions:
            function.detach()
            try:
                made_for.compile(function, config)
            except WeftError:
                if not any(record.error for record in records):
                    raise  # else the record has it
    return Explanation(tuple(records), {}, config, time.perf_counter() - start)


_LEAST_SHARE = 0.02
"""Of the time of all stages: those that took less stand in one line."""
_SUFFIXES = {"llvm": "ll", "ptx": "ptx", "sass": "sass"}


def _levels(record: CompilationRecord) -> dict[str, str]:
    """The texts that a record kept; for a GPU also what its own instructions are, where a tool can tell."""
    instructions = sass(record.device) if "ptx" in record.programs else None
    return record.programs if instructions is None else {**record.programs, "sass": instructions}


def _assembly(record: CompilationRecord) -> str:
    """A graph's code for a processor, which is not kept as text."""
    if "llvm" not in record.programs:
        return ""
    return compile_assembly(record.programs["llvm"], target_for((record.config or Config()).cpu))


@contextmanager
def _timing() -> Generator[Profile]:
    """Times the steps of what runs inside, where there is a GPU; else the profile stays empty."""
    import torch

    if torch.cuda.is_available():
        with profile() as ran:
            yield ran
    else:
        yield Profile()


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
