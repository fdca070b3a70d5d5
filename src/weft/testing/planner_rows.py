"""Rows of measured services as the planner's own terms: the model, its format, the GPU and the mapping.

Files come from many hands. What a row does not say, or says of something that is not known here, makes that row
`Unpriced`, with a reason that is printed and counted. What cannot be a figure at all is an error with its place.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from weft.planner.errors import ModelError, TableError
from weft.planner.hardware import Gpu, catalogue
from weft.planner.mapping import Mapping as Parallel
from weft.planner.mapping import fits_heads
from weft.planner.model import Model, find_model

Row = Mapping[str, str]
SERVING = (
    "system", "model", "backend", "precision", "mode", "isl", "osl", "concurrency", "tp_size", "pp_size",
    "attention_dp_size", "moe_tp_size", "moe_ep_size", "ttft_ms", "tpot_ms",
)  # fmt: skip
PUBLISHED = ("model", "hw", "precision", "mapping", "isl", "osl", "metric", "value", "engine", "load")
_PRECISIONS = {
    "bf16": "bf16", "bfloat16": "bf16", "fp16": "bf16", "float16": "bf16", "fp8": "fp8", "fp8_block": "fp8_block",
    "nvfp4": "nvfp4", "fp4": "nvfp4", "mxfp4": "mxfp4", "int4": "int4", "awq": "int4", "gptq": "int4", "w4a16": "int4",
}  # fmt: skip


class Unpriced(Exception):
    """A row that cannot be compared, and why."""


def measured_rows(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """The rows of a CSV file, none where there is no file; a column that is missing is named."""
    if not path.is_file():
        return []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            there = list(reader.fieldnames or ())
            # Of a row that ends early the rest is blank; what is beyond the last column has no meaning.
            rows = [{name: row[name] or "" for name in there} for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TableError(f"{path.name} cannot be read: {error}", location=str(path)) from error
    for name in columns:
        if name not in there:
            raise TableError(f"{path.name} has no column {name!r}", location=str(path), hint=f"it has {there}")
    return rows


def number(row: Row, column: str) -> float:
    """A figure that a row has to have, above zero."""
    text = row[column].strip()
    if not text:
        raise Unpriced(f"no {column}")
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise TableError(f"{column} is {text!r}; it is a number above zero", location=_place(row))
    return value


def whole(row: Row, column: str, blank: int | None = None) -> int:
    """A count, or what stands for a blank one."""
    if not row[column].strip() and blank is not None:
        return blank
    value = number(row, column)
    if value != int(value):
        raise TableError(f"{column} is {row[column]!r}; it is a whole number", location=_place(row))
    return int(value)


def _place(row: Row) -> str:
    return row.get("id") or f"the row of {row['model']}"


def model_named(name: str) -> Model:
    """The model of a row."""
    try:
        return find_model(name)
    except ModelError as error:
        raise Unpriced(f"no configuration of {name}") from error


def checkpoint(name: str, precision: str, matmuls: str = "") -> tuple[Model, str]:
    """The model in the format that was served, and its cache's: fp8 where whole tensors are scaled, as such checkpoints
    hold scales of the cache as well; bf16 with all others, which hold none. A blank format is the configuration's."""
    model = model_named(name)
    if precision.strip():
        wanted = _PRECISIONS.get(precision.split("(")[0].strip().lower())
        if wanted is None:
            raise Unpriced(f"no precision {precision}")
        if wanted == "fp8" and "block" in matmuls:
            wanted = "fp8_block"
        if not _is_in(model, wanted):
            model = model.with_precision(wanted)
    return model, "fp8" if model.weights in ("fp8", "nvfp4") else "bfloat16"


def _is_in(model: Model, wanted: str) -> bool:
    """Whether a configuration's own format is what a row calls `wanted`: fp8 is of tensors or of blocks."""
    found = model.expert_weights if model.has_experts else model.weights
    return found == wanted or (wanted == "fp8" and found == "fp8_block")


def gpu_of_system(system: str) -> Gpu:
    """The GPU that a system's name means: the one its tables were measured on, or one of the catalogue."""
    known = catalogue()
    for gpu in known.values():
        if gpu.measured and gpu.tables == system:
            return gpu
    short = system.lower().replace("-", "_").split("_")[0]
    if short not in known:
        raise Unpriced(f"no GPU {system} in the catalogue")
    return known[short]


def parallel_of(row: Row, model: Model) -> Parallel:
    """A row's mapping. Experts of ranks that no column says are split as attention is, or spread where that is not."""
    tp, pp, dp = (whole(row, name, 1) for name in ("tp_size", "pp_size", "attention_dp_size"))
    if not model.has_experts:
        parallel = Parallel(tp, pp, dp)
    else:
        ranks = tp * dp
        ep = whole(row, "moe_ep_size", 0) or (ranks if dp > 1 and not row["moe_tp_size"].strip() else 0)
        moe_tp = whole(row, "moe_tp_size", 0) or ranks // (ep or 1)
        parallel = Parallel(tp, pp, dp, moe_tp, ep or ranks // moe_tp)
        if parallel.moe_tp * parallel.ep != ranks:
            raise Unpriced(f"experts over {parallel.moe_tp * parallel.ep} ranks of {ranks}")
    if not fits_heads(model, parallel):
        raise Unpriced(f"{parallel} does not divide {model.name}")
    return parallel
