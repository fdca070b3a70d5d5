"""The hardware catalogue: GPUs, nodes and racks as data, each figure with its source, and files of a user's own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

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
    sustained: float = 1.0
    """The part of the bf16 peak that matmuls of random numbers keep: the clock falls where power binds, which tables of
    short runs do not show. 1 where nobody measured it."""

    def flops(self, weights: str) -> float:
        """The peak of matmuls with such weights: weight-only formats multiply in bf16, but for mxfp4 where a GPU has
        fp4: it multiplies that with activations in mxfp8."""
        if weights in ("fp8", "fp8_block") or (weights == "mxfp4" and self.fp4):
            return self.fp8 or self.bf16
        return (self.fp4 or self.fp8 or self.bf16) if weights == "nvfp4" else self.bf16


_RATE, _PEAK, _COUNT = (1e3, 1e18), (1e6, 1e21), (1, 1e6)
RANGES = {
    "memory": (1e6, 1e18),
    "bandwidth": _RATE,
    "bf16": _PEAK,
    "fp8": _PEAK,
    "fp4": _PEAK,
    "power_w": (1e-3, 1e9),
    "price_per_hour": (1e-9, 1e9),
    "nvlink_domain": _COUNT,
    "nvlink": _RATE,
    "network": _RATE,
    "network_latency": (1e-12, 1e3),
    "gpus_per_node": _COUNT,
    "gpus_per_rack": _COUNT,
    "sustained": (0.01, 1.0),
}
"""What each number may be, far beyond any hardware on both sides: times divide by these, and must stay finite."""
_MAY_BE_ZERO = {"fp8", "fp4", "price_per_hour", "network_latency"}
"""Formats that a GPU does not multiply in, and what costs nothing. Links are divided by: one of no rate is refused."""


@cache
def catalogue() -> Mapping[str, Gpu]:
    """The GPUs that come with Weft, by name."""
    text = (files("weft.planner") / "data" / "hardware.json").read_text(encoding="utf-8")
    return {name: gpu_of(name, each, "hardware.json") for name, each in json.loads(text)["gpus"].items()}


def find_gpu(name: str, *, above: tuple[Path, ...] = ()) -> Gpu:
    """A GPU of the catalogue, or of a JSON or YAML file with the same fields; `base` takes the rest from another.

    `above` are the files whose `base` this one is."""
    path = Path(name)
    if path.suffix in (".json", ".yaml", ".yml"):
        if path.resolve() in above:
            raise HardwareError("field 'base' leads back to the file itself", location=str(path))
        try:
            text = path.read_text(encoding="utf-8")
            given = json.loads(text) if path.suffix == ".json" else _numbers(yaml.safe_load(text))
        except (OSError, json.JSONDecodeError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise HardwareError(f"the hardware file cannot be read: {error}", location=str(path)) from error
        return gpu_of(path.stem, given, str(path), (*above, path.resolve()))
    known = catalogue()
    if name.lower() not in known:
        raise HardwareError(
            f"there is no GPU {name!r} in the catalogue",
            hint=f"there are {', '.join(sorted(known))}; a JSON or YAML file describes another",
        )
    return known[name.lower()]


def _numbers(found: Any) -> Any:
    """A YAML object's fields, with numbers that YAML has as text (`4.8e12`, which it wants written `4.8e+12`)."""
    if not isinstance(found, dict):
        return found
    given: dict[str, Any] = dict(found)  # pyright: ignore[reportUnknownArgumentType]
    for field, value in given.items():
        if field in RANGES and isinstance(value, str):
            try:
                given[field] = float(value)
            except ValueError:
                continue
            if given[field] == int(given[field]):
                given[field] = int(given[field])
    return given


def gpu_of(name: str, given: Any, location: str, above: tuple[Path, ...] = ()) -> Gpu:
    """A GPU from a description; what is missing or out of its range is named."""
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
        wrong = _wrong(field, kinds[field], value)
        if wrong is not None:
            raise HardwareError(
                f"{name}: field {field!r} has to be {wrong}, not {_short(value)}",
                location=location,
                hint="without NVLink, nvlink_domain is 1 and nvlink the bus's rate" if field == "nvlink" else None,
            )
    if base is not None:
        return replace(find_gpu(str(base), above=above), **{"name": name, "measured": False, **described})
    described.setdefault("name", name)
    lacking = [each.name for each in fields(Gpu) if each.name not in described and each.default is MISSING]
    if lacking:
        raise HardwareError(
            f"{name}: field {lacking[0]!r} is missing", location=location, hint="`base` takes it from another GPU"
        )
    return Gpu(**described)


def _wrong(field: str, kind: str, value: Any) -> str | None:
    """What a field has to be where its value is not that."""
    if kind == "str":
        return None if isinstance(value, str) else "text"
    if kind == "bool":
        return None if isinstance(value, bool) else "true or false"
    least, most = RANGES[field]
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if number and (least <= value <= most or (field in _MAY_BE_ZERO and value == 0)):
        return None if kind == "float" or value == int(value) else "a whole number"
    zero = "0 or " if field in _MAY_BE_ZERO else ""
    return f"a {'whole' if kind == 'int' else 'positive'} number, {zero}from {least:g} to {most:g}"


def _short(value: Any) -> str:
    """A value as text, cut where nobody would read on."""
    words = json.dumps(value)
    return words if len(words) <= 40 else f"{words[:40]}…"
