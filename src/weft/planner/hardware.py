"""The hardware catalogue: GPUs, nodes and racks as data, each figure with its source, and files of a user's own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from weft.planner.errors import HardwareError


@dataclass(frozen=True)
class Gpu:
    """One GPU and what it is connected to. Rates are per second, one direction; sizes in bytes."""

    name: str
    device: str
    tables: str
    """The system whose kernel tables are this GPU's own, or the nearest one's."""
    memory: float
    bandwidth: float
    bf16: float
    fp8: float
    fp4: float
    power_w: float
    price_per_hour: float
    """Dollars: an assumption that `--price` replaces."""
    nvlink_domain: int
    """GPUs that reach each other over NVLink."""
    nvlink: float
    network: float
    network_latency: float
    gpus_per_node: int
    gpus_per_rack: int
    source: str
    measured: bool = False
    """Whether the kernel tables of `tables` were measured on this GPU."""

    def flops(self, weights: str) -> float:
        """The peak of matmuls with such weights: weight-only formats multiply in bf16."""
        if weights in ("fp8", "fp8_block"):
            return self.fp8 or self.bf16
        return (self.fp4 or self.fp8 or self.bf16) if weights == "nvfp4" else self.bf16


@cache
def catalogue() -> Mapping[str, Gpu]:
    """The GPUs that come with Weft, by name."""
    text = (files("weft.planner") / "data" / "hardware.json").read_text(encoding="utf-8")
    return {name: gpu_of(name, each, "hardware.json") for name, each in json.loads(text)["gpus"].items()}


def find_gpu(name: str) -> Gpu:
    """A GPU of the catalogue, or of a JSON file with the same fields; `base` takes the rest from another."""
    path = Path(name)
    if path.suffix == ".json":
        try:
            given = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, json.JSONDecodeError, UnicodeDecodeError) as error:
            raise HardwareError(f"the hardware file cannot be read: {error}", location=str(path)) from error
        return gpu_of(path.stem, given, str(path))
    known = catalogue()
    if name.lower() not in known:
        raise HardwareError(
            f"there is no GPU {name!r} in the catalogue",
            hint=f"there are {', '.join(sorted(known))}; a JSON file describes another",
        )
    return known[name.lower()]


def gpu_of(name: str, given: Any, location: str) -> Gpu:
    """A GPU from a description; what is missing or not a positive number is named."""
    if not isinstance(given, dict):
        raise HardwareError(f"{name}: a GPU is an object of fields", location=location)
    described: dict[str, Any] = dict(given)  # pyright: ignore[reportUnknownArgumentType]
    kinds = {each.name: str(each.type) for each in fields(Gpu)}
    base = described.pop("base", None)
    for field, value in described.items():
        if field not in kinds:
            raise HardwareError(
                f"{name}: there is no field {field!r}", location=location, hint=f"known: {', '.join(kinds)}"
            )
        kind = kinds[field]
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        allowed_zero = field in ("fp8", "fp4", "price_per_hour", "network_latency", "network", "nvlink")
        if kind in ("float", "int") and not (number and (value > 0 or (allowed_zero and value == 0))):
            raise HardwareError(
                f"{name}: field {field!r} has to be a positive number, not {value!r}", location=location
            )
        if kind == "str" and not isinstance(value, str):
            raise HardwareError(f"{name}: field {field!r} has to be text, not {value!r}", location=location)
    if base is not None:
        return replace(find_gpu(str(base)), **{"name": name, "measured": False, **described})
    described.setdefault("name", name)
    lacking = [each for each in kinds if each not in described and each != "measured"]
    if lacking:
        raise HardwareError(
            f"{name}: field {lacking[0]!r} is missing", location=location, hint="`base` takes it from another GPU"
        )
    return Gpu(**described)
