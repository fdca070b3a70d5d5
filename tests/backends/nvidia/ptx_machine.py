"""Runs PTX on the CPU: a block of threads as NumPy vectors, so that generated code is checked where there is no GPU.

Threads that have gone different ways meet again at the lowest line that any of them has to do. Lanes that exchange
values must all be there, all threads must come to a barrier, and between two barriers no thread may touch bytes of
shared or global memory that another writes: each of these is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

BASE, PARAMETERS = 1 << 20, 1 << 40
"""Where global memory begins, and that of the parameters, eight bytes each."""
WIDTHS = {"pred": 1, "b8": 8, "u8": 8, "s8": 8, "b16": 16, "u16": 16, "s16": 16, "f16": 16, "bf16": 16}
WIDTHS |= {f"{kind}{bits}": bits for kind in "busf" for bits in (32, 64)}
WHOLE = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
"""How numbers are made whole."""
_PARAMETER = r"\.param (?:\.align \d+ )?\.(\w+)[^,\n]*?(\w+)(?:\[\d+\])?(?:,|\n|$)"
_TABLE = r"\.global \.align \d+ \.b8 (\S+)\[\d+\] = \{([^}]*)\}"
U64 = np.uint64


class MachineError(Exception):
    """The program does what no program may do, or what the machine does not know."""


@dataclass
class Line:
    guard: str | None
    negated: bool
    name: str
    parts: list[str]
    operands: list[Any]
    text: str


class Memory:
    """Global memory: arrays at addresses of their own, with room between them."""

    def __init__(self) -> None:
        self.bytes = np.zeros(0, np.uint8)
        self.ranges: list[tuple[int, int]] = []

    def add(self, array: np.ndarray) -> int:
        start = -(-len(self.bytes) // 256) * 256 + 256
        raw = np.frombuffer(array.tobytes(), np.uint8)
        grown = np.zeros(start + len(raw) + 64, np.uint8)
        grown[: len(self.bytes)] = self.bytes
        grown[start : start + len(raw)] = raw
        self.bytes = grown
        self.ranges.append((start, start + len(raw)))
        return start + BASE

    def read(self, address: int, like: np.ndarray) -> np.ndarray:
        start = address - BASE
        return self.bytes[start : start + like.nbytes].view(like.dtype).reshape(like.shape).copy()

    def check(self, places: np.ndarray, size: int, alignment: int | None = None, reads: bool = False) -> None:
        """Whether an access is in order. Memory has pages: 16 bytes are read of which some are a tensor's last."""
        step = alignment or size
        inside = np.zeros(places.shape, bool)
        for start, stop in self.ranges:
            inside |= (places >= start) & (places + size <= (-(-stop // 16) * 16 if reads else stop))
        if not inside.all():
            raise MachineError(f"access at {places[~inside][:4]} outside of all tensors")
        if (places % step).any():
            raise MachineError(f"an access of {size} bytes is not aligned: {places[places % step != 0][:4]}")


class Races:
    """Who touched which byte since the last barrier."""

    def __init__(self, size: int, what: str) -> None:
        self.writer = np.full(size, -1, np.int32)
        self.reader = np.full(size, -1, np.int32)  # -2: several
        self.what = what

    def wait(self) -> None:
        self.writer[:] = -1
        self.reader[:] = -1

    def touch(self, places: np.ndarray, size: int, threads: np.ndarray, writes: bool, text: str) -> None:
        spots = (places[:, None] + np.arange(size)).reshape(-1)
        who = np.repeat(threads, size)
        writer = self.writer[spots]
        if ((writer != -1) & (writer != who)).any():
            raise MachineError(f"a race in {self.what} memory: {text}")
        if writes:
            reader = self.reader[spots]
            if ((reader != -1) & (reader != who)).any():
                raise MachineError(f"a race in {self.what} memory, read before: {text}")
            self.writer[spots] = who
        else:
            known = self.reader[spots]
            self.reader[spots] = np.where((known == -1) | (known == who), who, -2)


def parse(ptx: str, entry: str) -> tuple[list[Line], dict[str, int], list[tuple[str, int]]]:
    found = re.search(r"\.entry " + re.escape(entry) + r"\((.*?)\)(.*?)\n\}", ptx, re.S)
    if not found:
        raise MachineError(f"no entry {entry}")
    params = [(WIDTHS[m.group(1)], m.group(2)) for m in re.finditer(_PARAMETER, found.group(1))]
    lines: list[Line] = []
    labels: dict[str, int] = {}
    body = re.sub(r"//[^\n]*", "", found.group(2))
    body = re.sub(r"\$L__BB\d+_\d+:", lambda m: f"{m.group(0)};", body)
    for text in body.split(";"):
        text = re.sub(r"^[{}\s]+", "", text).strip()
        if not text or text.startswith("."):
            continue
        if text.endswith(":"):
            labels[text[:-1]] = len(lines)
            continue
        match = re.match(r"(?:@(!?)(%p\d+)\s+)?([a-z0-9_.:A-Z]+)\s*(.*)$", text, re.S)
        if not match:
            raise MachineError(f"not understood: {text}")
        negated, guard, opcode, rest = match.groups()
        name, *parts = opcode.split(".")
        lines.append(Line(guard, bool(negated), name, parts, _operands(rest), text))
    return lines, labels, [(name, bits) for bits, name in params]


def tables(ptx: str, entry: str, memory: Memory) -> dict[str, int]:
    """Where the tables that an entry reads lie in global memory: a module's own constants."""
    body = ptx[ptx.index(f".entry {entry}(") :].partition("\n}")[0]
    found = {m.group(1): m.group(2) for m in re.finditer(_TABLE, ptx) if m.group(1) in body}
    return {name: memory.add(np.array(text.split(","), np.uint8)) for name, text in found.items()}


def _operands(text: str) -> list[Any]:
    result: list[Any] = []
    for part in re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+(?:\|[^,\s]+)?", text):
        if part.startswith("{"):
            result.append(re.findall(r"[^,\s{}]+", part))
        else:
            result.append(part)
    return result


class Machine:
    """One block."""

    def __init__(self, ptx: str, entry: str, threads: int, shared: int, memory: Memory) -> None:
        self.lines, self.labels, self.params = parse(ptx, entry)
        self.count, self.memory = threads, memory
        self.tables = tables(ptx, entry, memory)
        self.shared = np.zeros(shared + 64, np.uint8)
        self.shared_size = shared

    def run(self, words: list[Any], block: int, limit: int = 200_000) -> None:
        self.registers: dict[str, np.ndarray] = {}
        self.words = {name: (word, bits) for (name, bits), word in zip(self.params, words, strict=True)}
        self.block = block
        self.races = {"shared": Races(len(self.shared), "shared"), "global": Races(len(self.memory.bytes), "global")}
        self.shared[:] = 0xCD
        place = np.zeros(self.count, np.int64)
        done, waiting = np.zeros(self.count, bool), np.zeros(self.count, bool)
        for _ in range(limit):
            ready = ~done & ~waiting
            if not ready.any():
                if done.all():
                    return
                if (done & ~waiting).any():
                    raise MachineError("some threads have ended, others wait")
                waiting[:] = False
                for race in self.races.values():
                    race.wait()
                continue
            here = int(place[ready].min())
            active = ready & (place == here)
            if here >= len(self.lines):
                done |= active
                continue
            line = self.lines[here]
            place[active] = here + 1
            taken = active
            if line.guard is not None:
                flag = self.registers[line.guard].astype(bool)
                taken = active & (~flag if line.negated else flag)
                if not taken.any():
                    continue
            if line.name == "bra":
                place[taken] = self.labels[line.operands[0]]
            elif line.name in ("ret", "exit"):
                done |= taken
            elif line.name in ("bar", "barrier"):
                waiting |= taken
            else:
                try:
                    self.step(line, taken)
                except MachineError as error:
                    raise MachineError(f"{error}; at `{line.text}`") from error
        raise MachineError("the program does not end")

    # -- registers ---------------------------------------------------------------------------------------------------

    def raw(self, operand: str, type_: str) -> np.ndarray:
        if operand.startswith("-") and operand[1:].startswith("%"):
            raise MachineError(f"operand {operand}")
        if operand in ("%tid.x", "%ctaid.x"):
            return np.arange(self.count).astype(U64) if operand == "%tid.x" else np.full(self.count, self.block, U64)
        if operand.startswith("%"):
            return self.registers.get(operand, np.zeros(self.count, U64))
        if operand in self.words:
            return np.full(self.count, PARAMETERS + 8 * [*self.words].index(operand), U64)
        if operand == "shared" or operand.startswith(("__local_depot", "weft_text")):
            return np.zeros(self.count, U64)
        if operand in self.tables:
            return np.full(self.count, self.tables[operand], U64)
        if operand.startswith(("0f", "0F", "0d", "0D")):
            return np.full(self.count, int(operand[2:], 16), U64)
        if operand.startswith("0x"):
            return np.full(self.count, int(operand, 16), U64)
        if re.fullmatch(r"-?\d+U?", operand):
            return np.full(self.count, int(operand.rstrip("U")) & (2**64 - 1), U64)
        if re.fullmatch(r"-?\d+\.\d+", operand):
            return self.bits(np.full(self.count, float(operand)), type_)
        raise MachineError(f"operand {operand}")

    def value(self, operand: str, type_: str) -> np.ndarray:
        raw = self.raw(operand, type_)
        return typed(raw, type_)

    def bits(self, value: np.ndarray, type_: str) -> np.ndarray:
        match type_:
            case "pred":
                return value.astype(U64)
            case "f32":
                return value.astype(np.float32).view(np.uint32).astype(U64)
            case "f64":
                return value.astype(np.float64).view(U64)
            case "f16" | "bf16":
                return narrowed(value, type_)
            case _:
                width = WIDTHS[type_]
                value = value.astype(np.int64).view(U64) if value.dtype != U64 else value
                return value if width == 64 else value & U64((1 << width) - 1)

    def write(self, target: str, value: np.ndarray, type_: str, active: np.ndarray) -> None:
        if target == "_":
            return
        bits = self.bits(np.broadcast_to(value, (self.count,)), type_)
        if active.all():
            self.registers[target] = bits.copy()
            return
        old = self.registers.get(target)
        self.registers[target] = np.where(active, bits, np.zeros(self.count, U64) if old is None else old)

    # -- instructions ------------------------------------------------------------------------------------------------

    def step(self, line: Line, active: np.ndarray) -> None:
        name, parts, operands = line.name, line.parts, line.operands
        if name in ("fence", "membar", "nanosleep", "griddepcontrol"):
            return
        if name == "call" or (name == "st" and parts[0] in ("param", "local")):
            return  # what is printed is not looked at
        if name in ("ld", "ldu", "st", "atom", "red"):
            self.access(line, active)
            return
        if name == "mma":
            self.tensor_cores(line, active)
            return
        if name == "shfl":
            self.shuffle(line, active)
            return
        if name == "mov" and any(isinstance(o, list) for o in operands):
            self.pack(line, active)
            return
        type_ = parts[-1]
        with np.errstate(all="ignore"):
            if name == "setp":
                kinds = [p for p in parts if p in WIDTHS]
                x, y = (self.value(o, kinds[0]) for o in operands[1:3])
                self.write(operands[0], compare(parts[0], x, y), "pred", active)
            elif name == "cvt":
                self.convert(line, active)
            elif name in ("mul", "mad") and parts[0] in ("wide", "hi", "lo"):
                self.multiply(line, active)
            elif name == "selp":
                flag = self.registers[operands[3]].astype(bool)
                x, y = (self.raw(o, type_) for o in operands[1:3])
                self.write(operands[0], np.where(flag, x, y), f"b{WIDTHS[type_]}", active)
            elif name in ("shl", "shr"):
                x = self.value(operands[1], type_.replace("b", "u"))
                amount = self.value(operands[2], "u32").astype(np.int64)
                width = WIDTHS[type_]
                clipped = np.minimum(amount, width - 1)
                if name == "shl":
                    result = np.where(amount >= width, U64(0), x.astype(U64) << clipped.astype(U64))
                elif type_.startswith("s"):
                    result = x >> clipped
                else:
                    result = np.where(amount >= width, U64(0), x.astype(U64) >> clipped.astype(U64))
                self.write(operands[0], result, type_, active)
            elif name in ("shf",):
                low, high = self.raw(operands[1], "b32"), self.raw(operands[2], "b32")
                amount = self.raw(operands[3], "b32") & U64(31)
                both = (high << U64(32)) | low
                result = (both << amount) >> U64(32) if parts[0] == "l" else both >> amount
                self.write(operands[0], result, "b32", active)
            elif name == "bfe":
                x, start, length = (self.raw(o, type_) for o in operands[1:4])
                field = (x >> start) & ((U64(1) << length) - U64(1))
                if type_.startswith("s"):
                    sign = (field >> (length - U64(1))) & U64(1)
                    field = field.view(np.int64) - (sign << length).view(np.int64)
                self.write(operands[0], field, type_, active)
            elif name == "prmt":
                self.permute(line, active)
            elif name == "lop3":
                self.lop3(line, active)
            elif type_ in ("f16x2", "bf16x2"):
                whole = U64(0)
                for shift in (U64(0), U64(16)):
                    halves = [(self.raw(o, "b32") >> shift) & U64(0xFFFF) for o in operands[1:]]
                    x, *rest = (typed(half, type_[:-2]).astype(np.float64) for half in halves)
                    whole = whole | (narrowed(OPERATIONS[name](parts, x, *rest), type_[:-2]) << shift)
                self.write(operands[0], whole, "b32", active)
            elif "cc" in parts or name in ("addc", "subc"):
                self.carry(line, active)
            elif name in OPERATIONS:
                values = [self.value(o, type_) for o in operands[1:]]
                self.write(operands[0], OPERATIONS[name](parts, *values), type_, active)
            else:
                raise MachineError(f"no {name}")

    def carry(self, line: Line, active: np.ndarray) -> None:
        """Sums and differences of several words: what is carried is a register of its own."""
        if line.name not in ("add", "addc", "sub", "subc"):
            raise MachineError(f"no {line.name}.cc")
        type_ = line.parts[-1]
        width, taken = WIDTHS[type_], line.name.endswith("c")
        x, y = (self.raw(o, type_).astype(object) & ((1 << width) - 1) for o in line.operands[1:3])
        carried = self.raw("%carry", "b64").astype(object) if taken else 0
        whole = x + y + carried if line.name.startswith("add") else x - y - carried
        self.write(line.operands[0], (whole & ((1 << width) - 1)).astype(U64), f"b{width}", active)
        if "cc" in line.parts:
            self.write("%carry", ((whole >> width) & 1).astype(U64), "b64", active)

    def multiply(self, line: Line, active: np.ndarray) -> None:
        how, type_ = line.parts[0], line.parts[-1]
        width = WIDTHS[type_]
        wide = f"{type_[0]}{2 * width}" if how == "wide" else type_
        x, y = (self.value(o, type_) for o in line.operands[1:3])
        if how == "hi":
            product = np.array([int(a) * int(c) >> width for a, c in zip(x, y, strict=True)], object)
            product = np.array([int(p) & (2**64 - 1) for p in product], U64)
        else:
            signed = type_.startswith("s")
            product = x.astype(np.int64 if signed else U64) * y.astype(np.int64 if signed else U64)
        if line.name == "mad":
            product = product.astype(U64) + self.raw(line.operands[3], wide)
        self.write(line.operands[0], product, wide, active)

    def pack(self, line: Line, active: np.ndarray) -> None:
        target, source = line.operands
        width = WIDTHS[line.parts[-1]]
        if isinstance(source, list):
            each, total = width // len(source), np.zeros(self.count, U64)
            for number, part in enumerate(source):
                total = total | ((self.raw(part, f"b{each}") & U64((1 << each) - 1)) << U64(number * each))
            self.write(target, total, f"b{width}", active)
        else:
            each, whole = width // len(target), self.raw(source, f"b{width}")
            for number, part in enumerate(target):
                self.write(part, whole >> U64(number * each), f"b{each}", active)

    def permute(self, line: Line, active: np.ndarray) -> None:
        a, b, chosen = (self.raw(o, "b32") for o in line.operands[1:4])
        both, result = (b << U64(32)) | a, np.zeros(self.count, U64)
        if "f4e" in line.parts:  # four bytes in a row
            self.write(line.operands[0], both >> ((chosen & U64(3)) * U64(8)), "b32", active)
            return
        for number in range(4):
            pick = (chosen >> U64(4 * number)) & U64(0xF)
            byte = (both >> ((pick & U64(7)) * U64(8))) & U64(0xFF)
            byte = np.where(pick & U64(8), np.where(byte & U64(0x80), U64(0xFF), U64(0)), byte)
            result = result | (byte << U64(8 * number))
        self.write(line.operands[0], result, "b32", active)

    def lop3(self, line: Line, active: np.ndarray) -> None:
        a, b, c = (self.raw(o, "b32") for o in line.operands[1:4])
        table, ones = int(line.operands[4], 0), U64(0xFFFFFFFF)
        result = np.zeros(self.count, U64)
        for row in range(8):
            if table >> row & 1:
                terms = [v if row >> (2 - n) & 1 else ~v & ones for n, v in enumerate((a, b, c))]
                result = result | (terms[0] & terms[1] & terms[2])
        self.write(line.operands[0], result, "b32", active)

    def convert(self, line: Line, active: np.ndarray) -> None:
        types = [p for p in line.parts if p in WIDTHS or p in ("f16x2", "bf16x2")]
        target, source = types[0], types[-1]
        if line.parts[-1] == "e4m3x2":
            pair = self.raw(line.operands[1], "b16")
            halves = [
                ((pair >> U64(shift)) & U64(0xFF)).astype(np.uint8).view(ml_dtypes.float8_e4m3fn) for shift in (0, 8)
            ]
            low, high = (narrowed(half.astype(np.float32), "f16") for half in halves)
            self.write(line.operands[0], (high << U64(16)) | low, "b32", active)
            return
        if target in ("f16x2", "bf16x2"):
            high, low = (narrowed(self.value(o, "f32"), target[:-2]) for o in line.operands[1:3])
            self.write(line.operands[0], (high << U64(16)) | low, "b32", active)
            return
        value = self.value(line.operands[1], source)
        whole = next((WHOLE[p] for p in line.parts if p in WHOLE), None)
        if target in ("f16", "bf16", "f32", "f64") and source in ("f16", "bf16", "f32", "f64") and whole is not None:
            value = whole(value)
        if target in ("f16", "bf16"):
            self.write(line.operands[0], narrowed(value, target), "b16", active)
            return
        if target[0] == "f":
            self.write(line.operands[0], value, target, active)
            return
        if source[0] == "f" or source in ("f16", "bf16"):
            wide = value.astype(np.float64)
            wide = (whole or np.trunc)(wide)
            width, signed = WIDTHS[target], target[0] == "s"
            low = -(2 ** (width - 1)) if signed else 0
            high = 2 ** (width - 1) - 1 if signed else 2**width - 1
            limited = [
                0 if w != w else min(max(int(w) if abs(w) < 1e30 else (low if w < 0 else high), low), high)
                for w in wide
            ]
            self.write(line.operands[0], np.array([v & (2**64 - 1) for v in limited], U64), target, active)
            return
        if target == "s8":  # the register is wider, and takes the sign
            value, target = typed(self.bits(value, "b8"), "s8"), "s16"
        self.write(line.operands[0], value, target, active)

    def shuffle(self, line: Line, active: np.ndarray) -> None:
        kind, (target, source, amount, clamp, _) = line.parts[1], line.operands
        lanes = active.reshape(-1, 32)
        if (lanes.any(1) & ~lanes.all(1)).any():
            raise MachineError("not all lanes exchange values")
        value, lane = self.raw(source, "b32"), np.arange(self.count) & 31
        by, limit = int(amount), int(clamp)
        mask, low = limit >> 8 & 31, limit & 31
        first = lane & mask
        last = first | (low & ~mask)
        match kind:
            case "up":
                chosen, good = lane - by, lane - by >= last
            case "down":
                chosen, good = lane + by, lane + by <= last
            case "bfly":
                chosen, good = lane ^ by, (lane ^ by) <= last
            case _:
                chosen = first | (by & ~mask)
                good = chosen <= last
        chosen = np.where(good, chosen, lane) + (np.arange(self.count) & ~31)
        self.write(target.split("|")[0], value[chosen], "b32", active)

    def tensor_cores(self, line: Line, active: np.ndarray) -> None:
        """m16n8k16 of 16-bit operands, as the manual lays them out."""
        if line.parts[2] != "m16n8k16" or not active.reshape(-1, 32).all(1)[active.reshape(-1, 32).any(1)].all():
            raise MachineError("a product that the machine does not know, or not of all lanes")
        type_, warps = line.parts[6], self.count // 32
        target, left, right, sums = line.operands
        group, member = np.arange(32) // 4, np.arange(32) % 4
        a, b, c = (np.zeros((warps, *shape), np.float32) for shape in ((16, 16), (16, 8), (16, 8)))

        def halves(register: str) -> list[np.ndarray]:
            raw = self.raw(register, "b32")
            return [typed(raw >> U64(16 * half) & U64(0xFFFF), type_).reshape(warps, 32) for half in (0, 1)]

        for number, register in enumerate(left):
            for half, value in enumerate(halves(register)):
                a[:, group + 8 * (number % 2), 2 * member + half + 8 * (number // 2)] = value
        for number, register in enumerate(right):
            for half, value in enumerate(halves(register)):
                b[:, 2 * member + half + 8 * number, group] = value
        for number, register in enumerate(sums):
            place = group + 8 * (number // 2), 2 * member + number % 2
            c[:, place[0], place[1]] = self.value(register, "f32").reshape(warps, 32)
        c = a @ b + c
        for number, register in enumerate(target):
            place = group + 8 * (number // 2), 2 * member + number % 2
            self.write(register, c[:, place[0], place[1]].reshape(-1), "f32", active)

    def parameter(self, base: str, offset: int, active: np.ndarray) -> np.ndarray:
        """What lies at an address of parameters: of one by name, or of one that a register holds."""
        words = np.array(
            [
                word & ((1 << 64) - 1) if isinstance(word, int) else int(np.float32(word).view(np.uint32))
                for word, _ in self.words.values()
            ],
            U64,
        )
        places = np.where(active, self.raw(base, "b64").view(np.int64) + (offset - PARAMETERS), 0)
        if (places < 0).any() or (places >= 8 * len(words)).any():
            raise MachineError(f"parameters at {places[:4]} of {8 * len(words)}")
        return words[places // 8] >> (places % 8 * 8).astype(U64)

    def access(self, line: Line, active: np.ndarray) -> None:
        name, parts, operands = line.name, line.parts, line.operands
        spaces = [p.partition("::")[0] for p in parts if p.partition("::")[0] in ("param", "global", "shared", "local")]
        if not spaces:
            raise MachineError("generic memory")
        space, type_ = spaces[0], parts[-1]
        address = next(o for o in operands if isinstance(o, str) and o.startswith("["))[1:-1]
        base, _, offset = address.partition("+")
        if space == "param" and base.startswith("retval"):
            self.write(operands[0], np.zeros(self.count, U64), "b32", active)
            return
        if space == "param":
            self.write(operands[0], self.parameter(base, int(offset or 0), active), f"b{WIDTHS[type_]}", active)
            return
        size = WIDTHS[type_] // 8
        places = self.raw(base, "b64").view(np.int64)[active] + int(offset or 0)
        threads = np.flatnonzero(active)
        memory = self.shared
        if space == "global":
            places, memory = places - BASE, self.memory.bytes
        group = operands[0] if name == "ld" else operands[-1]
        count = len(group) if isinstance(group, list) else 1
        if space == "global":
            self.memory.check(places, size * count, reads=name == "ld")
        elif (places < 0).any() or (places + size * count > self.shared_size).any() or (places % (size * count)).any():
            raise MachineError(f"shared memory at {places[:4]} of {self.shared_size}")
        if name in ("atom", "red"):
            self.update(line, memory, places, threads, size, type_)
            return
        self.races[space].touch(places, size * count, threads, name == "st", line.text)
        for number, register in enumerate(group if isinstance(group, list) else [group]):
            spots = (places + number * size)[:, None] + np.arange(size)
            if name == "ld":
                raw = np.zeros((len(places), 8), np.uint8)
                raw[:, :size] = memory[spots]
                loaded = np.zeros(self.count, U64)
                loaded[active] = raw.view(U64)[:, 0]
                if type_.startswith("s"):
                    loaded = typed(loaded, type_).view(U64)
                self.write(register, loaded, "b64", active)
            else:
                raw = self.raw(register, type_)[active].reshape(-1, 1).view(np.uint8)[:, :size]
                memory[spots] = raw

    def update(
        self, line: Line, memory: np.ndarray, places: np.ndarray, threads: np.ndarray, size: int, type_: str
    ) -> None:
        kind = next(p for p in line.parts if p in ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc"))
        operands = [o for o in line.operands if not (isinstance(o, str) and o.startswith("["))]
        target = operands.pop(0) if line.name == "atom" else "_"
        values = [self.value(o, type_) for o in operands]
        found = np.zeros(self.count, U64)
        for place, thread in zip(places, threads, strict=True):
            spot = slice(int(place), int(place) + size)
            raw = np.zeros(8, np.uint8)
            raw[:size] = memory[spot]
            old = typed(raw.view(U64), type_)
            found[thread] = raw.view(U64)[0]
            mine = values[0][thread : thread + 1]
            match kind:
                case "add":
                    new = old + mine
                case "min" | "max":
                    new = getattr(np, f"{kind}imum")(old, mine)
                case "exch":
                    new = mine
                case "cas":
                    new = values[1][thread : thread + 1] if old[0] == mine[0] else old
                case _:
                    new = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[kind](old, mine)
            memory[spot] = self.bits(new, type_).view(np.uint8)[:size]
        active = np.zeros(self.count, bool)
        active[threads] = True
        self.write(target, found, "b64", active)


def narrowed(value: np.ndarray, target: str) -> np.ndarray:
    if target == "f16":
        return value.astype(np.float16).view(np.uint16).astype(U64)
    return value.astype(np.float32).astype(ml_dtypes.bfloat16).view(np.uint16).astype(U64)


def typed(raw: np.ndarray, type_: str) -> np.ndarray:
    match type_:
        case "pred":
            return raw.astype(bool)
        case "f32":
            return raw.astype(np.uint32).view(np.float32)
        case "f64":
            return raw.astype(U64).view(np.float64)
        case "f16":
            return raw.astype(np.uint16).view(np.float16).astype(np.float32)
        case "bf16":
            return (raw.astype(np.uint32) << 16).astype(np.uint32).view(np.float32)
        case "s8" | "s16" | "s32":
            return (
                raw.astype(getattr(np, f"uint{WIDTHS[type_]}"))
                .view(getattr(np, f"int{WIDTHS[type_]}"))
                .astype(np.int64)
            )
        case "s64":
            return raw.astype(U64).view(np.int64)
        case _:
            width = WIDTHS[type_]
            return raw if width == 64 else raw & U64((1 << width) - 1)


def compare(how: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if how in ("nan", "num"):
        unordered = np.isnan(x) | np.isnan(y)
        return unordered if how == "nan" else ~unordered
    plain = how
    if how.endswith("u") and how not in ("eu",):
        plain = how[:-1]
    if how in ("lo", "ls", "hi", "hs"):
        plain = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}[how]
    names = {
        "eq": np.equal,
        "ne": np.not_equal,
        "lt": np.less,
        "le": np.less_equal,
        "gt": np.greater,
        "ge": np.greater_equal,
    }
    result = names[plain](x, y)
    if x.dtype.kind == "f":
        unordered = np.isnan(x) | np.isnan(y)
        return result | unordered if plain != how else result & ~unordered
    return result


def _divided(parts: list[str], x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if x.dtype.kind == "f":
        return x / y
    safe = np.where(y == 0, np.ones_like(y), y)
    if x.dtype == np.int64:
        return np.sign(x) * np.sign(safe) * (np.abs(x) // np.abs(safe))
    return x // safe


def _remainder(parts: list[str], x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return x - _divided(parts, x, y) * np.where(y == 0, np.ones_like(y), y)


def _extreme(nan: Any, number: Any) -> Callable[..., np.ndarray]:
    def found(parts: Sequence[str], x: np.ndarray, y: np.ndarray) -> np.ndarray:
        extreme = nan(x, y) if "NaN" in parts or x.dtype.kind != "f" else number(x, y)
        return np.maximum(extreme, 0).astype(x.dtype) if "relu" in parts else extreme

    return found


OPERATIONS: dict[str, Callable[..., np.ndarray]] = {
    "mov": lambda parts, x: x,
    "cvta": lambda parts, x: x,
    "add": lambda parts, x, y: x + y,
    "sub": lambda parts, x, y: x - y,
    "mul": lambda parts, x, y: x * y,
    "div": _divided,
    "rem": _remainder,
    "min": _extreme(np.minimum, np.fmin),
    "max": _extreme(np.maximum, np.fmax),
    "abs": lambda parts, x: np.abs(x),
    "neg": lambda parts, x: -x,
    "not": lambda parts, x: ~x,
    "and": lambda parts, x, y: x & y,
    "or": lambda parts, x, y: x | y,
    "xor": lambda parts, x, y: x ^ y,
    "fma": lambda parts, x, y, z: (x.astype(np.longdouble) * y + z).astype(x.dtype),
    "sqrt": lambda parts, x: np.sqrt(x),
    "rsqrt": lambda parts, x: 1 / np.sqrt(x),
    "rcp": lambda parts, x: 1 / x,
    "ex2": lambda parts, x: np.exp2(x.astype(np.float64)).astype(x.dtype),  # NumPy's of f32 is coarser on some CPUs
    "lg2": lambda parts, x: np.log2(x),
    "sin": lambda parts, x: np.sin(x),
    "cos": lambda parts, x: np.cos(x),
    "copysign": lambda parts, x, y: np.copysign(y, x),
}


def run_blocks(ptx: str, entry: str, threads: int, shared: int, memory: Memory, words: list[Any], blocks: int) -> None:
    """Launch a kernel."""
    machine = Machine(ptx, entry, threads, shared, memory)
    for block in range(blocks):
        machine.run(words, block)
