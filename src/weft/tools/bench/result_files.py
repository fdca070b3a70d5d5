"""`weft bench table` and `weft bench chart`: files of results, of CPUs and of GPUs, as tables and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from weft.testing.bench.ratio_chart import RatioChart, ratio_svg
from weft.tools.bench.cpu_tables import CpuResults, is_right, read_cpu_results, side_by_side
from weft.tools.bench.gpu_report import GpuResults, has_wider_peers, markdown, read_results
from weft.tools.bench.report import check_text, insert
from weft.tools.terminal import Terminal, check_file

_TITLE = "Speed against the best peer of each case; right of 1× is faster"
_NOTE = "Each dot is a case, each bar a geometric mean. Peers are those of the same run."
_NOT_PEERS = ("weft f32",)
_NAMES = {
    "memory": "memory-bound",
    "gemm": "GEMM",
    "gemv": "GEMV, skinny GEMM",
    "moe": "mixtures of experts",
    "kernels": "Triton kernels",
    "train": "training steps",
    "ops": "operators",
}


@dataclass(frozen=True)
class ResultFiles:
    """What several files hold, in their order: of a case that stands in more than one, the last counts."""

    processors: list[CpuResults]
    gpus: list[GpuResults]

    def ratios(self) -> dict[str, dict[str, list[float]]]:
        """By machine and suite, the ratios of cases whose peers do the same work."""
        found: dict[str, dict[str, dict[str, float | None]]] = {}
        for gpu in self.gpus:
            for row in gpu.rows:
                if row["ok"] and not has_wider_peers(row):
                    suites = found.setdefault(str(gpu.about.get("gpu")), {})
                    suites.setdefault(row["suite"], {})[row["name"]] = row.get("ratio")
        for processor in self.processors:
            for row in processor.rows:
                if "ratio" in row and is_right(row) and row.get("peer") not in _NOT_PEERS:
                    found.setdefault(processor.place, {}).setdefault(row["suite"], {})[row["name"]] = row["ratio"]
        return {
            machine: {
                suite: known
                for suite, cases in suites.items()
                if (known := [ratio for ratio in cases.values() if ratio is not None])
            }
            for machine, suites in found.items()
        }


def read_files(files: Sequence[Path]) -> ResultFiles:
    """Read what `weft bench cpu --json` printed and `weft bench gpu` wrote."""
    processors: list[CpuResults] = []
    gpus: list[GpuResults] = []
    for file in files:
        found = read_cpu_results(file)
        if found is not None:
            processors.append(found)
        else:
            gpus.append(read_results(file))
    return ResultFiles(processors, gpus)


def bench_table(terminal: Terminal, files: Sequence[Path], into: Path | None) -> None:
    """Tables from result files: printed, and put into a text."""
    found = read_files(files)
    tables = {**side_by_side(found.processors), **markdown(found.gpus)}
    check_text(into, tables)
    for mark, table in tables.items():
        terminal.text(f"## {mark}\n\n{table}")
    if into is not None:
        insert(into, tables)
    terminal.finish({"ok": True, "tables": tables})


def bench_chart(terminal: Terminal, files: Sequence[Path], output: Path) -> None:
    """One picture of result files: the ratios of every case, by machine and suite."""
    check_file(output, "--output")
    ratios = read_files(files).ratios()
    output.write_text(chart_of(ratios), encoding="utf-8")
    terminal.text(f"written: {output}")
    terminal.finish({"ok": True, "ratios": ratios, "written": str(output)})


def chart_of(ratios: dict[str, dict[str, list[float]]]) -> str:
    """The picture, with names of suites that say what they hold."""
    named = {
        machine: {_NAMES.get(suite, suite): found for suite, found in suites.items()}
        for machine, suites in ratios.items()
    }
    return ratio_svg(RatioChart(_TITLE, named, _NOTE))
