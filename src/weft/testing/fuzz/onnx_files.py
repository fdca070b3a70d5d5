"""ONNX files that were changed at random: each is refused by a typed error, or loads and runs; nothing else may happen.

A seed is a file. Bytes are flipped, cut, doubled and spliced, or the parsed message gets odd numbers, names, shapes and
operators, which reach further in. Every file is read and imported; of every `WHOLE`-th the code is compiled and run.
"""

# onnx's messages have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import base64
import random
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError, EncodeError

from weft.config import Config
from weft.errors import WeftError
from weft.frontends.onnx.load import OnnxFunction
from weft.frontends.onnx.one_graph import WholeGraph
from weft.frontends.onnx.read import read_model
from weft.testing.fuzz.verdict import Verdict
from weft.testing.onnx_models import MODELS

SECONDS = 2.0
"""Of a processor's time that a refusal may take."""
MEMORY = 512 << 20
WHOLE = 16
_NUMBERS = (-1, 0, 1, 2, 3, 7, 17, 255, 1 << 16, 1 << 31, (1 << 31) - 1, 1 << 40, (1 << 63) - 1, -(1 << 63))
_FLOATS = (0.0, -1.0, 1e38, float("nan"), float("inf"), 1e-30)
_TEXTS = ("", "x", "y", "..", "/etc/passwd", "a\0b", "é" * 40, "x" * 5000, "Relu", "Loop", "weft.stage", "ai.onnx")
_OPERATORS = tuple(sorted({schema.name for schema in onnx.defs.get_all_schemas()}))


@dataclass(frozen=True)
class OnnxFileCase:
    """A file, and whether what it says is compiled and run."""

    data: bytes
    whole: bool

    def script(self, said: str) -> str:
        first = said.replace("\\", "/").replace('"""', "'''").splitlines()[0] if said else ""
        return (
            f'"""Found by `weft fuzz`: {first}"""\n\n'
            "from weft.testing.fuzz.onnx_files import OnnxFileCase, judge_file\n\n"
            f"case = OnnxFileCase.from_json({self.to_json()!r})\n"
            'if __name__ == "__main__":\n    verdict = judge_file(case)\n    print(verdict)\n'
            "    raise SystemExit(verdict.failed)\n"
        )

    def to_json(self) -> dict[str, Any]:
        return {"data": base64.b85encode(self.data).decode(), "whole": self.whole}

    @staticmethod
    def from_json(record: dict[str, Any]) -> OnnxFileCase:
        return OnnxFileCase(base64.b85decode(record["data"]), record["whole"])


@cache
def _originals() -> tuple[bytes, ...]:
    return tuple(make().SerializeToString(deterministic=True) for make in MODELS)


def draw_file(seed: int, device: str = "cpu") -> OnnxFileCase:
    """The file of a seed."""
    chance = random.Random(f"onnx {seed}")
    data = chance.choice(_originals())
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        data = (_damaged if chance.random() < 0.35 else _odd_message)(data, chance)
    return OnnxFileCase(data, seed % WHOLE == 0)


def _damaged(data: bytes, chance: random.Random) -> bytes:
    """Bytes that are changed without a look at what they mean."""
    if not data:
        return b"\x08"
    start, length = chance.randrange(len(data)), chance.randrange(1, 64)
    match chance.randrange(6):
        case 0:
            return data[:start]
        case 1:
            return data[:start] + data[start + length :]
        case 2:
            return data[:start] + data[start : start + length] * 2 + data[start + length :]
        case 3:
            other = chance.choice(_originals())
            place = chance.randrange(len(other))
            return data[:start] + other[place : place + length * 4] + data[start + length :]
        case 4:
            return data[:start] + chance.randbytes(chance.randrange(1, 12)) + data[start + length % 12 :]
        case _:
            changed = bytearray(data)
            for _ in range(chance.randrange(1, 9)):
                changed[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            return bytes(changed)


def _odd_message(data: bytes, chance: random.Random) -> bytes:
    """A file that is a message still, with a field of it that is another."""
    proto: Any = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
        for _ in range(chance.choice((1, 1, 2, 3))):
            places = list(_fields(proto))
            if places:
                message, field = chance.choice(places)
                _change(message, field, chance)
        return proto.SerializeToString()
    except (ValueError, DecodeError, EncodeError, TypeError):  # a message that cannot be read, or not be written
        return _damaged(data, chance)


def _fields(message: Any) -> Any:
    """All fields that are set, as pairs of their message and their description."""
    for field, value in message.ListFields():
        yield message, field
        if field.message_type is not None:
            for each in value if field.is_repeated else [value]:
                yield from _fields(each)


def _change(message: Any, field: Any, chance: random.Random) -> None:
    value = getattr(message, field.name)
    if field.is_repeated:
        _change_list(message, field, value, chance)
    elif field.message_type is not None or chance.random() < 0.1:
        message.ClearField(field.name)
    else:
        setattr(message, field.name, _odd(field, value, chance))


def _change_list(message: Any, field: Any, values: Any, chance: random.Random) -> None:
    place = chance.randrange(len(values))
    match chance.randrange(4):
        case 0:
            del values[place]
        case 1:
            held = [values[place]] * chance.choice((1, 2, 40))
            values.extend(held)
        case 2 if field.message_type is not None:
            other = values[chance.randrange(len(values))]
            held = type(other)()
            held.CopyFrom(other)
            values[place].CopyFrom(held)
        case _:
            if field.message_type is None:
                values[place] = _odd(field, values[place], chance)
            else:
                values[place].Clear()


def _odd(field: Any, value: Any, chance: random.Random) -> Any:
    if field.enum_type is not None:
        return chance.choice([each.number for each in field.enum_type.values])
    if isinstance(value, bool):
        return not value
    if isinstance(value, float):
        return chance.choice(_FLOATS)
    if isinstance(value, int):
        wide = field.cpp_type in (field.CPPTYPE_INT64, field.CPPTYPE_UINT64)
        number = chance.choice(_NUMBERS) if chance.random() < 0.7 else value + chance.choice((-1, 1, 2))
        return number if wide else max(-(1 << 31), min(number, (1 << 31) - 1))
    if isinstance(value, str):
        return chance.choice(_OPERATORS) if field.name == "op_type" else chance.choice(_TEXTS)
    return bytes(_damaged(bytes(value), chance))


def judge_file(case: OnnxFileCase) -> Verdict:
    """Read a file as one who trusts nobody, and go on as far as it lets."""
    start, before = time.process_time(), _peak()
    try:
        said = _tried(case)
        status = "right"
    except WeftError as error:
        status, said = "refused", type(error).__name__
        if (seconds := time.process_time() - start) > SECONDS and not case.whole:
            return Verdict("hangs", f"a refusal took {seconds:.1f} s of a processor: {str(error)[:120]}")
    except MemoryError:
        return Verdict("raises", "the memory was not enough")
    except Exception as error:
        return Verdict("raises", f"{type(error).__name__}: {error}"[:300])
    if (grown := _peak() - before) > MEMORY:
        return Verdict("raises", f"{grown >> 20} MB of memory were taken before it was {status}: {said}")
    return Verdict(status, said)


def _tried(case: OnnxFileCase) -> str:
    model = read_model(case.data)
    if not case.whole:
        stages = WholeGraph(model, Config(strict=True, freeze=True, cache=False))
        OnnxFunction(model, stages.config, program=stages).compile_known_shapes()
        return "imported"
    function = OnnxFunction(model, Config(cache=False), threads=1)
    function.compile_known_shapes()
    arrays: list[np.ndarray] = []
    for each in function.inputs:
        shape = each.type.shape or ()
        sizes = [size if isinstance(size, int) else 2 for size in shape]
        if each.type.kind != "tensor" or each.type.dtype is None or np.prod([float(n) for n in sizes]) > 1 << 16:
            return "compiled"
        arrays.append(np.ones(sizes, each.type.dtype))
    function.run(arrays)
    return "ran"


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def shrink_file(case: OnnxFileCase, same: Callable[[OnnxFileCase], bool], seconds: float) -> OnnxFileCase:
    """The file without the pieces of its message that do not matter."""
    until = time.perf_counter() + seconds
    size = max(len(case.data) // 2, 1)
    while size and time.perf_counter() < until:
        at = 0
        while at < len(case.data) and time.perf_counter() < until:
            smaller = OnnxFileCase(case.data[:at] + case.data[at + size :], case.whole)
            if same(smaller):
                case = smaller
            else:
                at += size
        size //= 2
    return case
