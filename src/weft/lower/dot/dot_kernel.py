"""The kernel of a group around a matmul: its grid, the loop over K, and what follows on the accumulators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xdsl.ir import OpResult, SSAValue

from weft.ir.expr import Size, ceildiv, floordiv, symbol
from weft.ir.types import DType, tensor_of
from weft.lower.dot.block_scales import scaled
from weft.lower.dot.dot_runs import DotRuns, Product
from weft.lower.dot.packed_tile import packed_tile
from weft.lower.emit.blocked import BlockedKernel, store_outputs
from weft.lower.emit.body import TileValue, register_dtype
from weft.lower.emit.kernel import Kernel
from weft.lower.index_space.domain import Run
from weft.lower.index_space.evaluate import Source
from weft.lower.packing import weight_of
from weft.ops.body import Value
from weft.ops.matmul.dot import SCALED_BLOCK
from weft.passes.update_in_place import in_place_of
from weft.tile import dialect as tile

_MOST_COLUMNS_IN_PARTS = 192
"""Columns of a tile that two warp groups have registers for twice, beside what else they hold."""


@dataclass
class DotLowering(DotRuns):
    """The construction of one kernel, for which `prepare` has found the runs."""

    def kernel(self) -> Kernel:
        """The code; `prepare` comes before."""
        parts = self.machine.capabilities.async_copies
        in_place = in_place_of(self.group)
        kernel = BlockedKernel(
            self.group, self.name, self.layouts, self.outputs, self.domain, parts=parts, in_place=in_place
        )
        self.emit = kernel.emit
        self._take_part(kernel)
        bm, bn, _ = self.blocks.sides
        # Rows with the same weights come one after the other.
        shared = self.chosen is not None or (self.panels is not None and self.panels.batch == 1)
        n_base = kernel.start_of(self.n_run, bn) if self.n_run and shared else 0
        for run in self.outer:
            kernel.program(run)
        n_base = kernel.start_of(self.n_run, bn) if self.n_run and not shared else n_base
        if self.tiles is not None:
            self.tiles.find(kernel.frame, self.emit, self.layouts)
            m_base = self.tiles.first
        else:
            m_base = kernel.start_of(self.m_run, bm) if self.m_run else 0
        self.bases |= {"m": m_base, "n": n_base}
        if self.chosen is not None:
            self.chosen.find(self.emit, self.domain.row_index[0])
        totals, count = self._products(), len(self.dots)
        for piece in range(self._pieces):
            self._axes("m", "n", piece)
            values = [TileValue(total, self.result.dtype) for total in totals[piece * count :][:count]]
            self.emit.scopes.append({})
            self._store(kernel, dict(zip((dot.results[0] for dot in self.dots), values, strict=True)))
            self.emit.scopes.pop()
        self.emit.place_ahead(kernel.frame.block)
        limit = self.tiles.limit if self.tiles else None
        return kernel.frame.finish(self.blocks, limit=limit, cluster=self.blocks.cluster)

    def _take_part(self, kernel: BlockedKernel) -> None:
        """Say which part of K a program has: all of it."""
        self.bounds: tuple[Size, Size] = (0, self.k_run.size if self.k_run is not None else 1)

    def _store(self, kernel: BlockedKernel, products: Mapping[SSAValue, TileValue]) -> None:
        store_outputs(kernel, products)

    def _axes(self, first: str, second: str, piece: int = 0) -> None:
        """Make two of the runs m, n and k the axes of the tiles that follow; of n it may be a piece."""
        runs = {"m": self.m_run, "n": self.n_run, "k": self.k_run}
        sides = dict(zip("mnk", self.blocks.sides, strict=True))
        self.emit.axes.clear()
        for position, letter in enumerate((first, second)):
            run = runs[letter]
            if run is None:
                continue
            if letter == "m" and self.tiles is not None:
                self.emit.axes[run.name] = self.tiles.axis(run, position, whole=second == "k")
                continue
            cut = self._pieces if letter == "n" else 1
            base = self.bases[letter] + piece * (sides[letter] // cut) if cut > 1 else self.bases[letter]
            self.emit.tile_axis(run.name, run.size, position, base, sides[letter] // cut, cut)

    @property
    def _pieces(self) -> int:
        """Into how many pieces the columns of a tile are cut: sums in parts take registers for one piece at a time."""
        bn = self.blocks.sides[1]
        return 2 if self._in_parts and bn > _MOST_COLUMNS_IN_PARTS else 1

    def _products(self) -> list[SSAValue]:
        """The sums over all of K: in one step, or in loops that carry them."""
        emit = self.emit
        bm, bn, bk = self.blocks.sides
        dtype = register_dtype(self.result.dtype)
        type_ = tile.TileType.of((bm, bn // self._pieces), dtype)
        one_step = self.k_run is None or (isinstance(self.k_run.size, int) and self.k_run.size <= bk)
        one_step = one_step and not self.machine.capabilities.async_copies  # there loops are what copies run ahead in
        outer = self.domain.column_runs[: -1 if one_step else None]
        self.bases["k"] = 0
        factors = self._factors()
        if self.a_tensor.shape[-1] != 0 and not outer:
            return self._step([None] * len(self.dots) * self._pieces, type_, factors)
        zero = 0.0 if dtype.is_float else 0
        count = self._pieces * len(self.dots)
        carried = [TileValue(emit.add(tile.ConstantOp.make(zero, type_)), dtype) for _ in range(count)]
        carried += factors if self.factors is not None and self.factors.come_ahead else []
        if self.a_tensor.shape[-1] != 0:
            self._loops(list(outer), carried, type_)
        return [value.ssa for value in carried[:count]]

    def _factors(self, ahead: int = 0) -> list[TileValue]:
        """The factors of this block of K, or of one ahead; none where there are no such."""
        if self.factors is None:
            return []
        self._axes("m", "n")
        block = floordiv(self.bases["k"], SCALED_BLOCK) + ahead
        found = self.factors.tiles(self.emit, self.domain.row_index, self.bases, block)
        return [each for each in found if isinstance(each, TileValue)]

    def _loops(self, runs: list[Run], carried: list[TileValue], type_: tile.TileType) -> None:
        run, *inner = runs
        blocked = run is self.k_run
        name = f"{run.name}_start" if blocked else run.name
        if self.codes:  # by turns, of which codes and factors have a known number each
            with self.emit.loop(name, ceildiv(run.size, self.blocks.sides[2]), 1, carried) as state:
                self.bases["k"] = symbol(name) * self.blocks.sides[2]
                totals = self._step([each.ssa for each in state], type_, turn=symbol(name))
                state[:] = [TileValue(total, carried[0].dtype) for total in totals]
            return
        lower, upper = self.bounds if blocked else (0, run.size)
        with self.emit.loop(name, upper, self.blocks.sides[2] if blocked else 1, carried, lower) as state:
            if inner:
                self._loops(inner, state, type_)
            else:
                self.bases["k"] = symbol(name) if blocked else 0
                count = self._pieces * len(self.dots)
                following = self._factors(ahead=1) if len(state) > count else []
                totals = self._step([each.ssa for each in state[:count]], type_, state[count:] or self._factors())
                state[:] = [*(TileValue(total, carried[0].dtype) for total in totals), *following]

    def _step(
        self,
        totals: Sequence[SSAValue | None],
        type_: tile.TileType,
        factors: Sequence[TileValue] = (),
        turn: Size = 0,
    ) -> list[SSAValue]:
        """One block of K."""
        bm, bn, bk = self.blocks.sides
        self.emit.scopes.append({})
        self._axes("m", "k")
        as_is = self.panels is not None and self.panels.together > 1
        a = self._tile(self.dot.operands[0], self._a_index(), (bm, bk), None if as_is else type_.dtype)
        self.emit.scopes[-1].clear()
        rights: list[SSAValue] = []
        for piece in range(self._pieces):
            self._axes("k", "n", piece)
            rights += [self._right(dot, (bk, bn // self._pieces), turn, type_.dtype) for dot in self.dots]
            self.emit.scopes[-1].clear()
        self.emit.scopes.pop()
        return [self._added(a, b, total, type_, factors) for b, total in zip(rights, totals, strict=True)]

    def _right(self, dot: Product, shape: tuple[int, int], turn: Size, dtype: DType) -> SSAValue:
        """The tile of a matmul's second operand."""
        if self.codes and self.n_run is not None:
            return self.codes[self.dots.index(dot)].tile(self.emit, turn, self.n_run, self.bases["n"], shape)
        if self.panels is not None:
            matrix: Size = 0
            if self.panels.batch > 1:
                for size, position in zip(self.result.shape[:-2], self.domain.row_index[:-2], strict=True):
                    matrix = matrix * size + position
            place = matrix, self.domain.row_index[-1], self.domain.column_index[0]
            return packed_tile(self.emit, weight_of(dot), self.panels, place, shape, self.k_run)
        return self._tile(self._weights(dot), self._b_index(), shape, dtype)

    def _added(
        self, a: SSAValue, b: SSAValue, total: SSAValue | None, type_: tile.TileType, factors: Sequence[Value]
    ) -> SSAValue:
        """A block's matmul, by its factors where it has such, and what was summed before it."""
        operands = [a, b] if total is None or self._in_parts or factors else [a, b, total]
        made: Value = TileValue(self.emit.add(tile.DotOp.create(operands=operands, result_types=[type_])), type_.dtype)
        before = None if total is None else TileValue(total, type_.dtype)
        if factors:
            made = scaled(self.emit, made, factors, before)
        elif before is not None and self._in_parts:
            made = self.emit.math("add", before, made)
        assert isinstance(made, TileValue)
        return made.ssa

    def _tile(self, value: SSAValue, index: Sequence[Size], shape: tuple[int, int], dtype: DType | None) -> SSAValue:
        element = self.emit.at(Source(value, tensor_of(value.type)), index)
        if dtype is not None and dtype.is_integer and not self.machine.capabilities.matrix_units:
            element = self.emit.cast(element, dtype)
        elif self.machine.capabilities.matrix_units and isinstance(value, OpResult):
            # The tensor cores take what the program multiplies: numbers of the operand's type.
            element = self.emit.rounded(element, tensor_of(value.type).dtype)
        return self.emit.repeated(element, shape).ssa
