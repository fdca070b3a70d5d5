"""A few elements of tensors, to notice that something has written over them: one native loop looks at all.

Torch counts changes of a tensor, but not those made through `.data`, NumPy or another library. Code that averages
models or loads checkpoints that way writes whole tensors, which a few elements of each tell.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from weft.backends.cpu.target import compile_object, host_target
from weft.backends.llvm.builder import Function, Module
from weft.backends.llvm.values import V, i64
from weft.forks import compiled_once
from weft.runtime.linking import link

_FUNCTION = "weft_differences"
_PER_TENSOR = 4


def sampled_addresses(address: int, shape: Sequence[int], strides: Sequence[int], itemsize: int) -> list[int]:
    """Where the bytes of a few elements of a tensor lie, from the first to the last; `strides` count elements."""
    count = int(np.prod(shape, dtype=np.int64))
    chosen = sorted({(count - 1) * number // (_PER_TENSOR - 1) for number in range(_PER_TENSOR)}) if count else []
    elements = [np.dot(np.unravel_index(each, tuple(shape)), strides) if shape else 0 for each in chosen]
    return [address + int(element) * itemsize + byte for element in elements for byte in range(itemsize)]


class MemorySamples:
    """Bytes at addresses, as they were when this was made. Whoever asks for them keeps the memory alive."""

    def __init__(self, addresses: Iterable[int]) -> None:
        self._addresses = np.array(list(addresses), np.int64)
        self._bytes = np.zeros(len(self._addresses), np.uint8)
        self._count = len(self._addresses)
        self._where = self._addresses.ctypes.data, self._bytes.ctypes.data
        self._differences = _differences()
        for place, address in enumerate(self._addresses.tolist()):
            self._bytes[place] = ctypes.c_uint8.from_address(address).value

    def are_unchanged(self) -> bool:
        return not self._differences(*self._where, self._count)


@compiled_once
def _differences() -> Callable[[int, int, int], int]:
    """`i64 differences(ptr addresses, ptr bytes, i64 count)`: the bits in which what lies there differs from these."""
    target = host_target()
    module = Module(target.triple)
    b = Function(module, _FUNCTION, [("ptr", "addresses"), ("ptr", "bytes"), ("i64", "count")], result="i64")
    addresses, kept, count = b.args
    found = b.alloca("i8", 1, 1)
    b.store(V("i8", "0"), found, 1)
    with b.loop(i64(0), count, i64(1)) as i:
        address = b.load("i64", b.gep(addresses, i, "i64"), 8)
        there = b.load("i8", b.emit("ptr", f"inttoptr {address} to ptr"), 1)
        different = b.binary("xor", there, b.load("i8", b.gep(kept, i, "i8"), 1))
        b.store(b.binary("or", different, b.load("i8", found, 1)), found, 1)
    b.finish(b.convert("zext", b.load("i8", found, 1), "i64"))
    library = link(compile_object(str(module), target), [_FUNCTION])
    word = ctypes.c_int64
    function: Any = ctypes.CFUNCTYPE(word, word, word, word)(library[_FUNCTION])
    function.library = library  # the function lives as long as the library that holds it
    return function
