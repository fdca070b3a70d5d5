"""`weft plan`: reads what was asked for, makes the plan, and prints it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from rich.table import Table
from rich.text import Text

from weft.planner.calibration import calibrate, read_runs
from weft.planner.closed_form import Draft
from weft.planner.hardware import RANGES, find_gpu
from weft.planner.model import find_model
from weft.planner.page import page
from weft.planner.plan import Plan
from weft.planner.plan import plan as make
from weft.planner.program import PRECISIONS
from weft.planner.report import figures, load_words
from weft.planner.search import ENGINES, Settings, open_costs, predictor
from weft.planner.traffic import targets_of, traffic_of
from weft.tools.terminal import Terminal, UsageError, check_file, counted


@dataclass(frozen=True)
class PlanRequest:
    """The options of `weft plan`."""

    model: str
    gpu: str
    traffic: str
    slo: str
    engine: str
    precision: str | None
    kv: str
    tables: Path | None
    max_gpus: int
    spare: int
    chunk: int
    draft: str
    price: float | None
    html: Path | None
    calibrate: Path | None = None


def plan(terminal: Terminal, asked: PlanRequest) -> None:
    """Make one plan and print it."""
    gpu = find_gpu(asked.gpu)
    if asked.price is not None:
        if not 0 <= asked.price <= RANGES["price_per_hour"][1]:
            raise UsageError(f"--price {asked.price} is no price", hint="dollars for a GPU and hour: --price 2.5")
        gpu = replace(gpu, price_per_hour=asked.price)
    model = find_model(asked.model)
    if asked.precision is not None:
        if asked.precision not in PRECISIONS:
            raise UsageError(f"there is no precision {asked.precision}", hint=f"there are {', '.join(PRECISIONS)}")
        model = model.with_precision(asked.precision)
    if asked.engine not in ENGINES:
        raise UsageError(f"there is no engine {asked.engine}", hint=f"there are {', '.join(ENGINES)}")
    if asked.kv not in ("bf16", "fp8"):
        raise UsageError(f"a cache is not held in {asked.kv}", hint="bf16 or fp8")
    if asked.tables is not None and not asked.tables.is_dir():
        raise UsageError(f"there is no folder {asked.tables}", hint="give --tables a folder of kernel tables")
    if asked.html is not None:
        check_file(asked.html, "--html")
    settings = Settings(
        engine=asked.engine,
        kv="fp8" if asked.kv == "fp8" else "bfloat16",
        chunk=asked.chunk,
        draft=_draft(asked.draft),
        max_gpus=asked.max_gpus,
        spare=asked.spare,
    )
    if asked.calibrate is not None:
        with terminal.working("calibrating"):
            predict = predictor(model, gpu, open_costs(gpu, asked.tables, asked.engine), settings)
            found = calibrate(read_runs(asked.calibrate), predict, asked.calibrate.name)
        settings = replace(settings, calibration=found)
    with terminal.working("planning"):
        found = make(model, gpu, traffic_of(asked.traffic), targets_of(asked.slo), settings, asked.tables)
    show(terminal, found)
    if asked.html is not None:
        asked.html.write_text(page(found), encoding="utf-8")
        terminal.show(f"The page is {asked.html}.")
    terminal.finish(figures(found), code=1 if found.gives_way else 0)


def _draft(text: str) -> Draft:
    found: dict[str, float] = {}
    for part in text.split(",") if text else []:
        name, _, value = part.strip().partition("=")
        try:
            found[name] = float(value)
        except ValueError:
            raise UsageError(f"{value!r} is not a number", hint="--draft tokens=3,accepted=0.7") from None
    most = {"tokens": 1024.0, "accepted": 1.0, "cost": 1024.0}
    if set(found) - set(most) or not all(0 <= value <= most[name] for name, value in found.items()):
        raise UsageError(f"{text} does not describe drafts", hint="--draft tokens=3,accepted=0.7,cost=0.05")
    return Draft(int(found.get("tokens", 0)), found.get("accepted", 0.0), found.get("cost", 0.0))


def show(terminal: Terminal, found: Plan) -> None:
    """The plan for people."""
    told = figures(found)
    chosen = told["chosen"]
    for words in found.gives_way:
        terminal.show(Text(f"no mapping meets the targets; {words}", style="bold yellow"))
    for words in found.assumptions:
        terminal.show(Text(words, style="yellow"))
    if found.settings.calibration is not None:
        terminal.show(Text(str(found.settings.calibration), style="yellow"))
    replicas = f"{found.replicas} + {counted(found.spare, 'spare replica')}"
    place = f"{counted(found.gpus, 'GPU')} in {counted(found.nodes, 'node')}, {counted(found.racks, 'rack')}"
    terminal.show(
        f"{found.model.name} on {found.gpu.device}: {chosen['mapping']}, {replicas}, {place}, "
        f"{told['power_kw']:.1f} kW, ${found.cost_per_million:.3f} per million output tokens"
    )
    seen = told["simulated"]
    at, most = load_words(found)
    table = Table("simulated, ms", "p50", "p90", "p99", title=f"simulated at {at}")
    for name, key in (("TTFT", "ttft_ms"), ("TPOT = (E2E - TTFT)/(tokens - 1)", "tpot_ms"), ("E2E", "e2e_ms")):
        table.add_row(name, *(f"{seen[key][each]:.1f}" for each in ("p50", "p90", "p99")))
    terminal.show(table)
    terminal.show(most)
    table = Table(
        "mapping",
        "GPUs",
        "concurrency",
        "tokens/s/GPU",
        "tokens/s/user",
        "TTFT ms",
        "TPOT ms",
        title="chosen, alternatives (closed form)",
    )
    for each in [chosen, *told["alternatives"]]:
        table.add_row(
            each["mapping"], str(each["gpus"]), f"{each['concurrency']:.0f}", f"{each['tokens_s_gpu']:.0f}",
            f"{each['tokens_s_user']:.1f}", f"{each['ttft_ms']:.0f}", f"{each['tpot_ms']:.1f}",
        )  # fmt: skip
    terminal.show(table)
    table = Table("operation", "ms a step", "from", "may be off by", title="the longest operations of a decoding step")
    for each in sorted(told["operations"], key=lambda each: -each["ms"])[:8]:
        table.add_row(each["name"], f"{each['ms']:.3f}", each["from"], f"{each['may_be_off_by'] * 100:.0f} %")
    terminal.show(table)
    kinds = ", ".join(f"{name} {share * 100:.0f} %" for name, share in told["breakdown"].items())
    terminal.show(f"A step: {kinds}; it may be off by {found.band * 100:.0f} %.")
    more = ", ".join(f"{name} {value * 100:+.1f} %" for name, value in told["sensitivity"].items())
    terminal.show(f"Tokens/s with 10 % more: {more}.")
    split = told["disaggregated"]
    if split is not None:
        prompts = f"{split['prefill_workers']} × {split['prefill']} for prompts"
        decoding = f"{split['decode_workers']} × {split['decode']} for decoding"
        terminal.show(
            f"Disaggregated: {prompts}, {decoding}: {counted(split['gpus'], 'GPU')} without spares, up to "
            f"{split['requests_s']:.4g} requests/s, {split['tokens_s_gpu']:.0f} tokens/s/GPU "
            "(closed form; the cache's transfer is by specification, unmeasured)."
        )
    for command in told["launch"].values():
        terminal.text(command)
