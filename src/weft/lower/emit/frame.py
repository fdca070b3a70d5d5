"""The outside of a kernel under construction: its arguments, its grid, and the op that holds it all.

Lowerings of scans, scatters and sorts fill the block; `KernelEmitter` makes the ops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.dialects.builtin import ArrayAttr, IndexType, IntegerAttr, StringAttr, UnitAttr
from xdsl.dialects.builtin import i64 as i64_attr
from xdsl.ir import Attribute, Block, Region, SSAValue

from weft.ir.expr import Size, ceildiv, symbol
from weft.ir.types import DType, element_type
from weft.lower.emit.body import KernelEmitter
from weft.lower.emit.kernel import Kernel
from weft.lower.schedule.schedule import Blocks, Schedule
from weft.tile import dialect as tile


@dataclass
class KernelFrame:
    """A kernel's name, arguments, block and grid."""

    name: str
    symbols: tuple[str, ...]
    block: Block
    grid: list[Size] = field(default_factory=list[Size])

    @classmethod
    def of(cls, name: str, pointers: Sequence[DType], symbols: Sequence[str]) -> KernelFrame:
        types = [tile.PointerType(element_type(dtype)) for dtype in pointers]
        return cls(name, tuple(symbols), Block(arg_types=[*types, *(IndexType() for _ in symbols)]))

    @property
    def pointers(self) -> list[SSAValue]:
        return list(self.block.args[: len(self.block.args) - len(self.symbols)])

    @property
    def scalars(self) -> dict[str, SSAValue]:
        return dict(zip(self.symbols, self.block.args[len(self.block.args) - len(self.symbols) :], strict=True))

    def add_pointer(self, dtype: DType) -> int:
        """A further pointer argument, behind the others: its number."""
        number = len(self.pointers)
        self.block.insert_arg(tile.PointerType(element_type(dtype)), number)
        return number

    def program(self, count: Size) -> SSAValue:
        """The program's number along a new axis of the grid."""
        attributes = {"axis": IntegerAttr(len(self.grid), i64_attr)}
        op = tile.ProgramOp.create(attributes=attributes, result_types=[IndexType()])
        self.block.add_op(op)
        self.grid.append(count)
        return op.out

    def place_rows(self, emit: KernelEmitter, vector: str, capacity: int) -> None:
        """Give every row run a program number; the run `vector` is also the axis of the tiles."""
        for run in emit.domain.row_runs:
            if run.name != vector:
                emit.scalars[run.name] = self.program(run.size)
                continue
            base: Size = 0
            if run.size != capacity:
                name = f"p{len(self.grid)}"
                emit.scalars[name] = self.program(ceildiv(run.size, capacity))
                base = symbol(name) * capacity
            emit.tile_axis(run.name, run.size, 0, base, capacity)

    def place_axes(self, emit: KernelEmitter, schedule: Schedule) -> None:
        """Give every row run a program number, or make it an axis of the tiles as the schedule says."""
        for run in emit.domain.row_runs:
            capacity = schedule.capacity_of(run)
            if capacity is None:
                emit.scalars[run.name] = self.program(run.size)
                continue
            base: Size = 0
            if run.size != capacity:
                name = f"p{len(self.grid)}"
                emit.scalars[name] = self.program(ceildiv(run.size, capacity))
                base = symbol(name) * capacity
            position = emit.rank - 1 if run.name == schedule.vector else 0
            emit.tile_axis(run.name, run.size, position, base, capacity)

    def finish(
        self,
        schedule: Schedule | Blocks,
        *,
        serial: bool = False,
        paired: bool = False,
        limit: int | None = None,
        counter: int | None = None,
        cluster: int = 1,
    ) -> Kernel:
        """End the block and wrap it up."""
        self.block.add_op(tile.ReturnOp.create())
        attributes: dict[str, Attribute] = {
            "sym_name": StringAttr(self.name),
            "grid": tile.Sizes(tuple(self.grid)),
            "symbols": ArrayAttr(StringAttr(name) for name in self.symbols),
            "schedule": StringAttr(str(schedule)),
        }
        attributes.update((name, UnitAttr()) for name, holds in (("serial", serial), ("paired", paired)) if holds)
        numbers = {"limit": limit, "counter": counter, "cluster": cluster if cluster > 1 else None}
        attributes |= {name: IntegerAttr(n, i64_attr) for name, n in numbers.items() if n is not None}
        return Kernel(tile.KernelOp.create(attributes=attributes, regions=[Region(self.block)]), self.symbols, schedule)
