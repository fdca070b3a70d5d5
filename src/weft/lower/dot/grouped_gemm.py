"""Grouped GEMM: tiles of rows, each multiplied with one of several matrices; which one is read when they run.

%y = graph.tiled_dot %x, %w, %m, %f, %e, %c      →      tile.kernel grid [column blocks, tiles] limit %c {
                                                          %g = tile.number %m[t] ; %r = tile.number %f[t] ; …
                                                          … tile.load %x[%r, k] ; tile.load %w[%g, n, k] …
                                                          tile.store %y[%r, n] as far as %e }
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import IndexType
from xdsl.ir import BlockArgument, Operation, SSAValue

from weft.errors import LoweringError
from weft.ir.expr import Size, minimum, symbol
from weft.ir.types import tensor_of
from weft.lower.dot.skinny_gemm import choose_streaming_tiles
from weft.lower.emit.body import Axis, KernelEmitter
from weft.lower.emit.frame import KernelFrame
from weft.lower.index_space.domain import Run
from weft.lower.machine import Machine
from weft.lower.schedule.dot_model import Matmuls, estimates
from weft.ops.layouts import StridedLayout
from weft.ops.matmul.dot import TiledDot
from weft.passes.claim_libraries import FEW_ROWS
from weft.passes.dot.tile_grouped_gemm import expected_groups
from weft.tile import dialect as tile

_ALIKE = 1.03
"""Times the shortest time that are taken for the same."""
_NUMBERS = ("tile_matrix", "tile_first", "tile_end")


@dataclass(frozen=True)
class GroupedTiles:
    """Where the tiles of a matmul are: of [S] numbers each the matrices, the first rows and the ends."""

    op: TiledDot

    @classmethod
    def of(cls, dots: Sequence[Operation]) -> GroupedTiles | None:
        return cls(dots[0]) if isinstance(dots[0], TiledDot) else None

    @property
    def height(self) -> int:
        return self.op.params["rows"]

    @property
    def matrix(self) -> Size:
        return symbol(_NUMBERS[0]) + tile.NumberOp.LEAST

    @property
    def first(self) -> Size:
        return symbol(_NUMBERS[1]) + tile.NumberOp.LEAST

    @property
    def end(self) -> Size:
        return symbol(_NUMBERS[2]) + tile.NumberOp.LEAST

    @property
    def limit(self) -> int:
        """The argument of the group that says how many tiles there are."""
        return _argument(self.op.operands[5]).index

    @property
    def are_in_memory(self) -> bool:
        """Whether the group is given where tiles are, and how many there are."""
        return all(isinstance(value, BlockArgument) for value in self.op.operands[2:6])

    @property
    def most(self) -> int:
        (size,) = tensor_of(self.op.operands[2].type).shape
        assert isinstance(size, int)
        return size

    def find(self, frame: KernelFrame, emit: KernelEmitter, layouts: dict[SSAValue, StridedLayout]) -> None:
        """Give each tile a program, which reads where it is."""
        emit.scalars["tile"] = frame.program(self.most)
        for name, value in zip(_NUMBERS, self.op.operands[2:5], strict=True):
            (offset,), operands = emit.sizes((layouts[_argument(value)].address([symbol("tile")]),))
            emit.scalars[name] = emit.add(
                tile.NumberOp.create(
                    operands=[emit.pointers[value], *operands],
                    attributes={"offset": offset},
                    result_types=[IndexType()],
                )
            )

    def axis(self, run: Run, position: int, *, whole: bool) -> Axis:
        """The rows of a tile as an axis: those behind its end too, where that is nobody's concern."""
        end = run.size if whole else self.end
        return Axis(run.name, position, self.first, self.height, minimum(self.height, end - self.first), run.size)

    def blocks(self, count: int, bits: int, machine: Machine) -> tuple[tuple[int, ...], str]:
        """The sides of tiles, of `count` matmuls with weights of so many bits; and what is expected of them."""
        x, w = (tensor_of(value.type) for value in self.op.operands[:2])
        (rows, depth), (groups, columns, _) = x.shape, w.shape
        if not all(isinstance(size, int) for size in (rows, depth, groups, columns)):
            raise LoweringError("tiles of rows have known sizes")
        hit = max(1, round(expected_groups(rows, groups)))  # type: ignore[arg-type]
        if self.height <= FEW_ROWS:
            return choose_streaming_tiles(self.height, columns, depth, hit, machine, bits), ""
        each = Matmuls(-(-rows // hit), columns, depth, hit, x.dtype.bytes, count)  # type: ignore[operator, arg-type]
        found = estimates(each, machine, self.height)
        # What memory bounds takes as long with all: the widest read the rows the least often.
        best = max((e for e in found if e.seconds < _ALIKE * found[0].seconds), key=lambda e: e.sides[1])
        return best.sides, str(best)


def _argument(value: SSAValue) -> BlockArgument:
    assert isinstance(value, BlockArgument), "asked before"
    return value
