"""Tile values that live in memory while a kernel runs: stack buffers, which LLVM turns into registers where it can."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from weft.backends.llvm.builder import Function
from weft.backends.llvm.values import V, i64, scalar_type, vector
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
        buffer = cls(V("ptr", ""), tuple(shape), dtype)
        return replace(buffer, pointer=b.alloca(buffer.element, count))

    @property
    def element(self) -> str:
        """The LLVM type of an element in memory."""
        return "i8" if self.dtype.kind == "bool" else scalar_type(self.dtype)

    @property
    def align(self) -> int:
        return max(self.dtype.bytes, 1)

    def address(self, b: Function, index: Sequence[V]) -> V:
        offset = i64(0)
        for size, position in zip(self.shape, index, strict=True):
            offset = b.mul(offset, i64(size))
            if size != 1:
                offset = b.add(offset, position)
        return b.gep(self.pointer, offset, self.element)

    def read(self, b: Function, index: Sequence[V], lanes: int) -> V:
        return self.loaded(b, b.load(vector(self.element, lanes), self.address(b, index), self.align))

    def loaded(self, b: Function, raw: V) -> V:
        """What was read from the buffer, as registers hold it."""
        return b.convert("trunc", raw, "i1") if self.dtype.kind == "bool" else raw

    def write(self, b: Function, value: V, index: Sequence[V]) -> None:
        if self.dtype.kind == "bool":
            value = b.convert("zext", value, "i8")
        b.store(value, self.address(b, index), self.align)
