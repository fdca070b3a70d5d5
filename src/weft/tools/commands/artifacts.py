"""The commands `compile`, `run` and `inspect` of the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weft.tools.commands import run_command_line as options
from weft.tools.commands.options import Json, stated
from weft.tools.terminal import Terminal

Artifact = Annotated[Path, typer.Argument(help="A file that `weft compile` wrote.")]


def compile_command(
    model: Annotated[Path, typer.Argument(help="graph text (.mlir), a torch.export'ed program (.pt2), or .onnx.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The file to write: `model.weft`.")],
    target: Annotated[
        list[str] | None,
        typer.Option(help="What to make code for: host, x86-64-v2, -v3, -v4, aarch64, sm_90a; may be repeated."),
    ] = None,
    weights: Annotated[Path | None, typer.Option(help="The constants of graph text: .npz or .safetensors.")] = None,
    function: Annotated[str | None, typer.Option(help="Which function of graph text with several.")] = None,
    size: Annotated[
        list[str] | None,
        typer.Option(help="A size that an ONNX model leaves open: `batch=1`, `batch=2..64`; may be repeated."),
    ] = None,
    license: Annotated[str, typer.Option(help="The model's licence, which the file then states.")] = "",
    sign: Annotated[Path | None, typer.Option(help="A secret key to sign with: 64 hexadecimal digits.")] = None,
    quantize: Annotated[str, typer.Option(help="Hold weights in 8 bits: int8_weights, int8_dynamic.")] = "",
    emit: Annotated[str, typer.Option(help="`artifact`, or `object`: a shared object and a C header.")] = "artifact",
    json: Json = False,
) -> None:
    """Compile a model to one file, which runs without the framework that it comes from."""
    terminal = Terminal(json=json)
    with terminal.reporting_errors():
        from weft.tools.artifacts import CompileOptions, compile_model

        targets, sizes = tuple(target or ["host"]), tuple(size or ())
        asked = CompileOptions(output, targets, weights, function, license, sign, quantize, emit, sizes)
        compile_model(terminal, model, asked)


def run_command(
    artifact: Artifact,
    input: Annotated[list[str] | None, stated(options.INPUT)] = None,
    output: Annotated[Path | None, stated(options.OUTPUT)] = None,
    trust: Annotated[bool, stated(options.TRUST)] = False,
    device: Annotated[str, stated(options.DEVICE)] = "cpu",
    threads: Annotated[int | None, stated(options.THREADS)] = None,
    json: Json = False,
) -> None:
    """Run a compiled model on arrays from files. Neither torch nor onnx is needed."""
    options.run(options.RunRequest(artifact, tuple(input or ()), output, trust, device, threads, json))


def inspect_command(
    artifact: Artifact,
    ir: Annotated[bool, typer.Option("--ir", help="Print the graph.")] = False,
    json: Json = False,
) -> None:
    """Check every byte of a compiled model and say what is in it: what it takes, its targets, who vouches for it."""
    terminal = Terminal(json=json)
    with terminal.reporting_errors():
        from weft.tools.artifacts import inspect_artifact

        inspect_artifact(terminal, artifact, ir)
