"""Reads the tensors of a model: sizes are compared with the bytes that are there before an array is made of them."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from weft.errors import ModelError
from weft.frontends.onnx.dtypes import BITS, NUMPY, STRINGS, name_of
from weft.frontends.onnx.external_data import ExternalFiles
from weft.frontends.onnx.stored_weights import DeferredWeights


@dataclass(frozen=True)
class Limits:
    """How much a model may have: a file beyond them is refused before it costs memory or time."""

    nodes: int = 200_000
    depth: int = 24
    names: int = 4096
    text: int = 64 << 20
    initializers: int = 200_000
    rank: int = 32
    size: int = 1 << 48
    file: int = (1 << 31) - 1
    written_out: int = 1 << 28
    """Bytes that sparse tensors have in all once they are written out: a file of a few names many."""


def element_dtype(number: int, where: str) -> np.dtype:
    """The element type that a file states by its number."""
    if number not in NUMPY:
        raise ModelError(f"{where} has element type {number}, expected one of 1 to {max(NUMPY)}")
    return NUMPY[number]


class TensorReader:
    """Makes arrays of messages, within limits; external ones come from the model's own files."""

    def __init__(self, files: ExternalFiles, limits: Limits, deferred: DeferredWeights | None = None) -> None:
        self._files = files
        self._deferred = deferred
        self._limits = limits
        self._written_out = 0

    def tensor(self, proto: Any, where: str, taken: np.ndarray | None = None) -> np.ndarray:
        """An array; the bytes that its shape needs are compared with those that are there before it is made.

        They may have been `taken` out of the message.
        """
        dtype = element_dtype(proto.data_type, f"tensor {where!r}")
        dims = [int(size) for size in proto.dims]
        if len(dims) > self._limits.rank or any(not 0 <= size <= self._limits.size for size in dims):
            raise ModelError(f"tensor {where!r} has the shape {dims[:40]}, expected at most {self._limits.rank} sizes")
        count = prod(dims)
        if prod(max(size, 1) for size in dims) > self._limits.size:
            raise ModelError(f"tensor {where!r} has the shape {dims}, which is too large")
        needed = (count * BITS[proto.data_type] + 7) // 8
        if proto.data_location == onnx.TensorProto.EXTERNAL:
            return self._external(proto, where, dtype, dims, needed)
        if proto.HasField("raw_data"):
            if dtype == STRINGS:
                raise ModelError(f"tensor {where!r} holds strings as raw data, expected `string_data`")
            data: bytes | np.ndarray = proto.raw_data if taken is None else taken  # asked for once: it is a copy
            if len(data) != needed:
                raise ModelError(
                    f"tensor {where!r} has {len(data)} bytes, expected {needed} for {name_of(proto.data_type)}{dims}"
                )
            if dtype.kind in "iufV" and dtype.itemsize * 8 == BITS[proto.data_type] and sys.byteorder == "little":
                return np.frombuffer(data, dtype).reshape(dims)
        else:
            field, each = _FIELDS[proto.data_type]
            length = len(getattr(proto, field))
            wanted = needed if BITS[proto.data_type] < 8 and dtype != STRINGS else count * each
            if length != wanted:
                raise ModelError(
                    f"tensor {where!r} has {length} values in `{field}`, expected {wanted} for "
                    f"{name_of(proto.data_type)}{dims}"
                )
        if taken is not None:
            if self._deferred is not None:
                self._deferred.read()
            proto.raw_data = taken.tobytes()
        try:
            array = numpy_helper.to_array(proto)
        except (ValueError, TypeError, OverflowError) as error:
            raise ModelError(f"tensor {where!r} does not hold {name_of(proto.data_type)}: {error}") from error
        if dtype == STRINGS:
            if sum(map(len, proto.string_data)) > self._limits.text:
                raise ModelError(f"tensor {where!r} has over {self._limits.text} bytes of text")
            array = np.array([_text(each, where) for each in proto.string_data], object).reshape(dims)
        return _fixed(np.asarray(array).astype(dtype, copy=False).reshape(dims))

    def _external(self, proto: Any, where: str, dtype: np.dtype, dims: list[int], needed: int) -> np.ndarray:
        entries = {each.key: each.value for each in proto.external_data}
        if dtype == STRINGS or "location" not in entries:
            raise ModelError(f"tensor {where!r} lies elsewhere, but has no location, or holds strings")
        try:
            offset, length = int(entries.get("offset") or 0), int(entries.get("length") or needed)
        except ValueError as error:
            raise ModelError(f"tensor {where!r} has an offset or length that is no number: {entries}") from error
        if length != needed:
            raise ModelError(
                f"tensor {where!r} has {length} bytes, expected {needed} for {name_of(proto.data_type)}{dims}"
            )
        found = self._files.read(where, entries["location"], offset, length)
        if BITS[proto.data_type] < 8:
            packed = onnx.TensorProto(data_type=proto.data_type, dims=dims, raw_data=bytes(found))
            return _fixed(np.asarray(numpy_helper.to_array(packed)).astype(dtype, copy=False))
        return _fixed(np.frombuffer(found, dtype.newbyteorder("<") if dtype.kind in "iufc" else dtype).reshape(dims))

    def sparse(self, proto: Any, where: str) -> np.ndarray:
        """A sparse tensor written out; its places are checked."""
        values, places = self.tensor(proto.values, where), self.tensor(proto.indices, where)
        dims = [int(size) for size in proto.dims]
        if len(dims) > self._limits.rank or any(not 0 <= size <= self._limits.size for size in dims):
            raise ModelError(
                f"sparse tensor {where!r} has the shape {dims[:40]}, expected at most {self._limits.rank} sizes"
            )
        if values.dtype == STRINGS:
            raise ModelError(f"sparse tensor {where!r} holds strings, expected numbers")
        self._written_out += prod(dims) * max(values.dtype.itemsize, 1)
        if self._written_out > self._limits.written_out:
            raise ModelError(
                f"sparse tensor {where!r} of {values.dtype}{dims} makes {self._written_out} bytes of sparse tensors "
                f"written out, expected at most {self._limits.written_out} in a model"
            )
        if values.ndim != 1:
            raise ModelError(f"sparse tensor {where!r} has values of {list(values.shape)}, expected one dimension")
        if places.dtype != np.int64 or places.shape not in ((len(values),), (len(values), len(dims))):
            raise ModelError(f"sparse tensor {where!r} has indices of {places.dtype}{list(places.shape)}")
        bounds = np.array([prod(dims)] if places.ndim == 1 else dims, np.int64)
        if ((places < 0) | (places >= bounds)).any():
            raise ModelError(f"sparse tensor {where!r} has an index outside of {dims}")
        dense = np.zeros(dims, values.dtype)
        if places.ndim == 1:
            dense.reshape(-1)[places] = values
        else:
            dense[tuple(places.T)] = values
        return _fixed(dense)


_FIELDS = {
    number: ("int32_data", 1) for number in NUMPY
} | {1: ("float_data", 1), 7: ("int64_data", 1), 8: ("string_data", 1), 11: ("double_data", 1), 12: ("uint64_data", 1),
     13: ("uint64_data", 1), 14: ("float_data", 2), 15: ("double_data", 2)}  # fmt: skip


def _text(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ModelError(f"tensor {where!r} holds a string that is not UTF-8") from error


def _fixed(array: np.ndarray) -> np.ndarray:
    if array.flags.writeable:
        array.flags.writeable = False
    return array
