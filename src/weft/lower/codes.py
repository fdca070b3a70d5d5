"""Weights of few bits as a product's kernel reads them: tiles of codes and factors, widened in registers.

Only products of few rows read codes; all others have weights that a kernel of their own has written.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects.builtin import IntegerAttr, StringAttr, i64
from xdsl.ir import OpResult, SSAValue

from weft.ir.attributes import to_attribute
from weft.ir.expr import Size, coefficient_of, floordiv, simplify, symbol
from weft.ir.types import tensor_of
from weft.lower.domain import Domain, Run
from weft.lower.emit import KernelEmitter, TileValue, register_dtype
from weft.lower.evaluate import AddressRecorder, Source
from weft.ops.dot import Dot
from weft.ops.layouts import Layout
from weft.ops.quantized import FORMS, Dequantize, Form
from weft.tile import dialect as tile

_ALONG = "q"
"""The name of the axis along K, in elements of codes or in factors."""
_WORD = 32


@dataclass(frozen=True)
class Codes:
    """What a product's weights [K, N] are made of: the op that widens codes [N, K * bits / 8]."""

    op: Dequantize

    @classmethod
    def of(cls, dot: Dot, layouts: dict[SSAValue, Layout], domain: Domain) -> Codes | None:
        """The codes of a product's weights, if a kernel can read them as they are."""
        view = dot.operands[1].owner
        if view.name != "graph.permute" or len(dot.operands[1].type.get_shape()) != 2:  # type: ignore[attr-defined]
            return None
        source = view.operands[0]  # type: ignore[union-attr]
        if not isinstance(source, OpResult) or not isinstance(source.op, Dequantize):
            return None
        codes = cls(source.op)
        word = _WORD // codes.form.bits
        fits = codes.depth % word == 0 and codes.group % word == 0 and codes.group & (codes.group - 1) == 0
        aligned = [codes._runs_along(value, layouts, domain) for value in source.op.operands]
        return codes if (fits or codes._per_row) and all(aligned) else None

    @property
    def form(self) -> Form:
        return FORMS[self.op.params["form"]]

    @property
    def depth(self) -> int:
        size = tensor_of(self.op.results[0].type).shape[-1]
        assert isinstance(size, int)
        return size

    @property
    def _per_row(self) -> bool:
        return tensor_of(self.op.operands[1].type).shape[-1] == 1 and self.depth % (_WORD // self.form.bits) == 0

    @property
    def group(self) -> int:
        count = tensor_of(self.op.operands[1].type).shape[-1]
        assert isinstance(count, int)
        return self.depth // count

    def _runs_along(self, value: SSAValue, layouts: dict[SSAValue, Layout], domain: Domain) -> bool:
        """Whether an operand lies in memory side by side along K."""
        recorder = AddressRecorder(layouts, space=domain.bounds | {_ALONG: tensor_of(value.type).shape[-1]})
        recorder.at(Source(value, tensor_of(value.type)), [domain.row_index[-1], symbol(_ALONG)])
        if len(recorder.addresses) != 1 or recorder.addresses[0].purpose != "load":
            return False
        split = coefficient_of(simplify(recorder.addresses[0].expr, recorder.space), _ALONG)
        return split is not None and (split[0] == 1 or tensor_of(value.type).shape[-1] == 1)

    def tile(self, emit: KernelEmitter, turn: Size, columns: Run, start: Size, sides: tuple[int, int]) -> SSAValue:
        """The weights [BK, BN] of a turn of the loop over K, from a column on."""
        depth, width = sides
        group = depth if self._per_row else min(self.group, depth)

        def part(value: SSAValue, base: Size, capacity: int) -> SSAValue:
            tensor = tensor_of(value.type)
            emit.axes.clear()
            emit.tile_axis(_ALONG, tensor.shape[-1], 0, base, capacity)
            emit.tile_axis(columns.name, columns.size, 1, start, width)
            found = emit.at(Source(value, tensor), [emit.domain.row_index[-1], symbol(_ALONG)])
            assert isinstance(found, TileValue)
            return found.ssa

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
