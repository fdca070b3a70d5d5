"""Chooses for each narrow image how its rows share vectors, by the cycles of the layers that make and read it.

Starting from a row a line, one tensor at a time is packed in the way that its layers are cheapest, and where a layer
only looks at windows, its input and output together; until nothing gets better.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf

from weft.spatial.machine import StreamingMachine
from weft.spatial.mapping.jobs import aligned_lines, line_groups
from weft.spatial.mapping.layers import BlockProduct, Convolution, Layer, Model, PixelSum, Placed
from weft.spatial.mapping.packing import Packing, packings, plain
from weft.spatial.scheduler.expression import chains_of, padding_constants, streams_of

_SWEEPS = 4


def choose_packings(model: Model, machine: StreamingMachine) -> None:
    """Set the packing of every tensor of a model."""
    choice = _Choice(model, machine)
    for _ in range(_SWEEPS):
        better = [choice.improve([tensor]) for tensor in model.tensors if len(choice.ways[tensor.number]) > 1]
        for layer in model.layers:
            beside = {each.tensor.number: each.tensor for each in streams_of(layer.root)}
            for tensor in beside.values():
                better.append(choice.improve([tensor, layer.output]))
        if not any(better):
            break


@dataclass
class _Choice:
    model: Model
    machine: StreamingMachine
    ways: dict[int, list[Packing]] = field(default_factory=dict[int, list[Packing]])
    users: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    copies: list[int] = field(default_factory=list[int])
    known: dict[tuple[object, ...], float] = field(default_factory=dict[tuple[object, ...], float])

    def __post_init__(self) -> None:
        makers = {layer.output.number: layer for layer in self.model.layers}
        self.ways = {each.number: self._ways(each, makers.get(each.number)) for each in self.model.tensors}
        for number, layer in enumerate(self.model.layers):
            self.copies.append(len(chains_of(self.machine, layer).copies))
            for tensor in {each.number: each for each in _tensors(layer)}.values():
                self.users.setdefault(tensor.number, []).append(number)

    def _ways(self, tensor: Placed, maker: Layer | None) -> list[Packing]:
        """How a tensor may be packed."""
        most = self.machine.width // tensor.channels
        fixed = tensor in self.model.outputs or tensor.dtype.itemsize > 1
        if most < 2 or fixed or len(tensor.shape) != 4:
            return [plain(tensor.height)]
        padded = not tensor.border or maker is None or padding_constants(maker.root, tensor.fill) is not None
        found: list[Packing] = []
        for way in packings(tensor.height, most, tensor.border):
            rows = (way.row(line, slot) for line in range(way.lines) for slot in range(way.slots))
            if padded or all(0 <= row < tensor.height for row in rows):
                found.append(way)
        return found

    def improve(self, tensors: list[Placed]) -> bool:
        """Pack these tensors together in the best way; whether that is better than before."""
        touched = sorted({layer for tensor in tensors for layer in self.users.get(tensor.number, ())})
        best, found = self._cost(touched), [tensor.packing for tensor in tensors]
        before = list(found)
        for ways in _combinations([self.ways[tensor.number] for tensor in tensors]):
            for tensor, way in zip(tensors, ways, strict=True):
                tensor.packing = way
            cost = self._cost(touched)
            if cost < best:
                best, found = cost, list(ways)
        for tensor, way in zip(tensors, found, strict=True):
            tensor.packing = way
        return found != before

    def _cost(self, layers: Iterable[int]) -> float:
        total = 0.0
        for number in layers:
            key = (number, *(tensor.packing for tensor in _tensors(self.model.layers[number])))
            if key not in self.known:
                self.known[key] = self._cycles(self.model.layers[number], self.copies[number])
            total += self.known[key]
            if total == inf:
                break
        return total

    def _cycles(self, layer: Layer, copies: int) -> float:
        """About how long a layer takes."""
        planes, output = self.machine.matrix.planes, layer.output
        if any(aligned_lines(each, output) is None for each in streams_of(layer.root)):
            return inf
        match layer.product:
            case None:
                return output.blocks * output.lines * output.width / copies
            case BlockProduct():
                return 0.0
            case PixelSum():
                assert layer.source is not None, "a product has a source"
                return layer.source.pixels if layer.source.packing.slots == 1 else inf
            case Convolution(_, window):
                assert layer.source is not None, "a product has a source"
                load = self.machine.load_cycles + self.machine.latency.load_weights
                total = 0
                for group in line_groups(layer.source, output, window):
                    rows = -(-len(group.lines) * output.width // planes)
                    passes = len(group.meetings) * window.kernel[1] * layer.source.blocks
                    total += (passes - 1) * max(rows, load) + max(rows * planes // copies, load)
                return output.blocks * total


def _tensors(layer: Layer) -> list[Placed]:
    """The tensors of a layer."""
    source = [layer.source] if layer.source is not None else []
    beside = [each.tensor for each in streams_of(layer.root)]
    return [*source, *beside, *layer.tile_tensors, layer.output]


def _combinations(ways: list[list[Packing]]) -> Iterable[tuple[Packing, ...]]:
    if len(ways) == 1:
        return ((way,) for way in ways[0])
    return ((one, other) for one in ways[0] for other in ways[1] if one.slots == other.slots)
