"""A decoder over racks of chips: what lies where, and how long a token takes.

One layer is scheduled for each way in which it lies on the chips, proved and timed; layers that lie alike are the same
schedule. A token passes them one after another, so its time is their sum, and with it that of the last product, which
scores all words. The table of embeddings stays with the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from xdsl.ir import SSAValue

from weft.errors import UnsupportedError
from weft.ir.types import Tensor, i8
from weft.spatial.decoder import (
    DecoderBuilder,
    DecoderShape,
    Half,
    LayerWeights,
    Parts,
    Placement,
    columns,
    head_graph,
    in_stages,
    tensor_parallel,
)
from weft.spatial.int8_transformer import TransformerBuilder
from weft.spatial.machine import StreamingMachine
from weft.spatial.mapping.layers import RESIDUES, Model
from weft.spatial.scheduler.distribute import Distribution
from weft.spatial.scheduler.memory_map import CapacityError, MemoryMap
from weft.spatial.scheduler.place import map_placed, place_model, placed_system
from weft.spatial.simulator.system import simulate_system
from weft.spatial.system import System
from weft.spatial.verifier.verify import verify_system

Report = Callable[[str], None]


@dataclass(frozen=True)
class ChipMemory:
    """The bytes of a chip's memory by what they hold."""

    weights: int
    cache: int
    activations: int
    constants: int
    text: int

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.activations + self.constants + self.text

    def __add__(self, other: ChipMemory) -> ChipMemory:
        mine, its = vars(self), vars(other)
        return ChipMemory(**{name: mine[name] + its[name] for name in mine})


@dataclass(frozen=True)
class Timing:
    """The cycles of something that is scheduled, and what they are spent on.

    `weights` is the least in which they are loaded; `hops` the time of transfers but for `links`, in which vectors
    after the first pass; `rest` is everything else: filling and draining units, attention, norms, waiting.
    """

    cycles: int
    weights: int
    hops: int
    links: int
    transfers: int
    vectors: int

    @property
    def rest(self) -> int:
        return self.cycles - self.weights - self.hops - self.links

    def times(self, count: int) -> Timing:
        return Timing(**{name: value * count for name, value in vars(self).items()})

    def __add__(self, other: Timing) -> Timing:
        mine, its = vars(self), vars(other)
        return Timing(**{name: mine[name] + its[name] for name in mine})


@dataclass(frozen=True)
class Scheduled:
    """A part of a model on its chips."""

    timing: Timing
    memory: tuple[ChipMemory, ...]
    """Of the chips that have something of it."""


@dataclass(frozen=True)
class RackPlan:
    """A model on chips, as one token of a user sees it."""

    shape: DecoderShape
    chips: int
    tensor: int
    stages: int
    context: int
    rows: int
    token: Timing
    memory: tuple[ChipMemory, ...]
    """Of every chip, in order; chips that have nothing come last."""
    layer_cycles: dict[str, int] = field(default_factory=dict[str, int])
    clock_hz: int = 1

    @property
    def tokens_per_second(self) -> float:
        """For each user."""
        return self.clock_hz / self.token.cycles


def plan_racks(
    shape: DecoderShape,
    machine: StreamingMachine,
    chips: int,
    tensor: int,
    context: int,
    rows: int = 1,
    report: Report = lambda _: None,
) -> RackPlan:
    """A decoder on so many chips, `tensor` of which share each layer; with 1 a layer is stages, one after another."""
    if tensor < 1 or tensor > machine.network.chips_per_node or chips < tensor:
        raise UnsupportedError(
            f"{chips} chips cannot be stages of {tensor}",
            hint=f"a layer is shared within a node of {machine.network.chips_per_node}",
        )
    check_total(shape, machine, chips, context, rows)
    weights = LayerWeights(shape)
    plan = _in_stages if tensor == 1 else _shared
    return plan(weights, machine, chips, tensor, context, rows, report)


def check_total(shape: DecoderShape, machine: StreamingMachine, chips: int, context: int, rows: int) -> None:
    """Refuse a model whose weights and cache are more than the memory of all chips."""
    cache = 2 * shape.layers * shape.kv_heads * shape.width * (context + rows)
    demand, capacity = shape.parameters + cache, chips * machine.memory_bytes
    if demand > capacity:
        least = -(-demand // machine.memory_bytes)
        raise CapacityError(
            f"{shape.name} needs {shape.parameters:,} bytes for weights and {cache:,} for keys and values, and "
            f"{chips} chips of {machine.name} have {capacity:,}: {demand - capacity:,} too few",
            hint=f"{least:,} chips have as much",
        )


def _shared(
    weights: LayerWeights, machine: StreamingMachine, chips: int, tensor: int, context: int, rows: int, report: Report
) -> RackPlan:
    shape, stages, own = weights.shape, chips // tensor, range(tensor)
    placement = tensor_parallel(shape, own, machine.width)
    layer = schedule_layer(weights, placement, machine, tensor, context, rows, to=own, report=report)
    head = _head(shape, machine, columns(shape.vocabulary, own, machine.width), tensor, rows, report)
    memory = fill_stages(machine, layer, head, shape.layers, stages, tensor)
    cut = hop_cycles(machine, placement.out, rows)
    used = sum(1 for each in memory if each.weights) // tensor
    hops = Timing(cut.cycles, 0, cut.hops, cut.links, cut.transfers, cut.vectors).times(max(0, used - 1))
    token = layer.timing.times(shape.layers) + hops + head.timing
    cycles = {"layer": layer.timing.cycles, "from node to node": cut.cycles, "words": head.timing.cycles}
    return RackPlan(shape, chips, tensor, stages, context, rows, token, tuple(memory), cycles, machine.clock_hz)


def _in_stages(
    weights: LayerWeights, machine: StreamingMachine, chips: int, tensor: int, context: int, rows: int, report: Report
) -> RackPlan:
    shape, node = weights.shape, machine.network.chips_per_node
    words = -(-shape.vocabulary // machine.width) * -(-shape.hidden // machine.width)
    room = _weight_room(machine) // machine.tile_bytes
    ending = -(-words // room)
    each = (chips - ending) // shape.layers
    if each < 1:
        raise CapacityError(
            f"{shape.layers} layers and {ending} chips for the scores of words, and there are {chips} chips",
            hint="with --tensor several chips share a layer, and layers a chip",
        )
    found: dict[int, Scheduled] = {}
    offsets = [number * each % node for number in range(shape.layers)]
    # A layer within a node, and one that lies across two: cut in the middle.
    kinds = [0 if offset + each <= node else node - each // 2 for offset in offsets]
    for kind in sorted(set(kinds)):
        own = range(kind, kind + each)
        placement = in_stages(shape, own, machine.width)
        after = kind + each
        found[kind] = schedule_layer(
            weights, placement, machine, 2 * node, context, rows, to=[after], in_turn=True, report=report
        )
    head = _head(shape, machine, columns(shape.vocabulary, range(ending), machine.width), ending, rows, report)
    token = head.timing
    memory: list[ChipMemory] = []
    for kind in kinds:
        token += found[kind].timing
        memory += found[kind].memory
    memory += head.memory
    nothing = ChipMemory(0, 0, 0, 0, 0)
    memory += [nothing] * (chips - len(memory))
    cycles = {("layer" if not kind else "layer across nodes"): found[kind].timing.cycles for kind in sorted(found)}
    cycles["words"] = head.timing.cycles
    return RackPlan(
        shape, chips, 1, each * shape.layers + ending, context, rows, token, tuple(memory), cycles, machine.clock_hz
    )


def schedule_layer(
    weights: LayerWeights,
    placement: Placement,
    machine: StreamingMachine,
    chips: int,
    context: int,
    rows: int,
    *,
    to: Sequence[int] = (),
    in_turn: bool = False,
    half: Half = "layer",
    report: Report = lambda _: None,
) -> Scheduled:
    """A layer on its chips: scheduled, proved, and run without data."""
    builder = DecoderBuilder([(weights, placement)], context, rows, half)
    function = builder.run()
    report(f"mapping a layer of {weights.shape.name}")
    model = map_placed(function, machine, builder.build.constants)
    return _scheduled(model, machine, chips, dict.fromkeys(range(len(placement.out)), to), in_turn, report)


def _scheduled(
    model: Model, machine: StreamingMachine, chips: int, to: dict[int, Sequence[int]], in_turn: bool, report: Report
) -> Scheduled:
    count = len(model.layers)
    done = iter(range(1, count + 1))
    made = place_model(model, machine, chips, in_turn, to, lambda: report(f"scheduling: {next(done)} of {count} steps"))
    system = placed_system(made)
    report(f"proving and timing {system.cycles:,} cycles")
    verify_system(system)
    simulated = simulate_system(system, None)
    assert simulated.cycles == system.cycles, "the verifier has compared them"
    return Scheduled(_timing(made, system, in_turn), tuple(_memory(made, system)))


def _timing(made: Distribution, system: System, in_turn: bool) -> Timing:
    loads = [chip.bounds()["weights"] for chip in made.chips]
    links = sum((each.vectors - 1) * made.machine.link_period for each in made.rounds)
    spent = _union([(each.begin, each.end) for each in made.rounds])
    return Timing(
        system.cycles, sum(loads) if in_turn else max(loads), max(0, spent - links), links, len(made.rounds), made.sent
    )


def _union(spans: list[tuple[int, int]]) -> int:
    """Cycles that are in one of the spans at least."""
    total, last = 0, None
    for begin, end in sorted(spans):
        start = begin if last is None else max(begin, last)
        total += max(0, end - start)
        last = end if last is None else max(last, end)
    return total


def _memory(made: Distribution, system: System) -> list[ChipMemory]:
    """What the chips that compute something hold."""
    found: list[ChipMemory] = []
    for number, (chip, program) in enumerate(zip(made.chips, system.programs, strict=True)):
        machine, memory = made.machine, chip.memory
        computed = [layer for layer in made.model.layers if number in (layer.chips or (0,))]
        if not computed:  # it hands vectors on at most
            continue
        caches = {each.root.number: each.root for layer in computed for each in layer.tile_tensors}
        held = sum(_bytes(memory, each.words) for each in caches.values())
        tensors = sum(_bytes(memory, high - low) for spans in memory.held.values() for low, high in spans)
        weights = sum(rows for _, rows in memory.wide_at.values()) * machine.width
        weights += sum(place.rows for half in memory.weights for place in half.places.values()) * machine.width
        text = sum(len(each.words) for each in program.texts) * machine.control.instruction_bytes
        constants = 4 * len(memory.constants) * machine.width
        found.append(ChipMemory(weights, held, max(0, tensors - held), constants, text))
    return found


def _bytes(memory: MemoryMap, words: int) -> int:
    """The bytes of a tensor, in all its copies."""
    return words * memory.copies * RESIDUES * memory.machine.width


def _weight_room(machine: StreamingMachine) -> int:
    """Bytes of the slices from which all planes load at once."""
    return machine.matrix.planes * machine.matrix.load_streams * machine.slice_words * machine.width


def _head(
    shape: DecoderShape, machine: StreamingMachine, parts: Parts, chips: int, rows: int, report: Report
) -> Scheduled:
    report("the scores of all words")
    function, constants = head_graph(shape, parts, rows)
    return _scheduled(map_placed(function, machine, constants), machine, chips, {}, False, report)


def fill_stages(
    machine: StreamingMachine, layer: Scheduled, head: Scheduled, layers: int, stages: int, tensor: int
) -> list[ChipMemory]:
    """The memory of every chip when layers follow each other through stages, cut where stages are equally full.

    A layer that is cut has its parts on two stages. What is counted are columns of weights, of 320 rows each.
    """
    demand = layers * max(each.weights for each in layer.memory) + max(each.weights for each in head.memory)
    share = demand / stages
    room = _weight_room(machine)
    own = [replace(each, activations=0) for each in layer.memory]
    full = max(own, key=lambda each: each.total)
    used = max(each.activations for each in layer.memory)
    largest = share + (full.total - full.weights) * share / full.weights + used
    if share > room or largest > machine.memory_bytes:
        least = -(-demand // room)
        raise CapacityError(
            f"each of {stages} stages of {tensor} chips needs {share:,.0f} bytes of weights on a chip, {largest:,.0f} "
            f"with keys, values and activations, and a chip has {room:,} in the slices of weights and "
            f"{machine.memory_bytes:,} in all: {max(share - room, largest - machine.memory_bytes):,.0f} too few",
            hint=f"{least * tensor:,} chips would do for the weights",
        )
    found: list[ChipMemory] = []
    for stage in range(stages):
        # Layers that begin before the stage ends, less those that end before it begins.
        begin, end = stage * share, (stage + 1) * share
        part = max(0.0, min(end, layers * full.weights) - begin) / full.weights
        words = max(0.0, end - max(begin, layers * full.weights)) / max(1, max(each.weights for each in head.memory))
        for mine, its in zip(layer.memory, head.memory, strict=True):
            scaled = {name: round(part * value) for name, value in vars(mine).items()}
            scaled["weights"] += round(words * its.weights)
            scaled["activations"] = mine.activations
            found.append(ChipMemory(**scaled))
    return found


def hop_cycles(machine: StreamingMachine, parts: Parts, rows: int) -> Timing:
    """What it takes more to send the parts of a tensor to the chips of the next node than to those of the same."""
    node = machine.network.chips_per_node
    timings: list[Timing] = []
    for chips in ([chip for chip, _ in parts], [chip + node for chip, _ in parts]):
        build = TransformerBuilder("hop", {f"x{a}": Tensor(i8, (rows, b - a)) for _, (a, b) in parts})
        values: list[SSAValue] = []
        for chip, (a, b) in parts:
            with build.on(chip):
                values.append(build.to_int8(build.scaled(build.argument(f"x{a}"), np.ones(b - a, np.float32))))
        joined = values[0] if len(values) == 1 else build.builder.concat(*values, dim=1)
        width = parts[-1][1][1]
        with build.on(*sorted(set(chips))):
            result = build.to_int8(build.scaled(joined, np.ones(width, np.float32)))
        model = map_placed(build.finish([result]), machine, build.constants)
        placed = place_model(model, machine, 2 * node)
        system = placed_system(placed)
        verify_system(system)
        timings.append(_timing(placed, system, False))
    near, far = timings
    values_of = {name: max(0, value - vars(near)[name]) for name, value in vars(far).items()}
    return Timing(**values_of)
