"""Descriptions of tensors for TMA, which travel to a kernel as parameters of 128 bytes.

One is encoded when sizes are known, for no address in particular; a launch puts the address in.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

from weft.backends.nvidia.code import TensorMap
from weft.backends.nvidia.driver.libcuda import Driver
from weft.errors import GuardError
from weft.ir.expr import evaluate
from weft.ir.types import DTYPES

MAP_WORDS = 16
MAP_ALIGNMENT = 64
_TYPES = {"f16": 6, "bf16": 9, "f32": 7, "f64": 8, "i64": 5, "i32": 3}
_BY_WIDTH = {1: 0, 2: 1, 4: 2, 8: 4}
"""Of types that TMA has no name for, the unsigned integer of their width: it copies bits."""
_NO_INTERLEAVE, _SWIZZLE_128, _PROMOTE_256, _FILL_ZERO = 0, 3, 3, 0
_STRIDE_BYTES = 16
_ANYWHERE = 1 << 20


def scratch_words(maps: int) -> int:
    """What a launch needs for descriptions: a pointer and 128 aligned bytes for each."""
    return maps * (1 + MAP_WORDS) + MAP_ALIGNMENT // 8


def encode_map(driver: Driver, described: TensorMap, sizes: Mapping[str, int]) -> list[int]:
    """The words of a description, with a place for the address."""
    dtype = DTYPES[described.dtype]
    extents = [max(1, evaluate(size, sizes)) for size in described.sizes]
    strides = [evaluate(stride, sizes) * dtype.bytes for stride in described.strides]
    for position, (stride, extent) in enumerate(zip(strides, extents[1:], strict=True)):
        if extent == 1:  # it is never used, but it is checked
            strides[position] = -(-max(stride, 1) // _STRIDE_BYTES) * _STRIDE_BYTES
        elif stride % _STRIDE_BYTES:
            raise GuardError(
                f"rows that are {stride} bytes apart cannot be copied by the GPU's engine",
                hint=f"pad them to a multiple of {_STRIDE_BYTES} bytes",
            )
    rank = len(extents)
    memory = ctypes.create_string_buffer(8 * MAP_WORDS + MAP_ALIGNMENT)
    place = -(-ctypes.addressof(memory) // MAP_ALIGNMENT) * MAP_ALIGNMENT
    driver.call(
        "cuTensorMapEncodeTiled",
        ctypes.c_void_p(place),
        ctypes.c_int(_TYPES.get(described.dtype, _BY_WIDTH[dtype.bytes])),
        ctypes.c_uint32(rank),
        ctypes.c_void_p(_ANYWHERE),
        (ctypes.c_uint64 * rank)(*extents),
        (ctypes.c_uint64 * (rank - 1))(*strides),
        (ctypes.c_uint32 * rank)(*described.box),
        (ctypes.c_uint32 * rank)(*[1] * rank),
        *map(ctypes.c_int, (_NO_INTERLEAVE, _SWIZZLE_128, _PROMOTE_256, _FILL_ZERO)),
        doing=f"a tensor of {extents} elements, in boxes of {list(described.box)}, cannot be described to the GPU",
    )
    return list((ctypes.c_int64 * MAP_WORDS).from_address(place))
