"""The command line of `weft plan`; it imports what it needs when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weft.tools.commands.options import Json
from weft.tools.terminal import Terminal, UsageError


def plan(
    model: Annotated[
        str | None, typer.Argument(help="A folder with config.json, the file, or a known model's name.")
    ] = None,
    gpu: Annotated[
        str, typer.Option(help="a100, h100, h200, b200, gb200, or a JSON or YAML file that describes one.")
    ] = "h200",
    traffic: Annotated[
        str, typer.Option(help="`isl=1024,osl=512,rate=20`; also prefix, spread, burst; or a trace, CSV or JSON.")
    ] = "isl=1024,osl=512",
    slo: Annotated[str, typer.Option(help="Targets at p90: `ttft=500ms,tpot=30ms`.")] = "",
    engine: Annotated[str, typer.Option(help="Whose kernels and scheduling: weft, vllm, sglang or trtllm.")] = "weft",
    precision: Annotated[
        str | None, typer.Option(help="bf16, fp8, fp8_block, int4, mxfp4, nvfp4; else the checkpoint's.")
    ] = None,
    kv: Annotated[str, typer.Option(help="What the cache is held in: bf16 or fp8.")] = "bf16",
    tables: Annotated[
        Path | None, typer.Option(help="A folder of kernel tables; Weft's own of an H200 if none.")
    ] = None,
    max_gpus: Annotated[int, typer.Option(help="GPUs of one replica, at most.", min=1)] = 64,
    spare: Annotated[int, typer.Option(help="Replicas beyond what the load needs.", min=0)] = 1,
    chunk: Annotated[int, typer.Option(help="Tokens of a step, at most.", min=16)] = 8192,
    draft: Annotated[str, typer.Option(help="Speculative decoding: `tokens=3,accepted=0.7`.")] = "",
    price: Annotated[float | None, typer.Option(help="Dollars for a GPU and hour.", min=0)] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with plots here.")] = None,
    calibrate: Annotated[
        Path | None, typer.Option(help="Runs of your own, CSV or JSON: isl, osl, concurrency, tpot_ms, ttft_ms, tp.")
    ] = None,
    train: Annotated[
        str | None, typer.Option(help="Plan a training job in place of a service: `gpus=1024,batch=1024,seq=8192`.")
    ] = None,
    fleet: Annotated[
        Path | None, typer.Option(help="Many services on mixed racks: a JSON or YAML file of pools and services.")
    ] = None,
    evaluate: Annotated[
        Path | None, typer.Option(help="Compare with measurements: a folder with tables and measured rows.")
    ] = None,
    json: Json = False,
) -> None:
    """Which GPUs, how many and mapped how, for a model, its traffic and its latency targets."""
    terminal = Terminal(json=json)
    with terminal.reporting_errors():
        if evaluate is not None:
            from weft.tools.plan_accuracy import evaluate as compare

            compare(terminal, evaluate)
            return
        if fleet is not None and model is not None:
            raise UsageError("a fleet's file names its models", hint="leave the model out, or --fleet")
        for other, given in (("--fleet", fleet), ("--train", train)):
            if given is None:
                continue
            alone = {
                "--slo": slo,
                "--precision": precision,
                "--draft": draft,
                "--calibrate": calibrate,
                "--price": price,
            }
            for name, value in alone.items():
                if value:
                    raise UsageError(f"{name} does not go with {other}", hint="it is for the plan of one service")
        if fleet is not None:
            from weft.tools.plan_fleet import fleet as share

            share(terminal, fleet, tables, html)
            return
        if model is None:
            raise UsageError("a model is missing", hint="give a folder with config.json, or a known model's name")
        if train is not None:
            from weft.tools.plan_training import train as lay_out

            lay_out(terminal, model, gpu, train, engine, tables, html)
            return
        from weft.tools.plan import PlanRequest
        from weft.tools.plan import plan as run

        run(
            terminal,
            PlanRequest(
                model,
                gpu,
                traffic,
                slo,
                engine,
                precision,
                kv,
                tables,
                max_gpus,
                spare,
                chunk,
                draft,
                price,
                html,
                calibrate,
            ),
        )
