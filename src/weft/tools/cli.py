"""The command line: every command; each imports what it needs when it runs. Groups of commands are in `commands`."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

import typer

from weft import __version__
from weft.tools.commands.artifacts import compile_command, inspect_command, run_command
from weft.tools.commands.bench import bench
from weft.tools.commands.cache import cache
from weft.tools.commands.command_classes import Commands, ScriptCommand
from weft.tools.commands.conform import conform
from weft.tools.commands.options import Device, Json, Resume
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
        typer.Option(
            "-p",
            "--passes",
            help="Passes by name: `simplify,eliminate_dead`; `cpu` and `nvidia` are the lists over graphs, "
            "`nvidia_kernel` is the one over kernels of a GPU.",
        ),
    ] = "",
    stop_after: Annotated[
        str | None, typer.Option(help="Run no pass after this one, also one inside a choice.")
    ] = None,
    level: Annotated[str, typer.Option(help="What to print: graph, tile, llvm, asm; of a GPU nvidia, ptx.")] = "graph",
    target: Annotated[str, typer.Option(help="What to compile for: `cpu`, or a GPU: `sm_90a`.")] = "cpu",
    cpu: Annotated[str, typer.Option(help="The processor, as LLVM names it: `skylake-avx512`.")] = "native",
    triple: Annotated[str | None, typer.Option(help="The processor's triple, where its name does not tell.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Claim nothing for libraries.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Verify the program after every pass.")] = False,
    time: Annotated[bool, typer.Option("--time", help="Print the time of each pass to stderr.")] = False,
    print_after_all: Annotated[
        bool, typer.Option("--print-after-all", help="Print the program after each pass that changed it to stderr.")
    ] = False,
    locations: Annotated[bool, typer.Option("--locations", help="Print the location of each op.")] = False,
    json: Json = False,
) -> None:
    """Run passes over a program's text and print it, like `mlir-opt`."""
    terminal = Terminal(json=json)
    with terminal.reporting_errors():
        from weft.tools.opt.opt import Options
        from weft.tools.opt.opt import opt as run

        asked = Options(
            passes, stop_after, level, verify, time, locations, cpu, triple, strict, target, print_after_all
        )
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

app.add_typer(cache, name="cache")


@app.command(cls=ScriptCommand, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def explain(
    context: typer.Context,
    file: Annotated[str, typer.Argument(help="A Python script, run with the arguments after it, or a graph program.")],
    ir: Annotated[
        bool, typer.Option("--ir", help="Print the programs at each level: graph, grouped, tile, llvm; nvidia, ptx.")
    ] = False,
    save: Annotated[Path | None, typer.Option(help="Write the programs at each level to this folder.")] = None,
    each_pass: Annotated[
        bool,
        typer.Option(
            "--each-pass", help="With these, the graph, and kernels of a GPU, after each pass that changed them."
        ),
    ] = False,
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
    from weft.tools.explain.explain import explain_program, explain_script
    from weft.tools.opt.opt import read_source

    terminal, failure = Terminal(json=json), None
    with terminal.reporting_errors():
        if save is not None:
            check_folder(save, "--save")
        gpu = known_target(target) if target is not None else None
        if lines:
            os.environ["WEFT_DEBUG_LINES"] = "1"
        if each_pass and not (ir or save is not None):
            raise UsageError("--each-pass says nothing by itself", hint="add --ir to print, or --save FOLDER")
        if re.fullmatch(r".+\.py:\w+", file):
            from weft.tools.explain.kernel import Wanted, explain_kernel

            script, _, kernel = file.rpartition(":")
            asked = Wanted(Path(script), kernel, tuple(context.args), signature, save, gpu, ir, each_pass)
            explain_kernel(terminal, asked)
        if Path(file).suffix == ".py" and signature is None:
            from weft.tools.explain.kernel import Wanted, explain_kernels, is_script_of_kernels

            if is_script_of_kernels(Path(file)):
                asked = Wanted(Path(file), "", tuple(context.args), None, save, gpu, ir, each_pass)
                explain_kernels(terminal, asked)
        if signature is not None:
            raise UsageError("a signature is for a kernel", hint=f"name it: {file}:kernel")
        if Path(file).suffix == ".py" and target is not None:
            raise UsageError("a script is compiled for where its tensors are", hint="leave the target out")
        programs = ir or lines or save is not None
        if Path(file).suffix == ".py":
            if not Path(file).is_file():
                raise UsageError(f"there is no script {file}")
            explanation, code = explain_script(file, context.args, programs=programs, passes=each_pass, cached=cached)
            failure = explanation.failure
        else:
            with terminal.working(f"compiling {file}"):
                explanation = explain_program(*read_source(file), programs=programs, passes=each_pass, target=gpu)
                code = 0
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
        list[str] | None, typer.Option(help="torch, module, graph, triton, nnsmith or onnx; torch if none.")
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


app.add_typer(conform, name="conform")
app.command("compile")(compile_command)
app.command("run")(run_command)
app.command("inspect")(inspect_command)
app.add_typer(bench, name="bench")
app.add_typer(spatial, name="spatial")
