"""Fused dequantisation: weights of few bits as a matmul's kernel reads them, widened in registers.

Only matmuls of few rows read codes; all others have weights that a kernel of their own has written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import IntegerAttr, StringAttr, i64
from xdsl.ir import Operation, OpResult, SSAValue
from xdsl.rewriter import Rewriter

from weft.ir.attributes import to_attribute
from weft.ir.expr import Size, coefficient_of, floordiv, simplify, symbol
from weft.ir.types import bf16, f16, tensor_of
from weft.lower.emit.body import KernelEmitter, TileValue, register_dtype
from weft.lower.index_space.domain import Domain, Run
from weft.lower.index_space.evaluate import AddressRecorder, Loaded, Source
from weft.ops.layouts import StridedLayout
from weft.ops.matmul.dot import Dot, TiledDot
from weft.ops.matmul.quantized import FORMS, Dequantize, Form
from weft.passes.claim_libraries import FEW_ROWS
from weft.passes.simplify.constant_values import made_by
from weft.tile import dialect as tile

_ALONG = "q"
"""The name of the axis along K, in elements of codes or in factors."""
_WORD = 32


@dataclass(frozen=True)
class QuantizedWeights:
    """What a matmul's weights [K, N] are made of: the op that widens codes [N, K * bits / 8]."""

    op: Dequantize
    lead: tuple[Size, ...] = ()
    """Where in codes the matrix stands, if they are those of many."""

    @classmethod
    def of(
        cls, dot: Dot | TiledDot, weights: SSAValue, layouts: dict[SSAValue, StridedLayout], matrix: Size | None = None
    ) -> QuantizedWeights | None:
        """The codes of the weights of a matmul of few rows, if a GPU's kernel can read them as they are.

        Of many, `matrix` is the number of the program's.
        """
        result = tensor_of(dot.results[0].type)
        *lead, rows, columns = result.shape
        alone = len(lead) == (isinstance(dot, Dot) and matrix is not None)
        rows = dot.params["rows"] if isinstance(dot, TiledDot) else rows
        few = alone and isinstance(rows, int) and 0 < rows <= FEW_ROWS and columns != 1
        if not few or result.dtype not in (f16, bf16):
            return None
        domain = Domain(result.shape, (tensor_of(dot.operands[0].type).shape[-1],))
        view = made_by(dot.operands[1], "graph.permute")
        source = view.operands[0] if view is not None and view.params["dims"] == (1, 0) else None
        source = source if matrix is None else weights
        if not isinstance(source, OpResult) or not isinstance(source.op, Dequantize):
            return None
        codes = cls(source.op, () if matrix is None else (matrix,))
        word = _WORD // codes.form.bits
        group = codes.group
        whole = codes.depth % word == 0 and group % word == 0 and group & (group - 1) == 0
        fits = whole and len(set(codes._counts)) < 2
        strides = [codes._stride(value, layouts, domain) for value in source.op.operands]
        return codes if (fits or codes._per_row) and strides[0] == 1 and None not in strides else None

    @property
    def form(self) -> Form:
        return FORMS[self.op.params["form"]]

    @property
    def kind(self) -> tuple[str, int]:
        """What matmuls in one kernel have in common: the form, and how many share a factor."""
        return self.op.params["form"], self.group

    @property
    def depth(self) -> int:
        size = tensor_of(self.op.results[0].type).shape[-1]
        assert isinstance(size, int)
        return size

    @property
    def _per_row(self) -> bool:
        return all(count == 1 for count in self._counts) and self.depth % (_WORD // self.form.bits) == 0

    @property
    def group(self) -> int:
        count = self._counts[0] if self._counts else 1
        assert isinstance(count, int)
        return self.depth // count

    @property
    def _counts(self) -> list[Size]:
        """How many factors, and zeros, a row has."""
        return [tensor_of(value.type).shape[-1] for value in self.op.operands[1:]]

    def _stride(self, value: SSAValue, layouts: dict[SSAValue, StridedLayout], domain: Domain) -> Size | None:
        """How far apart an operand's neighbours along K lie, if it is read as it is and that is known."""
        recorder = AddressRecorder(layouts, space=domain.bounds | {_ALONG: tensor_of(value.type).shape[-1]})
        found = recorder.at(Source(value, tensor_of(value.type)), [*self.lead, domain.row_index[-1], symbol(_ALONG)])
        if not isinstance(found, Loaded) or len(recorder.addresses) != 1:
            return None
        split = coefficient_of(simplify(recorder.addresses[0].expr, recorder.space), _ALONG)
        return None if split is None else split[0]

    def tile(self, emit: KernelEmitter, turn: Size, columns: Run, start: Size, sides: tuple[int, int]) -> SSAValue:
        """The weights [BK, BN] of an iteration of the loop over K, from a column on."""
        depth, width = sides
        group = depth if self._per_row else min(self.group, depth)

        def part(value: SSAValue, base: Size, capacity: int) -> SSAValue:
            tensor = tensor_of(value.type)
            emit.axes.clear()
            emit.tile_axis(_ALONG, tensor.shape[-1], 0, base, capacity)
            emit.tile_axis(columns.name, columns.size, 1, start, width)
            found = emit.at(Source(value, tensor), [*self.lead, emit.domain.row_index[-1], symbol(_ALONG)])
            assert isinstance(found, TileValue)
            return _filled(found.ssa, (capacity, width))

        codes, *factors = self.op.operands
        together = self.form.together
        shared = 0 if self._per_row else turn * (depth // group)
        if not self._per_row and self.group > depth:
            shared = floordiv(turn, self.group // depth)
        parts = [part(codes, turn * (depth // together), depth // together)]
        parts += [part(value, shared, depth // group) for value in factors]
        dtype = self.op.params["dtype"]
        return emit.add(
            tile.DequantizeOp.create(
                operands=parts,
                attributes={
                    "form": StringAttr(self.op.params["form"]),
                    "group": IntegerAttr(group, i64),
                    "dtype": to_attribute(dtype),
                },
                result_types=[tile.TileType.of(sides, register_dtype(dtype))],
            )
        )


def codes_of(
    dots: Sequence[Operation], weights: Sequence[SSAValue], layouts: dict[SSAValue, StridedLayout], matrix: Size | None
) -> list[QuantizedWeights]:
    """The codes of the weights of a kernel's matmuls, if all are made of such, and of one kind."""
    read = [dot for dot in dots if isinstance(dot, Dot) or (isinstance(dot, TiledDot) and len(dots) == 1)]
    if len(read) != len(dots):
        return []
    found = [QuantizedWeights.of(dot, weight, layouts, matrix) for dot, weight in zip(read, weights, strict=True)]
    codes = [each for each in found if each is not None]
    return codes if len(codes) == len(dots) and len({each.kind for each in codes}) == 1 else []


def _filled(value: SSAValue, sides: tuple[int, int]) -> SSAValue:
    """A tile of all sides, where a load has left out those along which it does not move."""
    load = value.owner
    assert isinstance(load, tile.LoadOp), "asked before"
    load.extents = tile.Sizes(
        tuple(
            own if held == side else side
            for own, held, side in zip(load.extents.data, tile.tile_type(value).sizes, sides, strict=True)
        )
    )
    type_ = tile.TileType.of(sides, tile.tile_type(value).dtype)
    return Rewriter.replace_value_with_new_type(value, type_)
