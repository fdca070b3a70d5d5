"""Make matmuls of convolutions with frozen weights, over channels that lie innermost.

A row of the matmul is a window, a column a channel of the result; the weights become a matrix when the program is
loaded. What follows (bias, activation, residual) is computed in rows as well, so that it can join the matmul's kernel.
Convolutions whose channels do not mix stay what they are, with weights whose channels lie innermost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

from weft.ir.attributes import to_attribute
from weft.ir.expr import Size, product
from weft.ir.types import DType, Tensor, f32, f64, tensor_of, tensor_type
from weft.ops.base import Elementwise, GraphOp
from weft.ops.graph import FuncOp, GraphBuilder
from weft.ops.matmul.dot import BYTES_TOGETHER, Dot
from weft.ops.windows.convolution import Convolution
from weft.ops.windows.window import Padding
from weft.passes.simplify.constant_values import fixed_values, made_by

ROWS_OF_WINDOWS = "weft.rows_of_windows"
"""The annotation of a matmul that is a convolution."""
_MOST_TAPS = 64
"""Elements of a window of one channel that are added up in a kernel without loops over them."""
_MANY_TAPS = 16
"""Elements of a window from which on a padded copy costs less than asking for each whether it is inside."""
_CACHED_BYTES = 3 << 18
"""Weights up to this size stay in a core's cache: reading them anew for every row of an image costs little."""
_LONG_ROW, _LONG_FOR_WIDE = 48, 10
"""Windows of an image's row that are enough for weights to be read once for each row, wherever they lie; the latter
where a block in registers is as high, so that fewer would leave some of it empty."""
_SHORT_RUN, _SHORT_FOR_WIDE = 32, 16
"""Elements of a window that lie side by side, of which fewer are not worth a step of the matmul."""


@dataclass(frozen=True)
class Geometry:
    """A convolution of [N, C, ...] by [O, C / groups, window...]; all sizes but N are known."""

    channels: int
    outputs: int
    groups: int
    spatial: tuple[int, ...]
    counts: tuple[int, ...]
    window: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]

    @property
    def is_depthwise(self) -> bool:
        return self.groups == self.channels == self.outputs

    @property
    def is_plain(self) -> bool:
        """Whether the windows are the operand itself."""
        return all(size == 1 for size in (*self.window, *self.strides)) and not any(map(any, self.padding))

    def copies_windows(self, *, codes: bool = False, wide: bool = False) -> bool:
        """Whether all windows are copied first, which makes one tall matmul of many of an image's row each.

        The weights are read anew for every such row: that costs more than the copy where they leave the cache and rows
        are short. Windows of few channels are short runs of memory, which make for short sums. Channels of `codes` are
        multiplied four at a time, from the first one of each place. `wide` vectors go through either much faster than
        through a copy.
        """
        if codes and self.channels % BYTES_TOGETHER:
            return True
        run = self.channels * (self.window[-1] if self.dilation[-1] == 1 else 1)
        weights = self.channels * self.outputs * prod(self.window) * 4
        short, long = (_SHORT_FOR_WIDE, _LONG_FOR_WIDE) if wide and not codes else (_SHORT_RUN, _LONG_ROW)
        return run < short or (self.counts[-1] < long and weights > _CACHED_BYTES)


def geometry_of(
    x: Tensor,
    w: Tensor,
    result: Tensor,
    *,
    strides: tuple[Size, ...],
    padding: Padding,
    dilation: tuple[Size, ...],
    groups: Size,
    transposed: bool,
    output_padding: tuple[Size, ...],
    dtype: DType | None = None,
    fill: int = 0,
) -> Geometry | None:
    """What this pass takes: the geometry, or None where the convolution is left to others."""
    flat = tuple(size for pair in padding for size in pair)
    sizes = (groups, *x.shape[1:], *w.shape, *result.shape[1:], *strides, *flat, *dilation)
    if transposed or not all(isinstance(size, int) and size >= 0 for size in sizes):
        return None
    if dtype is None and x.dtype not in (f32, f64):
        return None
    if 0 in (groups, *x.shape, *w.shape, *result.shape):
        return None
    geometry = Geometry(
        *(x.shape[1], w.shape[0], groups, x.shape[2:], result.shape[2:], w.shape[2:]),  # type: ignore[arg-type]
        *(strides, padding, dilation),  # type: ignore[arg-type]
    )
    depthwise = geometry.is_depthwise and prod(geometry.window) <= _MOST_TAPS and geometry.channels >= 4
    return geometry if geometry.groups == 1 or depthwise else None


@dataclass(frozen=True)
class ConvolveByMatmul(ModulePass):
    """A window of 3 by 3 over 64 channels, with a relu after it:

    %y = graph.convolution %x, %w                 %r = graph.permute %x {dims = [0, 2, 3, 1]}
    %z = graph.relu %y                     →      %p = graph.windows (graph.pad %r) : 1x56x56x3x3x64
                                                  %d = graph.dot (graph.reshape %p : 3136x576), %wm
                                                  %e = graph.relu %d
                                                  %z = graph.permute (graph.reshape %e : 1x56x56x64)

    Permutes, reshapes and windows are views. Only where weights are constants, so that `hoist_constants` makes the
    matrix of them once. Windows are copied for other reasons where vectors are `wide`.
    """

    name: ClassVar[str] = "convolve_by_matmul"
    wide: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if isinstance(function, FuncOp) and "constants" in function.attributes:
                _Rewriting(function, wide=self.wide).run()


class _Rewriting:
    """One walk over a function. `rows` has values [N, C, ...] as matrices [N * ..., C], where they were computed so."""

    def __init__(self, function: FuncOp, *, wide: bool) -> None:
        self.function, self.wide = function, wide
        self.fixed = fixed_values(function)
        self.rows: dict[SSAValue, SSAValue] = {}

    def run(self) -> None:
        done: list[Operation] = []
        for op in list(self.function.block.ops):
            self.b = GraphBuilder(self.function.block, op.location, before=op)
            if isinstance(op, Convolution) and op.operands[1] in self.fixed:
                x, w = (tensor_of(value.type) for value in op.operands)
                geometry = geometry_of(x, w, tensor_of(op.results[0].type), **op.params)
                if geometry is None:
                    continue
                if geometry.groups != 1:
                    self._depthwise(op, geometry)
                    continue
                self.rows[op.results[0]] = self._product(op, geometry)
                done.append(op)
            elif isinstance(op, Elementwise):
                made = self._elementwise(op)
                if made is not None:
                    self.rows[op.results[0]] = made
                    done.append(op)
            elif op.name == "graph.permute":
                self._note_permute(op)
        for op in reversed(done):
            result = op.results[0]
            if result.uses:
                self.b = GraphBuilder(self.function.block, op.location, before=op)
                result.replace_all_uses_with(self._restored(self.rows[result], tensor_of(result.type).shape))
            op.detach()
            op.erase()

    # -- matmuls --------------------------------------------------------------------------------------------------

    def _product(self, op: Convolution, geometry: Geometry) -> SSAValue:
        b, (x, w) = self.b, op.operands
        images = tensor_of(x.type).shape[0]
        rank = len(geometry.window)
        depth = geometry.channels * prod(geometry.window)
        count = images * prod(geometry.counts)
        matrix = b.permute(w, dims=(*range(2, 2 + rank), 1, 0))
        if prod(geometry.window) == 1:
            matrix = b.reshape(matrix, shape=(depth, geometry.outputs))
        else:
            matrix = b.reshape(b.copy(matrix), shape=(depth, geometry.outputs))
        rows = self._as_rows(x)
        if not geometry.is_plain:
            places = b.reshape(rows, shape=(images, *geometry.spatial, geometry.channels))
            if any(map(any, geometry.padding)):
                low, high = zip(*geometry.padding, strict=True)
                places = b.pad(places, low=(0, *low, 0), high=(0, *high, 0), value=op.params.get("fill", 0))
            windows = b.windows(places, window=geometry.window, strides=geometry.strides, dilation=geometry.dilation)
            copies = geometry.copies_windows(codes="dtype" in op.params, wide=self.wide)
            rows = b.reshape(b.copy(windows) if copies else windows, shape=(count, depth))
        wide = {"dtype": op.params["dtype"]} if "dtype" in op.params else {}
        dot = Dot.make(rows, matrix, location=op.location, **wide)
        dot.attributes[ROWS_OF_WINDOWS] = UnitAttr()
        return b.insert(dot).results[0]

    def _depthwise(self, op: Convolution, geometry: Geometry) -> None:
        op.operands[1] = self._channels_innermost(op.operands[1])
        if any(map(any, geometry.padding)) and prod(geometry.window) >= _MANY_TAPS:
            low, high = zip(*geometry.padding, strict=True)
            x = self.b.permute(op.operands[0], dims=(0, *range(2, 2 + len(low)), 1))
            padded = self.b.pad(x, low=(0, *low, 0), high=(0, *high, 0), value=op.params.get("fill", 0))
            op.operands[0] = self.b.permute(padded, dims=(0, len(low) + 1, *range(1, len(low) + 1)))
            op.attributes["padding"] = to_attribute(tuple((0, 0) for _ in low))

    def _channels_innermost(self, w: SSAValue) -> SSAValue:
        """The weights [C, 1, window...] of a convolution whose channels do not mix, read along the channels."""
        rank = tensor_of(w.type).rank
        copied = self.b.copy(self.b.permute(w, dims=(*range(1, rank), 0)))
        return self.b.permute(copied, dims=(rank - 1, *range(rank - 1)))

    # -- rows ------------------------------------------------------------------------------------------------------

    def _as_rows(self, x: SSAValue) -> SSAValue:
        """A value [N, C, ...] as a matrix [N * ..., C]."""
        if x in self.rows:
            return self.rows[x]
        shape = tensor_of(x.type).shape
        innermost = self.b.permute(x, dims=(0, *range(2, len(shape)), 1))
        return self.b.reshape(innermost, shape=(shape[0] * product(shape[2:]), shape[1]))

    def _restored(self, rows: SSAValue, shape: tuple[Size, ...]) -> SSAValue:
        apart = self.b.reshape(rows, shape=(shape[0], *shape[2:], shape[1]))
        return self.b.permute(apart, dims=(0, len(shape) - 1, *range(1, len(shape) - 1)))

    def _note_permute(self, op: Operation) -> None:
        """A matmul over channels that lie innermost, brought into the order of a convolution's operands."""
        assert isinstance(op, GraphOp)
        rank = tensor_of(op.results[0].type).rank
        source = op.operands[0]
        if rank < 3 or op.params["dims"] != (0, rank - 1, *range(1, rank - 1)) or not _is_ofprod(source):
            return
        *places, channels = tensor_of(source.type).shape
        self.rows[op.results[0]] = self.b.reshape(source, shape=(product(places), channels))

    def _elementwise(self, op: Elementwise) -> SSAValue | None:
        """The op computed in rows, if one of its operands is and the others can be read so."""
        result = tensor_of(op.results[0].type)
        if not any(x in self.rows and tensor_of(x.type).shape == result.shape for x in op.operands):
            return None
        if not all(self._can_be_rows(x, result) for x in op.operands):
            return None
        operands = [self._operand(x, result) for x in op.operands]
        shape = (result.shape[0] * product(result.shape[2:]), result.shape[1])
        # The type rule has seen the op already; only the shape is another.
        made = type(op).create(
            operands=operands,
            result_types=[tensor_type(Tensor(result.dtype, shape))],
            attributes=op.attributes,
            location=op.location,
        )
        return self.b.insert(made).results[0]

    def _can_be_rows(self, x: SSAValue, result: Tensor) -> bool:
        shape = tensor_of(x.type).shape
        return shape == result.shape or _channel_of(shape, result) is not None

    def _operand(self, x: SSAValue, result: Tensor) -> SSAValue:
        shape = tensor_of(x.type).shape
        if shape == result.shape:
            return self._as_rows(x)
        channels = _channel_of(shape, result)
        assert channels is not None
        return x if shape == channels else self.b.reshape(x, shape=channels)


def _channel_of(shape: Sequence[Size], result: Tensor) -> tuple[Size, ...] | None:
    """The shape of an operand beside rows, if it is one number or one for each channel."""
    if all(size == 1 for size in shape):
        return ()
    place = len(shape) - result.rank + 1
    if place >= 0 and shape[place] == result.shape[1] and all(s == 1 for d, s in enumerate(shape) if d != place):
        return (result.shape[1],)
    return None


def _is_ofprod(value: SSAValue) -> bool:
    """Whether a value is a matmul, reshaped, with a bias or a factor for each channel after it."""
    while (op := made_by(value, "graph.reshape", "graph.add", "graph.mul")) is not None:
        whole = [x for x in op.operands if tensor_of(x.type).rank > 1]
        if len(whole) != 1:
            return False
        (value,) = whole
    return made_by(value, "graph.dot") is not None
