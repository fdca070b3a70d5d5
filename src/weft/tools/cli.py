"""The command line: every command and its options; each imports what it needs when it runs. `bench` is beside this."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

import typer

from weft import __version__
from weft.tools.commands.artifacts import compile_command, inspect_command, run_command
from weft.tools.commands.bench import bench
from weft.tools.commands.command_classes import Commands, ScriptCommand
from weft.tools.commands.conform_onnx import conform_onnx
from weft.tools.commands.conform_zoo import conform_zoo
from weft.tools.commands.options import Budget, Device, Json, Resume, Shard
from weft.tools.commands.plan import plan
from weft.tools.commands.spatial import spatial
from weft.tools.terminal import Terminal, UsageError, check_folder, counted

app = typer.Typer(
    cls=Commands,
    name="weft",
    help="Weft, a deep-learning compiler: look at what it does, check it, and shrink what goes wrong.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """The entry point `weft`."""
    app()


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"weft {__version__}")
        raise typer.Exit


@app.callback()
def _options(  # pyright: ignore[reportUnusedFunction]  typer calls it
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def doctor(json: Json = False) -> None:
    """Say what Weft finds on this machine, compile a small kernel, and say what to do if something is wrong."""
    from weft.tools.doctor import doctor as run

    terminal = Terminal(json=json)
    with terminal.reporting_errors():
        run(terminal)


@app.command()
def opt(
    file: Annotated[str, typer.Argument(help="A graph or tile program in MLIR's generic form; `-` is standard input.")],
    passes: Annotated[
        str,
        typer.Option("-p", "--passes", help="Passes by name: `simplify,eliminate_dead`; `cpu` and `nvidia` are lists."),
    ] = "",
    stop_after: Annotated[str | None, typer.Option(help="Run no pass after this one.")] = None,
    level: Annotated[str, typer.Option(help="What to print: graph, tile, llvm, asm; of a GPU nvidia, ptx.")] = "graph",
    target: Annotated[str, typer.Option(help="What to compile for: `cpu`, or a GPU: `sm_90a`.")] = "cpu",
    cpu: Annotated[str, typer.Option(help="The processor, as LLVM names it: `skylake-avx512`.")] = "native",
    triple: Annotated[str | None, typer.Option(help="The processor's triple, where its name does not tell.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Claim nothing for libraries.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Verify the program after every pass.")] = False,
    time: Annotated[bool, typer.Option("--time", help="Print the time of each pass to stderr.")] = False,
    locations: Annotated[bool, typer.Option("--locations", help="Print the location of each op.")] = False,
    json: Json = False,
) -> None:
    """Run passes over a program's text and print it, like `mlir-opt`."""
    terminal = Terminal(json=json)
    with terminal.reporting_errors():
        from weft.tools.opt.opt import Options
        from weft.tools.opt.opt import opt as run

        asked = Options(passes, stop_after, level, verify, time, locations, cpu, triple, strict, target)
        run(terminal, file, asked)


@app.command()
def profile(
    traces: Annotated[list[Path], typer.Argument(help="What `weft.profile(path)` wrote, a file a rank.")],
    merge: Annotated[Path | None, typer.Option(help="Write one trace of all ranks to this file.")] = None,
    json: Json = False,
) -> None:
    """Say what each rank of a run computed, sent and waited for, and make one trace of all."""
    terminal = Terminal(json=json)
    with terminal.reporting_errors():
        from weft.tools.traces import report

        report(terminal, traces, merge)


app.command("plan")(plan)

cache = typer.Typer(help="The disk cache of compiled programs.", no_args_is_help=True)
app.add_typer(cache, name="cache")


@cache.command("list")
def cache_list(json: Json = False) -> None:
    """List the programs, the most recently used first."""
    from weft.tools.cache import list_entries

    terminal = Terminal(json=json)
    with terminal.reporting_errors():
        list_entries(terminal)


@cache.command("clear")
def cache_clear(json: Json = False) -> None:
    """Remove all programs."""
    from weft.tools.cache import clear

    terminal = Terminal(json=json)
    with terminal.reporting_errors():
        clear(terminal)


@cache.command("verify")
def cache_verify(
    fix: Annotated[bool, typer.Option("--fix", help="Remove the bad ones.")] = False, json: Json = False
) -> None:
    """Check every byte of every program."""
    from weft.tools.cache import verify

    terminal = Terminal(json=json)
    with terminal.reporting_errors():
        verify(terminal, fix=fix)


@app.command(cls=ScriptCommand, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def explain(
    context: typer.Context,
    file: Annotated[str, typer.Argument(help="A Python script, run with the arguments after it, or a graph program.")],
    ir: Annotated[
        bool, typer.Option("--ir", help="Print the programs at each level: graph, grouped, tile, llvm; nvidia, ptx.")
    ] = False,
    save: Annotated[Path | None, typer.Option(help="Write the programs at each level to this folder.")] = None,
    lines: Annotated[
        bool, typer.Option("--lines", help="Print assembly or PTX, each line of the program above what came of it.")
    ] = False,
    cached: Annotated[bool, typer.Option("--cached", help="Use the disk cache, as the script would.")] = False,
    signature: Annotated[
        str | None, typer.Option(help="What to compile `kernel.py:name` for: `*fp32,*fp32,i32,BLOCK=1024`.")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(help="A GPU, which need not be there, to compile a graph program or kernel for: `sm_90a`."),
    ] = None,
    json: Json = False,
) -> None:
    """Say what Weft does with a program: graphs, time by stage, kernels, claims, fallbacks, guards.

    `kernel.py:name` is a kernel in Triton's language: its source, tile IR, LLVM IR and assembly, side by side; PTX for
    a GPU. `kernel.py` alone shows all kernels that the script launches.

    Options are taken wherever they stand; put `--` before arguments of the script that look like them.
    """
    from weft.tools.explain.device import known_target
    from weft.tools.explain.report import explain_program, explain_script
    from weft.tools.opt.opt import read_source

    terminal, failure = Terminal(json=json), None
    with terminal.reporting_errors():
        if save is not None:
            check_folder(save, "--save")
        gpu = known_target(target) if target is not None else None
        if lines:
            os.environ["WEFT_DEBUG_LINES"] = "1"
        if re.fullmatch(r".+\.py:\w+", file):
            from weft.tools.explain.kernel import Wanted, explain_kernel

            script, _, kernel = file.rpartition(":")
            explain_kernel(terminal, Wanted(Path(script), kernel, tuple(context.args), signature, save, gpu))
        if Path(file).suffix == ".py" and signature is None:
            from weft.tools.explain.kernel import Wanted, explain_kernels, is_script_of_kernels

            if is_script_of_kernels(Path(file)):
                explain_kernels(terminal, Wanted(Path(file), "", tuple(context.args), None, save, gpu))
        if signature is not None:
            raise UsageError("a signature is for a kernel", hint=f"name it: {file}:kernel")
        if Path(file).suffix == ".py" and target is not None:
            raise UsageError("a script is compiled for where its tensors are", hint="leave the target out")
        programs = ir or lines or save is not None
        if Path(file).suffix == ".py":
            if not Path(file).is_file():
                raise UsageError(f"there is no script {file}")
            explanation, code = explain_script(file, context.args, programs=programs, cached=cached)
            failure = explanation.failure
        else:
            with terminal.working(f"compiling {file}"):
                explanation, code = explain_program(*read_source(file), programs=programs, target=gpu), 0
        if ir:
            terminal.text(explanation.programs())
        if lines:
            terminal.text(explanation.code())
        terminal.show(explanation)
        if save is not None:
            terminal.show(f"{counted(len(explanation.save(save)), 'program')} written to {save}")
        code = code or int(any(record.error for record in explanation.records))
        failed = {} if failure is None else {"error": type(failure).__name__, "message": str(failure)}
        terminal.finish({"ok": code == 0, **failed, **explanation.figures()}, code=code)


@app.command()
def irdl(json: Json = False) -> None:
    """Print the graph and tile dialects in IRDL, as upstream MLIR loads them."""
    from weft.ir.irdl_export import export_dialects, terminators
    from weft.ops.dialect import Graph
    from weft.tile.registry import Tile

    terminal = Terminal(json=json)
    text = export_dialects(Graph, Tile)
    terminal.text(text)
    terminal.finish({"ok": True, "irdl": text, "terminators": terminators(Graph, Tile)})


@app.command(cls=ScriptCommand, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def reduce(
    context: typer.Context,
    file: Annotated[str, typer.Argument(help="A graph program, or a Python script, run with the arguments after it.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Where to write the script.")] = Path("reduced.py"),
    seed: Annotated[int, typer.Option(help="Of the random inputs.", min=0)] = 0,
    timeout: Annotated[float, typer.Option(help="Seconds after which a candidate counts as hanging.", min=1)] = 60.0,
    json: Json = False,
) -> None:
    """Shrink a graph that fails to compile, crashes or gives wrong results to a small script that reproduces it."""
    from weft.tools.reduce import reduce as run

    terminal = Terminal(json=json)
    with terminal.reporting_errors():
        run(terminal, file, context.args, output=output, seed=seed, seconds=timeout)


@app.command()
def fuzz(
    kind: Annotated[
        list[str] | None, typer.Option(help="torch, graph, triton, nnsmith or onnx; torch if none.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the first program; those that follow have the next ones.", min=0)] = 0,
    count: Annotated[int | None, typer.Option(help="How many programs of each kind.", min=1)] = None,
    minutes: Annotated[float | None, typer.Option(help="After which no program is begun.", min=0)] = None,
    jobs: Annotated[int, typer.Option(help="Child processes.", min=1)] = 2,
    device: Device = "cpu",
    timeout: Annotated[float, typer.Option(help="Seconds after which a program counts as hanging.", min=1)] = 120.0,
    shrinking: Annotated[float, typer.Option(help="Seconds for making a failure small; 0 for not at all.", min=0)] = 90,
    backend: Annotated[str, typer.Option(help="A backend by name, or a module that has one, in Weft's place.")] = "",
    resume: Resume = False,
    reports: Annotated[Path, typer.Option(help="Where the journal and the scripts of failures lie.")] = Path("reports"),
    json: Json = False,
) -> None:
    """Random programs, judged against eager and float64; what fails is kept as a short script."""
    from weft.tools.fuzz import FuzzRequest
    from weft.tools.fuzz import fuzz as run

    terminal = Terminal(json=json)
    with terminal.reporting_errors():
        kinds = tuple(kind or ["torch"])
        run(
            terminal,
            FuzzRequest(kinds, seed, count, minutes, jobs, device, timeout, shrinking, resume, reports, backend),
        )


conform = typer.Typer(help="Outside test suites, run through Weft.", no_args_is_help=True)
app.add_typer(conform, name="conform")
conform.command("zoo")(conform_zoo)
conform.command("onnx")(conform_onnx)


@conform.command("opinfo")
def conform_opinfo(
    ops: Annotated[list[str] | None, typer.Argument(help="Operators by name; all of them if there are none.")] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="Element types, as torch names them.")] = None,
    samples: Annotated[int, typer.Option(help="How many samples of each operator.", min=1)] = 2,
    gradients: Annotated[bool, typer.Option(help="Check gradients too.")] = True,
    strict: Annotated[bool, typer.Option("--strict", help="Without ATen and libraries.")] = False,
    shard: Shard = None,
    jobs: Annotated[int, typer.Option(help="Child processes; 0 for none.", min=0)] = 2,
    timeout: Annotated[float, typer.Option(help="Seconds after which a case is ended.", min=1)] = 120.0,
    log: Annotated[Path | None, typer.Option(help="Write each result to this file, a JSON object a line.")] = None,
    backend: Annotated[str, typer.Option(help="A backend that `torch.compile` knows.")] = "weft",
    device: Device = "cpu",
    resume: Resume = False,
    budget: Annotated[float | None, typer.Option(help="Seconds after which no operator is begun.", min=0)] = None,
    transform: Annotated[str, typer.Option(help="gradgrad, forward, forward-over-reverse or vmap, instead.")] = "",
    json: Json = False,
) -> None:
    """PyTorch's operator database, OpInfo, judged against eager and float64."""
    from weft.tools.conform.opinfo import Choice, opinfo

    terminal = Terminal(json=json)
    with terminal.reporting_errors():
        chosen = backend, tuple(dtype or ["float32"]), tuple(ops or ())
        limits = shard, jobs, timeout, log, device, resume, budget, transform
        opinfo(terminal, Choice(*chosen, samples, gradients, strict, *limits))


@conform.command("models")
def conform_models(
    names: Annotated[list[str] | None, typer.Argument(help="Models by name; the twelve families if none.")] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="Element types, as torch names them.")] = None,
    device: Device = "cpu",
    shard: Shard = None,
    resume: Resume = False,
    jobs: Annotated[int, typer.Option(help="Child processes.", min=1)] = 2,
    budget: Budget = 420.0,
    reports: Annotated[Path, typer.Option(help="Where the journal of verdicts lies.")] = Path("reports"),
    json: Json = False,
) -> None:
    """Families of transformers, forward and one training step, judged against eager and float64."""
    from weft.tools.conform.checks import CheckRequest
    from weft.tools.conform.checks import conform_models as run

    terminal = Terminal(json=json)
    with terminal.reporting_errors():
        asked = CheckRequest(device, shard, resume, jobs, budget, reports)
        run(terminal, names or [], dtype or ["float32"], asked)


@conform.command("training")
def conform_training(
    names: Annotated[list[str] | None, typer.Argument(help="Models by name; gpt2_small if none.")] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="Element types, as torch names them.")] = None,
    steps: Annotated[int, typer.Option(help="Steps of AdamW.", min=2)] = 20,
    device: Device = "cpu",
    shard: Shard = None,
    resume: Resume = False,
    jobs: Annotated[int, typer.Option(help="Child processes.", min=1)] = 1,
    budget: Budget = 420.0,
    reports: Annotated[Path, typer.Option(help="Where the journal of verdicts lies.")] = Path("reports"),
    json: Json = False,
) -> None:
    """Steps of training, whose loss must follow eager's."""
    from weft.tools.conform.checks import CheckRequest
    from weft.tools.conform.checks import conform_training as run

    terminal = Terminal(json=json)
    with terminal.reporting_errors():
        asked = CheckRequest(device, shard, resume, jobs, budget, reports, steps)
        run(terminal, names or [], dtype or ["float32"], asked)


@conform.command("raises")
def conform_raises(
    ops: Annotated[list[str] | None, typer.Argument(help="Operators by name; all that could raise if none.")] = None,
    shard: Shard = None,
    resume: Resume = False,
    jobs: Annotated[int, typer.Option(help="Child processes.", min=1)] = 2,
    budget: Budget = 420.0,
    reports: Annotated[Path, typer.Option(help="Where the journal of verdicts lies.")] = Path("reports"),
    json: Json = False,
) -> None:
    """Wrong indices, divisors, counts and sizes: eager raises if and only if Weft does. Minutes for each operator."""
    from weft.tools.conform.checks import CheckRequest
    from weft.tools.conform.checks import conform_raises as run

    terminal = Terminal(json=json)
    with terminal.reporting_errors():
        run(terminal, ops or [], CheckRequest("cpu", shard, resume, jobs, budget, reports))


@conform.command("triton")
def conform_triton(
    checkout: Annotated[Path, typer.Option("--from", help="A checkout of Triton: v3.6.0.")],
    expression: Annotated[str, typer.Option("-k", help="Tests by name, as pytest selects them.")] = "",
    file: Annotated[list[str] | None, typer.Option(help="Files of tests; all of them if there are none.")] = None,
    interpret: Annotated[bool, typer.Option("--interpret", help="Run kernels as Python, a program at a time.")] = False,
    others: Annotated[bool, typer.Option("--others", help="Run tests too that upstream does not mark.")] = False,
    jobs: Annotated[int, typer.Option(help="Child processes.", min=1)] = 2,
    timeout: Annotated[float, typer.Option(help="Seconds after which a test is ended.", min=1)] = 60.0,
    output: Annotated[Path | None, typer.Option(help="Write pytest's own report to this file.")] = None,
    device: Annotated[str, typer.Option(help="Where the tests put their tensors: cpu or cuda.")] = "cpu",
    json: Json = False,
) -> None:
    """Triton's own tests of its language, with `triton` resolved to Weft."""
    from weft.testing.triton.triton_conformance import TritonRun
    from weft.tools.conform.triton import conform_triton as run

    terminal = Terminal(json=json)
    with terminal.reporting_errors():
        files = tuple(file or ())
        run(terminal, TritonRun(checkout, expression, files, jobs, timeout, interpret, others, output, device))


@conform.command("kernels")
def conform_kernels(
    library: Annotated[str, typer.Option("--from", help="A checkout of a library of kernels, or a package's name.")],
    tests: Annotated[str, typer.Option(help="The folder of tests in it; found if it is not given.")] = "",
    expression: Annotated[str, typer.Option("-k", help="Tests by name, as pytest selects them.")] = "",
    file: Annotated[list[str] | None, typer.Option(help="Files of tests; all of them if there are none.")] = None,
    sample: Annotated[int | None, typer.Option(help="So many tests at random.", min=1)] = None,
    seed: Annotated[int, typer.Option(help="Which tests a sample has.")] = 0,
    shard: Shard = None,
    resume: Resume = False,
    jobs: Annotated[int, typer.Option(help="Child processes.", min=1)] = 2,
    timeout: Annotated[float, typer.Option(help="Seconds after which a test is ended.", min=1)] = 120.0,
    budget: Annotated[float | None, typer.Option(help="Seconds after which no test is begun.", min=0)] = None,
    device: Annotated[str, typer.Option(help="Where the tests put their tensors: cpu or cuda.")] = "cpu",
    side: Annotated[
        list[str] | None, typer.Option(help="weft, triton; both where Triton and a GPU are there, if not given.")
    ] = None,
    reports: Annotated[Path, typer.Option(help="Where the journal of verdicts lies.")] = Path("reports"),
    json: Json = False,
) -> None:
    """The tests of a library of Triton kernels (flash-linear-attention, Liger), with `triton` resolved to Weft."""
    from weft.tools.conform.kernels import KernelRequest, conform_kernels

    terminal = Terminal(json=json)
    with terminal.reporting_errors():
        chosen = tests, tuple(file or ()), expression, sample, seed, shard, jobs, timeout, budget, device
        conform_kernels(terminal, KernelRequest(library, *chosen, tuple(side or ()), resume, reports))


@conform.command("tutorials")
def conform_tutorials(
    checkout: Annotated[Path, typer.Option("--from", help="A checkout of Triton: v3.6.0.")],
    name: Annotated[
        list[str] | None, typer.Option(help="Parts of file names; all tutorials if there are none.")
    ] = None,
    device: Device = "cpu",
    shard: Shard = None,
    resume: Resume = False,
    jobs: Annotated[int, typer.Option(help="Child processes on a GPU.", min=1)] = 2,
    budget: Budget = 420.0,
    reports: Annotated[Path, typer.Option(help="Where the journal of verdicts lies.")] = Path("reports"),
    json: Json = False,
) -> None:
    """The kernels of Triton's tutorials, unmodified, judged against torch."""
    from weft.tools.conform.checks import CheckRequest, conform_tutorials_on
    from weft.tools.conform.triton import conform_tutorials as run

    terminal = Terminal(json=json)
    with terminal.reporting_errors():
        if device == "cpu":
            run(terminal, checkout, tuple(name or ()))
        asked = CheckRequest(device, shard, resume, jobs, budget, reports, checkout=checkout)
        conform_tutorials_on(terminal, name or [], asked)


app.command("compile")(compile_command)
app.command("run")(run_command)
app.command("inspect")(inspect_command)
app.add_typer(bench, name="bench")
app.add_typer(spatial, name="spatial")
