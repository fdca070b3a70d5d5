"""Compiles a graph for a streaming machine: layers one after another, each as early as what it uses allows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from weft.errors import UnsupportedError
from weft.ops.graph import FuncOp
from weft.spatial.machine import StreamingMachine
from weft.spatial.mapping.emit_streams import emit_streams
from weft.spatial.mapping.jobs import make_jobs
from weft.spatial.mapping.layers import Model
from weft.spatial.mapping.read_graph import read_graph
from weft.spatial.program import Program
from weft.spatial.scheduler.bank_halves import NO_HALVES, BankHalves, plan_halves
from weft.spatial.scheduler.chip import ChipSchedule, span_of
from weft.spatial.scheduler.choose_packings import choose_packings
from weft.spatial.scheduler.initial import port_of
from weft.spatial.scheduler.instruction_fetch import DryQueue, first_dry_queue
from weft.spatial.scheduler.memory_map import CapacityError
from weft.spatial.scheduler.optimum import Optimum, best_starts
from weft.spatial.scheduler.read_streams import read_streams
from weft.spatial.scheduler.vector_stack import is_vector_stack, schedule_vector_stack
from weft.spatial.stream_program import StreamProgram

_TRIES = 4
"""How often a layer starts later than before: a pause is a word as well, so that once may not be enough."""


def map_streams(function: FuncOp, machine: StreamingMachine, constants: Mapping[str, np.ndarray]) -> StreamProgram:
    """A function in the `stream` dialect; arguments that are constants are resident in memory."""
    model = read_graph(function, constants, machine.width, machine.lanes.per_tile)
    choose_packings(model, machine)
    model.layers = [make_jobs(model, layer) for layer in model.layers]
    return emit_streams(model, machine.lanes.tiles)


def map_graph(function: FuncOp, machine: StreamingMachine, constants: Mapping[str, np.ndarray]) -> Model:
    """The layers of a function with their jobs, as the scheduler sees them."""
    return read_streams(map_streams(function, machine, constants), machine.lanes.tiles)


def compile_graph(function: FuncOp, machine: StreamingMachine, constants: Mapping[str, np.ndarray]) -> Program:
    """The schedule of a function for one chip."""
    return schedule_streams(map_streams(function, machine, constants), machine)


def schedule_streams(streams: StreamProgram, machine: StreamingMachine) -> Program:
    """The schedule of a program of streams for one chip."""
    model = _read(streams, machine)
    if is_vector_stack(model, machine):
        return _shorter(model, machine)
    return _schedule_layers(model, machine)


def _read(streams: StreamProgram, machine: StreamingMachine) -> Model:
    lanes = streams.op.lanes.value.data
    if lanes != machine.width:
        raise UnsupportedError(
            f"the streams are {lanes} lanes wide, and those of {machine.name} {machine.width}",
            hint="map the graph for this machine",
        )
    return read_streams(streams, machine.lanes.tiles)


def _shorter(model: Model, machine: StreamingMachine) -> Program:
    """Products of single vectors: with all streams for weights, or layer by layer, whichever ends first."""
    try:
        layers = _schedule_layers(model, machine)
    except CapacityError:
        layers = None
    stack = schedule_vector_stack(model, machine)
    if stack is None or (layers is not None and layers.cycles <= stack.cycles):
        return layers or _schedule_layers(model, machine)
    return stack


def _schedule_layers(model: Model, machine: StreamingMachine) -> Program:
    return _with_halves(model, machine)[0]


def _with_halves(model: Model, machine: StreamingMachine) -> tuple[Program, BankHalves]:
    """Layers one after another, with tensors in two banks where they fit so and the schedule is no longer for it."""
    planned = plan_halves(machine, model)
    for halves in planned.sparing() if planned.late else ():
        try:
            made = _scheduled(model, machine, halves)
        except CapacityError:
            continue
        try:
            plain = _scheduled(model, machine, NO_HALVES)
        except CapacityError:
            return made, halves
        return (plain, NO_HALVES) if plain.cycles < made.cycles else (made, halves)
    return _scheduled(model, machine, NO_HALVES), NO_HALVES


def _scheduled(model: Model, machine: StreamingMachine, halves: BankHalves) -> Program:
    return _fed(model, machine, halves)[0]


def _fed(model: Model, machine: StreamingMachine, halves: BankHalves) -> tuple[Program, list[int]]:
    """Each layer as early as what it uses allows and the words of its instructions are fetched; their starts."""
    later: dict[int, int] = {}
    tries: dict[int, int] = {}
    while True:
        chip = ChipSchedule(machine, model, halves)
        starts = [chip.add_layer(layer, later=later.get(number, 0)) for number, layer in enumerate(model.layers)]
        program = _program(chip)
        dry = _dry_queue(chip, program)
        if dry is None:
            return program, starts
        if tries.get(dry.layer, 0) == _TRIES:
            # The program begins with this layer, so that all of it is later and nothing is won.
            raise CapacityError(
                f"{chip.memory.units.name(dry.queue)} lacks instructions for {dry.cycles} cycles in "
                f"{model.origins[model.layers[dry.layer].origin]}: its queue starts with {machine.control.depth}",
                hint="raise control.depth or control.fetch_bytes",
            )
        tries[dry.layer] = tries.get(dry.layer, 0) + 1
        later[dry.layer] = later.get(dry.layer, 0) + dry.cycles


def _dry_queue(chip: ChipSchedule, program: Program) -> DryQueue | None:
    return first_dry_queue(chip.machine, program.texts, np.cumsum([len(group) for group in chip.groups]))


def _program(chip: ChipSchedule) -> Program:
    machine, model = chip.machine, chip.model
    inputs = [port_of(chip.memory, tensor, every=True) for tensor in model.inputs]
    outputs = [port_of(chip.memory, tensor, every=False) for tensor in model.outputs]
    first, _ = span_of(machine, chip.instructions())
    return chip.program(first, inputs, outputs, {**chip.bounds(), "MACs": -(-model.macs // machine.int8_macs)})


def optimize_streams(streams: StreamProgram, machine: StreamingMachine, seconds: float) -> tuple[Program, Optimum]:
    """The schedule whose layers start as a solver finds best in so many seconds, and what it says of them."""
    model = _read(streams, machine)
    halves = _with_halves(model, machine)[1]
    chip = ChipSchedule(machine, model, halves, movable=True)
    starts = [chip.add_layer(layer) for layer in model.layers]
    assert chip.movable is not None, "it was asked for"
    found = best_starts(chip.movable, starts, seconds)
    again = ChipSchedule(machine, model, halves)
    for layer, start in zip(model.layers, found.starts, strict=True):
        again.add_layer(layer, start)
    program = _program(again)
    shift = program.cycles - found.found
    found = replace(found, given=found.given + shift, found=program.cycles, bound=found.bound + shift)
    if _dry_queue(again, program) is None:
        return program, found
    # The search knows nothing of what queues fetch.
    kept, starts = _fed(model, machine, halves)
    return kept, replace(found, starts=starts, given=kept.cycles, found=kept.cycles, proved=False)
