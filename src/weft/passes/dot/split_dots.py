"""Matmuls whose columns are read in parts that meet again become a matmul for each part.

Models compute a gate and what it opens as one matmul and cut that in halves. As two matmuls of the same rows they
fit one kernel, which multiplies both into its registers and never writes either.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, OpResult, SSAValue
from xdsl.passes import ModulePass

from weft.ir.expr import Size
from weft.ir.types import tensor_of
from weft.ops.base import Elementwise, GraphOp
from weft.ops.graph import FuncOp, GraphBuilder
from weft.ops.matmul.dot import Dot, TiledDot
from weft.ops.matmul.quantized import FORMS, Dequantize
from weft.passes.claim_libraries import FEW_ROWS, is_for_tensor_cores, worth_streaming, worth_tensor_cores
from weft.passes.grouping.build_groups import is_free
from weft.passes.simplify.constant_values import made_by
from weft.passes.tensor_slices import views_from

_PARTS = 2
"""Matmuls that a kernel has registers for."""
_BITS, _LEAST_CODED = 4, 8192
"""Bits of codes that two matmuls are made of at once, and columns of each from which on a GPU has enough to read."""
_LEAST_BROUGHT, _PIECE = 1 << 19, 512
"""Weights of few rows from which on TMA brings them, and how many of each it brings at once."""


@dataclass(frozen=True)
class SplitDots(ModulePass):
    """%y = graph.dot %x, %w : 64x256                    %u = graph.slice %w to 128 columns ; %v = graph.slice %w …
    %g = graph.slice %y from 0 : 64x128                  %g = graph.dot %x, %u : 64x128
    %u = graph.slice %y from 128 : 64x128         →      %u = graph.dot %x, %v : 64x128
    %z = graph.mul (graph.silu %g), %u                   %z = graph.mul (graph.silu %g), %u
    """

    name: ClassVar[str] = "split_dots"

    few_rows: bool = True
    """Whether matmuls of few rows are split, too: weights that are coded later must not be."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if isinstance(function, FuncOp) and "prepares" not in function.attributes:
                for candidate in list(function.block.ops):
                    if isinstance(candidate, Dot | TiledDot):
                        _split(candidate, self.few_rows)


def share_rows(ops: Sequence[Operation], most: int) -> bool:
    """Whether all matmuls among ops have the same rows to multiply, and a kernel of tensor cores room for them."""
    dots = [op for op in ops if isinstance(op, Dot)]
    tiled = [op for op in ops if isinstance(op, TiledDot)]
    if tiled:
        same = {(op.operands[0], *op.operands[2:], op.params["rows"]) for op in tiled}
        return not dots and len(tiled) <= most and len(same) == 1 and tiled[0].params["rows"] > FEW_ROWS
    fitting = all(is_for_tensor_cores(dot) and (_has_many_rows(dot) or _are_brought(dot)) for dot in dots)
    fitting = fitting or _are_coded(dots)
    return fitting and 0 < len(dots) <= most and len({dot.operands[0] for dot in dots}) == 1


def _has_many_rows(dot: Dot) -> bool:
    rows = tensor_of(dot.results[0].type).shape[-2]
    return isinstance(rows, int) and rows > FEW_ROWS


def _are_brought(dot: Dot) -> bool:
    """Whether TMA brings the weights of a matmul of few rows: as they lie in memory, along K."""
    weights, views = views_from(dot.operands[1])
    plain = not isinstance(weights, OpResult) or not is_free(weights.op)
    turned = sum(view.name == "graph.permute" for view in views) == 1
    return plain and turned and _is_brought(dot, tensor_of(dot.results[0].type).shape[-1])


def _are_coded(dots: Sequence[Dot]) -> bool:
    """Whether a kernel reads the codes of several matmuls side by side, as they are of one kind."""
    codes = [op for op in map(_codes_of, dots) if op is not None]
    kinds = {(op.params["form"], *(tensor_of(value.type).shape[1:] for value in op.operands)) for op in codes}
    whole = len(codes) == len(dots) and len(kinds) == 1
    return whole and all(_is_coded(dot, tensor_of(dot.results[0].type).shape[-1]) for dot in dots)


def _is_coded(dot: Dot, width: Size) -> bool:
    """Whether a matmul of so many columns has one row, codes of 4 bits, and with another work for all of a GPU."""
    codes, result = _codes_of(dot), tensor_of(dot.results[0].type)
    if codes is None or FORMS[codes.params["form"]].bits != _BITS or result.shape[0] != 1:
        return False
    each = len({tensor_of(value.type).shape[:-1] for value in (*codes.operands, codes.results[0])}) == 1
    streamed = worth_streaming(result.dtype, (1, width), tensor_of(dot.operands[0].type).shape[-1])
    return each and streamed and isinstance(width, int) and width >= _LEAST_CODED


def _codes_of(dot: Dot) -> Dequantize | None:
    """What widens the weights [N, K] of a matmul."""
    view = made_by(dot.operands[1], "graph.permute")
    codes = view.operands[0].owner if view is not None and view.params["dims"] == (1, 0) else None
    return codes if isinstance(codes, Dequantize) else None


def _is_brought(dot: Dot, width: Size) -> bool:
    """The same of so many columns: there are enough of them, and whole pieces."""
    result, depth = tensor_of(dot.results[0].type), tensor_of(dot.operands[0].type).shape[-1]
    if not worth_streaming(result.dtype, (*result.shape[:-1], width), depth):
        return False
    elements = width * depth * _PARTS
    return isinstance(depth, int) and depth % _PIECE == 0 and isinstance(elements, int) and elements >= _LEAST_BROUGHT


def _is_worth(dot: Dot | TiledDot, width: int, few_rows: bool) -> bool:
    """Whether the tensor cores are worth it for so many columns of a matmul."""
    result, depth = tensor_of(dot.results[0].type), tensor_of(dot.operands[0].type).shape[-1]
    if isinstance(dot, TiledDot):
        return dot.params["rows"] > FEW_ROWS
    if _codes_of(dot) is not None and not _has_many_rows(dot):
        return _is_coded(dot, width)
    return worth_tensor_cores(result.dtype, (result.shape[0], width), depth) or (few_rows and _is_brought(dot, width))


def _split(dot: Dot | TiledDot, few_rows: bool) -> None:
    slices = _slices(dot.results[0])
    result = tensor_of(dot.results[0].type)
    if slices is None or len(slices) != _PARTS or result.rank != 2:
        return
    parts = [(op.params["starts"][-1], op.params["shape"][-1]) for op in slices]
    (first, width), (second, other) = sorted(parts)
    if width != other or first + width > second or not _is_worth(dot, width, few_rows):
        return
    if not set(_elementwise_after(slices[0])) & set(_elementwise_after(slices[1])):
        return
    for op, (start, size) in zip(slices, parts, strict=True):
        _replace(dot, op, start, size)


def _slices(value: SSAValue) -> list[GraphOp] | None:
    """The cuts along the last dimension that are all that is read of a value, or of reshapes that keep its rows."""
    found: list[GraphOp] = []
    columns = tensor_of(value.type).shape[-1]
    for use in value.uses:
        op = use.operation
        if not isinstance(op, GraphOp) or tensor_of(op.results[0].type).rank == 0:
            return None
        if op.name == "graph.reshape" and tensor_of(op.results[0].type).shape[-1] == columns:
            inner = _slices(op.results[0])
            if inner is None:
                return None
            found += inner
        elif op.name == "graph.slice" and _cuts_columns(op, tensor_of(value.type).shape):
            found.append(op)
        else:
            return None
    return found


def _cuts_columns(op: GraphOp, shape: Sequence[object]) -> bool:
    starts, sizes, steps = (op.params[name] for name in ("starts", "shape", "steps"))
    known = isinstance(starts[-1], int) and isinstance(sizes[-1], int)
    whole = tuple(sizes[:-1]) == tuple(shape[:-1]) and not any(starts[:-1])
    return known and whole and all(step == 1 for step in steps)


def _elementwise_after(op: Operation) -> Iterator[Operation]:
    """What is computed of a value element by element."""
    left, seen = [op], {op}
    while left:
        for use in left.pop().results[0].uses:
            reader = use.operation
            if isinstance(reader, Elementwise) and reader not in seen:
                seen.add(reader)
                left.append(reader)
                yield reader


def _replace(dot: Dot | TiledDot, cut: GraphOp, start: int, width: int) -> None:
    block = cut.parent_block()
    assert block is not None
    b = GraphBuilder(block, cut.location, before=cut)  # type: ignore[arg-type]
    x, w, *tiles = dot.operands
    lead, depth = tensor_of(w.type).shape[:-2], tensor_of(x.type).shape[-1]
    if isinstance(dot, TiledDot):
        part = b.slice(w, starts=(0, start, 0), shape=(*lead, width, depth), steps=(1, 1, 1))
        made = b.tiled_dot(x, part, *tiles, **dot.params)
    elif (codes := _codes_of(dot)) is not None and not _has_many_rows(dot):
        parts = [_rows_of(b, value, start, width) for value in codes.operands]
        made = b.dot(x, b.permute(b.dequantize(*parts, **codes.params), dims=(1, 0)), **dot.params)
    else:
        part = b.slice(w, starts=(0, start), shape=(depth, width), steps=(1, 1))
        made = b.dot(x, part, **dot.params)
    shape = tensor_of(cut.results[0].type).shape
    made = b.reshape(made, shape=shape) if shape != b.tensor(made).shape else made
    cut.results[0].replace_all_uses_with(made)  # what nobody reads any more is eliminated later


def _rows_of(b: GraphBuilder, value: SSAValue, start: int, count: int) -> SSAValue:
    return b.slice(value, starts=(start, 0), shape=(count, b.tensor(value).shape[-1]), steps=(1, 1))
