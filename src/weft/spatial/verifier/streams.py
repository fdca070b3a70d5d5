"""Invariants 2, 3 and 6: what is on streams when an instruction takes it, who put it there, and what ALUs hand on."""

from __future__ import annotations

import numpy as np

from weft.spatial.isa import (
    CHAINED,
    EMITS,
    MEANINGS,
    NONE,
    Function,
    Opcode,
    load_widths,
    operand_bytes,
    result_bytes,
)
from weft.spatial.registers import Registers
from weft.spatial.verifier.violations import Checks


def check_streams(checks: Checks) -> None:
    """Look at every register that is driven and at every one that is read."""
    machine, issues, op = checks.program.machine, checks.issues, checks.issues["opcode"]
    alu = op == Opcode.ALU
    function = np.where(alu, issues["function"], 0)
    if np.any((function < 0) | (function >= len(Function))):
        checks.refuse(6, np.flatnonzero((function < 0) | (function >= len(Function))), "computes no known function")
        return
    made = np.array([result_bytes(each) for each in Function])[function]
    emits = (op == Opcode.ACCUMULATE) & (issues["detail"] & EMITS > 0)
    plain = np.isin(op, (Opcode.READ, Opcode.RECEIVE))
    width = np.where(plain, 1, np.where(emits, 4, np.where(alu & (issues["result"] != NONE), made, 0)))
    after = np.select(
        [op == Opcode.READ, alu, op == Opcode.RECEIVE],
        [machine.latency.read, machine.latency.alu, machine.latency.receive],
        default=machine.latency.accumulate,
    )
    driving, driven_byte = _spread(width)
    streams = issues["result"][driving] + driven_byte
    checks.refuse(2, driving[~_exists(checks, issues["result"][driving], streams)], "drives a stream that is not there")
    positions, cycles = checks.positions[issues["queue"][driving]], (issues["cycle"] + after)[driving]
    registers = Registers.of(machine, streams, positions, cycles)
    doubles = registers.doubles()
    checks.refuse(3, driving[doubles[:, 1]], "drives a register that another instruction drives in the same cycle")
    for operand in (0, 1):
        _check_operand(checks, registers, driving, driven_byte, streams, positions, cycles, operand)
        _check_chained(checks, operand)


def _check_operand(
    checks: Checks,
    registers: Registers,
    driving: np.ndarray,
    driven_byte: np.ndarray,
    streams: np.ndarray,
    positions: np.ndarray,
    cycles: np.ndarray,
    operand: int,
) -> None:
    machine, issues, op = checks.program.machine, checks.issues, checks.issues["opcode"]
    source = issues[f"source{operand}"]
    width = np.zeros(len(op), np.int64)
    alu = (op == Opcode.ALU) & (source < CHAINED)
    takes = np.array([operand_bytes(each, operand) for each in Function])
    width[alu] = takes[issues["function"][alu]]
    if operand == 0:
        width[np.isin(op, (Opcode.WRITE, Opcode.MULTIPLY, Opcode.SEND))] = 1
        loading = op == Opcode.LOAD_WEIGHTS
        width[loading] = load_widths(issues["detail"][loading], machine)
    reading, byte = _spread(width)
    wanted_stream = source[reading] + byte
    exists = _exists(checks, source[reading], wanted_stream)
    checks.refuse(2, reading[~exists], "takes a stream that is not there")
    reading, byte, wanted_stream = reading[exists], byte[exists], wanted_stream[exists]
    at, when = checks.positions[issues["queue"][reading]], issues["cycle"][reading]
    held = registers.holder(wanted_stream, at, when)
    checks.refuse(2, reading[held < 0], "finds nothing on its stream")
    kept = held >= 0
    reading, byte, held, wanted_stream = reading[kept], byte[kept], held[kept], wanted_stream[kept]
    loads = op[reading] == Opcode.LOAD_WEIGHTS
    wanted = issues[f"want{operand}"][reading] + np.where(loads, byte, 0)
    other = issues["tag"][driving[held]] != wanted
    if other.any():
        points = _points(checks, streams, positions, cycles)
        mine = _points(checks, wanted_stream[other], at[kept][other], when[kept][other])
        flights = set(zip(points.tolist(), issues["tag"][driving].tolist(), strict=True))
        over = np.array([pair in flights for pair in zip(mine.tolist(), wanted[other].tolist(), strict=True)])
        checks.refuse(3, reading[other][over], "finds that its vector was driven over on the way")
        checks.refuse(2, reading[other][~over], "finds another vector than it is meant to take")
    # The bytes of one operand are those of one result, in order; constants are read byte by byte.
    one_result = ~np.isin(op[driving[held]], (Opcode.READ, Opcode.RECEIVE))
    writes = op[reading] == Opcode.WRITE
    meant = np.where(writes, issues["detail"][reading] % 16, byte)
    torn = ~loads & ~other & one_result & (driven_byte[held] != meant)
    _check_types(checks, reading[one_result & ~other & ~loads], driving[held[one_result & ~other & ~loads]], operand)
    checks.refuse(2, reading[torn], "finds the bytes of its vector in another order")
    handed = ~other & ~one_result & np.isin(op[reading], (Opcode.SEND, Opcode.WRITE))
    kept_byte = issues["detail"][reading] % 16 != issues["detail"][driving[held]]
    checks.refuse(2, reading[handed & kept_byte], "finds another byte of its vector")
    constant = ~loads & ~other & ~one_result & (width[reading] > 1)
    if constant.any():
        _check_bytes(checks, reading[constant], byte[constant], driving[held[constant]])


def _check_types(checks: Checks, reading: np.ndarray, drivers: np.ndarray, operand: int) -> None:
    """What takes a result takes its type; a write says how many bytes its vectors have."""
    op, issues = checks.issues["opcode"], checks.issues
    results = np.array([np.dtype(MEANINGS[each].result).num for each in Function])
    sizes = np.array([result_bytes(each) for each in Function])
    summed = op[drivers] == Opcode.ACCUMULATE
    made = np.where(summed, np.dtype(np.int32).num, results[issues["function"][drivers]])
    size = np.where(summed, 4, sizes[issues["function"][drivers]])
    alu = op[reading] == Opcode.ALU
    needs = _operand_types(operand)[issues["function"][reading]]
    writes = op[reading] == Opcode.WRITE
    wrong = (
        (alu & (made != needs)) | (writes & (size != issues["detail"][reading] // 16)) | (~alu & ~writes & (size != 1))
    )
    checks.refuse(6, reading[wrong], "finds a vector of another type")


def _operand_types(operand: int) -> np.ndarray:
    meanings = (MEANINGS[each].operands for each in Function)
    return np.array([np.dtype(given[operand]).num if operand < len(given) else -1 for given in meanings])


def _check_bytes(checks: Checks, reading: np.ndarray, byte: np.ndarray, drivers: np.ndarray) -> None:
    """The bytes of a wide constant lie in neighbouring slices, at one address; a read of a tensor says its byte."""
    # Where the first byte is another vector's, or none, the operand is refused already.
    told = np.isin(reading, reading[byte == 0])
    reading, byte, drivers = reading[told], byte[told], drivers[told]
    queue, address = checks.issues["queue"][drivers], checks.issues["address"][drivers]
    first = np.flatnonzero(byte == 0)
    begin = first[np.searchsorted(first, np.arange(len(byte)), side="right") - 1]
    said = checks.issues["detail"][drivers]
    beside = (queue - queue[begin] == byte) & (said == 0)
    wrong = (~beside & (said != byte)) | (address != address[begin])
    checks.refuse(2, reading[wrong], "finds the bytes of a word in another order")


def _check_chained(checks: Checks, operand: int) -> None:
    """ALUs hand results to neighbours, in the cycle in which they are ready."""
    machine, issues = checks.program.machine, checks.issues
    source, columns = issues[f"source{operand}"], machine.vector.mesh_columns
    taking = np.flatnonzero((issues["opcode"] == Opcode.ALU) & (source >= CHAINED))
    if not len(taking):
        return
    maker, own = source[taking] - CHAINED, issues["queue"][taking] - machine.slices
    far = np.abs(maker // columns - own // columns) + np.abs(maker % columns - own % columns)
    checks.refuse(6, taking[(far != 1) | (maker >= machine.alus)], "takes an operand of an ALU that is no neighbour")
    all_ = checks.of(Opcode.ALU)
    keys = (issues["queue"][all_].astype(np.int64) << 40) + issues["cycle"][all_]
    order = np.argsort(keys, kind="stable")
    wanted = ((maker + machine.slices).astype(np.int64) << 40) + issues["cycle"][taking] - machine.latency.alu
    at = np.minimum(np.searchsorted(keys[order], wanted), len(keys) - 1)
    found = keys[order][at] == wanted
    checks.refuse(2, taking[~found], "is handed nothing by its neighbour")
    giver = all_[order[at]]
    meant = issues[f"want{operand}"][taking]
    checks.refuse(2, taking[found & (issues["tag"][giver] != meant)], "is handed another vector by its neighbour")
    results = np.array([np.dtype(MEANINGS[each].result).num for each in Function])
    needs = _operand_types(operand)
    typed = results[issues["function"][giver]] == needs[issues["function"][taking]]
    checks.refuse(6, taking[found & ~typed], "is handed a vector of another type")


def _spread(width: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    which = np.repeat(np.arange(len(width)), width)
    return which, np.arange(len(which)) - np.repeat(np.cumsum(width) - width, width)


def _exists(checks: Checks, first: np.ndarray, stream: np.ndarray) -> np.ndarray:
    """Whether streams are there, and in the direction of the first of their operand."""
    per_direction = checks.program.machine.streams.per_direction
    return (first >= 0) & (stream < 2 * per_direction) & (stream // per_direction == first // per_direction)


def _points(checks: Checks, streams: np.ndarray, positions: np.ndarray, cycles: np.ndarray) -> np.ndarray:
    east = streams < checks.program.machine.streams.per_direction
    return (streams.astype(np.int64) << 40) + cycles - np.where(east, positions, -positions)
