"""Checks schedules for meshes: units and links do one thing at a time, and everything is there when it is used.

| # | invariant |
|---|---|
| 1 | a unit of a core does one thing at a time, and a link carries one tile |
| 2 | a tile travels over links that there are, each where the one before it ends, on the network of that direction |
| 3 | what is sent, multiplied or computed with is in the core by then |
| 4 | sums are begun once, have each of their terms once, and are taken when they are complete |
| 5 | a core holds its weights and tiles |
| 6 | predicted cycles are those of the schedule, and results are computed by those who own them |
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from weft.errors import WeftError
from weft.spatial.isa import MEANINGS
from weft.spatial.mesh.program import Compute, MeshProgram, Multiply, Source, Tile, Transfer


class MeshViolation(WeftError):
    """A schedule that a mesh cannot run as it is meant."""


@dataclass
class _Checks:
    program: MeshProgram
    found: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    there: dict[tuple[int, Tile], int] = field(default_factory=dict[tuple[int, Tile], int])

    def say(self, invariant: int, each: Transfer | Multiply | Compute, what: str) -> None:
        core = each.source if isinstance(each, Transfer) else each.core
        known = 0 <= each.origin < len(self.program.origins)
        origin = self.program.origins[each.origin] if known else "no op"
        said = f"core {core}, cycle {each.cycle}: {type(each).__name__.lower()} of {origin} {what}"
        self.found.append((invariant, said))

    def run(self) -> list[tuple[int, str]]:
        self._collect()
        self._units()
        self._links()
        self._uses()
        self._sums()
        self._memory()
        self._length()
        return self.found

    def _collect(self) -> None:
        """From when on each core has each tile, by what makes and brings them."""
        program, machine = self.program, self.program.machine
        for number in [*program.inputs, *(n for n, each in enumerate(program.tensors) if each.data is not None)]:
            for tile, core in program.tensors[number].owners.items():
                self.there[core, tile] = 0
        for each in program.computes:
            if each.last:
                done = each.cycle + machine.vector_cycles + machine.latency.vector
                self.there[each.core, each.into] = done
        for each in program.transfers:
            length = machine.link_cycles(program.tensors[each.tile.tensor].dtype.itemsize)
            far = {hop.target: hop.before + 1 for hop in each.hops}
            for core in each.targets:
                if core not in far:
                    self.say(2, each, f"does not reach core {core}")
                    continue
                came = each.cycle + far[core] * machine.network.hop_cycles + length + machine.latency.receive
                self.there[core, each.tile] = min(came, self.there.get((core, each.tile), came))

    def _units(self) -> None:
        machine = self.program.machine
        for those, length in (
            (self.program.multiplies, machine.matrix_cycles),
            (self.program.computes, machine.vector_cycles),
        ):
            busy: dict[int, int] = {}
            for each in sorted(those, key=lambda each: each.cycle):
                if not 0 <= each.core < machine.cores or each.cycle < 0:
                    self.say(1, each, "is on no core of the machine")
                elif each.cycle < busy.get(each.core, 0):
                    self.say(1, each, "begins while the unit is busy")
                busy[each.core] = each.cycle + length

    def _links(self) -> None:
        program, machine = self.program, self.program.machine
        uses: dict[tuple[int, int, int], list[tuple[int, int, Transfer]]] = {}
        for each in program.transfers:
            length = machine.link_cycles(program.tensors[each.tile.tensor].dtype.itemsize)
            reached = {each.source: 0}
            for hop in each.hops:
                if reached.get(hop.source) != hop.before or not self._wired(hop.source, hop.target, each.network):
                    self.say(2, each, f"goes from core {hop.source} to {hop.target} where no link leads it")
                reached[hop.target] = hop.before + 1
                start = each.cycle + hop.before * machine.network.hop_cycles
                uses.setdefault((hop.source, hop.target, each.network), []).append((start, start + length, each))
        for those in uses.values():
            those.sort(key=lambda each: each[:2])
            for (_, end, _), (start, _, each) in pairwise(those):
                if start < end:
                    self.say(1, each, "takes a link on which another tile is")

    def _wired(self, source: int, target: int, network: int) -> bool:
        grid, step = self.program.machine.grid, -1 if network % 2 else 1
        if not 0 <= network < self.program.machine.network.count:
            return False
        (row, column), (to, across) = divmod(source, grid.columns), divmod(target, grid.columns)
        east = row == to and across == (column + step) % grid.columns
        south = column == across and to == (row + step) % grid.rows
        return (east or south) and source != target

    def _uses(self) -> None:
        machine = self.program.machine
        for each in self.program.transfers:
            if self._when(each.source, each.tile) + machine.latency.inject > each.cycle:
                self.say(3, each, "sends a tile before its core has it")
        for each in self.program.multiplies:
            if self._when(each.core, each.tile) > each.cycle:
                self.say(3, each, "multiplies a tile before its core has it")
            if not 0 <= each.weights < len(self.program.weights):
                self.say(3, each, "multiplies by weights that there are not")
        for each in self.program.computes:
            for kind, ref in each.operands:
                if kind == Source.TILE and isinstance(ref, Tile) and self._when(each.core, ref) > each.cycle:
                    self.say(3, each, "takes a tile before its core has it")
            if len(each.operands) != len(MEANINGS[each.function].operands):
                self.say(3, each, "has another number of operands than its function")

    def _when(self, core: int, tile: Tile) -> int:
        return self.there.get((core, tile), 1 << 60)

    def _sums(self) -> None:
        machine = self.program.machine
        done: dict[tuple[int, Tile], int] = {}
        met: dict[tuple[int, Tile], list[tuple[int, int, int]]] = {}
        for each in sorted(self.program.multiplies, key=lambda each: each.cycle):
            key = (each.core, each.into)
            if each.adds != (key in done):
                self.say(4, each, "adds to sums that were not begun" if each.adds else "begins sums anew")
            own = (each.tile.tensor, each.tile.column, each.weights)
            met.setdefault(key, []).append(own if each.tile.row == each.into.row else (-1, -1, -1))
            done[key] = each.cycle + machine.matrix_cycles + machine.latency.matrix
        steps: dict[tuple[int, Tile], list[int]] = {}
        for each in sorted(self.program.computes, key=lambda each: each.cycle):
            own = steps.setdefault((each.core, each.into), [])
            for kind, ref in each.operands:
                terms = self.program.terms.get((each.into.tensor, each.into.column), ())
                if kind == Source.SUMS and sorted(met.get((each.core, each.into), [])) != sorted(terms):
                    self.say(4, each, "takes sums that do not have each of their terms once")
                if kind == Source.SUMS and done.get((each.core, each.into), 1 << 60) > each.cycle:
                    self.say(4, each, "takes sums that are not complete")
                if kind == Source.STEP and (not isinstance(ref, int) or ref >= len(own) or own[ref] > each.cycle):
                    self.say(4, each, "takes a step that is not done")
            if each.step != len(own):
                self.say(4, each, "is not the next step of its expression")
            own.append(each.cycle + machine.vector_cycles + machine.latency.vector)

    def _memory(self) -> None:
        size, held = self.program.machine.core.tile**2, dict[int, int]()
        tiles = [(core, self.program.tensors[tile.tensor].dtype.itemsize) for core, tile in self.there]
        for core, itemsize in [*tiles, *((core, 1) for core, _ in self.program.resident)]:
            held[core] = held.get(core, 0) + size * itemsize
        for core, demand in held.items():
            if demand > self.program.machine.core.memory_bytes:
                capacity = self.program.machine.core.memory_bytes
                self.found.append((5, f"core {core} holds {demand} bytes, and has {capacity}"))

    def _length(self) -> None:
        made = [when for (_, tile), when in self.there.items() if tile.tensor not in self.program.inputs]
        computed = {(each.core, each.into) for each in self.program.computes if each.last}
        for number in self.program.outputs:
            for tile, core in self.program.tensors[number].owners.items():
                if (core, tile) not in computed:
                    self.found.append(
                        (6, f"core {core} does not compute {tile} of {self.program.tensors[number].name}")
                    )
        own = [when for key, when in self.there.items() if key in computed]
        if max(own, default=0) != self.program.cycles or max(made, default=0) < max(own, default=0):
            said = f"{self.program.cycles} cycles are predicted, and the schedule takes {max(own, default=0)}"
            self.found.append((6, said))


def mesh_violations(program: MeshProgram) -> list[tuple[int, str]]:
    """What is wrong with a schedule: the number of the invariant, and where."""
    return _Checks(program).run()


def verify_mesh(program: MeshProgram) -> None:
    """Refuse a schedule with the first thing that is wrong."""
    found: Iterable[tuple[int, str]] = mesh_violations(program)
    for invariant, what in found:
        raise MeshViolation(f"invariant {invariant}: {what}", hint="the schedule was changed, or its machine was")
