"""Weights in the format of safetensors, checked as they are read and used where they lie.

    length of the header (8 bytes) | header | data
    header: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}

A reader of our own: the library copies, or opens a file by its path, and members of an artifact are neither. Tensors
have to lie behind each other without gaps or overlaps, and have as many bytes as their shapes say.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from typing import Any, cast

import numpy as np

from weft.artifact.checked_json import parse_json
from weft.artifact.element_types import from_safetensors, name_of, numpy_type, to_safetensors
from weft.errors import CorruptArtifactError

MOST_HEADER = 32 << 20
_ALIGNMENT = 64


def to_pieces(tensors: Mapping[str, np.ndarray]) -> list[bytes | memoryview]:
    """Tensors as the pieces of a file: its header, and their own memory where they are contiguous."""
    pieces: list[bytes | memoryview] = []
    header: dict[str, Any] = {}
    at = 0
    # The widest first: each lies at a multiple of its own elements' size.
    for name, array in sorted(tensors.items(), key=lambda item: (-item[1].itemsize, item[0])):
        # ascontiguousarray makes a row of a number, which reshape undoes.
        whole = np.ascontiguousarray(array).reshape(array.shape)
        kind = to_safetensors(name_of(array.dtype))
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [at, at + whole.nbytes]}
        flat: Any = whole.reshape(-1).view(np.uint8)
        pieces.append(memoryview(flat))
        at += whole.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    return [struct.pack("<Q", len(text)), text, *pieces]


def read_head(data: memoryview, where: str) -> bytes:
    """A copy of all that stands before the tensors: what happens to the file later does not change it."""
    start = bytes(data[:8])
    if len(start) < 8:
        raise CorruptArtifactError(f"{where} is cut off")
    (length,) = struct.unpack("<Q", start)
    if length > min(MOST_HEADER, len(data) - 8):
        raise CorruptArtifactError(f"{where} has a header of {length} bytes, and {len(data)} in all")
    return start + bytes(data[8 : 8 + length])


def read_tensors(data: memoryview, where: str, head: bytes | None = None) -> dict[str, np.ndarray]:
    """The tensors of a file, as views of its memory; `head` is a copy of what stands before them."""
    head = read_head(data, where) if head is None else head
    header = parse_json(head[8:], where)
    body = data[len(head) :]
    spans: list[tuple[int, int]] = []
    found: dict[str, np.ndarray] = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        dtype, shape, start, end = _entry(name, entry, where)
        count = 1
        for size in shape:
            count *= size
        if not 0 <= start <= end <= len(body) or end - start != count * dtype.itemsize:
            raise CorruptArtifactError(f"{where}: {name[:80]} has {end - start} bytes, and a shape of {shape}")
        spans.append((start, end))
        # Some types that NumPy has from elsewhere do not take part in the protocol of buffers: bytes do.
        found[name] = np.frombuffer(body[start:end], np.uint8).view(dtype).reshape(shape)
    _require_adjoining(spans, len(body), where)
    return found


def _entry(name: str, entry: Any, where: str) -> tuple[np.dtype, tuple[int, ...], int, int]:
    match entry:
        case {"dtype": str(kind), "shape": list(), "data_offsets": [int(start), int(end)], **rest} if not rest:
            sizes = cast("list[Any]", entry["shape"])
            if len(sizes) <= 32 and all(type(size) is int and 0 <= size < 1 << 48 for size in sizes):
                return numpy_type(from_safetensors(kind)), tuple(sizes), start, end
        case _:
            pass
    raise CorruptArtifactError(f"{where}: {name[:80]} is described by {str(entry)[:120]}")


def _require_adjoining(spans: Iterable[tuple[int, int]], length: int, where: str) -> None:
    at = 0
    for start, end in sorted(spans):
        if start != at:
            raise CorruptArtifactError(f"{where} has tensors that overlap, or bytes of none, at {min(start, at)}")
        at = end
    if at != length:
        raise CorruptArtifactError(f"{where} has {length - at} bytes that belong to no tensor")
