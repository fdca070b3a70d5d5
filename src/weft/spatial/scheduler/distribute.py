"""Compiles a graph for many chips: stages of layers one after another, and each layer split inside its stage.

Within a stage a layer's blocks of channels, or where they are too few its rows, are shared out (tensor parallel). What
a chip computes is sent to all that read it. All chips have the same memory map, so a vector lies at the same place
everywhere, and a chip that only hands it on keeps it there meanwhile.

Transfers are slots on links: in a round every wire starts at the same base, and vectors follow each other as fast as a
link takes them. Ends of a round differ by an offset for each link of the receiver, even at the west edge and odd at the
east, so that no two vectors meet at a slice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from weft.errors import UnsupportedError
from weft.ops.graph import FuncOp
from weft.spatial.isa import EAST, WEST, Opcode
from weft.spatial.machine import StreamingMachine
from weft.spatial.mapping.layers import RESIDUES, Job, Layer, Model, Pass, Placed
from weft.spatial.program import Port
from weft.spatial.scheduler.chip import ChipSchedule, span_of
from weft.spatial.scheduler.compile import map_graph
from weft.spatial.scheduler.emit import Emitter
from weft.spatial.scheduler.expression import streams_of
from weft.spatial.scheduler.initial import port_of
from weft.spatial.scheduler.shipments import SentVectors, Shipment, Wire, relayed
from weft.spatial.system import System, link_between, next_hop, wires_of

_SENT, _RECEIVED = 24, 20
"""The streams to links and from them; layers of 8-bit results leave both free on this side of the middle."""


@dataclass(frozen=True)
class Part:
    """Vectors of a tensor that a chip has computed."""

    block: int
    positions: np.ndarray
    pixels: np.ndarray


@dataclass(frozen=True)
class Round:
    """Transfers that start together: the first read, the last write, and the vectors of the longest."""

    begin: int
    end: int
    vectors: int


@dataclass
class Distribution:
    """Chips whose schedules grow together, and what each has computed."""

    machine: StreamingMachine
    model: Model
    chips: list[ChipSchedule]
    tensor: int
    parts: dict[int, dict[int, list[Part]]] = field(default_factory=dict[int, dict[int, list[Part]]])
    """For each tensor the vectors that each chip has computed."""
    copies: dict[int, set[int]] = field(default_factory=dict[int, set[int]])
    """For each tensor that several chips have computed as a whole, these chips."""
    sent: int = 0
    rounds: list[Round] = field(default_factory=list["Round"])

    def run(self, stages: list[list[Layer]]) -> None:
        readers = self._readers(stages)
        for number, layers in enumerate(stages):
            group = range(number * self.tensor, (number + 1) * self.tensor)
            for layer in layers:
                for place, chip in enumerate(group):
                    jobs = _share(layer.jobs, self.tensor, place)
                    if jobs:
                        self.chips[chip].add_layer(replace(layer, jobs=jobs))
                        shift = layer.output.shift
                        own = [Part(job.block, job.positions + shift, job.pixels) for job in jobs]
                        self.parts.setdefault(layer.output.number, {})[chip] = own
                self.deliver(layer.output, readers.get(layer.output.root.number, set()))

    def _readers(self, stages: list[list[Layer]]) -> dict[int, set[int]]:
        """The chips that read each tensor."""
        found: dict[int, set[int]] = {}
        for number, layers in enumerate(stages):
            group = range(number * self.tensor, (number + 1) * self.tensor)
            for layer in layers:
                for tensor in tensors_read(layer):
                    found.setdefault(tensor.number, set()).update(group)
        return found

    def deliver(self, tensor: Placed, to: set[int]) -> None:
        """Send what each chip has of a tensor to all others that read it."""
        self.exchange([(tensor, to)])

    def exchange(self, wanted: Sequence[tuple[Placed, set[int]]]) -> None:
        """Send what each chip has of tensors to all others that read them, at the same time, in rounds of one hop."""
        per_node = self.machine.network.chips_per_node
        holders = [
            {owner: {owner, *self.copies.get(tensor.number, ())} for owner in self.parts[tensor.number]}
            for tensor, _ in wanted
        ]
        while True:
            hops: dict[tuple[int, int], set[tuple[int, int]]] = {}
            for number, (_, to) in enumerate(wanted):
                for owner, at in holders[number].items():
                    for chip in sorted(to - at):
                        near = [each for each in at if each // per_node == chip // per_node]
                        source = near[0] if near else min(at, key=lambda each: (abs(each - chip) // per_node, each))
                        hops.setdefault((source, self._next(source, chip)), set()).add((number, owner))
            if not hops:
                return
            across = {pair: owners for pair, owners in hops.items() if pair[0] // per_node != pair[1] // per_node}
            self._round(self._shipments([tensor for tensor, _ in wanted], across or hops))
            for (_, chip), owners in (across or hops).items():
                for number, owner in owners:
                    holders[number][owner].add(chip)

    def _next(self, chip: int, to: int) -> int:
        """The next chip on the way: of a last node that is not whole, one that is there."""
        found, per_node = next_hop(self.machine, chip, to), self.machine.network.chips_per_node
        return found if found < len(self.chips) else chip - chip % per_node + to % per_node

    def _shipments(
        self, tensors: Sequence[Placed], hops: Mapping[Wire, set[tuple[int, int]]]
    ) -> dict[Wire, list[Shipment]]:
        """What goes over each wire: of tensors, by number, the parts of some chips.

        Where that is much, and chips of the node have nothing to do, they hand on a share of it.
        """
        found: dict[Wire, list[Shipment]] = {}
        for wire, owners in sorted(hops.items()):
            for number in sorted({each for each, _ in owners}):
                parts = sorted(owner for each, owner in owners if each == number)
                found.setdefault(wire, []).append(Shipment(self._vectors(tensors[number], parts)))
        for wire in [each for each in found if len(found[each]) == 1]:
            vectors = found[wire][0].vectors
            relays = self._relays(wire, vectors.tensor.root.number, found)
            direct, count = relayed(len(vectors.tags), len(relays), self._hand_on)
            shares = np.array_split(np.arange(direct, len(vectors.tags)), count) if count else []
            found[wire] = [Shipment(vectors.some(np.arange(direct)))]
            for relay, share in zip(relays, shares, strict=False):
                found[wire[0], relay] = [Shipment(vectors.some(share))]
                found[relay, wire[1]] = [Shipment(vectors.some(share), self._hand_on)]
        return found

    def _relays(self, wire: Wire, root: int, found: Mapping[Wire, list[Shipment]]) -> list[int]:
        """Chips of the node that could hand on what goes over a wire: their wires and they themselves are idle."""
        (chip, other), per_node = wire, self.machine.network.chips_per_node
        first = chip - chip % per_node
        if other // per_node != chip // per_node:
            return []
        ready = self.chips[chip].done[root]
        return [
            each
            for each in range(first, min(first + per_node, len(self.chips)))
            if each not in wire
            and (chip, each) not in found
            and (each, other) not in found
            and max(self.chips[each].reservations.ends.values(), default=ready) <= ready
        ]

    @property
    def _hand_on(self) -> int:
        """Periods from a vector's send to when the chip that receives it can send it on."""
        machine, memory = self.machine, self.chips[0].memory
        way = machine.edge + machine.hop(RESIDUES * memory.copies - 1)
        passed = self._wait + machine.latency.receive + machine.latency.write + machine.latency.read + 2 * way
        return -(-(passed + machine.links.count) // self._period)

    def _round(self, shipments: Mapping[Wire, Sequence[Shipment]]) -> None:
        """What goes over wires at the same time."""
        emitters: dict[int, Emitter] = {}
        reads: dict[int, dict[int, int]] = {}
        writes: dict[int, dict[int, int]] = {}
        longest = 0
        for (chip, other), own_shipments in sorted(shipments.items()):
            links = link_between(self.machine, chip, other)
            assert links is not None, "a hop follows a wire"
            begin = time = self._offset(links[1])
            sender, receiver = (emitters.setdefault(each, Emitter()) for each in (chip, other))
            for shipment in own_shipments:
                vectors, root = shipment.vectors, shipment.vectors.tensor.root.number
                times = time + (shipment.after + np.arange(len(vectors.tags))) * self._period
                first = self._send(sender, vectors, links[0], times)
                # What is handed on is there in time.
                if not shipment.after:
                    own = reads.setdefault(chip, {})
                    own[root] = min(first, own.get(root, first))
                last = self._receive(receiver, vectors, links[1], times + self._wait)
                own = writes.setdefault(other, {})
                own[root] = max(last, own.get(root, last))
                self.sent += len(times)
                time += len(times) * self._period
            longest = max(longest, (time - begin) // self._period)
        columns_of = {chip: emitter.columns() for chip, emitter in emitters.items()}
        spans = {chip: self.chips[chip].reservations.spans(columns) for chip, columns in columns_of.items()}
        base = max(self.chips[chip].reservations.earliest(own) for chip, own in spans.items())
        there = [self.chips[chip].done[root] - first for chip, own in reads.items() for root, first in own.items()]
        base = max([base, *there])
        first = min(first for own in reads.values() for first in own.values())
        end = max(last for own in writes.values() for last in own.values())
        self.rounds.append(Round(base + first, base + end, longest))
        for chip, columns in columns_of.items():
            self.chips[chip].add(columns, spans[chip], base)
            for root, last in writes.get(chip, {}).items():
                self.chips[chip].written(root, base + last)

    def _vectors(self, tensor: Placed, owners: Sequence[int]) -> SentVectors:
        """Where the parts of a tensor lie that some chips have computed; a vector of 32 bits is four, a byte each."""
        root, wide = tensor.root, tensor.dtype.itemsize
        columns = [
            (root.residue(block, part.positions), root.address(block, part.positions), root.tags(block, part.positions))
            for owner in owners
            for part in self.parts[tensor.number][owner]
            for block in [part.block + tensor.first_block]
        ]
        residues, addresses, tags = (np.repeat(np.concatenate(each), wide) for each in zip(*columns, strict=True))
        origin = next(layer.origin for layer in self.model.layers if layer.output.root is root)
        return SentVectors(tensor, residues, addresses, tags, np.arange(len(tags)) % wide, origin)

    @property
    def _period(self) -> int:
        period = max(self.machine.link_period, self.machine.links.count)
        return period + period % 2

    @property
    def _wait(self) -> int:
        """From a send to its receive: odd together with the way through memory, so that reads and writes never meet."""
        latency, wait = self.machine.latency, self.machine.link_latency
        return wait + (latency.read + wait + latency.receive + 1) % 2

    def _offset(self, link: int) -> int:
        half = self.machine.links.count // 2
        return 2 * (link % half) + (link >= half)

    def _send(self, emit: Emitter, vectors: SentVectors, link: int, times: np.ndarray) -> int:
        """Read vectors and send them at given cycles; the first read's cycle."""
        memory, bytes_, origin = self.chips[0].memory, vectors.bytes, vectors.origin
        queue = memory.units.link(link)
        slices = memory.tensor_slices(vectors.tensor, 0, vectors.residues) + bytes_ * RESIDUES
        edge = memory.units.position(queue)
        way = np.array([abs(memory.units.position(int(each)) - edge) for each in slices])
        stream = (EAST if edge > 0 else WEST) * self.machine.streams.per_direction + _SENT
        cycles = times - way - self.machine.latency.read
        columns = {"result": stream, "address": vectors.addresses, "tag": vectors.tags, "detail": bytes_}
        emit.emit(Opcode.READ, slices, cycles, **columns, origin=origin)
        emit.emit(Opcode.SEND, queue, times, source0=stream, want0=vectors.tags, detail=bytes_, origin=origin)
        return int(cycles.min())

    def _receive(self, emit: Emitter, vectors: SentVectors, link: int, times: np.ndarray) -> int:
        """Receive vectors at given cycles and write them where they belong; the cycle when the last is there."""
        memory, latency, tensor = self.chips[0].memory, self.machine.latency, vectors.tensor
        queue, bytes_ = memory.units.link(link), vectors.bytes
        edge = memory.units.position(queue)
        stream = (WEST if edge > 0 else EAST) * self.machine.streams.per_direction + _RECEIVED
        emit.emit(Opcode.RECEIVE, queue, times, result=stream, tag=vectors.tags, detail=bytes_, origin=vectors.origin)
        last = 0
        for copy in range(memory.copies_of(tensor) if tensor.dtype.itemsize == 1 else 1):
            slices = memory.tensor_slices(tensor, copy, vectors.residues) + bytes_ * RESIDUES
            way = np.array([abs(memory.units.position(int(each)) - edge) for each in slices])
            cycles = times + latency.receive + way
            columns = {"source0": stream, "address": vectors.addresses, "want0": vectors.tags, "detail": 16 + bytes_}
            emit.emit(Opcode.WRITE, slices, cycles, **columns, origin=vectors.origin)
            last = max(last, int(cycles.max()) + latency.write)
        return last


def distribute_graph(
    function: FuncOp,
    machine: StreamingMachine,
    constants: Mapping[str, np.ndarray],
    chips: int,
    tensor: int = 1,
) -> System:
    """The schedules of a function on so many chips; `tensor` of them share each stage."""
    if tensor < 1 or chips < 1 or chips % tensor or tensor > machine.network.chips_per_node:
        raise UnsupportedError(
            f"{chips} chips cannot be stages of {tensor}",
            hint=f"a stage is within a node of {machine.network.chips_per_node}, and divides the chips",
        )
    model = map_graph(function, machine, constants)
    stages = split_stages(model.layers, chips // tensor)
    made = Distribution(machine, model, [ChipSchedule(machine, model) for _ in range(chips)], tensor)
    made.run(stages)
    readers = [
        {each.number for layer in stages[chip // tensor] for each in tensors_read(layer)} for chip in range(chips)
    ]
    return system_of(made, readers)


def system_of(made: Distribution, read: Sequence[set[int]]) -> System:
    """The programs of all chips, given the tensors that each reads."""
    machine, model = made.machine, made.model
    spans = [span_of(machine, rows) for chip in made.chips if len(rows := chip.instructions())]
    first, last = min((begin for begin, _ in spans), default=0), max((end for _, end in spans), default=0)
    programs = [
        chip.program(first, _inputs(model, chip, read[number]), _outputs(made, chip, number), chip.bounds())
        for number, chip in enumerate(made.chips)
    ]
    bounds = {name: max(chip.bounds()[name] for chip in made.chips) for name in made.chips[0].bounds()}
    return System(
        machine,
        programs,
        wires_of(machine, len(made.chips)),
        [each.name for each in model.inputs],
        [each.name for each in model.outputs],
        last - first,
        {**bounds, "vectors sent": made.sent},
    )


def split_stages(layers: Sequence[Layer], count: int) -> list[list[Layer]]:
    """Layers in so many stages, in order, the longest as short as can be; later stages may be empty."""
    costs = [sum(len(job.positions) * max(1, len(job.passes)) for job in layer.jobs) for layer in layers]
    least, most = max(costs, default=0), sum(costs)
    while least < most:
        limit = (least + most) // 2
        least, most = (least, limit) if len(_filled(costs, limit)) <= count else (limit + 1, most)
    stages = [[layers[number] for number in stage] for stage in _filled(costs, least)]
    return [*stages, *([] for _ in range(count - len(stages)))]


def _filled(costs: Sequence[int], limit: int) -> list[list[int]]:
    stages: list[list[int]] = [[]]
    room = limit
    for number, cost in enumerate(costs):
        if cost > room and stages[-1]:
            stages.append([])
            room = limit
        stages[-1].append(number)
        room -= cost
    return stages


def tensors_read(layer: Layer) -> list[Placed]:
    """What a layer reads."""
    source = [layer.source] if layer.source is not None else []
    return [each.root for each in (*source, *(each.tensor for each in streams_of(layer.root)), *layer.tile_tensors)]


def _share(jobs: Sequence[Job], count: int, place: int) -> tuple[Job, ...]:
    """The jobs of one of so many chips: blocks in turn, or where they are too few, rows."""
    if len(jobs) >= count:
        return tuple(jobs[place::count])
    shares: list[Job] = []
    for job in jobs:
        rows = np.array_split(np.arange(len(job.positions)), count)[place]
        if len(rows):
            passes = tuple(Pass(each.tile, each.block, each.positions[rows]) for each in job.passes)
            shares.append(Job(job.block, job.positions[rows], job.pixels[rows], passes))
    return tuple(shares)


def _inputs(model: Model, chip: ChipSchedule, read: set[int]) -> list[Port]:
    return [port_of(chip.memory, each, every=True) for each in model.inputs if each.root.number in read]


def _outputs(made: Distribution, chip: ChipSchedule, number: int) -> list[Port]:
    """The parts of results that a chip has computed."""
    ports: list[Port] = []
    for tensor in made.model.outputs:
        parts = made.parts[tensor.number].get(number)
        if parts:
            whole, count = port_of(chip.memory, tensor, every=False), tensor.lines * tensor.width
            own = np.sort(np.concatenate([part.block * count + part.pixels for part in parts]))
            kept = np.isin(whole.vectors, own)
            cells = {name: getattr(whole, name)[kept] for name in ("slices", "addresses", "bytes", "tags")}
            vectors = np.searchsorted(own, whole.vectors[kept])
            ports.append(replace(whole, index=whole.index[own], vectors=vectors, **cells))
    return ports
