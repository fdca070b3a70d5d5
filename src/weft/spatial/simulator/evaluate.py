"""Computes what every issue computes, a group at a time: one NumPy operation over all its repetitions and lanes.

Groups run in the order of who feeds whom. Where groups feed each other in turn, their repetitions run one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

import numpy as np

from weft.spatial.isa import ADDS, COLUMNS, EMITS, MEANINGS, NONE, Function, Opcode, load_detail
from weft.spatial.program import Program
from weft.spatial.simulator.issues import Issues, SimulationError
from weft.spatial.simulator.sources import Sources, at_cycle, chained, describe


@dataclass
class Evaluator:
    """The state of a run: what is on streams, in accumulators and in the planes."""

    program: Program
    issues: Issues
    sources: Sources
    cells: np.ndarray
    """The bytes of the words that memory has at the start."""
    streamed: np.ndarray = field(init=False)
    """What each driver puts on its stream, where it is computed."""
    whole: dict[int, np.ndarray] = field(default_factory=dict[int, np.ndarray])
    """Results of groups that are handed over without a stream."""
    sent: dict[tuple[int, int], np.ndarray] = field(default_factory=dict[tuple[int, int], np.ndarray])
    """What links have sent: by queue, and the number of the vector in the order of time."""
    arrived: dict[tuple[int, int], np.ndarray] = field(default_factory=dict[tuple[int, int], np.ndarray])
    """What may be received, likewise."""

    def __post_init__(self) -> None:
        machine, issues = self.program.machine, self.issues
        computed = np.isin(
            issues["opcode"][self.sources.drives.issues], (Opcode.ALU, Opcode.ACCUMULATE, Opcode.RECEIVE)
        )
        self.slots = np.cumsum(computed) - 1
        self.streamed = np.zeros((int(computed.sum()), machine.width), np.uint8)
        self.accumulators = np.zeros((machine.matrix.planes, machine.matrix.accumulator_rows, machine.width), np.int32)
        self.group_of = issues["group"]
        self.handed = [
            dict(zip(*(part.tolist() for part in chained(self.program, issues, operand)), strict=True))
            for operand in (0, 1)
        ]
        self._find_products()
        self._find_weights()

    def _find_products(self) -> None:
        """The product that each accumulation takes."""
        issues, machine = self.issues, self.program.machine
        taking = issues.of(Opcode.ACCUMULATE)
        made = at_cycle(
            issues, Opcode.MULTIPLY, issues["queue"][taking] - 1, issues["cycle"][taking] - machine.latency.multiply
        )
        if np.any(made < 0):
            raise SimulationError(f"{describe(self.program, issues, int(taking[made < 0][0]))} finds no product")
        self.product = np.full(len(issues["opcode"]), -1)
        self.product[taking] = made

    def _find_weights(self) -> None:
        """The install that each product uses, and the loads of each install."""
        issues, machine = self.issues, self.program.machine
        self.install = np.full(len(issues["opcode"]), -1)
        self.loads: dict[int, np.ndarray] = {}
        for plane in range(machine.matrix.planes):
            queue = self.program.units.plane(plane, 0)
            own = np.flatnonzero(issues["queue"] == queue)
            installs = own[issues["opcode"][own] == Opcode.INSTALL_WEIGHTS]
            installs = installs[np.argsort(issues["cycle"][installs], kind="stable")]
            loads = own[issues["opcode"][own] == Opcode.LOAD_WEIGHTS]
            loads = loads[np.argsort(issues["cycle"][loads], kind="stable")]
            times = issues["cycle"][installs]
            multiplies = np.flatnonzero((issues["queue"] == queue + 1) & (issues["opcode"] == Opcode.MULTIPLY))
            used = np.searchsorted(times + machine.latency.install_weights, issues["cycle"][multiplies], side="right")
            if np.any(used == 0):
                early = int(multiplies[used == 0][0])
                raise SimulationError(f"{describe(self.program, issues, early)} finds no weights installed")
            self.install[multiplies] = installs[used - 1]
            loaded = issues["cycle"][loads]
            turned = (issues["detail"][loads] & COLUMNS > 0) * machine.latency.transpose
            ready = loaded + machine.latency.load_weights + turned
            bounds = np.searchsorted(loaded, np.concatenate([[-1], times])).tolist()
            for number, install in enumerate(installs.tolist()):
                own = slice(bounds[number], bounds[number + 1])
                self.loads[install] = loads[own][ready[own] <= times[number]]

    def run(self) -> Iterator[None]:
        """Compute everything, in order; it comes back where a vector has to be received that has not arrived."""
        issues = self.issues
        computing = (Opcode.MULTIPLY, Opcode.ACCUMULATE, Opcode.ALU, Opcode.SEND, Opcode.RECEIVE)
        nodes = np.unique(self.group_of[issues.of(*computing)])
        before, after = self._edges()
        begins = issues["cycle"][issues.starts[nodes]]
        order = _sorted(dict(zip(nodes.tolist(), begins.tolist(), strict=True)), before, after)
        if order is None:
            raise SimulationError("groups of instructions feed each other in turn", hint="repeat fewer at a time")
        for group in order:
            first, last = self.issues.starts[group], self.issues.starts[group + 1]
            match issues["opcode"][first]:
                case Opcode.MULTIPLY:
                    self.whole[group] = self._multiply(int(first), int(last))
                case Opcode.ACCUMULATE:
                    self._accumulate(int(first), int(last))
                case Opcode.SEND:
                    vectors = self._operand(0, int(first), int(last), np.int8)
                    self.sent.update(zip(self._numbers(int(first), int(last)), vectors, strict=True))
                case Opcode.RECEIVE:
                    numbers = self._numbers(int(first), int(last))
                    while not all(number in self.arrived for number in numbers):
                        yield
                    self._put(int(first), int(last), np.stack([self.arrived.pop(number) for number in numbers]))
                case _:
                    self._alu(group, int(first), int(last))

    def _numbers(self, first: int, last: int) -> list[tuple[int, int]]:
        """Which vectors of their link issues are: the queue, and the number in the order of time."""
        issues = self.issues
        queue, opcode = issues["queue"][first], issues["opcode"][first]
        times = np.sort(issues["cycle"][(issues["queue"] == queue) & (issues["opcode"] == opcode)])
        return [(int(queue), int(n)) for n in np.searchsorted(times, issues["cycle"][first:last])]

    def _edges(self) -> tuple[np.ndarray, np.ndarray]:
        """Which group feeds which."""
        group, issues = self.group_of, self.issues
        pairs: list[np.ndarray] = []
        for ends, held in self.sources.operands:
            roots = self.sources.roots[held]
            kept = roots >= 0
            kept &= issues["opcode"][ends.issues] != Opcode.WRITE
            makers = group[self.sources.drives.issues[roots[kept]]]
            pairs.append(np.stack([makers, group[ends.issues[kept]]]))
        loads = {load: install for install, those in self.loads.items() for load in those.tolist()}
        if loads:
            pairs = [self._through_weights(pair, loads) for pair in pairs]
        for handed in self.handed:
            if handed:
                pairs.append(np.stack([group[list(handed.values())], group[list(handed)]]))
        taking = issues.of(Opcode.ACCUMULATE)
        pairs.append(np.stack([group[self.product[taking]], group[taking]]))
        queues = issues["queue"][taking]
        order = np.lexsort((issues["cycle"][taking], queues))
        ordered = taking[order]
        same = queues[order][1:] == queues[order][:-1]
        pairs.append(np.stack([group[ordered[:-1][same]], group[ordered[1:][same]]]))
        both = np.concatenate(pairs, axis=1)
        both = np.unique(both[:, both[0] != both[1]], axis=1)
        return both[0], both[1]

    def _through_weights(self, pair: np.ndarray, loads: dict[int, int]) -> np.ndarray:
        """Loads compute nothing: what they take is used by the products of their install."""
        issues, group = self.issues, self.group_of
        loading = np.isin(pair[1], np.unique(group[list(loads)]))
        if not loading.any():
            return pair
        users: dict[int, set[int]] = {}
        for multiply in issues.of(Opcode.MULTIPLY).tolist():
            for load in self.loads[int(self.install[multiply])].tolist():
                users.setdefault(int(group[load]), set()).add(int(group[multiply]))
        extra = [(made, user) for made, load in pair[:, loading].T.tolist() for user in users.get(load, ())]
        kept = pair[:, ~loading]
        return np.concatenate([kept, np.array(extra).reshape(-1, 2).T.astype(kept.dtype)], axis=1)

    def bytes_of(self, roots: np.ndarray) -> np.ndarray:
        """The vectors at these roots."""
        taken = np.empty((*roots.shape, self.program.machine.width), np.uint8)
        computed = roots >= 0
        taken[computed] = self.streamed[self.slots[roots[computed]]]
        taken[~computed] = self.cells[-1 - roots[~computed]]
        return taken

    def _operand(self, number: int, first: int, last: int, dtype: type[np.generic]) -> np.ndarray:
        if first in self.handed[number]:
            makers = np.array([self.handed[number][issue] for issue in range(first, last)])
            return self._whole(makers)
        ends, held = self.sources.operands[number]
        width = np.dtype(dtype).itemsize
        begin = ends.firsts[first]
        roots = self.sources.roots[held[begin : begin + (last - first) * width]].reshape(last - first, width)
        return _joined(self.bytes_of(roots), dtype)

    def _whole(self, makers: np.ndarray) -> np.ndarray:
        """What issues made that is not on a stream."""
        groups = self.group_of[makers]
        numbers = self.issues["number"][makers]
        if groups[0] == groups[-1] and np.all(groups == groups[0]):
            return self.whole[int(groups[0])][numbers]
        return np.stack([self.whole[int(g)][n] for g, n in zip(groups, numbers, strict=True)])

    def _multiply(self, first: int, last: int) -> np.ndarray:
        x = self._operand(0, first, last, np.int8).astype(np.float32)
        installs = self.install[first:last]
        if np.all(installs == installs[0]):
            return (x @ self._weights(int(installs[0]))).astype(np.int32)
        return np.stack([row @ self._weights(int(i)) for row, i in zip(x, installs, strict=True)]).astype(np.int32)

    def _weights(self, install: int) -> np.ndarray:
        """The tile of an install, as floats: sums of products of 8 bits are exact in 24."""
        if install not in self._tiles:
            if len(self._tiles) > 8 * self.program.machine.matrix.planes:
                self._tiles.clear()
            machine = self.program.machine
            tile = np.zeros((machine.matrix.rows, machine.width), np.int8)
            ends, held = self.sources.operands[0]
            for load in self.loads[install].tolist():
                begin, detail = ends.firsts[load], load_detail(int(self.issues["detail"][load]), machine)
                rows = self.bytes_of(self.sources.roots[held[begin : begin + detail.streams]]).view(np.int8)
                lanes = slice(*(machine.lanes.per_tile * at for at in detail.span))
                row = int(self.issues["address"][load]) * machine.matrix.load_streams
                into = tile.T if detail.columns else tile
                into[row : row + detail.streams, lanes] = rows[: max(0, len(tile) - row), lanes]
            self._tiles[install] = tile.astype(np.float32)
        return self._tiles[install]

    _tiles: dict[int, np.ndarray] = field(default_factory=dict[int, np.ndarray])

    def _accumulate(self, first: int, last: int) -> None:
        plane = (int(self.issues["queue"][first]) - self.program.units.plane(0, 0)) // 3
        products = self._whole(self.product[first:last])
        rows, detail = self.issues["address"][first:last], int(self.issues["detail"][first])
        state = self.accumulators[plane]
        if len(np.unique(rows)) == len(rows):
            state[rows] = sums = products + state[rows] if detail & ADDS else products
        else:
            sums = np.empty_like(products)
            for at, (row, product) in enumerate(zip(rows, products, strict=True)):
                state[row] = sums[at] = product + state[row] if detail & ADDS else product
        if detail & EMITS:
            self._put(first, last, sums)

    def _alu(self, group: int, first: int, last: int) -> None:
        meaning = MEANINGS[Function(int(self.issues["function"][first]))]
        operands = [self._operand(at, first, last, dtype) for at, dtype in enumerate(meaning.operands)]
        with np.errstate(all="ignore"):
            made = meaning.compute(*operands)
        self.whole[group] = made
        if self.issues["result"][first] != NONE:
            self._put(first, last, made)

    def _put(self, first: int, last: int, values: np.ndarray) -> None:
        begin = int(self.slots[self.sources.drives.firsts[first]])
        width = values.dtype.itemsize
        parts = np.ascontiguousarray(values).view(np.uint8).reshape(*values.shape, width)
        self.streamed[begin : begin + (last - first) * width] = parts.transpose(0, 2, 1).reshape(-1, values.shape[1])


def _joined(parts: np.ndarray, dtype: type[np.generic]) -> np.ndarray:
    """Vectors whose bytes are on adjacent streams."""
    return np.ascontiguousarray(parts.transpose(0, 2, 1)).view(dtype)[..., 0]


def _sorted(begins: dict[int, int], before: np.ndarray, after: np.ndarray) -> list[int] | None:
    """The nodes, each after those that feed it and early ones first; None where they feed each other in turn."""
    waits = dict.fromkeys(begins, 0)
    users: dict[int, list[int]] = {}
    for maker, user in zip(before.tolist(), after.tolist(), strict=True):
        users.setdefault(maker, []).append(user)
        waits[user] += 1
    ready = [(begins[node], node) for node, count in waits.items() if not count]
    heapify(ready)
    order: list[int] = []
    while ready:
        _, node = heappop(ready)
        order.append(node)
        for user in users.get(node, ()):
            waits[user] -= 1
            if not waits[user]:
                heappush(ready, (begins[user], user))
    return order if len(order) == len(waits) else None


def initial_bytes(program: Program, arrays: list[np.ndarray]) -> np.ndarray:
    """The words of the image, then those of each argument, in the order of `sources.Cells`."""
    parts = [program.image.data]
    for port, array in zip(program.inputs, arrays, strict=True):
        flat = np.concatenate([array.reshape(-1), np.array([port.fill], array.dtype)])
        vectors = flat[port.index].astype(array.dtype)
        width = array.dtype.itemsize
        split = np.ascontiguousarray(vectors).view(np.uint8).reshape(*vectors.shape, width)
        parts.append(split[port.vectors, :, port.bytes])
    return np.concatenate(parts)
