"""Kernel tables: measured times of single operations, read from a folder, one file a table, engine and version.

A file is `<system>/<table>__<backend>__<version>.parquet` or `.csv`. Times are in milliseconds there, and in seconds
in everything that is computed from them.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from weft.errors import missing
from weft.planner.errors import TableError

Array = npt.NDArray[Any]
Columns = Mapping[str, npt.NDArray[Any]]

REQUIRED: Mapping[str, tuple[str, ...]] = {
    "gemm": ("gemm_dtype", "m", "n", "k", "latency"),
    "computescale": ("m", "k", "latency"),
    "scale_matrix": ("m", "k", "latency"),
    "context_attention": (
        "batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim", "window_size",
        "attn_dtype", "kv_cache_dtype", "latency",
    ),
    "generation_attention": (
        "batch_size", "step", "num_heads", "num_key_value_heads", "head_dim", "window_size",
        "kv_cache_dtype", "latency",
    ),
    "context_mla": ("batch_size", "isl", "num_heads", "kv_cache_dtype", "latency"),
    "generation_mla": ("batch_size", "step", "num_heads", "kv_cache_dtype", "latency"),
    "mla_bmm": ("op_name", "bmm_dtype", "num_tokens", "num_heads", "latency"),
    "moe": (
        "moe_dtype", "num_tokens", "hidden_size", "inter_size", "topk", "num_experts",
        "moe_tp_size", "moe_ep_size", "distribution", "latency",
    ),
    "nccl": ("op_name", "nccl_dtype", "num_gpus", "message_size", "latency"),
    "custom_allreduce": ("num_gpus", "message_size", "latency"),
    "wideep_deepep_ll": (
        "node_num", "hidden_size", "num_token", "num_topk", "num_experts", "combine_avg_t_us", "dispatch_avg_t_us",
    ),
}  # fmt: skip
"""The columns that the planner reads of each table."""


@dataclass(frozen=True)
class KernelTables:
    """The tables of one system as one engine's kernels were measured; `backend` names the engine."""

    folder: Path
    system: str
    backend: str
    read: dict[str, Columns | None] = field(default_factory=dict[str, "Columns | None"], compare=False, repr=False)

    @cached_property
    def siblings(self) -> list[KernelTables]:
        """The tables of other engines on the same system."""
        names = {path.name.split("__")[1] for path in (self.folder / self.system).glob("gemm__*__*")}
        return [KernelTables(self.folder, self.system, name) for name in sorted(names - {self.backend})]

    @staticmethod
    def systems(folder: Path) -> list[str]:
        """The systems that a folder has tables of."""
        return sorted(each.parent.name for each in folder.glob("*/system.json"))

    @cached_property
    def files(self) -> Mapping[str, list[Path]]:
        """The files of each table, the newest version last; those of other engines are left out."""
        found: dict[str, list[Path]] = {}
        for path in sorted((self.folder / self.system).glob("*__*__*")):
            table, backend, _ = path.name.split("__", 2)
            if backend == self.backend or table == "nccl" or table.startswith("wideep_deepep"):
                found.setdefault(table, []).append(path)
        return found

    def table(self, name: str) -> Columns | None:
        """The columns of a table, None where there is none."""
        if name not in self.read:
            files = self.files.get(name, [])
            self.read[name] = _joined([read_columns(path, REQUIRED.get(name, ())) for path in files]) if files else None
        return self.read[name]


def checked_folder(folder: Path) -> Path:
    """A folder of tables; one without any of matmuls, which every model has, is refused."""
    expected = "SYSTEM/gemm__ENGINE__VERSION.parquet or .csv, and SYSTEM/system.json"
    if any(folder.glob("*/gemm__*__*")):
        if KernelTables.systems(folder):
            return folder
        raise TableError(
            "the folder of kernel tables has no system.json beside them", location=str(folder), hint=expected
        )
    hint = f"it has to hold {expected}"
    if any(folder.glob("*/*/gemm__*__*")):
        hint = f"give --tables {next(folder.glob('*/*/gemm__*__*')).parent.parent}"
    elif any(folder.glob("gemm__*__*")):
        hint = f"give --tables {folder.parent}"
    raise TableError("the folder holds no kernel tables of matmuls", location=str(folder), hint=hint)


def _joined(parts: list[Columns]) -> Columns:
    if len(parts) == 1:
        return parts[0]
    shared = [name for name in parts[0] if all(name in part for part in parts)]
    return {name: np.concatenate([part[name] for part in parts]) for name in shared}


_DIFFERENCES = "computescale"
"""The table whose times are differences of two measured ones: they may be zero or below."""


def read_columns(path: Path, required: tuple[str, ...]) -> Columns:
    """One file's columns; a column that the planner needs and that is not there is an error with its name."""
    try:
        columns = _parquet(path, required) if path.suffix == ".parquet" else _csv(path)
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise TableError(f"{path.name} cannot be read: {error}", location=str(path)) from error
    for name in required:
        if name not in columns:
            raise TableError(
                f"the table {path.name} has no column {name!r}",
                location=str(path),
                hint=f"it has {', '.join(sorted(columns))}",
            )
    for name in columns:
        if (name == "latency" or name.endswith("_us")) and not np.issubdtype(columns[name].dtype, np.number):
            raise TableError(f"column {name!r} of {path.name} holds no numbers", location=str(path))
    if "latency" in columns and not path.name.startswith(f"{_DIFFERENCES}__"):
        seconds = columns["latency"]
        wrong = np.flatnonzero(~(np.isfinite(seconds) & (seconds > 0)))
        if wrong.size:
            row = int(wrong[0])
            raise TableError(
                f"column 'latency' of {path.name} is {seconds[row]:g} in row {row + 1}; a time is above zero",
                location=str(path),
            )
    return columns


def _parquet(path: Path, required: tuple[str, ...]) -> Columns:
    try:
        import pyarrow.parquet as parquet  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        raise missing(error, "reading Parquet tables") or error from None
    reader: Any = parquet
    there: list[str] = list(reader.read_schema(path).names)
    wanted = [name for name in (*required, "kernel_source") if name in there] if required else there
    table: Any = reader.read_table(path, columns=wanted)
    return {name: _column(table[name]) for name in wanted}


def _column(column: Any) -> npt.NDArray[Any]:
    """A column; words by way of their few distinct values, in text of one width that compares quickly."""
    if "string" not in str(column.type):
        return np.asarray(column.to_numpy(zero_copy_only=False))
    coded = column.combine_chunks().dictionary_encode()
    words = np.array([str(each) for each in coded.dictionary.to_pylist()])
    return words[np.asarray(coded.indices.to_numpy(zero_copy_only=False))]


def _csv(path: Path) -> Columns:
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    if not rows:
        raise ValueError("it is empty")
    names, *body = rows
    if any(len(row) != len(names) for row in body):
        raise ValueError("its rows are not all as long as its header")
    columns: dict[str, npt.NDArray[Any]] = {}
    for index, name in enumerate(names):
        texts = np.array([row[index] for row in body], dtype=object)
        try:
            columns[name] = texts.astype(np.float64)
        except ValueError:
            columns[name] = texts.astype(str)
    return columns
