"""Schedules that were tampered with: one change each, of all kinds, to see what the verifier lets through.

A mutant is harmful where running it, as the machine would, fails or gives other results. The verifier must refuse every
harmful one, and no schedule that is as it was made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from weft.errors import WeftError
from weft.spatial.isa import NONE, Function, Opcode
from weft.spatial.program import Image, Program, port_of
from weft.spatial.scheduler.emit import texts_of
from weft.spatial.simulator.run import simulate
from weft.spatial.simulator.system import simulate_system
from weft.spatial.system import System
from weft.spatial.verifier.verify import system_violations, violations


@dataclass(frozen=True)
class Mutant:
    """A changed program, and what was changed."""

    kind: str
    program: Program


@dataclass
class MutantCount:
    """What became of mutants, by kind."""

    caught: Counter[str] = field(default_factory=Counter[str])
    missed: Counter[str] = field(default_factory=Counter[str])
    benign: Counter[str] = field(default_factory=Counter[str])
    """Caught or not: running them does no harm."""
    invariants: Counter[int] = field(default_factory=Counter[int])
    misses: list[Mutant] = field(default_factory=list[Mutant])

    @property
    def harmful(self) -> int:
        return self.caught.total() + self.missed.total()


def single_issues(program: Program, rng: np.random.Generator) -> Program:
    """A program in which one group, if it repeats, is split where a mutation may change one issue alone."""
    rows = program.instructions
    repeated = np.flatnonzero(rows["count"] > 2)
    if not len(repeated):
        return program
    chosen = int(rng.choice(repeated))
    row: Any = rows[chosen]
    at = 1 + int(rng.integers(int(row["count"]) - 2))
    parts = [_part(row, 0, at), _part(row, at, 1), _part(row, at + 1, int(row["count"]) - at - 1)]
    made = np.concatenate([rows[:chosen], *parts, rows[chosen + 1 :]])
    return replace(program, instructions=made, texts=texts_of(made))


def _part(row: Any, first: int, count: int) -> np.ndarray:
    made = np.array([row])
    made["count"] = count
    for name, step in (
        ("cycle", "period"),
        ("address", "step"),
        ("tag", "tag_step"),
        ("want0", "want0_step"),
        ("want1", "want1_step"),
    ):
        made[name] += first * row[step]
    return made


def mutate(program: Program, rng: np.random.Generator) -> Mutant | None:
    """One change; None where the program has nothing of the chosen kind."""
    name = str(rng.choice(list(_MUTATIONS)))
    base = single_issues(program, rng)
    changed = _MUTATIONS[name](base, rng)
    return None if changed is None else Mutant(name, changed)


def _with_rows(program: Program, rows: np.ndarray) -> Program | None:
    """The program with other instructions, and words that say so; None where words cannot say it."""
    port = port_of(rows["opcode"]).astype(int)
    order = np.lexsort((rows["cycle"], port, rows["queue"]))
    key = rows["queue"][order] * 2 + port[order]
    ends = (rows["cycle"] + (rows["count"] - 1) * rows["period"])[order]
    follows = (key[1:] == key[:-1]) & (rows["cycle"][order][1:] <= ends[:-1])
    if follows.any() or rows["cycle"].min() < 0:
        return replace(program, instructions=rows)  # the queue would have to issue twice: its words do not say so
    return replace(program, instructions=rows, texts=texts_of(rows))


def _change(opcodes: Sequence[Opcode], column: str, by: Callable[[np.random.Generator, Program], int]):  # type: ignore[no-untyped-def]
    def changed(program: Program, rng: np.random.Generator) -> Program | None:
        rows = program.instructions.copy()
        fitting = np.flatnonzero(np.isin(rows["opcode"], opcodes) & (rows[column] != NONE))
        if not len(fitting):
            return None
        chosen = int(rng.choice(fitting))
        rows[column][chosen] += by(rng, program)
        return _with_rows(program, rows)

    return changed


def _one(rng: np.random.Generator, program: Program) -> int:
    return int(rng.choice([-1, 1]))


def _swap(program: Program, rng: np.random.Generator) -> Program | None:
    """Two instructions of one queue change places in time."""
    rows = program.instructions.copy()
    queue = rows["queue"][int(rng.integers(len(rows)))]
    own = np.flatnonzero((rows["queue"] == queue) & (rows["count"] == 1))
    if len(own) < 2:
        return None
    one, other = rng.choice(own, 2, replace=False)
    rows["cycle"][[one, other]] = rows["cycle"][[other, one]]
    return _with_rows(program, rows)


def _drop(program: Program, rng: np.random.Generator) -> Program | None:
    rows = np.delete(program.instructions, int(rng.integers(len(program.instructions))))
    return _with_rows(program, rows)


def _plane(program: Program, rng: np.random.Generator) -> Program | None:
    rows = program.instructions.copy()
    fitting = np.flatnonzero(np.isin(rows["opcode"], (Opcode.MULTIPLY, Opcode.ACCUMULATE, Opcode.INSTALL_WEIGHTS)))
    chosen = int(rng.choice(fitting)) if len(fitting) else -1
    if chosen < 0:
        return None
    first, planes = program.units.plane(0, 0), program.machine.matrix.planes
    plane, part = divmod(int(rows["queue"][chosen]) - first, 3)
    rows["queue"][chosen] = first + 3 * ((plane + int(rng.integers(1, planes))) % planes) + part
    return _with_rows(program, rows)


def _alu(program: Program, rng: np.random.Generator) -> Program | None:
    rows = program.instructions.copy()
    fitting = np.flatnonzero(rows["opcode"] == Opcode.ALU)
    if not len(fitting):
        return None
    chosen = int(rng.choice(fitting))
    number = int(rows["queue"][chosen]) - program.machine.slices
    rows["queue"][chosen] = program.machine.slices + (number + int(rng.integers(1, 16))) % program.machine.alus
    return _with_rows(program, rows)


def _function(program: Program, rng: np.random.Generator) -> Program | None:
    rows = program.instructions.copy()
    converts = np.isin(rows["function"], (Function.I32_TO_F32, Function.F32_TO_I8))
    fitting = np.flatnonzero((rows["opcode"] == Opcode.ALU) & converts)
    if not len(fitting):
        return None
    chosen = int(rng.choice(fitting))
    rows["function"][chosen] = (
        Function.I8_TO_F32 if rows["function"][chosen] == Function.I32_TO_F32 else Function.RELU_F32
    )
    return _with_rows(program, rows)


def _words(program: Program, rng: np.random.Generator) -> Program | None:
    """A queue's words wait one cycle more or less than the schedule says."""
    number = int(rng.integers(len(program.texts)))
    text = program.texts[number]
    words = text.words.copy()
    waits = np.flatnonzero(words[:, 0] == 1)
    if not len(waits):
        return None
    words[int(rng.choice(waits)), 1] += 1
    texts = [*program.texts[:number], replace(text, words=words), *program.texts[number + 1 :]]
    return replace(program, texts=texts)


def _image(program: Program, rng: np.random.Generator) -> Program | None:
    """A word of the data at the start lies elsewhere."""
    image = program.image
    if not len(image.slices):
        return None
    addresses = image.addresses.copy()
    chosen = int(rng.integers(len(addresses)))
    addresses[chosen] = (addresses[chosen] + 1) % program.machine.slice_words
    return replace(program, image=Image(image.slices, addresses, image.tags, image.data))


def _cycles(program: Program, rng: np.random.Generator) -> Program | None:
    return replace(program, cycles=program.cycles + _one(rng, program))


_ANY = tuple(Opcode)
_MEMORY = (Opcode.READ, Opcode.WRITE)
_MUTATIONS: dict[str, Callable[[Program, np.random.Generator], Program | None]] = {
    "shift by a cycle": _change(_ANY, "cycle", _one),
    "swap": _swap,
    "drop": _drop,
    "result stream": _change((Opcode.READ, Opcode.ACCUMULATE, Opcode.ALU), "result", _one),
    "operand stream": _change((Opcode.WRITE, Opcode.MULTIPLY, Opcode.LOAD_WEIGHTS), "source0", _one),
    "address": _change(_MEMORY, "address", _one),
    "bank": _change(_MEMORY, "address", lambda rng, program: program.machine.memory.bank_words * _one(rng, program)),
    "weight rows": _change((Opcode.LOAD_WEIGHTS,), "address", _one),
    "accumulator row": _change((Opcode.ACCUMULATE,), "address", _one),
    "accumulator bits": _change((Opcode.ACCUMULATE,), "detail", _one),
    "plane": _plane,
    "ALU": _alu,
    "function": _function,
    "words": _words,
    "data": _image,
    "prediction": _cycles,
}


def is_harmful(mutant: Mutant, arrays: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> bool:
    """Whether running it fails, takes other cycles than predicted, or gives other results."""
    try:
        run = simulate(mutant.program, arrays, check=False)
    except (WeftError, IndexError, KeyError, ValueError):
        return True
    same = all(np.array_equal(one, other) for one, other in zip(run.results, expected, strict=True))
    return not same or run.cycles != mutant.program.cycles


def count_mutants(
    program: Program,
    arrays: Sequence[np.ndarray],
    expected: Sequence[np.ndarray],
    number: int,
    seed: int,
    into: MutantCount,
) -> None:
    """Make mutants of a program, run them and ask the verifier."""
    rng = np.random.default_rng(seed)
    for _ in range(number):
        mutant = mutate(program, rng)
        if mutant is None:
            continue
        found = violations(mutant.program)
        if not is_harmful(mutant, arrays, expected):
            into.benign[mutant.kind] += 1
        elif found:
            into.caught[mutant.kind] += 1
            into.invariants.update({each.invariant for each in found})
        else:
            into.missed[mutant.kind] += 1
            into.misses.append(mutant)


def mutate_system(system: System, rng: np.random.Generator) -> tuple[str, System] | None:
    """One change of one chip: of what its links do if the turn is theirs, of anything else otherwise."""
    chip = int(rng.integers(len(system.programs)))
    program = system.programs[chip]
    if not len(program.instructions):
        return None
    linked = np.flatnonzero(np.isin(program.instructions["opcode"], (Opcode.SEND, Opcode.RECEIVE)))
    if len(linked) and rng.integers(2):
        name = str(rng.choice(list(_LINK_MUTATIONS)))
        changed = _LINK_MUTATIONS[name](program, rng, int(rng.choice(linked)))
    else:
        mutant = mutate(program, rng)
        name, changed = (mutant.kind, mutant.program) if mutant else ("", None)
    if changed is None:
        return None
    programs = [*system.programs[:chip], changed, *system.programs[chip + 1 :]]
    return name, replace(system, programs=programs)


def _drop_linked(program: Program, rng: np.random.Generator, chosen: int) -> Program | None:
    return _with_rows(program, np.delete(program.instructions, chosen))


def _early(program: Program, rng: np.random.Generator, chosen: int) -> Program | None:
    """A vector is received, and what takes it follows, some cycles early; or it is sent late."""
    rows = program.instructions.copy()
    received = rows["opcode"][chosen] == Opcode.RECEIVE
    rows["cycle"][chosen] += -int(rng.integers(1, 40)) if received else int(rng.integers(1, 40))
    return _with_rows(program, rows)


def _other_link(program: Program, rng: np.random.Generator, chosen: int) -> Program | None:
    rows, units = program.instructions.copy(), program.units
    count = program.machine.links.count
    number = int(rows["queue"][chosen]) - units.link(0)
    rows["queue"][chosen] = units.link((number + int(rng.integers(1, count))) % count)
    return _with_rows(program, rows)


def _other_vector(program: Program, rng: np.random.Generator, chosen: int) -> Program | None:
    """Two vectors change places on their link, both ends of the chip agreeing."""
    rows = program.instructions.copy()
    column = "tag" if rows["opcode"][chosen] == Opcode.RECEIVE else "want0"
    rows[column][chosen] += _one(rng, program)
    return _with_rows(program, rows)


_LINK_MUTATIONS: dict[str, Callable[[Program, np.random.Generator, int], Program | None]] = {
    "drop a send or receive": _drop_linked,
    "receive early or send late": _early,
    "link": _other_link,
    "vector of a link": _other_vector,
}


def count_system_mutants(
    system: System,
    arrays: Sequence[np.ndarray],
    expected: Sequence[np.ndarray],
    number: int,
    seed: int,
    into: MutantCount,
) -> None:
    """Make mutants of the programs of many chips, run them and ask the verifier."""
    rng = np.random.default_rng(seed)
    for _ in range(number):
        made = mutate_system(system, rng)
        if made is None:
            continue
        kind, mutant = made
        found = system_violations(mutant)
        if not is_harmful_system(mutant, arrays, expected):
            into.benign[kind] += 1
        elif found:
            into.caught[kind] += 1
            into.invariants.update({each.invariant for each in found})
        else:
            into.missed[kind] += 1


def is_harmful_system(system: System, arrays: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> bool:
    """Whether running it fails, takes other cycles than predicted, or gives other results."""
    try:
        run = simulate_system(system, arrays, check=False)
    except (WeftError, IndexError, KeyError, ValueError):
        return True
    same = all(np.array_equal(one, other) for one, other in zip(run.results, expected, strict=True))
    return not same or run.cycles != system.cycles
