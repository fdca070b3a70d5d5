"""How far the planner's times are from measured ones: single operations left out, and whole services.

A folder holds `kernel_tables/`, and where there are measurements `serving_measurements.csv` and
`published_throughput.csv`. Nothing is fitted to the measurements: tables and configurations are all that goes in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from weft.planner.attention_costs import AttentionCosts, site_grids
from weft.planner.capacity import CACHE_RULES, FRACTION, memory, resident
from weft.planner.closed_form import Batching, serve
from weft.planner.errors import TableError
from weft.planner.hardware import Gpu, catalogue
from weft.planner.mapping import Mapping as Parallel
from weft.planner.mapping import rank_program
from weft.planner.model import Model
from weft.planner.op_costs import DTYPES, OpCosts, gemm_sites
from weft.planner.scheduler import Limits
from weft.planner.search import open_costs
from weft.planner.simulate import StepTimer, lengths, simulate
from weft.planner.step_costs import StepCosts, step_costs
from weft.planner.tables import KernelTables
from weft.testing.planner_campaigns import conditions
from weft.testing.planner_rows import (
    SERVING,
    Row,
    Unpriced,
    checkpoint,
    gpu_of_system,
    measured_rows,
    number,
    parallel_of,
    whole,
)

_SHAPES = 40
"""Shapes of a table of attention that sites are left out of, evenly chosen: the tables have hundreds."""
LOST = "throughput lost by the"
LIMITS = (0.010, 0.020, 0.030, 0.050, float("inf"))
"""TPOT limits under which mappings are ranked, in seconds."""


@dataclass
class Errors:
    """Relative errors by family, and what was left out with the reason."""

    title: str
    found: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    left_out: dict[str, int] = field(default_factory=dict[str, int])

    def add(self, family: str, error: float) -> None:
        if np.isfinite(error):
            self.found.setdefault(family, []).append(float(error))

    def leave_out(self, reason: str) -> None:
        self.left_out[reason] = self.left_out.get(reason, 0) + 1

    def within(self, part: float) -> float:
        """The share of all errors that are no larger than a part."""
        every = [abs(each) for errors in self.found.values() for each in errors]
        return float(np.mean(np.array(every) <= part)) if every else 0.0

    def rows(self) -> list[tuple[str, int, float, float, float, float, float]]:
        """Family, rows, median, mean, 90th percentile and largest of the error's size, and the mean error; all rows
        last."""
        groups = dict(self.found)
        if len(groups) > 1:
            groups["all"] = [each for errors in self.found.values() for each in errors]
        told: list[tuple[str, int, float, float, float, float, float]] = []
        for name, errors in groups.items():
            size = np.abs(errors)
            told.append(
                (
                    name,
                    len(errors),
                    float(np.median(size)),
                    float(size.mean()),
                    float(np.quantile(size, 0.9)),
                    float(size.max()),
                    float(np.mean(errors)),
                )
            )
        return told


def left_out_operations(tables: Path) -> Iterator[Errors]:
    """Each measured site as if it had not been measured, from its neighbours."""
    gemm, attention = Errors("matmuls, a site (n, k) left out"), Errors("attention, a site (batch, length) left out")
    collectives, dispatch = Errors("collectives, a size left out"), Errors("DeepEP low latency, a size left out")
    for system in KernelTables.systems(tables):
        gpu = measured_gpu(system)
        for backend in _backends(tables, system):
            own = KernelTables(tables, system, backend)
            _gemm_errors(gemm, own, gpu, f"{system} {backend}")
            for kind, phase in (
                ("attention", "context"),
                ("attention", "generation"),
                ("mla", "context"),
                ("mla", "generation"),
            ):
                grids = site_grids(AttentionCosts(OpCosts(gpu, own, gpu)), kind, phase)
                for grid in grids[:: max(1, len(grids) // _SHAPES)]:
                    for i, j in np.argwhere(np.isfinite(grid.times[..., 0])):
                        guess = grid.without(int(i), int(j))
                        if guess is not None:
                            attention.add(
                                f"{phase} {kind} {system} {backend}", float(guess[0] / grid.times[i, j, 0]) - 1
                            )
        shared = KernelTables(tables, system, "")
        _curve_errors(
            collectives,
            shared.table("nccl"),
            ("op_name", "num_gpus", "nccl_dtype"),
            "message_size",
            ("latency",),
            f"NCCL {system}",
        )
        columns = ("dispatch_avg_t_us", "combine_avg_t_us")
        _curve_errors(
            dispatch,
            shared.table("wideep_deepep_ll"),
            ("node_num", "hidden_size", "num_topk", "num_experts"),
            "num_token",
            columns,
            f"DeepEP {system}",
        )
    yield from (gemm, attention, collectives, dispatch)


def _gemm_errors(errors: Errors, tables: KernelTables, gpu: Gpu, family: str) -> None:
    for weights in ("bf16", "fp8", "fp8_block"):
        found = gemm_sites(tables.table("gemm"), DTYPES[weights], gpu, weights)
        if found is None:
            continue
        grid = found[1]
        for i, j in np.argwhere(np.isfinite(grid.times).any(axis=-1)):
            guess = grid.without(int(i), int(j))
            if guess is not None:
                errors.found.setdefault(family, []).extend(_finite(guess / grid.times[i, j] - 1))


def _finite(values: Any) -> list[float]:
    return [float(each) for each in values[np.isfinite(values)]]


def _curve_errors(
    errors: Errors, table: Any, keys: Sequence[str], over: str, columns: Sequence[str], family: str
) -> None:
    if table is None:
        return
    groups: dict[Any, list[int]] = {}
    for index in range(len(table[over])):
        groups.setdefault(tuple(str(table[key][index]) for key in keys), []).append(index)
    for rows in groups.values():
        for column in columns:
            sizes, values = table[over][rows].astype(float), table[column][rows].astype(float)
            points = np.unique(sizes)
            times = np.array([values[sizes == each].mean() for each in points])
            for index in range(1, len(points) - 1):
                share = (points[index] - points[index - 1]) / (points[index + 1] - points[index - 1])
                guess = times[index - 1] + (times[index + 1] - times[index - 1]) * share
                errors.add(family, guess / times[index] - 1)


def measured_gpu(system: str) -> Gpu:
    """The GPU whose kernel tables are those of a system."""
    found = [each for each in catalogue().values() if each.measured and each.tables == system]
    if not found:
        raise TableError(f"the catalogue has no GPU whose tables are those of {system}")
    return found[0]


def _backends(tables: Path, system: str) -> list[str]:
    return sorted({path.name.split("__")[1] for path in (tables / system).glob("gemm__*__*")})


@dataclass(frozen=True)
class Case:
    """One measured service, priced."""

    row: Row
    gpu: Gpu
    parallel: Parallel
    costs: StepCosts
    cache_tokens: int
    fits: int
    isl: float
    osl: float
    clients: int
    tpot: float
    rate: float
    """Output tokens a second of a GPU, which the search ranks by: time to the first token counts."""

    @property
    def measured_rate(self) -> float:
        """The same from the measured latencies: every client has one request at a time."""
        ttft, tpot = float(self.row["ttft_ms"]) * 1e-3, float(self.row["tpot_ms"]) * 1e-3
        return self.clients * self.osl / (ttft + (self.osl - 1) * tpot) / self.parallel.gpus


class Pricer:
    """Prices measured rows; tables and mappings are read once."""

    def __init__(self, folder: Path) -> None:
        self.tables = folder / "kernel_tables"
        self.costs: Callable[[str, str], OpCosts] = cache(self._costs)
        self.priced: Callable[[str, str, Model, Parallel, str], Any] = cache(self._priced)

    def _costs(self, system: str, backend: str) -> OpCosts:
        return open_costs(gpu_of_system(system), self.tables, backend)

    def _priced(self, system: str, backend: str, model: Model, parallel: Parallel, kv: str) -> Any:
        program = rank_program(model, parallel, 1.0 if kv == "fp8" else 2.0)
        costs = self.costs(system, backend)
        room = memory(model, program, parallel, costs.gpu, 8192, FRACTION, CACHE_RULES.get(backend))
        return program, step_costs(program, costs, kv), room

    def borrowed(self, system: str, backend: str) -> str:
        """What stands in where a GPU or an engine has no tables of its own; empty where both have."""
        costs = self.costs(system, backend)
        found = "" if costs.tables is None else costs.tables.backend
        lent = [*([costs.reference.tables] if costs.moved else []), *([found or "none"] if found != backend else [])]
        return f" (tables of {' '.join(lent)})" if lent else ""

    def case(self, row: Row) -> Case:
        """A measured row; lengths of `inferencex` campaigns are 0.9 of the nominal ones on average."""
        model, kv = checkpoint(row["model"], row["precision"], row.get("gemm_quant_mode", ""))
        parallel = parallel_of(row, model)
        program, costs, room = self.priced(row["system"], row["backend"], model, parallel, kv)
        told = conditions(row)
        mean = told.mean
        isl, osl, clients = number(row, "isl") * mean, number(row, "osl") * mean, whole(row, "concurrency")
        fits = max(1, resident(room, program, parallel, isl + osl, CACHE_RULES.get(row["backend"])))
        budget = float(told.engine.get("tokens", 8192.0 * parallel.dp))
        batching = Batching(budget, bool(told.engine.get("mixed", True)), waves=told.shortest == 1.0 and told.first)
        service = serve(costs, isl, osl, clients, fits, batching=batching)
        return Case(
            row,
            gpu_of_system(row["system"]),
            parallel,
            costs,
            int(fits * (isl + osl)),
            fits,
            isl,
            osl,
            clients,
            float(service.tpot),
            float(service.rate) / parallel.gpus,
        )


def services(folder: Path) -> Iterator[Errors]:
    """TPOT in closed form, TTFT simulated, and how well mappings are ranked."""
    pricer = Pricer(folder)
    tpot, ttft = Errors("TPOT, closed form"), Errors("TTFT of unsaturated rows, simulated")
    mapped, ranked = (
        Errors(f"{LOST} mapping that is chosen"),
        Errors(f"{LOST} mapping and concurrency that are chosen"),
    )
    groups: dict[Any, list[tuple[Case, float]]] = {}
    for row in measured_rows(folder / "serving_measurements.csv", SERVING):
        try:
            if row["mode"] != "agg":
                raise Unpriced("disaggregated" if row["mode"] == "disagg" else f"mode {row['mode']!r}")
            case, measured = pricer.case(row), number(row, "tpot_ms") * 1e-3
            first = number(row, "ttft_ms") * 1e-3
        except Unpriced as reason:
            tpot.leave_out(str(reason))
            continue
        kind = "experts" if checkpoint(row["model"], "")[0].has_experts else "dense"
        family = f"{kind}: {row['system']} {row['model'].rsplit('/', 1)[-1]} {row['backend']}"
        family += pricer.borrowed(row["system"], row["backend"])
        tpot.add(family, case.tpot / measured - 1)
        if row.get("saturated", "0") in ("", "0"):
            ttft.add(family, _ttft(case) / first - 1)
        groups.setdefault((row["system"], row["model"], row["backend"], row["isl"], row["osl"]), []).append(
            (case, measured)
        )
    for key, cases in groups.items():
        _rank(mapped, ranked, f"{key[0]} {key[1].rsplit('/', 1)[-1]} {key[2]}", cases)
    yield from (tpot, ttft, mapped, ranked)


def _ttft(case: Case) -> float:
    """The mean over a client's requests, under the conditions of the row's campaign."""
    told = conditions(case.row)
    behaviour: dict[str, Any] = {"tokens": 8192 * case.parallel.dp, **told.engine}
    limits = Limits(cache=case.cache_tokens, **behaviour)
    count = told.rounds * case.clients
    requests = lengths(float(case.row["isl"]), float(case.row["osl"]), told.shortest, 1.0, count)
    timer = StepTimer(case.costs, max(limits.tokens, 16384))
    seen = simulate(timer, limits, requests, concurrency=case.clients)
    order = np.argsort(seen.arrival, kind="stable")[0 if told.first else case.clients :]
    return float(seen.ttft[order].mean())


def _rank(mapped: Errors, ranked: Errors, family: str, cases: list[tuple[Case, float]]) -> None:
    """Under each limit: what the mapping that looks best really gives, against the best measured: at the concurrency at
    which it keeps the limit, which a running service can be set to, and at the concurrency that looks best."""
    if len({case.parallel for case, _ in cases}) < 2:
        return
    for limit in LIMITS:
        allowed = [(case, measured) for case, measured in cases if measured <= limit]
        if len({case.parallel for case, _ in allowed}) < 2:
            continue
        # The choice is made from predictions alone. One that breaks the limit, or none at all, is a whole loss.
        likely = [each for each in cases if each[0].tpot <= limit]
        chosen = max(likely, key=lambda each: each[0].rate) if likely else None
        best = max(case.measured_rate for case, _ in allowed)
        kept = chosen is not None and chosen[1] <= limit
        ranked.add(family, 1 - chosen[0].measured_rate / best if kept and chosen is not None else 1.0)
        same = [case.measured_rate for case, _ in allowed if chosen is not None and case.parallel == chosen[0].parallel]
        mapped.add(family, 1 - max(same, default=0.0) / best)
