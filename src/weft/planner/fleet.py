"""Many services on a fleet of mixed racks: which of each pool's GPUs serve which model, at the least cost.

Every service is planned on every kind of GPU (`planner/plan.py`), which gives requests a second and GPUs of a replica.
Of the best mappings of a pair the one is taken whose fleet costs least: what is best for a service's whole rate may be
too large, or too small, for a pool that serves a part of it. How many replicas of which are taken is a linear program
(`planner/linear_program.py`) whose optimum is rounded to whole replicas; the optimum is told beside it, so that what
rounding costs is seen. Demand, and spares, that no GPU is left for are told.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import yaml

from weft.planner.errors import CapacityError, FleetError
from weft.planner.hardware import Gpu, find_gpu
from weft.planner.linear_program import Optimum, minimise
from weft.planner.model import Model, find_model
from weft.planner.plan import Choice, choices
from weft.planner.program import PRECISIONS
from weft.planner.search import ENGINES, Settings, open_costs
from weft.planner.tables import Array
from weft.planner.traffic import Targets, Traffic, targets_of, traffic_of

_UNSERVED = 1e3
"""What a request that nobody serves counts, in the dearest served one's price: all that can be served is."""

_WORTH_TELLING = 1e-9
_MOST_TRIED = 200
"""Fleets that are shared out with another mapping of a pair, at most."""


@dataclass(frozen=True)
class Pool:
    """GPUs of one kind that a fleet has."""

    name: str
    gpu: Gpu
    gpus: int


@dataclass(frozen=True)
class Service:
    """A model with its traffic and targets, and spare replicas for when one fails."""

    name: str
    model: Model
    traffic: Traffic
    targets: Targets
    settings: Settings


_Named = TypeVar("_Named", Pool, Service)


@dataclass(frozen=True)
class Fleet:
    """What there is, and what it is for."""

    pools: tuple[Pool, ...]
    services: tuple[Service, ...]


@dataclass(frozen=True)
class Share:
    """Replicas of one service in one pool."""

    service: Service
    pool: Pool
    choice: Choice
    replicas: int
    spare: int

    @property
    def gpus(self) -> int:
        return (self.replicas + self.spare) * self.choice.mapping.gpus

    @property
    def rate(self) -> float:
        return self.replicas * self.choice.rate


@dataclass(frozen=True)
class Worth:
    """What one more GPU of a full pool would change in the linear program's optimum."""

    served: float
    """Requests a second that nobody serves now and that it would."""
    saved: float
    """Dollars an hour less for what is served now, from GPUs of other pools that are dearer; below zero where it is
    paid for requests that nobody serves now."""

    def __str__(self) -> str:
        if self.served > 0:
            return f"serves {self.served:.3g} requests/s more"
        return f"saves ${self.saved:.2f}/h in dearer pools"


@dataclass(frozen=True)
class FleetPlan:
    """Who serves what, what is left, and what is not served."""

    fleet: Fleet
    shares: list[Share]
    unserved: dict[str, float]
    """Requests a second of each service that there is no room for."""
    least_dollars: float
    """Dollars an hour of the linear program's optimum, without spares: what no whole replicas so mapped can beat."""
    worth: dict[str, Worth]
    """What one more GPU of each full pool would change."""
    refused: dict[str, str] = field(default_factory=dict[str, str])
    """Pairs of service and pool that cannot be, with the reason."""
    missing_spares: dict[str, int] = field(default_factory=dict[str, int])
    """Spare replicas of each service that there is no room for."""

    @property
    def assumptions(self) -> dict[str, tuple[str, ...]]:
        """What was taken for granted of the services' models, by service and pool."""
        pairs = {f"{each.service.name} on {each.pool.name}": each.choice.model.assumptions for each in self.shares}
        return {pair: told for pair, told in pairs.items() if told}

    @property
    def dollars(self) -> float:
        """Dollars an hour of the GPUs that are used."""
        return sum(each.gpus * each.pool.gpu.price_per_hour for each in self.shares)

    @property
    def lacks(self) -> tuple[float, int, float]:
        """What a fleet is compared by: the shares of services that it leaves, spares that it has not, and its price."""
        demand = {each.name: each.traffic.rate for each in self.fleet.services}
        unserved = sum(rate / demand[name] for name, rate in self.unserved.items())
        return round(unserved, 9), sum(self.missing_spares.values()), self.dollars

    def used(self, pool: Pool) -> int:
        return sum(each.gpus for each in self.shares if each.pool is pool)


def read_fleet(path: Path) -> Fleet:
    """A fleet from a JSON or YAML file; a field that is missing or wrong is named."""
    try:
        text = path.read_text(encoding="utf-8")
        found: Any = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, yaml.YAMLError) as error:
        raise FleetError(f"the fleet cannot be read: {error}", location=str(path)) from error
    whole = _object(found, "a fleet", str(path), {"pools", "services"})
    pools, services = _list(whole, "pools", path), _list(whole, "services", path)
    found_pools = [_pool(each, f"{path}: pools[{index}]", path.parent) for index, each in enumerate(pools)]
    found_services = [_service(each, f"{path}: services[{index}]", path.parent) for index, each in enumerate(services)]
    return Fleet(
        tuple(_distinct(found_pools, pools, f"{path}: pools")),
        tuple(_distinct(found_services, services, f"{path}: services")),
    )


def _distinct(found: list[_Named], given: list[Any], place: str) -> list[_Named]:
    """All of them under names of their own: plans tell of them by name.

    Those that the file gives no name are numbered where they are alike, as `h100` and `h100 (2)`.
    """
    taken: set[str] = set()
    for index, (each, fields) in enumerate(zip(found, given, strict=True)):
        if "name" in fields:
            if each.name in taken:
                raise FleetError(
                    f"field 'name' is {each.name!r}, as another's", location=f"{place}[{index}]", hint="name them apart"
                )
            taken.add(each.name)
    named: list[_Named] = []
    for each, fields in zip(found, given, strict=True):
        name = each.name
        if "name" not in fields:
            numbers = (f"{each.name} ({number})" for number in itertools.count(2))
            name = next(free for free in itertools.chain([name], numbers) if free not in taken)
            taken.add(name)
        named.append(replace(each, name=name))
    return named


def _object(found: Any, what: str, place: str, known: set[str]) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise FleetError(f"{what} is an object of fields", location=place, hint=f"fields: {', '.join(sorted(known))}")
    given: dict[str, Any] = dict(found)  # pyright: ignore[reportUnknownArgumentType]
    for name in given:
        if name not in known:
            raise FleetError(
                f"{what} has no field {name!r}", location=place, hint=f"there are {', '.join(sorted(known))}"
            )
    return given


def _list(whole: Mapping[str, Any], name: str, path: Path) -> list[Any]:
    found = whole.get(name)
    if not isinstance(found, list) or not found:
        raise FleetError(f"field {name!r} of a fleet has to be a list of at least one", location=str(path))
    return list(found)  # pyright: ignore[reportUnknownArgumentType,reportUnknownVariableType]


def _pool(found: Any, place: str, folder: Path) -> Pool:
    given = _object(found, "a pool", place, {"gpu", "gpus", "racks", "name", "price"})
    if "gpu" not in given:
        raise FleetError("a pool needs the field 'gpu'", location=place)
    named = str(given["gpu"])
    gpu = find_gpu(str(folder / named) if (folder / named).is_file() else named)
    if "price" in given:
        gpu = replace(gpu, price_per_hour=_number(given, "price", place, 0.0, 1e9))
    if ("gpus" in given) == ("racks" in given):
        raise FleetError("a pool has either 'gpus' or 'racks'", location=place)
    count = _number(given, "gpus" if "gpus" in given else "racks", place, 0, 1e7)
    gpus = int(count) * (1 if "gpus" in given else gpu.gpus_per_rack)
    return Pool(str(given.get("name", gpu.name)), gpu, gpus)


def _service(found: Any, place: str, folder: Path) -> Service:
    known = {"name", "model", "traffic", "slo", "precision", "kv", "engine", "spare", "chunk", "max_gpus"}
    given = _object(found, "a service", place, known)
    for name in ("model", "traffic"):
        if name not in given:
            raise FleetError(f"a service needs the field {name!r}", location=place)
    named = str(given["model"])
    model = find_model(str(folder / named) if (folder / named).exists() else named)
    precision = given.get("precision")
    if precision is not None:
        if precision not in PRECISIONS:
            raise FleetError(f"field 'precision' is {precision!r}", location=place, hint=", ".join(PRECISIONS))
        model = model.with_precision(str(precision))
    engine = str(given.get("engine", "weft"))
    if engine not in ENGINES:
        raise FleetError(f"field 'engine' is {engine!r}", location=place, hint=", ".join(ENGINES))
    kv = str(given.get("kv", "bf16"))
    if kv not in ("bf16", "fp8"):
        raise FleetError(f"field 'kv' is {kv!r}", location=place, hint="bf16 or fp8")
    traffic = traffic_of(str(given["traffic"]))
    if not traffic.rate:
        raise FleetError("a service needs a rate", location=place, hint="traffic: isl=1024,osl=512,rate=20")
    settings = Settings(
        engine=engine,
        kv="fp8" if kv == "fp8" else "bfloat16",
        spare=int(_number(given, "spare", place, 0, 1e4)) if "spare" in given else 1,
        chunk=int(_number(given, "chunk", place, 16, 1e6)) if "chunk" in given else 8192,
        max_gpus=int(_number(given, "max_gpus", place, 1, 1024)) if "max_gpus" in given else 16,
    )
    return Service(str(given.get("name", model.name)), model, traffic, targets_of(str(given.get("slo", ""))), settings)


def _number(given: Mapping[str, Any], name: str, place: str, least: float, most: float) -> float:
    value = given[name]
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not least <= value <= most or (name != "price" and value != int(value)):
        raise FleetError(f"field {name!r} is {str(value)[:40]!r}", location=place, hint=f"from {least:g} to {most:g}")
    return float(value)


def plan_fleet(fleet: Fleet, tables: Path | None = None) -> FleetPlan:
    """Plan every service on every kind of GPU, and share the GPUs out."""
    found: dict[tuple[int, int], list[Choice]] = {}
    kinds: dict[Any, list[Choice] | CapacityError] = {}
    refused: dict[str, str] = {}
    for s, service in enumerate(fleet.services):
        for p, pool in enumerate(fleet.pools):
            key = (s, replace(pool.gpu, price_per_hour=0.0))
            if key not in kinds:
                kinds[key] = _choose(service, pool, tables)
            made = kinds[key]
            if isinstance(made, CapacityError):
                refused[f"{service.name} on {pool.name}"] = str(made)
            elif made[0].gives_way:
                refused[f"{service.name} on {pool.name}"] = "; ".join(made[0].gives_way)
            else:
                found[s, p] = made
    return _best_shared(fleet, found, refused)


def _best_shared(fleet: Fleet, found: Mapping[tuple[int, int], list[Choice]], refused: dict[str, str]) -> FleetPlan:
    """The fleet with the mapping of each pair that is best for all: first the best of each, then what betters it."""
    taken = {pair: every[0] for pair, every in found.items()}
    best = _share_out(fleet, taken, refused)
    others = [(pair, each) for pair, every in found.items() for each in every[1:]]
    for pair, each in others[:_MOST_TRIED]:
        tried = {**taken, pair: each}
        shared = _share_out(fleet, tried, refused)
        if shared.lacks < best.lacks:
            taken, best = tried, shared
    return best


def _choose(service: Service, pool: Pool, tables: Path | None) -> list[Choice] | CapacityError:
    costs = open_costs(pool.gpu, tables, service.settings.engine)
    try:
        return choices(service.model, pool.gpu, service.traffic, service.targets, service.settings, costs, True)
    except CapacityError as error:
        return error


class _Sharing:
    """Services and pools as numbers: what a replica of each pair costs, gives and takes."""

    def __init__(self, fleet: Fleet, found: Mapping[tuple[int, int], Choice]) -> None:
        self.pairs = list(found)
        self.rate = [found[pair].rate for pair in self.pairs]
        self.gpus = [found[pair].mapping.gpus for pair in self.pairs]
        prices = [pool.gpu.price_per_hour for pool in fleet.pools]
        self.price = [gpus * prices[p] for gpus, (_, p) in zip(self.gpus, self.pairs, strict=True)]
        self.demand = [service.traffic.rate for service in fleet.services]
        self.pools = len(fleet.pools)

    def solve(self, room: list[float]) -> Optimum:
        gives, takes = np.zeros((len(self.demand), len(self.pairs))), np.zeros((self.pools, len(self.pairs)))
        for column, (s, p) in enumerate(self.pairs):
            gives[s, column], takes[p, column] = self.rate[column], self.gpus[column]
        dearest = max((cost / rate for cost, rate in zip(self.price, self.rate, strict=True)), default=1.0) or 1.0
        penalty = np.full(len(self.demand), dearest * _UNSERVED)
        return minimise(np.array(self.price), gives, np.array(self.demand), takes, np.array(room), penalty)

    def one_more(self, solved: Optimum, room: list[float], p: int) -> Worth:
        """What another GPU of a pool changes, in parts of replicas."""
        more = self.solve([max(0.0, each) + (pool == p) for pool, each in enumerate(room)])
        served = float(solved.unserved.sum() - more.unserved.sum())
        saved = float(np.dot(self.price, solved.values - more.values))
        return Worth(served if served > 1e-9 * sum(self.demand) else 0.0, saved)

    def home(self, values: Sequence[float] | Array, s: int) -> int | None:
        """The pair that serves most of a service; None where nothing does."""
        columns = [column for column, pair in enumerate(self.pairs) if pair[0] == s and values[column] > 0]
        return max(columns, key=lambda column: (values[column] * self.rate[column], -column), default=None)

    def whole_replicas(self, solved: Optimum, room: list[float]) -> tuple[list[int], list[float]]:
        """How many replicas of each pair there are in so much room, and what is left of it."""
        counts, left = [int(each + 1e-6) for each in solved.values], list(room)
        for column, (_, p) in enumerate(self.pairs):
            left[p] -= counts[column] * self.gpus[column]
        self.round_up(counts, left)
        return counts, left

    def lacking(self, counts: list[int], s: int) -> float:
        """Requests a second of a service that so many replicas leave; none below a billionth of its demand."""
        given = sum(n * self.rate[column] for column, n in enumerate(counts) if self.pairs[column][0] == s)
        lacking = self.demand[s] - given
        return lacking if lacking > 1e-9 * self.demand[s] else 0.0

    def round_up(self, counts: list[int], left: list[float]) -> None:
        """Whole replicas for what rounding down leaves unserved, the cheapest that there is room for."""
        for s in range(len(self.demand)):
            while lacking := self.lacking(counts, s):
                able = [c for c, (t, p) in enumerate(self.pairs) if t == s and self.gpus[c] <= left[p] + 1e-9]
                if not able:
                    break
                best = min(able, key=lambda c: self.price[c] / min(self.rate[c], lacking))
                pool = self.pairs[best][1]
                count = max(1, math.floor(lacking / self.rate[best]))
                count = min(count, int(left[pool] / self.gpus[best] + 1e-9))
                counts[best] += count
                left[pool] -= count * self.gpus[best]


def _share_out(fleet: Fleet, found: Mapping[tuple[int, int], Choice], refused: dict[str, str]) -> FleetPlan:
    services, pools, sharing = fleet.services, fleet.pools, _Sharing(fleet, found)
    whole = [float(pool.gpus) for pool in pools]
    first = sharing.solve(whole)
    # Spares are in the pool that serves most of a service, and come out of its room.
    room, spares = list(whole), [0] * len(sharing.pairs)
    for s, service in enumerate(services):
        if (home := sharing.home(first.values, s)) is not None:
            spares[home] = service.settings.spare
            room[sharing.pairs[home][1]] -= service.settings.spare * sharing.gpus[home]
    solved = sharing.solve([max(0.0, each) for each in room])
    counts, left = sharing.whole_replicas(solved, room)
    if min(left) < 0 or any(sharing.lacking(counts, s) for s in range(len(services))):
        # Requests come before spares, which get what is left.
        solved, room = first, whole
        counts, left = sharing.whole_replicas(solved, whole)
        spares = [0] * len(sharing.pairs)
        for s, service in enumerate(services):
            if (home := sharing.home(counts, s)) is not None:
                pool = sharing.pairs[home][1]
                spares[home] = min(service.settings.spare, int(left[pool] / sharing.gpus[home] + 1e-9))
                left[pool] -= spares[home] * sharing.gpus[home]
    shares = [
        Share(services[s], pools[p], found[s, p], counts[column], spares[column])
        for column, (s, p) in enumerate(sharing.pairs)
        if counts[column] or spares[column]
    ]
    unserved = {each.name: lacking for s, each in enumerate(services) if (lacking := sharing.lacking(counts, s))}
    kept = [sum(each.spare for each in shares if each.service is service) for service in services]
    without = {each.name: lost for each, n in zip(services, kept, strict=True) if (lost := each.settings.spare - n)}
    worth = {
        pool.name: sharing.one_more(solved, room, p) for p, pool in enumerate(pools) if solved.worth[p] > _WORTH_TELLING
    }
    return FleetPlan(fleet, shares, unserved, float(np.dot(sharing.price, solved.values)), worth, refused, without)
