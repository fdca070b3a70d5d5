"""Takes the weights out of a model's bytes before they are parsed: each is copied once, to memory that is aligned.

A parser of messages copies what it reads, and its bytes are copied again when asked for. Weights are nearly all
of a file, and their place in it is plain: `ModelProto.graph` (7), `GraphProto.initializer` (5), `TensorProto.raw_data`
(9). What is left of the message has `raw_data` of no bytes there, and is parsed as any other. A message that is written
in an unusual way is left as it is: whether it is right is the parser's to say.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from weft.errors import ModelError
from weft.runtime.cores import available_cores
from weft.runtime.owned_memory import OwnedMemory

_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9
DEFERRED = 1 << 16
"""Bytes of a tensor that are worth it."""
_ALIGNMENT = 64
_CHUNK, _MOST_THREADS = 1 << 24, 8
_NO_BYTES = bytes([_RAW_DATA << 3 | 2, 0])


class _Unusual(Exception):
    """A message that is cut off, or written as none of the usual writers does."""


@dataclass(frozen=True)
class _Field:
    """A field of a message: where it begins, where its content does, and where both end."""

    number: int
    wire: int
    start: int
    content: int
    end: int


class DeferredWeights:
    """Weights of a file, for which there is memory, and whose bytes are read when something asks for them.

    Programs whose constants are kept in the cache never do.
    """

    def __init__(self, file: int) -> None:
        self._file: int | None = os.dup(file)
        self._close = weakref.finalize(self, os.close, self._file)
        self._about = os.fstat(file)
        self._pieces: list[tuple[int, int, int]] = []
        self._block: OwnedMemory | None = None

    def place(self, weights: Sequence[tuple[int, int, int]]) -> dict[int, np.ndarray]:
        """The arrays of weights, which lie between two places of the file; their elements are not there yet."""
        self._block, found, self._pieces = _placed(weights)
        return found

    def read(self) -> None:
        """Fill the arrays."""
        if self._file is None:
            return
        if self._block is not None:
            now = os.fstat(self._file)
            if (now.st_size, now.st_mtime_ns) != (self._about.st_size, self._about.st_mtime_ns):
                raise ModelError(
                    "the model's file was changed after it was loaded, and its weights were not read yet",
                    hint="load the model again; a new version that is written to another file and renamed over this "
                    "one does not disturb those that have it loaded",
                )
            _copy(memoryview(b""), self._block, self._pieces, self._file)
        self._file = self._block = None
        self._close()


def take_weights(
    data: memoryview, file: int | None = None, deferred: DeferredWeights | None = None
) -> tuple[bytes | memoryview, Mapping[int, np.ndarray]]:
    """A message without its large weights, and these as arrays of bytes, by the number of the initializer.

    Where the message is a mapped `file`, weights are read from that: pages that are only looked at once cost more to
    map than to copy. Those that are `deferred` are read later.
    """
    try:
        parts, found = _without_weights(data)
    except _Unusual:
        return data, {}
    if not found:
        return data, {}
    rest = b"".join(parts)
    if deferred is not None:
        return rest, deferred.place(found)
    block, arrays, pieces = _placed(found)
    _copy(data, block, pieces, file)
    return rest, arrays


def _without_weights(data: memoryview) -> tuple[list[bytes | memoryview], list[tuple[int, int, int]]]:
    graphs = [field for field in _fields(data, 0, len(data)) if field.number == _GRAPH]
    if len(graphs) != 1 or graphs[0].wire != 2:  # several are joined by parsers
        raise _Unusual
    graph = graphs[0]
    parts: list[bytes | memoryview] = []
    found: list[tuple[int, int, int]] = []
    number, kept = 0, graph.content
    for field in _fields(data, graph.content, graph.end):
        if field.number != _INITIALIZER:
            continue
        raw = None if field.end - field.content < DEFERRED else _raw_data(data, field)
        if raw is not None:
            found.append((number, raw.content, raw.end))
            rest = [data[field.content : raw.start], _NO_BYTES, data[raw.end : field.end]]
            parts += [data[kept : field.start], bytes([field.number << 3 | 2]), _varint(sum(map(len, rest))), *rest]
            kept = field.end
        number += 1
    parts.append(data[kept : graph.end])
    head = [data[: graph.start], bytes([_GRAPH << 3 | 2]), _varint(sum(map(len, parts)))]
    return [*head, *parts, data[graph.end :]], found


def _raw_data(data: memoryview, tensor: _Field) -> _Field | None:
    """The bytes of a tensor, if it has many."""
    if tensor.wire != 2:
        raise _Unusual
    found = [field for field in _fields(data, tensor.content, tensor.end) if field.number == _RAW_DATA]
    if len(found) > 1 or any(field.wire != 2 for field in found):  # the last one counts
        raise _Unusual
    return found[0] if found and found[0].end - found[0].content >= DEFERRED else None


def _fields(data: memoryview, at: int, end: int) -> Generator[_Field]:
    """The fields of a message that lies between two places."""
    while at < end:
        key, content = _number(data, at, end)
        wire = key & 7
        if wire == 0:
            _, last = _number(data, content, end)
        elif wire == 2:
            size, content = _number(data, content, end)
            last = content + size
        elif wire in (1, 5):
            last = content + (8 if wire == 1 else 4)
        else:
            raise _Unusual
        if last > end or not key >> 3:
            raise _Unusual
        yield _Field(key >> 3, wire, at, content, last)
        at = last


def _number(data: memoryview, at: int, end: int) -> tuple[int, int]:
    """A number of seven bits a byte, and where it ends."""
    value = shift = 0
    while at < end and shift < 64:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
    raise _Unusual


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)


def _placed(
    weights: Sequence[tuple[int, int, int]],
) -> tuple[OwnedMemory, dict[int, np.ndarray], list[tuple[int, int, int]]]:
    """One block of memory with an aligned place for each weight, and what is to be copied to where."""
    starts: list[int] = []
    size = 0
    for _, begin, end in weights:
        starts.append(size)
        size += -(-(end - begin) // _ALIGNMENT) * _ALIGNMENT
    block = OwnedMemory.of(size)
    pieces = [
        (start + at, begin + at, min(_CHUNK, end - begin - at))
        for start, (_, begin, end) in zip(starts, weights, strict=True)
        for at in range(0, end - begin, _CHUNK)
    ]
    bytes_ = np.frombuffer(block, np.uint8)
    bytes_.flags.writeable = False
    arrays = {number: bytes_[at : at + end - begin] for at, (number, begin, end) in zip(starts, weights, strict=True)}
    return block, arrays, pieces


def _copy(data: memoryview, block: OwnedMemory, pieces: Sequence[tuple[int, int, int]], file: int | None) -> None:
    target = memoryview(block)

    def copy(piece: tuple[int, int, int]) -> None:
        to, at, count = piece
        if file is None:
            np.frombuffer(block, np.uint8, count, to)[...] = np.frombuffer(data, np.uint8, count, at)
            return
        while count:
            done = os.preadv(file, [target[to : to + count]], at)
            if not done:
                raise ModelError(
                    "the file became shorter while it was read", hint="write models to a file of their own"
                )
            to, at, count = to + done, at + done, count - done

    with ThreadPoolExecutor(min(_MOST_THREADS, available_cores())) as pool:
        list(pool.map(copy, pieces))
