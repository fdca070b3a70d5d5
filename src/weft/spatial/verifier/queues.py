"""Invariants 1, 8 and 10: what queues issue, what they fetch and where it lies, and how long it takes."""

from __future__ import annotations

import numpy as np

from weft.spatial.isa import Opcode
from weft.spatial.program import ISSUE, NOP, REPEAT, port_of
from weft.spatial.verifier.violations import Checks


def check_units(checks: Checks) -> bool:
    """Every instruction is one of its unit's; otherwise nothing else can be asked."""
    rows, units = checks.program.instructions, checks.program.units
    machine = checks.program.machine
    queue, opcode = rows["queue"], rows["opcode"]
    known = (queue >= 0) & (queue < units.end) & (opcode >= 0) & (opcode < len(Opcode))
    known &= (rows["count"] > 0) & (rows["period"] > 0) & (rows["cycle"] >= 0)
    memory, alu = queue < machine.slices, (queue >= machine.slices) & (queue < machine.slices + machine.alus)
    part = (queue - machine.slices - machine.alus) % 3
    link = queue >= units.link(0)
    plane = ~memory & ~alu & (queue < units.planes_end)
    fits = memory & (opcode <= Opcode.WRITE)
    fits |= alu & (opcode == Opcode.ALU)
    fits |= plane & (part == 0) & np.isin(opcode, (Opcode.LOAD_WEIGHTS, Opcode.INSTALL_WEIGHTS))
    fits |= plane & (part == 1) & (opcode == Opcode.MULTIPLY)
    fits |= plane & (part == 2) & (opcode == Opcode.ACCUMULATE)
    fits |= link & np.isin(opcode, (Opcode.SEND, Opcode.RECEIVE))
    wrong = np.flatnonzero(~(known & fits))
    if len(wrong):
        row = rows[wrong[0]]
        checks.say(1, f"queue {row['queue']}, cycle {row['cycle']}: opcode {row['opcode']} is not one of this unit's")
    return not len(wrong)


def check_queues(checks: Checks) -> None:
    """One issue a cycle, and words that expand to it."""
    issues = checks.issues
    port = port_of(issues["opcode"])
    order = np.lexsort((issues["cycle"], port, issues["queue"]))
    same = np.ones(len(order) - 1, bool) if len(order) else np.zeros(0, bool)
    for values in (issues["cycle"], port, issues["queue"]):
        same &= values[order][1:] == values[order][:-1]
    checks.refuse(1, order[1:][same], "issues in a cycle in which its queue has issued already")
    _check_words(checks)


def _check_words(checks: Checks) -> None:
    program = checks.program
    rows = program.instructions
    cycles = np.full(len(rows), -1)
    counts = np.zeros(len(rows), np.int64)
    periods = np.ones(len(rows), np.int64)
    queues, ports = rows["queue"].tolist(), port_of(rows["opcode"]).tolist()
    for text in program.texts:
        time, last = 0, -1
        for kind, one, two in text.words.tolist():
            if kind == NOP:
                time += one
            elif kind == ISSUE and 0 <= one < len(rows) and counts[one] == 0:
                cycles[one], counts[one], last = time, 1, one
                if queues[one] != text.queue or ports[one] != text.port:
                    checks.say(1, f"{program.units.name(text.queue)} has the words of another unit")
                time += 1
            elif kind == REPEAT and last >= 0:
                counts[last], periods[last] = 1 + one, two
                time += one * two
                last = -1
            else:
                checks.say(1, f"{program.units.name(text.queue)}, cycle {time}: a word that means nothing")
    repeated = rows["count"] > 1
    wrong = (cycles != rows["cycle"]) | (counts != rows["count"]) | (repeated & (periods != rows["period"]))
    if wrong.any():
        first = int(np.flatnonzero(wrong)[0])
        checks.say(
            1,
            f"{program.units.name(int(rows['queue'][first]))}: its words issue {counts[first]} from cycle "
            f"{cycles[first]}, the schedule {rows['count'][first]} from cycle {rows['cycle'][first]}",
        )


def check_capacity(checks: Checks) -> None:
    """Memory holds everything once, and queues are fed in time."""
    program, machine = checks.program, checks.program.machine
    parts = [program.image, *program.inputs]
    slices = np.concatenate([part.slices for part in parts])
    addresses = np.concatenate([part.addresses for part in parts])
    if len(slices) and (
        slices.min() < 0
        or slices.max() >= machine.slices
        or addresses.min() < 0
        or addresses.max() >= machine.slice_words
    ):
        checks.say(8, "a word of the data at the start lies outside of memory")
        return
    places = slices * machine.slice_words + addresses
    if len(np.unique(places)) != len(places):
        order = np.sort(places)
        twice = int(order[1:][order[1:] == order[:-1]][0])
        name = program.units.name(twice // machine.slice_words)
        checks.say(8, f"{name}: two words of the data lie at address {twice % machine.slice_words}")
    written = checks.of(Opcode.WRITE)
    own = checks.issues["queue"][written].astype(np.int64) * machine.slice_words + checks.issues["address"][written]
    words = len(np.union1d(places, own))
    text = sum(len(each.words) for each in program.texts) * machine.control.instruction_bytes
    demand = words * machine.width + text
    if demand > machine.memory_bytes:
        checks.say(8, f"data and text are {demand} bytes, and memory has {machine.memory_bytes}")
    _check_fetch(checks)


def _check_fetch(checks: Checks) -> None:
    machine = checks.program.machine
    rate = machine.control.fetch_bytes / machine.control.instruction_bytes
    needed: dict[int, list[np.ndarray]] = {}
    for text in checks.program.texts:
        kinds, first, second = (text.words[:, part] for part in range(3))
        spans = np.where(kinds == ISSUE, 1, np.where(kinds == NOP, first, first * second))
        needed.setdefault(text.queue, []).append(np.cumsum(spans) - spans)
    for queue, parts in needed.items():
        times = np.sort(np.concatenate(parts))
        late = np.arange(1, len(times) + 1) > machine.control.depth + (times + 1) * rate
        if late.any():
            cycle = int(times[np.argmax(late)])
            checks.say(8, f"{checks.program.units.name(queue)}, cycle {cycle}: its next word is not fetched yet")


def check_length(checks: Checks) -> None:
    """The length of the schedule is what was predicted."""
    if not len(checks.issues["cycle"]):
        return
    begin, end = length_of(checks)
    if end - begin != checks.program.cycles:
        checks.say(10, f"{checks.program.cycles} cycles are predicted, and the schedule takes {end - begin}")


def length_of(checks: Checks) -> tuple[int, int]:
    """The cycles of the first issue and of the end."""
    machine, issues = checks.program.machine, checks.issues
    late = machine.latency
    after = {
        Opcode.READ: late.read,
        Opcode.WRITE: late.write,
        Opcode.LOAD_WEIGHTS: late.load_weights,
        Opcode.INSTALL_WEIGHTS: late.install_weights,
        Opcode.MULTIPLY: late.multiply,
        Opcode.ACCUMULATE: late.accumulate,
        Opcode.ALU: late.alu,
        Opcode.SEND: late.send,
        Opcode.RECEIVE: late.receive,
    }
    ends = [int(issues["cycle"][own].max()) + time for op, time in after.items() if len(own := checks.of(op))]
    return int(issues["cycle"].min()), max(ends) + machine.lanes.tiles
