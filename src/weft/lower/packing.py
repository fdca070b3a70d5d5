"""Weights rearranged once for the kernels that read them: panels of columns, each contiguous.

    b [K, N]  →  panels [N / NR, K, NR]        panels[p, k, n] = b[k, p * NR + n], 0 beyond the last column

A frozen weight is packed when the program is built; `lower_dot` is told by a `PackedLayout` in place of the operand's
own layout. Integers of 8 bits are multiplied four at a time, where a processor can: then four neighbours along K lie
together, panels [N / NR, K / 4, NR, 4], 0 beyond the last K; bf16 two at a time. `packable` says which operand of a
group that may be, and how the matrix lies in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from xdsl.ir import BlockArgument, OpResult, SSAValue

from weft.ir.expr import coefficient_of, simplify, symbol
from weft.ir.types import DType, contiguous_strides, tensor_of
from weft.lower.index_space.evaluate import AddressRecorder, Source
from weft.lower.pack_panels import pack_matrices, pack_panels, panel_shape
from weft.ops.base import viewed
from weft.ops.graph import GroupOp
from weft.ops.layouts import StridedLayout
from weft.ops.matmul.dot import Dot, ScaledDot, TiledDot
from weft.passes.grouping.build_groups import WIDENS


@dataclass(frozen=True)
class PackedPanels:
    """The form of packed weights: `batch` matrices [K, N] in panels of NR columns; `together` of K are neighbours."""

    K: int
    N: int
    NR: int
    dtype: DType
    batch: int = 1
    together: int = 1
    unit: int = 1
    """What K is filled up to a multiple of, where neighbours lie together."""

    @property
    def shape(self) -> tuple[int, ...]:
        return panel_shape(self.batch, self.K, self.N, self.NR, self.together, self.unit)

    def pack(self, array: np.ndarray) -> np.ndarray:
        """Pack matrices [batch..., K, N] of any strides."""
        packed = pack_panels(array, self.batch, self.K, self.N, self.NR, self.together, self.unit)
        return packed.view(self.dtype.numpy)


@dataclass(frozen=True)
class PackedLayout(StridedLayout):
    """The layout of an operand that was packed: its strides are those of the panels."""

    panels: PackedPanels | None = None

    @classmethod
    def of(cls, panels: PackedPanels) -> PackedLayout:
        return cls(contiguous_strides(panels.shape), 0, panels)


@dataclass(frozen=True)
class Packing:
    """How to pack an operand of a group: the matrices lie in it, seen as flat, at these strides."""

    operand: int
    panels: PackedPanels
    batch: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    @property
    def size(self) -> int:
        """Bytes of what it makes, where that can be made in memory that is given; otherwise 0."""
        return 0 if self.panels.together > 1 else prod(self.panels.shape) * self.panels.dtype.bytes

    def pack(self, array: np.ndarray, zeros: np.ndarray | None = None) -> np.ndarray:
        """Pack the operand's array, into memory of `size` zeros where that is given."""
        p = self.panels
        shape = (*self.batch, p.K, p.N)
        packed = pack_matrices(array, shape, self.strides, self.offset, p.NR, p.together, p.unit, zeros)
        return packed.view(p.dtype.numpy)


def weight_of(dot: Dot | ScaledDot | TiledDot) -> SSAValue:
    """The value that the matmul's second operand is a view of, or that is widened to be it."""
    value = dot.operands[1]
    if isinstance(value, OpResult) and WIDENS in value.op.attributes:
        value = value.op.operands[0]
    return viewed(value)


_STEP_BYTES = 64
"""What instructions for matrix tiles take of K."""


def packable(
    group: GroupOp, columns: int, together: int = 1, layouts: Sequence[StridedLayout] | None = None
) -> Packing | None:
    """How the weights of a group's matmul are packed in panels of so many columns, if they are an operand of it.

    Operands are row-major where there are no `layouts` of them.
    """
    dot = next((op for op in group.block.ops if isinstance(op, Dot)), None)
    if dot is None:
        return None
    value = weight_of(dot)
    if not isinstance(value, BlockArgument) or not value.has_one_use():
        return None
    tensor, matrix = tensor_of(value.type), tensor_of(dot.operands[1].type)
    sizes = [size for size in (*tensor.shape, *matrix.shape) if isinstance(size, int)]
    if len(sizes) != tensor.rank + matrix.rank or 0 in sizes or matrix.shape[-1] == 1:
        return None
    # The views' own rules say where an element of the matrix lies.
    names = [f"i{d}" for d in range(matrix.rank)]
    space = {name: size for name, size in zip(names, matrix.shape, strict=True)}
    operand = list(group.block.args).index(value)
    layout = layouts[operand] if layouts else StridedLayout(contiguous_strides(tensor.shape))
    recorder = AddressRecorder({value: layout}, space=space)
    index = [0 if size == 1 else symbol(name) for name, size in space.items()]
    recorder.at(Source(dot.operands[1], matrix), index)
    (address,) = recorder.addresses
    rest = simplify(address.expr, space)
    strides: list[int] = []
    for name in names:
        split = coefficient_of(rest, name)
        if split is None or not isinstance(split[0], int):
            return None
        strides.append(split[0])
        rest = split[1]
    *batch, k, n = (size for size in matrix.shape if isinstance(size, int))
    count = int(np.prod(batch, dtype=np.int64)) if batch else 1
    if any(stride == 0 and size != 1 for stride, size in zip(strides, (*batch, k, n), strict=True)):
        return None
    unit = _STEP_BYTES // tensor.dtype.bytes if together > 1 else 1
    panels = PackedPanels(k, n, columns, tensor.dtype, count, together, unit)
    return Packing(operand, panels, tuple(batch), tuple(strides), rest) if isinstance(rest, int) else None
