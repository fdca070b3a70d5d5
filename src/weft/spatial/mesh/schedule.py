"""Schedules a graph of matrices on a mesh of cores: each computes tiles of results, and is sent the tiles it needs.

Weights are resident: a core has those of the columns it computes. A tile of input leaves the core that made it on one
of the networks, along its row and from there along columns, and every link is reserved for it in the frame that moves
with it, so tiles never wait on the way. A core multiplies what has arrived, and its vector unit computes the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from weft.errors import UnsupportedError
from weft.ops.graph import FuncOp
from weft.spatial.mapping.jobs import make_jobs
from weft.spatial.mapping.layers import Constant, Layer, Model, Node, Placed, Stream
from weft.spatial.mapping.read_graph import read_graph
from weft.spatial.mesh.program import (
    Compute,
    Hop,
    MeshProgram,
    MeshTensor,
    Multiply,
    Operand,
    Source,
    Tile,
    Transfer,
)
from weft.spatial.mesh_machine import MeshMachine


def compile_for_mesh(function: FuncOp, machine: MeshMachine, constants: Mapping[str, np.ndarray]) -> MeshProgram:
    """The schedule of a graph of matrices."""
    model = read_graph(function, constants, machine.core.tile, machine.core.tile)
    model.layers = [make_jobs(model, layer) for layer in model.layers]
    for layer in model.layers:
        _check(model, layer)
    return _Schedule(machine, model).run()


def _check(model: Model, layer: Layer) -> None:
    tensors = [layer.output, *([] if layer.source is None else [layer.source])]
    if any(len(each.shape) != 2 or each.order is not None or each.within is not None for each in tensors):
        raise UnsupportedError(
            f"{model.origins[layer.origin]} is not of whole matrices, and a mesh takes no others",
            hint="tsp1 takes images and heads",
        )
    if layer.loaded:
        raise UnsupportedError(
            f"{model.origins[layer.origin]} multiplies two tensors, and weights of a mesh are resident",
            hint="tsp1 loads weights from tensors",
        )


@dataclass
class _Schedule:
    machine: MeshMachine
    model: Model
    transfers: list[Transfer] = field(default_factory=list[Transfer])
    multiplies: list[Multiply] = field(default_factory=list[Multiply])
    computes: list[Compute] = field(default_factory=list[Compute])
    there: dict[tuple[int, Tile], int] = field(default_factory=dict[tuple[int, Tile], int])
    """From when on a core has a tile."""
    free: dict[tuple[int, int, int], int] = field(default_factory=dict[tuple[int, int, int], int])
    """From when on a link of a network is free, in the frame that moves along it; units are links of no network."""
    constants: list[np.ndarray] = field(default_factory=list[np.ndarray])
    numbers: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    end: int = 0

    def run(self) -> MeshProgram:
        for tensor in (*self.model.inputs, *self.model.constants):
            for tile in self._tiles(tensor):
                self.there[self._owner(tensor, tile), tile] = 0
        for layer in self.model.layers:
            self._layer(layer)
        tensors = [
            MeshTensor(
                each.name,
                (each.width, each.channels),
                each.dtype,
                {tile: self._owner(each, tile) for tile in self._tiles(each)},
                each.data,
            )
            for each in self.model.tensors
        ]
        inputs, outputs = ([each.number for each in those] for those in (self.model.inputs, self.model.outputs))
        program = MeshProgram(
            self.machine,
            self.transfers,
            self.multiplies,
            self.computes,
            tensors,
            self.model.tiles,
            self.constants,
            self._terms(),
            inputs,
            outputs,
            self.model.origins,
            self.end,
            self._bounds(),
        )
        self._check_memory(program)
        return program

    def _terms(self) -> dict[tuple[int, int], tuple[tuple[int, int, int], ...]]:
        found: dict[tuple[int, int], tuple[tuple[int, int, int], ...]] = {}
        for layer in self.model.layers:
            for job in layer.jobs:
                if layer.source is not None:
                    passes = [(layer.source.number, each.block, each.tile) for each in job.passes]
                    found[layer.output.number, job.block] = tuple(
                        (tensor, column, tile) for tensor, column, tile in passes if isinstance(tile, int)
                    )
        return found

    # Where

    def _rows(self, tensor: Placed) -> int:
        return -(-tensor.width // self.machine.core.tile)

    def _tiles(self, tensor: Placed) -> list[Tile]:
        return [Tile(tensor.number, r, c) for r in range(self._rows(tensor)) for c in range(tensor.blocks)]

    def _owner(self, tensor: Placed, tile: Tile) -> int:
        """Rows of tiles are on rows of the grid; where these are more, a row of tiles has several of them."""
        grid = self.machine.grid
        several = max(1, grid.rows // self._rows(tensor))
        row = tile.row * several % grid.rows + tile.column // grid.columns % several
        return row % grid.rows * grid.columns + tile.column % grid.columns

    # When

    def _layer(self, layer: Layer) -> None:
        output, source = layer.output, layer.source
        rows = self._rows(output)
        for row in range(rows):
            cores = {job.block: self._owner(output, Tile(output.number, row, job.block)) for job in layer.jobs}
            if source is not None:
                used = {each.block for job in layer.jobs for each in job.passes}
                for column in sorted(used):
                    needed = {
                        core
                        for job, core in zip(layer.jobs, cores.values(), strict=True)
                        if any(each.block == column for each in job.passes)
                    }
                    self._send(source, Tile(source.number, row, column), needed, layer.origin)
            for job in layer.jobs:
                self._job(layer, row, job.block, cores[job.block])

    def _job(self, layer: Layer, row: int, block: int, core: int) -> None:
        machine, into = self.machine, Tile(layer.output.number, row, block)
        job = next(each for each in layer.jobs if each.block == block)
        ready = 0
        for number, each in enumerate(job.passes):
            assert layer.source is not None and isinstance(each.tile, int), "products were checked"
            tile = Tile(layer.source.number, row, each.block)
            cycle = max(self.free.get((core, -1, 0), 0), self.there[core, tile])
            self.multiplies.append(Multiply(core, cycle, tile, each.tile, into, number > 0, layer.origin))
            self.free[core, -1, 0] = cycle + machine.matrix_cycles
            ready = cycle + machine.matrix_cycles + machine.latency.matrix
        self._express(layer, into, core, ready)

    def _express(self, layer: Layer, into: Tile, core: int, ready: int) -> None:
        """The operations of an expression, one after another, those that others take first."""
        machine, steps = self.machine, list[tuple[Node, tuple[Operand, ...]]]()
        earliest = ready

        def visit(node: Node) -> int:
            nonlocal earliest
            operands: list[Operand] = []
            for operand in node.operands:
                if isinstance(operand, Node):
                    operands.append((Source.STEP, visit(operand)))
                elif isinstance(operand, Constant):
                    operands.append((Source.CONSTANT, self._constant(layer, operand, into.column)))
                elif isinstance(operand, Stream):
                    tile = Tile(operand.tensor.number, into.row, into.column % operand.tensor.blocks)
                    self._send(operand.tensor, tile, {core}, layer.origin)
                    earliest = max(earliest, self.there[core, tile])
                    operands.append((Source.TILE, tile))
                else:
                    operands.append((Source.SUMS, 0))
            steps.append((node, tuple(operands)))
            return len(steps) - 1

        visit(layer.root)
        cycle = max(earliest, self.free.get((core, -1, 1), 0))
        for number, (node, operands) in enumerate(steps):
            last = number == len(steps) - 1
            self.computes.append(Compute(core, cycle, node.function, operands, into, number, last, layer.origin))
            self.free[core, -1, 1] = cycle + machine.vector_cycles
            cycle += machine.vector_cycles + machine.latency.vector
        self.there[core, into] = cycle
        self.end = max(self.end, cycle)

    def _constant(self, layer: Layer, constant: Constant, column: int) -> int:
        size = self.machine.core.tile
        key = (id(constant), column if constant.values.size > 1 else 0)
        if key not in self.numbers:
            part = constant.values[column * size :][:size] if constant.values.size > 1 else constant.values
            row = np.full(size, part[0]) if part.size == 1 and constant.values.size == 1 else part
            self.numbers[key] = len(self.constants)
            self.constants.append(np.pad(row.astype(np.float32), (0, size - len(row))))
        return self.numbers[key]

    # Links

    def _send(self, tensor: Placed, tile: Tile, targets: set[int], origin: int) -> None:
        """Bring a tile to cores that do not have it, on the network on which it is there first."""
        machine, source = self.machine, self._owner(tensor, tile)
        wanted = tuple(sorted(core for core in targets if (core, tile) not in self.there))
        if not wanted:
            return
        length = machine.link_cycles(tensor.dtype.itemsize)
        ready = self.there[source, tile] + machine.latency.inject
        offers: list[tuple[int, int, tuple[Hop, ...]]] = []
        for network in range(machine.network.count):
            hops = self._route(source, wanted, backwards=network % 2 == 1)
            frames = [self.free.get((hop.source, hop.target, network), 0) - self._late(hop.before) for hop in hops]
            start = max([ready, *frames])
            offers.append((start + self._late(max(hop.before for hop in hops)), network, hops))
        last, network, hops = min(offers)
        start = last - self._late(max(hop.before for hop in hops))
        for hop in hops:
            self.free[hop.source, hop.target, network] = start + self._late(hop.before) + length
            if hop.target in wanted:
                arrival = start + self._late(hop.before + 1) + length + machine.latency.receive
                self.there[hop.target, tile] = arrival
        self.transfers.append(Transfer(tile, source, network, start, hops, wanted, origin))

    def _late(self, hops: int) -> int:
        return hops * self.machine.network.hop_cycles

    def _route(self, source: int, targets: tuple[int, ...], backwards: bool) -> tuple[Hop, ...]:
        """A tree: along the row to every column that is needed, and from there along the columns."""
        grid, step = self.machine.grid, -1 if backwards else 1
        row, column = divmod(source, grid.columns)
        far: dict[int, int] = {}
        for target in targets:
            own, across = divmod(target, grid.columns)
            far[across] = max(far.get(across, 0), (own - row) * step % grid.rows)
        hops: list[Hop] = []
        widest = max((across - column) * step % grid.columns for across in far)
        for along in range(widest + 1):
            at = (column + along * step) % grid.columns
            if along < widest:
                following = (at + step) % grid.columns
                hops.append(Hop(row * grid.columns + at, row * grid.columns + following, along))
            for down in range(far.get(at, 0)):
                one, other = (row + down * step) % grid.rows, (row + (down + 1) * step) % grid.rows
                hops.append(Hop(one * grid.columns + at, other * grid.columns + at, along + down))
        return tuple(hops)

    # What it takes

    def _bounds(self) -> dict[str, int]:
        machine = self.machine
        matrix, vector = len(self.multiplies) * machine.matrix_cycles, len(self.computes) * machine.vector_cycles
        return {
            "matrix": -(-matrix // machine.cores),
            "vector": -(-vector // machine.cores),
            "MACs": -(-self.model.macs // machine.int8_macs),
        }

    def _check_memory(self, program: MeshProgram) -> None:
        """Everything that a core ever holds, together: it is not freed, and has to fit."""
        size, held = self.machine.core.tile**2, dict[int, int]()
        for core, tile in self.there:
            held[core] = held.get(core, 0) + size * self.model.tensors[tile.tensor].dtype.itemsize
        for core, _ in program.resident:
            held[core] = held.get(core, 0) + size
        core = max(held, key=lambda each: held[each], default=0)
        capacity = self.machine.core.memory_bytes
        if held.get(core, 0) > capacity:
            raise UnsupportedError(
                f"core {core} would hold {held[core]:,} bytes of weights and tensors, and has {capacity:,}",
                hint="raise core.memory_bytes or the grid, or split the graph",
            )
