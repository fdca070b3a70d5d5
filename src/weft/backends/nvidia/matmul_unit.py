"""What multiplies tiles on a GPU: where each kind of tensor core takes operands from, and in which pieces.

Kernel passes and the emitter ask a `MatmulUnit`; which a GPU has, its target says (`NvidiaTarget.matmul_units`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from weft.ir.types import DType, f32, i32

Home: TypeAlias = Literal["registers", "shared"]


@dataclass(frozen=True)
class MatmulUnit:
    """One kind of instruction that multiplies tiles, and adds them up."""

    name: str
    left: frozenset[Home]
    """Where the left operand may be."""
    right: frozenset[Home]
    accumulator: Home
    threads: int
    """That make a dot together."""
    rows: int
    """Of an instruction's result."""
    column_step: int
    """What its columns are a multiple of, for floats; of integers twice that."""
    most_columns: int
    depth_bytes: int
    """Of each operand's K, what one instruction takes."""
    dtypes: frozenset[str]
    """The types of operands."""
    most_accumulators: int
    """Registers of a thread that a dot may take."""
    any_way_bytes: int
    """The size of elements of which an operand may run through memory along M or N; others must along K."""

    def multiplies(self, dtype: DType) -> bool:
        """Whether there are instructions for operands of a type."""
        return dtype.name in self.dtypes

    def sums(self, dtype: DType) -> DType:
        """The type that dots of operands of a type are summed in."""
        return f32 if dtype.is_float else i32

    def takes_depth(self, dtype: DType, depth: int) -> bool:
        """Whether so many elements along K are whole instructions."""
        return depth * dtype.bytes % self.depth_bytes == 0

    def takes(self, dtype: DType, columns: int, depth: int) -> bool:
        """Whether there are instructions for operands of a type, with so many columns and sums of so many dots."""
        step = self.column_step * (1 if dtype.is_float else 2)
        whole = columns % step == 0 and columns <= self.most_columns
        return self.multiplies(dtype) and whole and self.takes_depth(dtype, depth)

    def holds(self, rows: int, columns: int, groups: int) -> bool:
        """Whether so many groups of its threads share the rows of a dot, and have registers for what they sum."""
        return rows % (self.rows * groups) == 0 and rows * columns // (self.threads * groups) <= self.most_accumulators

    def reads_any_way(self, dtype: DType) -> bool:
        """Whether an operand may run through memory along M or N."""
        return dtype.bytes == self.any_way_bytes

    def makes(self, dtype: DType, total: DType, shape: tuple[int, int, int], groups: int) -> bool:
        """Whether so many groups of its threads make a dot of a shape (M, N, K), of operands of a type, into a sum."""
        rows, columns, depth = shape
        return total == self.sums(dtype) and self.holds(rows, columns, groups) and self.takes(dtype, columns, depth)

    def registers_of(self, columns: int) -> int:
        """What a thread holds of the rows of an instruction, with so many columns."""
        return self.rows * columns // self.threads

    def reads_from(self, home: Home) -> bool:
        """Whether both operands may be there."""
        return home in self.left & self.right


MMA = MatmulUnit(
    "mma.sync",
    left=frozenset({"registers"}),
    right=frozenset({"registers"}),
    accumulator="registers",
    threads=32,
    rows=16,
    column_step=8,
    most_columns=8,
    depth_bytes=32,
    dtypes=frozenset({"bf16", "f16"}),
    most_accumulators=128,
    any_way_bytes=2,
)
"""Since Ampere: a warp multiplies what its lanes hold."""
WGMMA = MatmulUnit(
    "wgmma",
    left=frozenset({"registers", "shared"}),
    right=frozenset({"shared"}),
    accumulator="registers",
    threads=128,
    rows=64,
    column_step=8,
    most_columns=256,
    depth_bytes=32,
    dtypes=frozenset({"bf16", "f16", "f8E4M3FN", "f8E5M2", "i8"}),
    most_accumulators=128,
    any_way_bytes=2,
)
"""Hopper: a warp group multiplies from shared memory, while its threads go on."""
