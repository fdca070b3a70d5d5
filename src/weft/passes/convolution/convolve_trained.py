"""Make matmuls of convolutions whose weights change, and of their gradients, over channels that lie innermost.

`convolve_by_matmul` does so where weights are constants. Here all windows are copied to rows of a matrix, so that a
library multiplies it with weights as they are: the same rows serve a convolution and the gradient of its weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar, cast

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import OpResult, SSAValue
from xdsl.passes import ModulePass

from weft.ir.attributes import to_attribute
from weft.ir.expr import Size, floordiv, product
from weft.ir.types import Tensor, f32, f64, tensor_of
from weft.ops.graph import FuncOp, GraphBuilder
from weft.ops.windows.convolution import BY_WEIGHTS, Convolution
from weft.passes.convolution.multiply_over_places import has_places_innermost, multiply_over_places
from weft.passes.grouping.build_groups import PARTIAL_SUMS

_LEAST_CHANNELS = 8
"""Channels on the side of a matmul that is not windows, of which fewer are not worth a copy of the windows."""
_LEAST_SUMMED, _MOST_SUMMED, _MOST_SUMS = 16, 1024, 4
"""Elements of a partial sum that make it worth a product of its own; elements from which on the library's sums are no
worse than eager's; and how many matmuls there are, since the threads of a library wait for each other in each."""
_MOST_BYTES = 1 << 30


def is_product(x: Tensor, w: Tensor, result: Tensor, *, groups: Size, transposed: bool, **geometry: Any) -> bool:
    """Whether this pass takes a convolution: many of its channels mix, and all sizes along windows are known."""
    known = (groups, w.shape[0], *x.shape[2:], *w.shape[2:], *result.shape[2:])
    known += (*geometry["strides"], *geometry["dilation"], *(size for pair in geometry["padding"] for size in pair))
    if x.dtype not in (f32, f64) or not all(isinstance(size, int) and size >= 0 for size in known):
        return False
    if 0 in (groups, *x.shape, *w.shape, *result.shape) or floordiv(w.shape[0], groups) < _LEAST_CHANNELS:  # type: ignore[operator]
        return False
    places, channels = (x.shape[2:], groups * w.shape[1]) if transposed else (result.shape[2:], x.shape[1])
    count = product((x.shape[0], *places, *w.shape[2:], channels))
    return not isinstance(count, int) or count * x.dtype.bytes <= _MOST_BYTES


def is_pointwise(
    w: Tensor, *, groups: Size, transposed: bool, strides: Sequence[Size], padding: Sequence[Any], **geometry: Any
) -> bool:
    """Whether a convolution mixes the channels of each place by itself: then it is a matmul as it stands."""
    return groups == 1 and not transposed and not any(map(any, padding)) and {*w.shape[2:], *strides} == {1}


@dataclass(frozen=True)
class ConvolveTrained(ModulePass):
    """A convolution, its gradient by what it convolves and that by its weights:

    %y = graph.convolution %x, %w                 %r = graph.copy (graph.windows (graph.pad %x))
                                           →      %y = graph.dot %r, (graph.permute %w)
    %g = graph.convolution %e, %w transposed      %g = graph.fold (graph.dot %e, %w)
    %h = graph.convolution %x, %e                 %h = graph.dot (graph.permute %e), %r

    Values are read as rows of channels by permutes and reshapes. Gradients by weights are annotated as such. Groups of
    channels are a batch of matmuls. `pointwise` takes those alone that mix the channels of single places, in any type;
    where these lie innermost along one dimension, they stay so (`multiply_over_places`).
    """

    name: ClassVar[str] = "convolve_trained"
    pointwise: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if isinstance(function, FuncOp) and "prepares" not in function.attributes:
                for candidate in list(function.block.ops):
                    if isinstance(candidate, Convolution) and self._takes(candidate):
                        by_places = self.pointwise and has_places_innermost(candidate.operands[0])
                        (multiply_over_places if by_places else _rewrite)(function, candidate)

    def _takes(self, op: Convolution) -> bool:
        x, w, result = (tensor_of(value.type) for value in (*op.operands, op.results[0]))
        if self.pointwise:
            return BY_WEIGHTS not in op.attributes and is_pointwise(w, **op.params)
        return is_product(x, w, result, **op.params)


def _rewrite(function: FuncOp, op: Convolution) -> None:
    _Rewriting(function, op).run()


class _Rewriting:
    """The matmuls of one convolution, one for each group of channels: all have the group as their first dimension."""

    def __init__(self, function: FuncOp, op: Convolution) -> None:
        self.op = op
        self.b = GraphBuilder(function.block, op.location, before=op)
        params = op.params
        self.groups: Any = params["groups"]
        self.strides, self.padding, self.dilation = params["strides"], params["padding"], params["dilation"]
        self.x, self.w = op.operands
        self.shape = tensor_of(op.results[0].type).shape
        self.window: tuple[Any, ...] = tensor_of(self.w.type).shape[2:]
        self.counts: tuple[Any, ...] = self.shape[2:]

    def run(self) -> None:
        by_weights = BY_WEIGHTS in self.op.attributes
        made = self._spread() if self.op.params["transposed"] else self._over() if by_weights else self._slid()
        self.op.results[0].replace_all_uses_with(made)
        self.op.detach()
        self.op.erase()

    def _slid(self) -> SSAValue:
        """[N, G * C, ...] by [G * O, C, window...]."""
        rows = self._windows(self._innermost(self.x), self.window, self.strides, self.dilation)
        return self._restored(self._dot(rows, _transposed(self.b, self._weights())))

    def _spread(self) -> SSAValue:
        """[N, G * O, ...] by [G * O, C, window...], added up where windows overlap."""
        b, e = self.b, self._innermost(self.x)
        groups, rows, *counts, channels = tensor_of(e.type).shape
        made = self._dot(b.reshape(e, shape=(groups, rows * product(counts), channels)), self._weights())
        if not self._is_plain(self.window, self.strides):
            outputs = tensor_of(self.w.type).shape[1]
            apart = b.reshape(made, shape=(groups * rows, *counts, *self.window, outputs))
            geometry = {"strides": self.strides, "padding": self.padding, "dilation": self.dilation}
            made = b.fold(apart, shape=self.counts, **geometry)
        return self._restored(made)

    def _over(self) -> SSAValue:
        """[C, G * N, ...] by [G * O, N, window...]: windows and their elements change places; rows as in `_slid`."""
        b, rank = self.b, len(self.counts)
        # [G, N, ..., C] and [G, N, ..., O]
        places = self._apart(b.permute(self.x, dims=(*range(1, rank + 2), 0)), 0)
        e = self._apart(self.w, 0)
        e = b.permute(e, dims=(0, *range(2, rank + 3), 1))
        # What lies `strides` apart here are the elements of a window, and windows lie `dilation` apart.
        rows = self._windows(places, self.counts, self.dilation, self.strides)
        groups, *within, outputs = tensor_of(e.type).shape
        columns = b.reshape(e, shape=(groups, product(within), outputs))
        made = self._dot(_transposed(b, columns), rows)
        cast(OpResult, made).op.attributes[PARTIAL_SUMS] = to_attribute(_partial_sums(within[0], prod(self.window)))
        apart = b.reshape(made, shape=(groups * outputs, *self.counts, self.shape[0]))
        return b.permute(apart, dims=(rank + 1, 0, *range(1, rank + 1)))

    # -- operands --------------------------------------------------------------------------------------------------

    def _apart(self, x: SSAValue, dim: int) -> SSAValue:
        """A dimension of groups and what is in them as two."""
        shape = tensor_of(x.type).shape
        split = (self.groups, floordiv(shape[dim], self.groups))
        return self.b.reshape(x, shape=(*shape[:dim], *split, *shape[dim + 1 :]))

    def _innermost(self, x: SSAValue) -> SSAValue:
        """[N, G * C, ...] as [G, N, ..., C]."""
        apart = self._apart(x, 1)
        return self.b.permute(apart, dims=(1, 0, *range(3, tensor_of(apart.type).rank), 2))

    def _windows(
        self, x: SSAValue, window: Sequence[Size], strides: Sequence[Size], dilation: Sequence[Size]
    ) -> SSAValue:
        """All windows over [G, N, ..., C] as rows."""
        b = self.b
        groups, rows, *spatial, channels = tensor_of(x.type).shape
        if self._is_plain(window, strides):
            return b.reshape(x, shape=(groups, rows * product(spatial), channels))
        x = b.reshape(x, shape=(groups * rows, *spatial, channels))
        if any(map(any, self.padding)):
            low, high = zip(*self.padding, strict=True)
            x = b.pad(x, low=(0, *low, 0), high=(0, *high, 0), value=0)
        windows = b.windows(x, window=tuple(window), strides=tuple(strides), dilation=tuple(dilation))
        counts = tensor_of(windows.type).shape[1 : 1 + len(window)]
        shape = (groups, rows * product(counts), product(window) * channels)
        return b.reshape(b.copy(windows), shape=shape)

    def _is_plain(self, window: Sequence[Size], strides: Sequence[Size]) -> bool:
        """Whether the windows are the operand itself."""
        return all(size == 1 for size in (*window, *strides)) and not any(map(any, self.padding))

    def _weights(self) -> SSAValue:
        """[G * O, C, window...] as matrices [G, O, window... * C]."""
        b, rank = self.b, len(self.window)
        outputs, channels = tensor_of(self.w.type).shape[:2]
        last = b.permute(self.w, dims=(0, *range(2, 2 + rank), 1))
        if prod(self.window) != 1:
            last = b.copy(last)
        shape = (self.groups, floordiv(outputs, self.groups), product(self.window) * channels)
        return b.reshape(last, shape=shape)

    def _dot(self, rows: SSAValue, columns: SSAValue) -> SSAValue:
        """The products of all groups; that of one is no batch."""
        b = self.b
        if self.groups != 1:
            return b.dot(rows, columns)
        matrices = (b.reshape(each, shape=tensor_of(each.type).shape[1:]) for each in (rows, columns))
        return b.dot(*matrices)

    def _restored(self, rows: SSAValue) -> SSAValue:
        """Rows of channels, for each group, as the result [N, G * C, ...]."""
        b, (images, channels, *spatial) = self.b, self.shape
        rank = len(spatial)
        apart = b.reshape(rows, shape=(self.groups, images, *spatial, floordiv(channels, self.groups)))
        return b.reshape(b.permute(apart, dims=(1, 0, rank + 2, *range(2, rank + 2))), shape=self.shape)


def _partial_sums(images: Size, places: int) -> int:
    """Into how many a sum over the places of all images is taken apart, each over whole images."""
    least = -(-_LEAST_SUMMED // places)
    if not isinstance(images, int) or images * places > _MOST_SUMMED:
        return 1
    return next(count for count in range(max(1, min(_MOST_SUMS, images // least)), 0, -1) if images % count == 0)


def _transposed(b: GraphBuilder, x: SSAValue) -> SSAValue:
    return b.permute(x, dims=(0, 2, 1))
