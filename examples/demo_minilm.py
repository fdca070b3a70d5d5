"""The main job in one script: a real pretrained model, all-MiniLM-L6-v2, compiled with Weft (`make demo`).

Shows that sentence similarities equal eager's, how long eager, Inductor and Weft take at three batch sizes, how long
compiling takes, and which kernels were made; writes a report. Needs no network.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
import warnings
from datetime import date
from html import escape
from pathlib import Path
from typing import Any

# Read when the libraries are imported: nothing is downloaded, and Inductor's compile time is that of a first start.
os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_PROGRESS_BARS="1", TOKENIZERS_PARALLELISM="false")
os.environ.setdefault("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import weft
from weft.runtime.record import CompilationRecord, recording
from weft.testing.bench.benchmark import (
    EAGER,
    INDUCTOR,
    WEFT,
    Limits,
    Race,
    contenders,
    cpp_compiler,
    first_call,
    interleave,
)
from weft.testing.bench.charts import Bar, Chart, svg, write_chart
from weft.testing.models import FULL_SIZE, minilm_folder
from weft.tools.terminal import counted

SENTENCES = (
    "The cat is sleeping on the sofa.",
    "A kitten naps on the couch.",
    "The stock market fell sharply today.",
    "Shares dropped in heavy trading.",
    "How do I bake sourdough bread?",
    "What is the recipe for a good loaf?",
    "The compiler fuses many small operations into one kernel.",
    "Loops that touch the same data are merged to save memory traffic.",
)
BATCHES = (2, 8, 32)
TOKENS = 32
ALLOWED_DIFFERENCE = 1e-5

console = Console(width=None if sys.stdout.isatty() else 110)
started = time.perf_counter()


class SentenceEmbedder(nn.Module):
    """The model as sentence-transformers uses it: mean of the tokens' states, of length one."""

    def __init__(self, bert: nn.Module) -> None:
        super().__init__()
        self.bert = bert

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        states = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask.unsqueeze(-1).to(states.dtype)
        return nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)


def progress(text: str) -> None:
    console.print(f"[dim]{time.perf_counter() - started:6.1f} s[/]  {text}", highlight=False)


def tokenized(tokenizer: Any, count: int) -> dict[str, Tensor]:
    """A batch of the sentences, over and over; its first dimension may change without compiling again."""
    sentences = [SENTENCES[n % len(SENTENCES)] for n in range(count)]
    found = tokenizer(sentences, padding="max_length", max_length=TOKENS, truncation=True, return_tensors="pt")
    batch = {name: found[name] for name in ("input_ids", "attention_mask")}
    for tensor in batch.values():
        torch._dynamo.mark_dynamic(tensor, 0)
    return batch


def table(title: str, *columns: str) -> Table:
    made = Table(title=title, title_justify="left", title_style="bold")
    for number, column in enumerate(columns):
        made.add_column(column, justify="right" if number else "left")
    return made


def similarity_table(eager: Tensor, compiled: Tensor) -> Table:
    made = table("Cosine similarity", "sentences", "eager", "Weft")
    for one, other in ((0, 1), (2, 3), (4, 5), (6, 7), (0, 2)):
        made.add_row(
            f"{SENTENCES[one]} / {SENTENCES[other]}", f"{eager[one, other]:.6f}", f"{compiled[one, other]:.6f}"
        )
    return made


def latency_table(races: dict[int, Race], names: list[str]) -> Table:
    columns = [f"{name}, ms" for name in names]
    title = f"Latency, {TOKENS} tokens a sentence, {torch.get_num_threads()} threads: medians of interleaved rounds"
    made = table(title, "batch", *columns, "rounds", "× best peer (95%)")
    for batch, race in races.items():
        cells = [milliseconds(race, name) for name in names]
        rounds = str(max((len(timing.seconds) for timing in race.timings.values()), default=0))
        made.add_row(str(batch), *cells, rounds, str(race.ratio) if race.ratio else "–")
    return made


def milliseconds(race: Race, name: str) -> str:
    if name not in race.timings:
        return "failed" if name in race.failures else "–"
    timing = race.timings[name]
    return f"{timing.median * 1e3:.1f} ±{timing.spread / 2:.0%}"


def compile_table(first_calls: dict[str, float], records: list[CompilationRecord]) -> Table:
    made = table("Compiling, nothing cached", "", "first call, s", "inside the backend, s")
    for name, seconds in first_calls.items():
        inside = f"{sum(sum(record.seconds.values()) for record in records):.2f}" if name == WEFT else ""
        made.add_row(name, f"{seconds:.1f}", inside)
    return made


def kernel_table(records: list[CompilationRecord], most: int = 8) -> Table:
    kernels = [kernel for record in records for kernel in record.kernels]
    calls, claims = sum(kernel.uses for kernel in kernels), [claim for record in records for claim in record.claims]
    claimed, left = sum(claim.uses for claim in claims), sum(len(record.fallbacks) for record in records)
    shown = f"the {most} launched most often of " if len(kernels) > most else ""
    title = (
        f"{shown}{counted(len(kernels), 'kernel')}, launched {counted(calls, 'time')} a call;"
        f" {counted(claimed, 'call')} to BLAS; {left} left to torch"
    )
    made = table(title, "computes", "launches", "schedule")
    for kernel in sorted(kernels, key=lambda each: -each.uses)[:most]:
        made.add_row(kernel.label.replace("_", " "), str(kernel.uses), kernel.schedule)
    for claim in sorted(claims, key=lambda each: -each.uses)[:3]:
        made.add_row(f"{claim.op}: {claim.types}", str(claim.uses), claim.library)
    return made


def latency_chart(races: dict[int, Race], names: list[str]) -> Chart:
    groups: dict[str, list[Bar]] = {}
    for batch, race in races.items():
        one = race.timings[EAGER].median
        medians = {name: race.timings[name].median for name in names if name in race.timings}
        groups[f"batch {batch}"] = [Bar(name, took / one, f"{took * 1e3:.1f} ms") for name, took in medians.items()]
    return Chart("all-MiniLM-L6-v2: latency as a share of eager's", groups, "shorter is better", line=1.0)


def html_table(made: Table) -> str:
    """A table of the terminal's as one of a page."""
    columns = [[str(cell) for cell in column.cells] for column in made.columns]
    head = "".join(f"<th>{escape(str(column.header))}</th>" for column in made.columns)
    rows = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in zip(*columns, strict=True))
    body = "".join(f"<tr>{row}</tr>\n" for row in rows)
    return f'<h2>{escape(str(made.title))}</h2><div class="wide"><table><tr>{head}</tr>\n{body}</table></div>\n'


def write_report(folder: Path, head: str, verdict: str, tables: list[Table], chart: Chart) -> Path:
    """The tables and the chart as one page, for windows of any width."""
    write_chart(chart, folder / "demo")
    page = folder / "demo.html"
    page.write_text(
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Weft: all-MiniLM-L6-v2</title>\n'
        "<style>body { font-family: system-ui, sans-serif; max-width: 70em; margin: 2em auto; padding: 0 1em }"
        " svg { max-width: 100%; height: auto } .wide { overflow-x: auto } h2 { font-size: 1em; margin-top: 2em }"
        " table { border-collapse: collapse } th, td { padding: 0.3em 0.8em; border-bottom: 1px solid #ddd }"
        " th, td { text-align: right } th:first-child, td:first-child { text-align: left }</style>\n"
        f"<h1>all-MiniLM-L6-v2 with Weft</h1><p>{escape(head)}</p><p>{escape(verdict)}</p>\n"
        f"{svg(chart)}{''.join(map(html_table, tables))}</html>\n",
        encoding="utf-8",
    )
    return page


def main() -> int:
    parser = argparse.ArgumentParser(description="Compile all-MiniLM-L6-v2 with Weft and compare it with its peers.")
    parser.add_argument("--no-inductor", action="store_true", help="leave Inductor out: its compilation takes longest")
    parser.add_argument("--seconds", type=float, default=6.0, help="how long to measure each batch size")
    parser.add_argument("--reports", type=Path, default=Path("reports"), help="where the report goes")
    asked = parser.parse_args()

    from transformers import AutoTokenizer

    warnings.filterwarnings("ignore", message="dynamo_pgo force disabled")  # caches are off on purpose
    head = f"Weft {weft.__version__}, torch {torch.__version__}, Python {platform.python_version()}, "
    head += f"{platform.machine()}, {torch.get_num_threads()} threads, {date.today()}"
    console.print(f"[bold]{head}[/]", highlight=False)
    progress("loading the tokenizer and the weights")
    tokenizer: Any = AutoTokenizer.from_pretrained(minilm_folder(), local_files_only=True)
    embedder = SentenceEmbedder(FULL_SIZE["minilm"].build()).eval()
    found = {each.name: each for each in contenders() if not (asked.no_inductor and each.name == INDUCTOR)}
    if cpp_compiler() is None:
        progress("no C++ compiler here: Inductor is left out, Weft needs none")
    with torch.no_grad(), recording() as records:
        progress("starting Dynamo, which both compilers need")
        torch.compile(lambda x: x + 1, backend="eager")(torch.zeros(3))
        functions = {name: each.compile(embedder) for name, each in found.items()}

        batch = tokenized(tokenizer, len(SENTENCES))
        compiled = Race()
        for name in (WEFT, INDUCTOR):
            if name not in functions:
                continue
            patience = ", which takes longest: 20 s and more" if name == INDUCTOR else ""
            progress(f"{name} compiles, once for all batch sizes{patience}")
            if first_call(compiled, name, lambda run=functions[name]: run(**batch)):
                progress(f"{name}'s first call took {compiled.first_calls[name]:.1f} s")
            else:
                progress(f"{name} failed: {compiled.failures[name]}")
                del functions[name]
        ours, theirs = functions[WEFT](**batch), embedder(**batch)

        races: dict[int, Race] = {}
        for size in BATCHES:
            progress(f"measuring batches of {size} sentences")
            inputs = tokenized(tokenizer, size)
            calls = {name: (lambda run=run, inputs=inputs: run(**inputs)) for name, run in functions.items()}
            races[size] = interleave(calls, Limits(rounds=30, least=5, seconds=asked.seconds))
            for name, failure in races[size].failures.items():
                progress(f"{name} failed at batch {size}: {failure}")

    difference = float((ours @ ours.T - theirs @ theirs.T).abs().max())
    equal = difference <= ALLOWED_DIFFERENCE
    verdict = f"Similarities {'equal' if equal else 'DIFFER from'} eager's: largest difference {difference:.1e}"
    verdict += f" over {len(SENTENCES) ** 2} pairs (allowed {ALLOWED_DIFFERENCE:.0e})."
    names = list(found)
    similarity = similarity_table(theirs @ theirs.T, ours @ ours.T)
    tables = [
        similarity,
        latency_table(races, names),
        compile_table(compiled.first_calls, records),
        kernel_table(records),
    ]
    for each in tables:
        console.print(each)
    console.print(f"[bold {'green' if equal else 'red'}]{verdict}[/]", highlight=False)
    for record in records:
        for fallback in record.fallbacks:
            console.print(f"left to torch: {fallback}", highlight=False, markup=False)
    page = write_report(asked.reports, head, verdict, tables, latency_chart(races, names))
    console.print(f"Report: {page} (chart: {page.with_suffix('.svg')})", highlight=False)
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
