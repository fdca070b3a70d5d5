"""`weft plan MODEL --train …`: how a training job is laid out, what each rank holds, and how long a step takes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from weft.planner.hardware import find_gpu
from weft.planner.model import find_model
from weft.planner.training import TrainingPlan, TrainingStep, job_of, plan_training
from weft.planner.training_page import training_page
from weft.tools.terminal import Terminal, UsageError, check_file, counted


def train(
    terminal: Terminal, model: str, gpu: str, job: str, engine: str, tables: Path | None, html: Path | None = None
) -> None:
    """Lay one job out and print it."""
    if tables is not None and not tables.is_dir():
        raise UsageError(f"there is no folder {tables}", hint="give --tables a folder of kernel tables")
    if html is not None:
        check_file(html, "--html")
    asked = job_of(job)
    with terminal.working("laying out"):
        found = plan_training(find_model(model), find_gpu(gpu), asked, tables, engine)
    _show(terminal, found)
    if html is not None:
        html.write_text(training_page(found), encoding="utf-8")
        terminal.show(f"The page is {html}.")
    terminal.finish(figures(found))


def _step(found: TrainingStep) -> dict[str, Any]:
    layout = found.layout
    return {
        "layout": str(layout), "tp": layout.mapping.tp, "pp": layout.mapping.pp, "dp": layout.data_parallel,
        "ep": layout.mapping.ep, "micro_batch": layout.micro, "pieces": layout.pieces, "recompute": layout.recompute,
        "fsdp": layout.sharded, "step_s": found.seconds, "mfu": found.mfu, "causal_mfu": found.causal_mfu,
        "tokens_s_gpu": found.tokens_s_gpu,
        "memory": found.memory, "parts_s": found.parts,
    }  # fmt: skip


def figures(found: TrainingPlan) -> dict[str, Any]:
    """All of a training plan, as JSON has it."""
    return {
        "ok": True,
        "model": found.model.name,
        "gpu": found.gpu.device,
        "gpus": found.job.gpus,
        "batch": found.job.batch,
        "seq": found.job.seq,
        "assumptions": list(found.model.assumptions),
        "chosen": _step(found.chosen),
        "alternatives": [_step(each) for each in found.alternatives],
        "layouts": found.layouts,
        "days": found.days or None,
        "dollars": found.dollars or None,
        "launch": launch(found),
    }


def launch(found: TrainingPlan) -> str:
    """The command line that starts the job's ranks."""
    per_node = min(found.job.gpus, found.gpu.gpus_per_node)
    return f"torchrun --nnodes {math.ceil(found.job.gpus / per_node)} --nproc-per-node {per_node} train.py"


def _show(terminal: Terminal, found: TrainingPlan) -> None:
    chosen, job = found.chosen, found.job
    for words in found.model.assumptions:
        terminal.show(Text(words, style="yellow"))
    terminal.show(
        f"{found.model.name} on {counted(job.gpus, 'GPU')} ({found.gpu.device}), {job.batch} × {job.seq} tokens a "
        f"step: {chosen.layout}"
    )
    terminal.show(
        f"{chosen.seconds:.2f} s a step, {chosen.mfu * 100:.1f} % of the bf16 peak (MFU, attention over the whole "
        f"square; {chosen.causal_mfu * 100:.1f} % with the half that a causal mask leaves), "
        f"{chosen.tokens_s_gpu:.0f} tokens/s/GPU"
    )
    if job.tokens:
        terminal.show(f"{job.tokens:.3g} tokens: {found.days:.1f} days, ${found.dollars:,.0f}, without failures")
    terminal.show("Kernels and links alone: hosts, stragglers, data and checkpoints come on top.")
    table = Table("a step", "s", "%", title="where the time goes")
    for name, seconds in sorted(chosen.parts.items(), key=lambda each: -each[1]):
        if seconds > 0:
            table.add_row(name, f"{seconds:.3f}", f"{seconds / chosen.seconds * 100:.1f}")
    terminal.show(table)
    table = Table("the fullest rank", "GB", title=f"{chosen.bytes / 1e9:.1f} of {found.gpu.memory / 1e9:.1f} GB")
    for name, size in chosen.memory.items():
        table.add_row(name, f"{size / 1e9:.2f}")
    terminal.show(table)
    table = Table("layout", "s a step", "MFU %", "GB", title="alternatives")
    for each in found.alternatives:
        table.add_row(str(each.layout), f"{each.seconds:.2f}", f"{each.mfu * 100:.1f}", f"{each.bytes / 1e9:.1f}")
    terminal.show(table)
    terminal.text(launch(found))
