"""The commands of `weft conform` and their options; each imports what it needs when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weft.tools.commands.conform_hops import conform_hops
from weft.tools.commands.conform_onnx import conform_onnx
from weft.tools.commands.conform_zoo import conform_zoo
from weft.tools.commands.options import Budget, Device, Dtypes, Jobs, Json, Resume, Shard, Verdicts
from weft.tools.terminal import Terminal

conform = typer.Typer(help="Outside test suites, run through Weft.", no_args_is_help=True)
conform.command("zoo")(conform_zoo)
conform.command("onnx")(conform_onnx)
conform.command("hops")(conform_hops)


@conform.command("opinfo")
def conform_opinfo(
    ops: Annotated[list[str] | None, typer.Argument(help="Operators by name; all of them if there are none.")] = None,
    dtype: Dtypes = None,
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


@conform.command("transforms")
def conform_transforms(
    ops: Annotated[list[str] | None, typer.Argument(help="Ops of the registry by name; all if there are none.")] = None,
    samples: Annotated[int, typer.Option(help="How many samples of each op.", min=1)] = 1,
    shard: Shard = None,
    json: Json = False,
) -> None:
    """Every ordered pair of transformations of every op, in float64 against differences and loops."""
    from weft.tools.conform.transforms import conform_transforms as run

    terminal = Terminal(json=json)
    with terminal.reporting_errors():
        run(terminal, tuple(ops or ()), samples, shard)


@conform.command("models")
def conform_models(
    names: Annotated[list[str] | None, typer.Argument(help="Models by name; the twelve families if none.")] = None,
    dtype: Dtypes = None,
    device: Device = "cpu",
    shard: Shard = None,
    resume: Resume = False,
    jobs: Jobs = 2,
    budget: Budget = 420.0,
    reports: Verdicts = Path("reports"),
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
    dtype: Dtypes = None,
    steps: Annotated[int, typer.Option(help="Steps of AdamW.", min=2)] = 20,
    device: Device = "cpu",
    shard: Shard = None,
    resume: Resume = False,
    jobs: Jobs = 1,
    budget: Budget = 420.0,
    reports: Verdicts = Path("reports"),
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
    jobs: Jobs = 2,
    budget: Budget = 420.0,
    reports: Verdicts = Path("reports"),
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
    jobs: Jobs = 2,
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
    jobs: Jobs = 2,
    timeout: Annotated[float, typer.Option(help="Seconds after which a test is ended.", min=1)] = 120.0,
    budget: Annotated[float | None, typer.Option(help="Seconds after which no test is begun.", min=0)] = None,
    device: Annotated[str, typer.Option(help="Where the tests put their tensors: cpu or cuda.")] = "cpu",
    side: Annotated[
        list[str] | None, typer.Option(help="weft, triton; both where Triton and a GPU are there, if not given.")
    ] = None,
    reports: Verdicts = Path("reports"),
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
    reports: Verdicts = Path("reports"),
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
