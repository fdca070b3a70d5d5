"""Let a library take the ops that it does better than a generated kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import OpResult, SSAValue
from xdsl.passes import ModulePass

from weft.ir.expr import Size
from weft.ir.types import DType, bf16, f16, f32, f64, tensor_of
from weft.ops.base import viewed
from weft.ops.graph import FuncOp
from weft.ops.layouts import BLAS_LARGEST
from weft.ops.matmul.dot import Dot
from weft.passes.convolution.convolve_by_matmul import ROWS_OF_WINDOWS
from weft.passes.grouping.build_groups import CLAIM, INLINED, OWN, PACKED_BEFORE, WIDENS
from weft.passes.simplify.constant_values import constant_arguments

FEW_PACKED_ROWS = 128
"""With at most so many rows, packed weights and what follows in one kernel beat a library; with more they do not, but
where vectors have 256 bits, whose units own kernels keep as busy."""
_SMALL_SIDE = 64
"""Neither side of weights larger than this: a matmul is over before a library has set out."""

_LEAST_TILED, _LEAST_CALLED = 16, 1 << 21
"""The least side of a matmul that a library takes to matrix tiles, and the least number of products: a call of the
framework takes as long as a kernel takes for these without matrix tiles."""

_TILE, _LEAST_TILES, _LEAST_DEPTH = 128, 96, 128
"""The side of the tiles that a GPU's multiprocessors multiply, how many keep them all at work, and the least K."""
_ALIGNED, _LEAST_ODD_TILES = 8, 8
"""What a library wants columns and K to be multiples of: with others it is a fifth as fast, and few tiles beat it."""

_ODD_DEPTHS, _ODD_RESULTS = range(96, (1 << 14) + 1), 1 << 18
"""Where rows begin anywhere, a library is behind with these K, and with a shorter one for so few results."""
_ONE_TILE, _LONG_SIDE = range(48, 134), 1400
"""Sides that are a tile or two of the library's then, beside which it wins where the other side is so long."""

FEW_ROWS, _LEAST_STREAMED = 16, 128
"""Rows that a GPU multiplies while it reads weights, and the least sides of weights that are worth a kernel."""

ROWS_OF_TILE, _LEAST_SIDE, _LEAST_READ, _CHUNK = 64, 1024, 1 << 24, 8
"""Rows that are one tile for the tensor cores; the least sides and number of weights that a generated kernel reads
faster than the library, and what TMA takes multiples of."""
_WIDE = 10240
"""Columns that make tiles enough for a GPU; of fewer, K is cut, which must be as long then."""


@dataclass(frozen=True)
class ClaimLibraries(ModulePass):
    """%y = graph.dot %a, %b   →   %y = graph.dot %a, %b {weft.claim = "blas"}

    Matmuls with few rows, or of unknown number, or with small weights, and those that convolutions were made into keep
    a kernel of their own if their weights are constants: these can be packed, once. So do all whose weights lie in a
    type that no library multiplies, and those that a loop packs before its turns (`pack_loop_weights`).
    """

    name: ClassVar[str] = "claim_libraries"

    enabled: bool = True
    blas: bool = True
    """Whether there is a library for matmuls of f32 and f64 on a processor."""
    all_floats: bool = False
    """Whether the library takes products of all floats, whatever their weights are: a GPU's does."""
    fast_matmuls: bool = False
    """Whether generated kernels use the matrix units as well as the library does."""
    matrix_tiles: bool = False
    """Whether the library multiplies bf16 in matrix tiles of a processor, as generated kernels do by packed weights."""
    many_packed_rows: bool = False
    """Whether generated kernels multiply any number of rows by packed weights as fast as the library does."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if not self.enabled:
            return
        for function in op.body.block.ops:
            if isinstance(function, FuncOp):
                constants: set[SSAValue] = set(constant_arguments(function))
                for candidate in function.block.ops:
                    if isinstance(candidate, Dot) and self._is_taken(candidate, constants):
                        candidate.attributes[CLAIM] = StringAttr("blas")

    def _is_taken(self, dot: Dot, constants: set[SSAValue]) -> bool:
        own = OWN in dot.attributes or is_for_tensor_cores(dot)
        if PACKED_BEFORE in dot.attributes or (self.fast_matmuls and own):
            return False
        if tensor_of(dot.operands[0].type).dtype != tensor_of(dot.results[0].type).dtype:
            return False  # what widens its operands was claimed as the call that it came from, or not at all
        if self.all_floats:
            return tensor_of(dot.results[0].type).dtype in (f16, bf16, f32, f64)
        if self.matrix_tiles and tensor_of(dot.results[0].type).dtype == bf16:
            return _is_for_matrix_tiles(dot, constants)
        return self.blas and self._is_for_blas(dot, constants)

    def _is_for_blas(self, dot: Dot, constants: set[SSAValue]) -> bool:
        weight = dot.operands[1]
        if isinstance(weight, OpResult) and WIDENS in weight.op.attributes:
            return False
        result = tensor_of(dot.results[0].type)
        rows = result.shape[-2]
        sizes = (*result.shape[-2:], tensor_of(dot.operands[0].type).shape[-1])
        if any(isinstance(size, int) and size > BLAS_LARGEST for size in sizes):
            return False
        small = all(isinstance(size, int) and size <= _SMALL_SIDE for size in sizes[1:])
        few = small or not isinstance(rows, int) or rows <= FEW_PACKED_ROWS or ROWS_OF_WINDOWS in dot.attributes
        few = few or self.many_packed_rows
        return result.dtype in (f32, f64) and not (few and viewed(dot.operands[1]) in constants)


def is_for_tensor_cores(dot: Dot) -> bool:
    """Whether a generated kernel multiplies as fast as the library: 16-bit operands, and work for all of a GPU."""
    a, b, result = (tensor_of(value.type) for value in (*dot.operands, dot.results[0]))
    sides = result.dtype, result.shape, a.shape[-1]
    own = worth_tensor_cores(*sides) or worth_streaming(*sides) or worth_reading_once(*sides) or _reads_chosen(dot)
    return a.dtype == b.dtype == result.dtype and own


def _reads_chosen(dot: Dot) -> bool:
    """Whether a matmul reads matrices where they lie that are chosen for its rows (`read_gathered_weights`)."""
    weights = viewed(dot.operands[1])
    return isinstance(weights, OpResult) and weights.op.name == "graph.take" and INLINED in weights.op.attributes


def worth_tensor_cores(dtype: DType, shape: Sequence[Size], depth: Size) -> bool:
    """The same of the type and shape of a matmul and the length of its sums."""
    return dtype in (f16, bf16) and fills_tensor_cores(shape, depth)


def fills_tensor_cores(shape: Sequence[Size], depth: Size) -> bool:
    """Whether a matmul of such a shape and length of sums is work for all of a GPU."""
    sizes = [size for size in (*shape, depth) if isinstance(size, int)]
    if len(sizes) <= len(shape):
        return False
    *batch, m, n, k = sizes
    tiles = -(-m // _TILE) * -(-n // _TILE)
    for size in batch:
        tiles *= size
    least = _LEAST_ODD_TILES if n % _ALIGNED or k % _ALIGNED else _LEAST_TILES
    return min(m, n) >= _TILE and k >= _LEAST_DEPTH and tiles >= least


def worth_odd_rows(dtype: DType | None, shape: Sequence[Size], depth: Size) -> bool:
    """Whether a matmul beats the library where rows of what it multiplies begin anywhere in memory."""
    sizes = [size for size in (*shape, depth) if isinstance(size, int)]
    if dtype not in (f16, bf16) or len(shape) != 2 or len(sizes) < 3:
        return False
    m, n, k = sizes
    short, long = sorted((m, n))
    if k < _ODD_DEPTHS.start:
        return short > FEW_ROWS and k >= FEW_ROWS and m * n <= _ODD_RESULTS
    return k in _ODD_DEPTHS and short > FEW_ROWS and not (short in _ONE_TILE and long >= _LONG_SIDE)


def worth_streaming(dtype: DType, shape: Sequence[Size], depth: Size) -> bool:
    """Whether a matmul has so few rows that it takes as long as reading its weights, which run along K."""
    if dtype not in (f16, bf16) or len(shape) != 2:
        return False
    m, n = shape
    known = isinstance(m, int) and isinstance(n, int) and isinstance(depth, int)
    return known and 0 < m <= FEW_ROWS and min(n, depth) >= _LEAST_STREAMED  # type: ignore[operator]


def worth_reading_once(dtype: DType, shape: Sequence[Size], depth: Size) -> bool:
    """Whether a matmul's rows are one tile, so that it takes as long as reading its weights, and these are many."""
    if dtype not in (f16, bf16) or len(shape) != 2:
        return False
    m, n = shape
    if not (isinstance(m, int) and isinstance(n, int) and isinstance(depth, int)):
        return False
    whole = n % _CHUNK == 0 and depth % _CHUNK == 0
    many = min(n, depth) >= _LEAST_SIDE and n * depth >= _LEAST_READ and (n >= _WIDE or depth >= n)
    return FEW_ROWS < m <= ROWS_OF_TILE and whole and many


def _is_for_matrix_tiles(dot: Dot, constants: set[SSAValue]) -> bool:
    """Whether a matmul of bf16 is worth a call of the framework: what it multiplies by cannot be packed ahead."""
    result, weight = tensor_of(dot.results[0].type), dot.operands[1]
    widened = isinstance(weight, OpResult) and WIDENS in weight.op.attributes
    sides = (*result.shape[-2:], tensor_of(dot.operands[0].type).shape[-1])
    small = any(isinstance(size, int) and size < _LEAST_TILED for size in sides)
    known = [size for size in (*result.shape, sides[-1]) if isinstance(size, int)]
    small = small or (len(known) == result.rank + 1 and prod(known) < _LEAST_CALLED)
    return not (widened or small or viewed(weight) in constants)
