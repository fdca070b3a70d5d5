"""Tile values that live in memory while a kernel runs: stack buffers, which LLVM turns into registers where it can."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.backends.llvm.builder import Function, V, i64, scalar_type, vector
from weft.ir.types import DType


@dataclass(frozen=True)
class Buffer:
    """A row-major tile on the stack; booleans take a byte each."""

    pointer: V
    shape: tuple[int, ...]
    dtype: DType

    @classmethod
    def allocate(cls, b: Function, shape: Sequence[int], dtype: DType) -> Buffer:
        count = 1
        for size in shape:
            count *= size
        return cls(b.alloca(_element(dtype), count), tuple(shape), dtype)

    def address(self, b: Function, index: Sequence[V]) -> V:
        offset = i64(0)
        for size, position in zip(self.shape, index, strict=True):
            offset = b.mul(offset, i64(size))
            if size != 1:
                offset = b.add(offset, position)
        return b.gep(self.pointer, offset, _element(self.dtype))

    def read(self, b: Function, index: Sequence[V], lanes: int) -> V:
        value = b.load(vector(_element(self.dtype), lanes), self.address(b, index), _align(self.dtype))
        return b.convert("trunc", value, "i1") if self.dtype.kind == "bool" else value

    def write(self, b: Function, value: V, index: Sequence[V]) -> None:
        if self.dtype.kind == "bool":
            value = b.convert("zext", value, "i8")
        b.store(value, self.address(b, index), _align(self.dtype))


def _element(dtype: DType) -> str:
    return "i8" if dtype.kind == "bool" else scalar_type(dtype)


def _align(dtype: DType) -> int:
    return max(dtype.bytes, 1)
