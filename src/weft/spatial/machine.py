"""Descriptions of spatial machines: files of facts, each with where it comes from, and what follows from them.

A description is a YAML file. A leaf is `[value, tag, source]`, and its tag says how far to trust it: `published`,
`derived` from published figures, or `assumed`. Rates and capacities are computed here and never stored beside what they
follow from. A what-if is an override: `load_machine("tsp1", {"latency.read": 4})`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import ceil
from pathlib import Path
from typing import Any, ClassVar, cast

from weft.diagnostics import nearest
from weft.spatial.facts import Description, Fact, MachineError, Place, read_facts, read_tree
from weft.spatial.mesh_machine import MeshMachine

FOLDER = Path(__file__).parent / "machines"
MOST_TILES = 255
"""What a load of weights says of tiles and streams is a byte each."""


@dataclass(frozen=True)
class Lanes:
    tiles: int
    per_tile: int


@dataclass(frozen=True)
class Streams:
    per_direction: int
    bytes_per_lane: int


@dataclass(frozen=True)
class Memory:
    slices_per_half: int
    slices_per_hop: int
    banks: int
    bank_words: int
    word_bytes: int
    read_ports: int
    write_ports: int


@dataclass(frozen=True)
class Matrix:
    planes: int
    rows: int
    columns: int
    fp16_planes: int
    fp16_rows: int
    load_streams: int
    accumulator_rows: int


@dataclass(frozen=True)
class Vector:
    mesh_rows: int
    mesh_columns: int


@dataclass(frozen=True)
class Shift:
    queues_per_half: int


@dataclass(frozen=True)
class Control:
    queues: int
    fetch_bytes: int
    instruction_bytes: int
    depth: int


@dataclass(frozen=True)
class Links:
    count: int
    lanes: int
    raw_bits: int
    bits: int
    frame_bytes: int
    latency_mean: int
    latency_sigma: float
    slack_sigmas: int
    buffer_vectors: int


@dataclass(frozen=True)
class Network:
    chips_per_node: int
    global_links: int
    nodes_per_rack: int
    nodes: int


@dataclass(frozen=True)
class Latency:
    read: int
    write: int
    load_weights: int
    transpose: int
    install_weights: int
    multiply: int
    accumulate: int
    alu: int
    send: int
    receive: int


@dataclass(frozen=True)
class Energy:
    multiply_accumulate: float
    memory_byte: float
    alu_lane: float
    link_byte: float


@dataclass(frozen=True)
class Array:
    rows: int
    columns: int


@dataclass(frozen=True)
class SystolicMachine(Description):
    """A weight-stationary systolic array."""

    KIND: ClassVar[str] = "systolic"
    array: Array


@dataclass(frozen=True)
class StreamingMachine(Description):
    """A tensor streaming processor: rows of units that streams of vectors flow past, in two halves around the middle.

    Positions are stream registers: the vector unit is at 0, the halves are west (negative) and east of it.
    """

    KIND: ClassVar[str] = "streaming"
    lanes: Lanes
    streams: Streams
    memory: Memory
    matrix: Matrix
    vector: Vector
    shift: Shift
    control: Control
    links: Links
    network: Network
    latency: Latency
    energy: Energy

    @cached_property
    def width(self) -> int:
        """The lanes of a vector."""
        return self.lanes.tiles * self.lanes.per_tile

    @property
    def slices(self) -> int:
        return 2 * self.memory.slices_per_half

    @property
    def slice_words(self) -> int:
        """The vectors of a slice."""
        return self.memory.banks * self.memory.bank_words

    @property
    def slice_tile_bytes(self) -> int:
        return self.slice_words * self.memory.word_bytes

    @property
    def slice_bytes(self) -> int:
        return self.slice_tile_bytes * self.lanes.tiles

    @property
    def memory_bytes(self) -> int:
        return self.slice_bytes * self.slices

    @property
    def memory_rate(self) -> int:
        """Bytes a cycle through all ports."""
        return self.slices * (self.memory.read_ports + self.memory.write_ports) * self.width

    @property
    def stream_rate(self) -> int:
        """Bytes a cycle past a position, both directions."""
        return 2 * self.streams.per_direction * self.streams.bytes_per_lane * self.width

    @property
    def int8_macs(self) -> int:
        """Products of 8-bit integers a cycle."""
        return self.matrix.planes * self.matrix.rows * self.matrix.columns

    @property
    def fp16_macs(self) -> int:
        return self.matrix.fp16_planes * self.matrix.fp16_rows * self.matrix.columns

    @property
    def alus(self) -> int:
        """ALUs of a lane."""
        return self.vector.mesh_rows * self.vector.mesh_columns

    @property
    def tile_bytes(self) -> int:
        """The weights of a plane."""
        return self.matrix.rows * self.matrix.columns

    @property
    def load_cycles(self) -> int:
        """Cycles in which the streams of one plane bring its weights."""
        return ceil(self.matrix.rows / self.matrix.load_streams)

    @property
    def weight_floor(self) -> int:
        """Cycles in which all streams of a half bring the weights of its planes."""
        return ceil(self.matrix.planes // 2 * self.tile_bytes / (self.stream_rate // 2))

    @property
    def fetch_rate(self) -> int:
        """Bytes of instructions a cycle."""
        return self.control.queues * self.control.fetch_bytes

    @property
    def edge(self) -> int:
        """The position of the outermost register, where the matrix units are; west it is negative."""
        return self.hop(self.memory.slices_per_half - 1)

    @property
    def positions(self) -> int:
        return 2 * self.edge + 1

    def hop(self, number: int) -> int:
        """How far from the middle the slice with this number, counted outwards in its half, is."""
        return 1 + number // self.memory.slices_per_hop

    @property
    def link_bits(self) -> int:
        """Bits a second through all links, both directions, as published: raw."""
        return self.links.count * self.links.lanes * self.links.raw_bits * 2

    @property
    def vector_link_cycles(self) -> float:
        """Cycles in which a vector passes a link."""
        return self.links.frame_bytes * 8 / (self.links.lanes * self.links.bits) * self.clock_hz

    @property
    def link_period(self) -> int:
        """Cycles from a vector on a link to the next."""
        return ceil(self.vector_link_cycles)

    @property
    def link_latency(self) -> int:
        """Cycles from a send until the vector is there for certain: the mean, and so many deviations more."""
        slack = ceil(self.links.slack_sigmas * self.links.latency_sigma)
        return self.link_period + self.links.latency_mean + slack

    def scaled(self, factor: float) -> StreamingMachine:
        """The same machine with every assumed latency multiplied and rounded up."""
        times = {f"latency.{each.name}": getattr(self.latency, each.name) for each in fields(Latency)}
        assumed = {path: ceil(value * factor) for path, value in times.items() if self.facts[path].tag == "assumed"}
        changed = {path.partition(".")[2]: value for path, value in assumed.items()}
        facts = {
            path: Fact(assumed[path], "assumed", f"{fact.source}; times {factor:g}") if path in assumed else fact
            for path, fact in self.facts.items()
        }
        return replace(self, latency=replace(self.latency, **changed), facts=facts)


_KINDS: Mapping[str, type[StreamingMachine] | type[SystolicMachine] | type[MeshMachine]] = {
    kind.KIND: kind for kind in (StreamingMachine, SystolicMachine, MeshMachine)
}


def machine_names() -> list[str]:
    """The machines that Weft brings."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load_machine(
    name: str, overrides: Mapping[str, Any] | None = None
) -> StreamingMachine | SystolicMachine | MeshMachine:
    """The machine of this name, or of a file of one's own, with some fields replaced."""
    path = Path(name) if name.endswith((".yaml", ".yml")) else FOLDER / f"{name}.yaml"
    if not path.is_file():
        raise MachineError(
            f"there is no machine {name!r}{nearest(name, machine_names())}",
            hint=f"there are {', '.join(machine_names())}; a file of your own ends in .yaml",
        )
    tree, place = read_tree(path)
    return machine_of(tree, overrides or {}, place)


def streaming_machine(name: str, overrides: Mapping[str, Any] | None = None) -> StreamingMachine:
    """A machine that takes schedules of streams."""
    machine = load_machine(name, overrides)
    if not isinstance(machine, StreamingMachine):
        command = "mesh` schedules for it" if isinstance(machine, MeshMachine) else "systolic` counts its cycles"
        raise MachineError(f"{name} has no streams to schedule", hint=f"`weft spatial {command}")
    return machine


def mesh_machine(name: str, overrides: Mapping[str, Any] | None = None) -> MeshMachine:
    """A machine that is a mesh of cores."""
    machine = load_machine(name, overrides)
    if not isinstance(machine, MeshMachine):
        raise MachineError(f"{name} is no mesh of cores", hint="wormhole is one")
    return machine


def machine_of(tree: Any, overrides: Mapping[str, Any], place: Place | None = None) -> Any:
    """A machine from what a file says; the message of an error names the field."""
    place = place or Place("the description")
    if not isinstance(tree, dict):
        raise MachineError(f"{place.name} is not a table of fields")
    given = dict(cast("dict[str, Any]", tree))
    kind = given.pop("kind", None)
    if not isinstance(kind, str) or kind not in _KINDS:
        raise place.refuse("kind", f"kind is {kind!r}", f"it is one of {', '.join(_KINDS)}")
    machine = read_facts(_KINDS[kind], given, overrides, place)
    if isinstance(machine, StreamingMachine):
        _check(machine, place)
    return machine


def _check(machine: StreamingMachine, place: Place) -> None:
    """What fields must have to do with each other."""
    matrix, memory = machine.matrix, machine.memory
    for path, count in (
        ("streams.bytes_per_lane", machine.streams.bytes_per_lane),
        ("memory.read_ports", memory.read_ports),
        ("memory.write_ports", memory.write_ports),
    ):
        if count != 1:
            raise place.refuse(path, f"{path} is {count}", "it is 1 on the machines that are scheduled and simulated")
    if memory.word_bytes != machine.lanes.per_tile:
        what = f"memory.word_bytes is {memory.word_bytes}, and a tile has {machine.lanes.per_tile} lanes"
        raise place.refuse("memory.word_bytes", what, "a word has a byte for each lane: change lanes.per_tile with it")
    if machine.lanes.tiles > MOST_TILES:
        what = f"lanes.tiles is {machine.lanes.tiles}"
        raise place.refuse("lanes.tiles", what, f"instructions name at most {MOST_TILES}: raise lanes.per_tile")
    if matrix.planes % 2:
        raise place.refuse("matrix.planes", f"matrix.planes is {matrix.planes}", "halves have equally many")
    for path, size in (("matrix.rows", matrix.rows), ("matrix.columns", matrix.columns)):
        if size != machine.width:
            what = f"{path} is {size}, and a vector has {machine.width} lanes"
            raise place.refuse(path, what, "a plane is as wide and as high as a vector: change all three together")
    if matrix.load_streams > min(machine.streams.per_direction, MOST_TILES):
        what = f"matrix.load_streams is {matrix.load_streams}, more than streams.per_direction can bring"
        raise place.refuse("matrix.load_streams", what, f"it is at most {machine.streams.per_direction}")
    if matrix.rows % matrix.load_streams:
        raise place.refuse(
            "matrix.load_streams",
            f"matrix.load_streams is {matrix.load_streams}, and a plane has {matrix.rows} rows",
            "every load takes as many rows",
        )
