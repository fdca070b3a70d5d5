"""The command line of `weft bench`: its commands and their options; each imports what it needs when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from weft.tools.commands.options import Budget, Json, Resume, Shard
from weft.tools.terminal import Terminal


class _CommandOrFile(TyperGroup):
    """`weft bench FILE` is `weft bench file FILE`, and `weft bench onnx FILE` for a model."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands:
            args = ["onnx" if args[0].endswith(".onnx") else "file", *args]
        return super().resolve_command(ctx, args)


bench = typer.Typer(
    cls=_CommandOrFile, help="Weft against its peers, measured in turns; or a file's benchmarks.", no_args_is_help=True
)


@bench.callback()
def _bench_options() -> None:  # pyright: ignore[reportUnusedFunction]  it keeps `cpu` a subcommand
    pass


@bench.command("file")
def bench_file(
    file: Annotated[Path, typer.Argument(help="A Python file with `triton.testing.perf_report` functions.")],
    case: Annotated[list[str] | None, typer.Option(help="Benchmarks by the name of their plot: `softmax*`.")] = None,
    reports: Annotated[Path, typer.Option(help="Where charts and tables go.")] = Path("reports"),
    json: Json = False,
) -> None:
    """The benchmarks of a file: what `perf_report` marks. `weft bench FILE` is short for this."""
    from weft.tools.bench.python_file import bench_file as run

    terminal = Terminal(json=json)
    with terminal.reporting_errors():
        run(terminal, file, tuple(case or ()), reports)


@bench.command("onnx")
def bench_onnx(
    models: Annotated[list[Path], typer.Argument(help="ONNX models.")],
    peer: Annotated[str, typer.Option(help="Whom to measure beside Weft: onnxruntime; nobody if not given.")] = "",
    size: Annotated[
        list[str] | None, typer.Option(help="A size that is open: `batch=1`, which is the default; may be repeated.")
    ] = None,
    shape: Annotated[list[str] | None, typer.Option(help="An input's shape: `x=1x3x224x224`; may be repeated.")] = None,
    input: Annotated[
        list[str] | None,
        typer.Option("--input", help="What an input holds: `x=x.npy` or `rate=16000`; random if not given."),
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Threads of each; one a core if not given.", min=1)] = None,
    rounds: Annotated[int, typer.Option(help="Rounds of samples, at most.", min=1)] = 40,
    seconds: Annotated[float, typer.Option(help="How long to measure a model, about.", min=0)] = 10.0,
    tolerance: Annotated[
        float, typer.Option(help="How far results may be apart, as a share of the largest value.", min=0)
    ] = 1e-3,
    processor_time: Annotated[
        bool, typer.Option("--processor-time", help="Seconds of all threads, for a machine that others use, too.")
    ] = False,
    float64: Annotated[
        bool, typer.Option("--float64", help="Judge results by the model in float64: at most twice the peer's error.")
    ] = False,
    json: Json = False,
) -> None:
    """ONNX models: first start, later starts and calls. `weft bench model.onnx` is short for this."""
    from weft.tools.bench.onnx import OnnxBenchRequest
    from weft.tools.bench.onnx import bench_onnx as run

    terminal = Terminal(json=json)
    with terminal.reporting_errors():
        given = tuple(size or ()), tuple(shape or ()), tuple(input or ())
        judged = processor_time, float64
        run(terminal, OnnxBenchRequest(tuple(models), peer, threads, rounds, seconds, tolerance, *given, *judged))


@bench.command("cpu")
def bench_cpu(
    suite: Annotated[
        list[str] | None,
        typer.Option(help="small, ops, models, quantized, train, kernels, compile or memory; all if none is named."),
    ] = None,
    case: Annotated[list[str] | None, typer.Option(help="Cases by pattern: `softmax.*`, `minilm*`.")] = None,
    shard: Shard = None,
    threads: Annotated[int | None, typer.Option(help="Threads; torch's default if not given.", min=1)] = None,
    rounds: Annotated[int, typer.Option(help="Rounds of samples, at most.", min=1)] = 40,
    seconds: Annotated[float, typer.Option(help="How long to measure a case, about.", min=0)] = 10.0,
    repeats: Annotated[int, typer.Option(help="Processes for each compile time.", min=1)] = 1,
    budget: Budget = float("inf"),
    reports: Annotated[Path, typer.Option(help="Where charts and tables go.")] = Path("reports"),
    into: Annotated[Path | None, typer.Option(help="A text with marks for tables: `<!-- bench models -->`.")] = None,
    processor_time: Annotated[
        bool, typer.Option("--processor-time", help="Seconds of all threads, for a machine that others use, too.")
    ] = False,
    json: Json = False,
) -> None:
    """Eager, Inductor and Weft on operators, models, training steps; and how long compiling takes."""
    from weft.tools.bench.cpu import SUITES, Request
    from weft.tools.bench.cpu import bench_cpu as run

    terminal = Terminal(json=json)
    with terminal.reporting_errors():
        chosen = tuple(suite or SUITES), tuple(case or ())
        asked = Request(*chosen, threads, rounds, seconds, repeats, reports, into, shard, budget, processor_time)
        run(terminal, asked)


@bench.command("gpu")
def bench_gpu(
    suite: Annotated[
        list[str] | None,
        typer.Option(
            help="memory, backward, gemv, gemm, gemm_sweep, attention, attention_sweep, moe, kernels, models "
            "or train; all if none is named."
        ),
    ] = None,
    case: Annotated[list[str] | None, typer.Option(help="Cases by pattern: `softmax_*`.")] = None,
    shard: Shard = None,
    resume: Resume = False,
    rounds: Annotated[int, typer.Option(help="Rounds of samples, at most.", min=1)] = 60,
    seconds: Annotated[float, typer.Option(help="How long to measure a case, about.", min=0)] = 4.0,
    budget: Budget = 420.0,
    reports: Annotated[Path, typer.Option(help="Where the journal of rows lies.")] = Path("reports"),
    results: Annotated[Path, typer.Option(help="Where the files of results go.")] = Path("benchmarks/results"),
    into: Annotated[Path | None, typer.Option(help="A text with marks: `<!-- bench gpu-memory -->`.")] = None,
    rehearse: Annotated[bool, typer.Option("--rehearse", help="Small cases on the CPU: times mean nothing.")] = False,
    search: Annotated[bool, typer.Option(help="With peers that try many kernels, which takes them minutes.")] = True,
    steps: Annotated[int, typer.Option(help="Training: for how many steps losses are kept.", min=1)] = 20,
    profile: Annotated[bool, typer.Option("--profile", help="Training: kernels by time, of one step.")] = False,
    json: Json = False,
) -> None:
    """Weft, libraries, Inductor and Triton on a GPU, with the L2 flushed, and a copy of the same bytes."""
    from weft.tools.bench.gpu import SUITES, GpuRequest
    from weft.tools.bench.gpu import bench_gpu as run

    terminal = Terminal(json=json)
    with terminal.reporting_errors():
        chosen = tuple(suite or SUITES), tuple(case or ())
        asked = GpuRequest(
            *chosen, shard, resume, rounds, seconds, budget, reports, results, into, rehearse, search, steps, profile
        )
        run(terminal, asked)


@bench.command("func")
def bench_func(
    case: Annotated[list[str] | None, typer.Option(help="Cases by pattern: `hessian*`; all if none is named.")] = None,
    device: Annotated[str, typer.Option(help="Where the tensors are: cpu or cuda.")] = "cpu",
    threads: Annotated[int | None, typer.Option(help="Threads; torch's default if not given.", min=1)] = None,
    rounds: Annotated[int, typer.Option(help="Rounds of samples, at most.", min=1)] = 40,
    seconds: Annotated[float, typer.Option(help="How long to measure a case, about.", min=0)] = 10.0,
    shard: Shard = None,
    resume: Resume = False,
    budget: Budget = float("inf"),
    reports: Annotated[Path, typer.Option(help="Where the journal, charts and tables go.")] = Path("reports"),
    results: Annotated[Path | None, typer.Option(help="A folder for a file of results.")] = None,
    into: Annotated[Path | None, typer.Option(help="A text with marks for tables: `<!-- bench func -->`.")] = None,
    processor_time: Annotated[
        bool, typer.Option("--processor-time", help="Seconds of all threads, for a machine that others use, too.")
    ] = False,
    json: Json = False,
) -> None:
    """Derivatives and batches: `weft.func`, and `torch.func` in eager, under Inductor and compiled by Weft."""
    from weft.tools.bench.func import FuncRequest
    from weft.tools.bench.func import bench_func as run

    terminal = Terminal(json=json)
    with terminal.reporting_errors():
        measured = tuple(case or ()), device, threads, rounds, seconds
        run(terminal, FuncRequest(*measured, shard, resume, budget, reports, results, into, processor_time))


@bench.command("libraries")
def bench_libraries(
    library: Annotated[
        list[str], typer.Option("--from", help="A checkout of flash-linear-attention or Liger, or a package's name.")
    ],
    case: Annotated[list[str] | None, typer.Option(help="Cases by pattern: `liger*`; all if none is named.")] = None,
    device: Annotated[str, typer.Option(help="Where the tensors are: cpu or cuda.")] = "cuda",
    seconds: Annotated[float, typer.Option(help="How long to measure each side of a case, about.", min=0)] = 0.6,
    budget: Budget = float("inf"),
    shrink: Annotated[int, typer.Option(help="Divide rows and lengths by this, for a rehearsal.", min=1)] = 1,
    resume: Resume = False,
    reports: Annotated[Path, typer.Option(help="Where the journal of rows lies.")] = Path("reports"),
    json: Json = False,
) -> None:
    """Twenty kernels of flash-linear-attention and Liger, forward and backward: Weft and Triton, first calls too."""
    from weft.tools.bench.libraries import LibraryBenchRequest
    from weft.tools.bench.libraries import bench_libraries as run

    terminal = Terminal(json=json)
    with terminal.reporting_errors():
        given = tuple(library), tuple(case or ())
        run(terminal, LibraryBenchRequest(*given, device, seconds, budget, shrink, resume, reports))


@bench.command("table")
def bench_table(
    files: Annotated[
        list[Path], typer.Argument(help="What `weft bench gpu` wrote or `cpu --json` printed, newest last.")
    ],
    into: Annotated[Path | None, typer.Option(help="A text with marks: `<!-- bench gpu-memory -->`.")] = None,
    json: Json = False,
) -> None:
    """Tables from files of results."""
    from weft.tools.bench.result_files import bench_table as run

    terminal = Terminal(json=json)
    with terminal.reporting_errors():
        run(terminal, files, into)


@bench.command("chart")
def bench_chart(
    files: Annotated[
        list[Path], typer.Argument(help="What `weft bench gpu` wrote or `cpu --json` printed, newest last.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The picture, an SVG file.")] = Path("speed.svg"),
    json: Json = False,
) -> None:
    """One picture of files of results: the speed against the best peer, by machine and suite."""
    from weft.tools.bench.result_files import bench_chart as run

    terminal = Terminal(json=json)
    with terminal.reporting_errors():
        run(terminal, files, output)
