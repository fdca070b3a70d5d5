"""Make products of convolutions whose weights change, and of their gradients, over channels that lie innermost.

`convolve_by_products` does so where weights are constants. Here all windows are copied to rows of a matrix, so that a
library multiplies it with weights as they are: the same rows serve a convolution and the gradient of its weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass

from weft.ir.expr import Size, product
from weft.ir.types import Tensor, f32, f64, tensor_of
from weft.ops.convolution import BY_WEIGHTS, Convolution
from weft.ops.graph import FuncOp, GraphBuilder

_LEAST_CHANNELS = 8
"""Channels on the side of a product that is not windows, of which fewer are not worth a copy of the windows."""
_MOST_BYTES = 1 << 30


def is_product(x: Tensor, w: Tensor, result: Tensor, *, groups: Size, transposed: bool, **geometry: Any) -> bool:
    """Whether this pass takes a convolution: its channels mix, and all sizes along windows are known."""
    known = (groups, w.shape[0], *x.shape[2:], *w.shape[2:], *result.shape[2:])
    known += (*geometry["strides"], *geometry["dilation"], *(size for pair in geometry["padding"] for size in pair))
    if groups != 1 or x.dtype not in (f32, f64) or not all(isinstance(size, int) and size >= 0 for size in known):
        return False
    if 0 in (*x.shape, *w.shape, *result.shape) or w.shape[0] < _LEAST_CHANNELS:  # type: ignore[operator]
        return False
    places, channels = (x.shape[2:], w.shape[1]) if transposed else (result.shape[2:], x.shape[1])
    count = product((x.shape[0], *places, *w.shape[2:], channels))
    return not isinstance(count, int) or count * x.dtype.bytes <= _MOST_BYTES


@dataclass(frozen=True)
class ConvolveTrained(ModulePass):
    """A convolution, its gradient by what it convolves and that by its weights:

    %y = graph.convolution %x, %w                 %r = graph.copy (graph.windows (graph.pad %x))
                                           →      %y = graph.dot %r, (graph.permute %w)
    %g = graph.convolution %e, %w transposed      %g = graph.fold (graph.dot %e, %w)
    %h = graph.convolution %x, %e                 %h = graph.dot (graph.permute %e), %r

    Values are read as rows of channels by permutes and reshapes. Gradients by weights are annotated as such.
    """

    name: ClassVar[str] = "convolve_trained"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if isinstance(function, FuncOp) and "prepares" not in function.attributes:
                for candidate in list(function.block.ops):
                    if isinstance(candidate, Convolution) and _is_product(candidate):
                        _Rewriting(function, candidate).run()


def _is_product(op: Convolution) -> bool:
    x, w, result = (tensor_of(value.type) for value in (*op.operands, op.results[0]))
    return is_product(x, w, result, **op.params)


class _Rewriting:
    """The products of one convolution."""

    def __init__(self, function: FuncOp, op: Convolution) -> None:
        self.op = op
        self.b = GraphBuilder(function.block, op.location, before=op)
        params = op.params
        self.transposed: bool = params["transposed"]
        self.strides, self.padding, self.dilation = params["strides"], params["padding"], params["dilation"]
        self.x, self.w = op.operands
        self.shape = tensor_of(op.results[0].type).shape
        self.window: tuple[Any, ...] = tensor_of(self.w.type).shape[2:]
        self.counts: tuple[Any, ...] = self.shape[2:]

    def run(self) -> None:
        by_weights = BY_WEIGHTS in self.op.attributes
        made = self._spread() if self.transposed else self._over_windows() if by_weights else self._slid()
        self.op.results[0].replace_all_uses_with(made)
        self.op.detach()
        self.op.erase()

    def _slid(self) -> SSAValue:
        """[N, C, ...] by [O, C, window...]."""
        rows = self._windows(_innermost(self.b, self.x), self.window, self.strides, self.dilation)
        columns = self.b.permute(self._weights(), dims=(1, 0))
        return self._restored(self.b.dot(rows, columns))

    def _spread(self) -> SSAValue:
        """[N, O, ...] by [O, C, window...], added up where windows overlap."""
        b, e = self.b, _innermost(self.b, self.x)
        rows, *counts, channels = tensor_of(e.type).shape
        made = b.dot(b.reshape(e, shape=(rows * product(counts), channels)), self._weights())
        if not self._is_plain(self.window, self.strides):
            apart = b.reshape(made, shape=(rows, *counts, *self.window, self.shape[1]))
            geometry = {"strides": self.strides, "padding": self.padding, "dilation": self.dilation}
            made = b.fold(apart, shape=self.counts, **geometry)
        return self._restored(made)

    def _over_windows(self) -> SSAValue:
        """[C, N, ...] by [O, N, window...]: windows change places with their elements, and rows are as in `_slid`."""
        b = self.b
        places = _turned(b, self.x)
        # What lies `strides` apart here are the elements of a window, and windows lie `dilation` apart.
        rows = self._windows(places, self.counts, self.dilation, self.strides)
        e = _turned(b, self.w)
        count, outputs = product(tensor_of(e.type).shape[:-1]), tensor_of(e.type).shape[-1]
        made = b.dot(b.permute(b.reshape(e, shape=(count, outputs)), dims=(1, 0)), rows)
        apart = b.reshape(made, shape=(outputs, *self.counts, self.shape[0]))
        rank = len(self.counts)
        return b.permute(apart, dims=(rank + 1, 0, *range(1, rank + 1)))

    def _windows(
        self, x: SSAValue, window: Sequence[Size], strides: Sequence[Size], dilation: Sequence[Size]
    ) -> SSAValue:
        """All windows over [N, ..., C] as rows."""
        b = self.b
        rows, *_, channels = tensor_of(x.type).shape
        if self._is_plain(window, strides):
            return b.reshape(x, shape=(product(tensor_of(x.type).shape[:-1]), channels))
        if any(map(any, self.padding)):
            low, high = zip(*self.padding, strict=True)
            x = b.pad(x, low=(0, *low, 0), high=(0, *high, 0), value=0)
        windows = b.windows(x, window=tuple(window), strides=tuple(strides), dilation=tuple(dilation))
        counts = tensor_of(windows.type).shape[1 : 1 + len(window)]
        shape = (rows * product(counts), product(window) * channels)
        return b.reshape(b.copy(windows), shape=shape)

    def _is_plain(self, window: Sequence[Size], strides: Sequence[Size]) -> bool:
        """Whether the windows are the operand itself."""
        return all(size == 1 for size in (*window, *strides)) and not any(map(any, self.padding))

    def _weights(self) -> SSAValue:
        """[O, C, window...] as a matrix [O, window... * C]."""
        outputs = tensor_of(self.w.type).shape[0]
        last = _innermost(self.b, self.w)
        if prod(self.window) != 1:
            last = self.b.copy(last)
        return self.b.reshape(last, shape=(outputs, product(tensor_of(last.type).shape[1:])))

    def _restored(self, rows: SSAValue) -> SSAValue:
        """Rows of channels as the result [N, C, ...]."""
        shape = self.shape
        apart = self.b.reshape(rows, shape=(shape[0], *shape[2:], shape[1]))
        return self.b.permute(apart, dims=(0, len(shape) - 1, *range(1, len(shape) - 1)))


def _innermost(b: GraphBuilder, x: SSAValue) -> SSAValue:
    """[N, C, ...] as [N, ..., C]."""
    return b.permute(x, dims=(0, *range(2, tensor_of(x.type).rank), 1))


def _turned(b: GraphBuilder, x: SSAValue) -> SSAValue:
    """[C, N, ...] as [N, ..., C]."""
    return b.permute(x, dims=(*range(1, tensor_of(x.type).rank), 0))
