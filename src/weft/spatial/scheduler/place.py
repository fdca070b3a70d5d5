"""Schedules a graph that says which chips compute what: parts of layers on chips, and transfers between them.

A layer runs as a whole on each of its chips, as soon as it has what it reads; what a chip has computed goes to every
other chip that reads it. With `in_turn` a chip computes nothing before the one before it has finished: the stages of a
pipeline, as one token sees them. Only weights, which wait for nobody, are loaded before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import numpy as np

from weft.errors import UnsupportedError
from weft.ops.graph import FuncOp
from weft.spatial.machine import StreamingMachine
from weft.spatial.mapping.jobs import make_jobs
from weft.spatial.mapping.layers import Layer, Model, Placed
from weft.spatial.mapping.read_graph import read_graph
from weft.spatial.scheduler.chip import ChipSchedule
from weft.spatial.scheduler.distribute import Distribution, Part, system_of, tensors_read
from weft.spatial.system import System


def map_placed(function: FuncOp, machine: StreamingMachine, constants: Mapping[str, np.ndarray]) -> Model:
    """The layers of a function, each with its chips."""
    model = read_graph(function, constants, machine.width, machine.lanes.per_tile)
    model.layers = [make_jobs(model, layer) for layer in model.layers]
    return model


def place_model(
    model: Model,
    machine: StreamingMachine,
    chips: int,
    in_turn: bool = False,
    to: Mapping[int, Iterable[int]] | None = None,
    progress: Callable[[], None] = lambda: None,
) -> Distribution:
    """The schedules of layers on their chips; those without are on chip 0. Results, by their number, are sent `to`
    other chips."""
    if missing := [chip for layer in model.layers for chip in layer.chips if chip >= chips]:
        raise UnsupportedError(f"a layer is on chip {missing[0]}, and there are {chips}", hint="give more chips")
    made = Distribution(machine, model, [ChipSchedule(machine, model) for _ in range(chips)], 1)
    sent_on = {model.outputs[number].root.number for number in to or {}}
    for number, chip in enumerate(made.chips):
        chip.memory.keep_clear(_held(model, number, sent_on))
    computed: dict[int, dict[int, list[Part]]] = {}
    readers: dict[int, set[int]] = {}
    for layer in model.layers:
        for tensor in tensors_read(layer):
            readers.setdefault(tensor.number, set()).update(_chips(layer))
    pending: dict[int, Placed] = {}
    left = Counter(layer.output.root.number for layer in model.layers)

    def there(number: int) -> int:
        return max(chip.done[number] for chip in made.chips if number in chip.done)

    def deliver(numbers: Iterable[int]) -> None:
        """Send what was computed of tensors since the last time, and others that are whole by then, at once."""
        own = [each for each in dict.fromkeys(numbers) if each in pending]
        moved = [each for each in own if any(readers.get(each, set()) - {owner} for owner in made.parts[each])]
        if moved:
            end = max(there(number) for number in moved) + machine.link_latency
            own += [each for each in pending if each not in own and not left[each] and there(each) <= end]
        made.exchange([(pending.pop(number), readers.get(number, set())) for number in own])
        for number in own:
            del made.parts[number]

    turn, ended = -1, 0
    for layer in model.layers:
        own, output = _chips(layer), layer.output
        next_turn = in_turn and len(own) == 1 and own[0] != turn
        deliver(list(pending) if next_turn else [each.number for each in tensors_read(layer)])
        if next_turn:
            turn = own[0]
            made.chips[turn].not_before = ended
        for chip in own:
            made.chips[chip].add_layer(layer)
            ended = max(ended, made.chips[chip].done[output.root.number])
        parts = [Part(job.block, job.positions, job.pixels) for job in layer.jobs]
        computed.setdefault(output.number, {})[own[0]] = parts
        sent = [replace(p, block=p.block + output.first_block, positions=p.positions + output.shift) for p in parts]
        made.parts.setdefault(output.root.number, {}).setdefault(own[0], []).extend(sent)
        made.copies[output.root.number] = set(own) if len(own) > 1 else set()
        pending[output.root.number] = output.root
        left[output.root.number] -= 1
        progress()
    # Results go to those who read them next, all parts of a tensor at once.
    for number, chosen in (to or {}).items():
        readers.setdefault(model.outputs[number].root.number, set()).update(chosen)
    deliver(list(pending))
    made.parts = computed
    return made


def placed_system(made: Distribution) -> System:
    """The programs of all chips."""
    read: list[set[int]] = [set() for _ in made.chips]
    for layer in made.model.layers:
        for chip in _chips(layer):
            read[chip] |= {each.number for each in tensors_read(layer)}
    return system_of(made, read)


def _held(model: Model, chip: int, sent_on: set[int]) -> list[Placed]:
    """The tensors of a chip: what its layers read and write, and what goes from chip to chip, which it may hand on."""
    users: dict[int, set[int]] = {}
    roots: dict[int, Placed] = {}
    for layer in model.layers:
        for tensor in (layer.output.root, *tensors_read(layer)):
            users.setdefault(tensor.number, set()).update(_chips(layer))
            roots[tensor.number] = tensor
    moved = {number for number, chips in users.items() if len(chips) > 1} | sent_on
    return [each for number, each in roots.items() if chip in users[number] or number in moved]


def _chips(layer: Layer) -> tuple[int, ...]:
    return layer.chips or (0,)
