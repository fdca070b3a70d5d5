"""Groups around a matmul → one tile kernel.

    graph.group(%x, %w, %c) {              tile.kernel @dot_add grid [batch, column blocks, row blocks] {
      %0 = graph.dot(%x, %w)                 %acc = tile.for k = 0 to K step BK carrying 0 {
      %1 = graph.add(%0, %c)          →        %a = tile.load %x[..] : BM x BK ;  %b = tile.load %w[..] : BK x BN
      %2 = graph.relu(%1)                      tile.yield tile.dot %a, %b, %acc }
      graph.yield %2                         tile.store %y[..], max(%acc + tile.load %c[..], 0)
    }                                      }

What comes before the matmul (views, casts, cheap elementwise ops) is computed on the operands' tiles, what comes after
it, the epilogue, on the accumulators. Programs of one column block are neighbours, so that the block of b they share
stays in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from xdsl.ir import BlockArgument, OpResult, SSAValue

from weft.ir.expr import Size, ceildiv, coefficient_of, floordiv, mod, product, simplify, symbol, symbols_of
from weft.ir.types import DType, Tensor, bf16, i8, tensor_of, u8
from weft.lower.dot.block_scales import BlockFactors, scaled
from weft.lower.dot.fused_dequantization import QuantizedWeights, codes_of
from weft.lower.dot.gathered_weights import GatheredWeights
from weft.lower.dot.grouped_gemm import GroupedTiles
from weft.lower.dot.packed_tile import packed_tile
from weft.lower.dot.skinny_gemm import choose_streaming_tiles
from weft.lower.dot.split_k import lower_split_k
from weft.lower.emit.blocked import BlockedKernel, Reads, epilogue_refusal, output_indices, store_outputs, uses
from weft.lower.emit.body import TileValue, register_dtype
from weft.lower.emit.kernel import Kernel
from weft.lower.emit.row_reductions import reduced_sizes
from weft.lower.index_space.domain import Domain, Run, Variable, fused
from weft.lower.index_space.evaluate import AddressRecorder, Dummy, Source
from weft.lower.lowered import Lowered, whole
from weft.lower.machine import Machine
from weft.lower.packing import PackedLayout, PackedPanels, weight_of
from weft.lower.refusal import Refusal
from weft.lower.schedule.dot_model import Matmuls, estimates, is_in_parts, parts_of
from weft.lower.schedule.schedule import Blocks, choose_blocks, given_blocks
from weft.ops.base import Reduction
from weft.ops.body import Value
from weft.ops.graph import GroupOp
from weft.ops.layouts import StridedLayout
from weft.ops.matmul.dot import SCALED_BLOCK, Dot, ScaledDot, TiledDot
from weft.passes.claim_libraries import FEW_ROWS
from weft.passes.update_in_place import in_place_of
from weft.tile import dialect as tile

_MOST_COLUMNS_IN_PARTS = 192
"""Columns of a tile that two warp groups have registers for twice, beside what else they hold."""
_UNKNOWN = 4096
"""What a size is taken for that is not known."""
_SIDE, _ALIGNED = 64, 16
"""Of operands of 8 bits, the least sides that are worth a tile, and what K must be a multiple of to be copied."""


Product: TypeAlias = Dot | ScaledDot | TiledDot


def lower_dot(
    group: GroupOp, name: str, inputs: Sequence[StridedLayout], outputs: Sequence[StridedLayout], machine: Machine
) -> Lowered | Refusal:
    """Lower a group that holds a matmul, or several of the same rows, with all operands and results in layouts."""
    layouts: dict[SSAValue, StridedLayout] = dict(zip(group.block.args, inputs, strict=True))
    dots = [op for op in group.block.ops if isinstance(op, Product)]
    if machine.capabilities.matrix_units and not in_place_of(group) and given_blocks(group, "dot") is None:
        parts = parts_of([dot for dot in dots if isinstance(dot, Dot)], machine)
        if parts > 1:
            return lower_split_k(group, name, inputs, outputs, parts, machine)
    lowering = _DotLowering(group, name, layouts, outputs, dots, machine)
    refused = epilogue_refusal(group, [dot.results[0] for dot in dots]) or lowering.prepare()
    return whole(lowering.kernel(), len(inputs), len(outputs)) if refused is None else refused


@dataclass
class _DotLowering:
    """The construction of one kernel. Its rows are the result's dimensions, its one column dimension is K."""

    group: GroupOp
    name: str
    layouts: dict[SSAValue, StridedLayout]
    outputs: Sequence[StridedLayout]
    dots: Sequence[Product]
    machine: Machine

    @property
    def dot(self) -> Product:
        """The first of them, which decides: they have the same rows, sides and types."""
        return self.dots[0]

    def prepare(self) -> Refusal | None:
        """Find runs and blocks: all but the code; or why there is none."""
        alone = self.dot if self.machine.capabilities.streamed_weights and len(self.dots) == 1 else None
        self.chosen = GatheredWeights.of(alone) if isinstance(alone, Dot) else None
        self.tiles = GroupedTiles.of(self.dots)
        choice = self.chosen or self.tiles
        self.matrix = None if choice is None else choice.matrix  # where it is one of several
        weights = [self._weights(dot) for dot in self.dots]
        streamed = self.machine.capabilities.streamed_weights
        self._split_domain(codes_of(self.dots, weights, self.layouts, self.matrix) if streamed else [])
        if self.codes and not self.refusals and (len(self.domain.column_runs) != 1 or len(self.domain.row_runs) > 2):
            self._split_domain([])
        if self.refusals:
            return Refusal(self.refusals[0])
        self.outer = outer = [run for run in self.domain.row_runs if run not in (self.m_run, self.n_run)]
        if self.tiles is not None and (outer or self.m_run is None or self.n_run is None):
            return Refusal("rows in tiles are not rows of what follows them")
        if (refused := self._tiles_refusal() or self._rows_refusal()) is not None:
            return refused
        self.blocks = given_blocks(self.group, "dot") or self._chosen_blocks(outer, self.reads)
        if self.panels is not None and self.panels.together > 1:
            *sides, depth = self.blocks.sides
            self.blocks = replace(self.blocks, sides=(*sides, self._whole_steps(depth, self.panels)))
        return None

    def _tiles_refusal(self) -> Refusal | None:
        known = self.tiles is None or self.tiles.are_in_memory
        return None if known else Refusal("where tiles are must be in memory")

    def _rows_refusal(self) -> Refusal | None:
        """Why what is reduced over rows of K is not found by the kernel itself."""
        depths = [run.size for run in self.domain.column_runs]
        for op in self.group.block.ops:
            if isinstance(op, Reduction) and (len(depths) != 1 or not isinstance(depths[0], int)):
                return Refusal(f"{op.name} of rows that are not one run")
            if isinstance(op, Reduction) and reduced_sizes(op) != tuple(depths):
                return Refusal(f"{op.name} of rows that are not those of the product")
        return None

    def _split_domain(self, codes: list[QuantizedWeights]) -> None:
        """Find the runs of M, N and K."""
        self.codes = codes
        shape = self.result.shape
        self.bases: dict[str, Size] = {}
        self.factors = BlockFactors.of(self.dot)
        self.domain = domain = Domain(shape, (self.a_tensor.shape[-1],))
        while domain.split([position for index in self._output_indices() for position in index]):
            pass
        while domain.split((reads := self._record()).all) and not self.refusals:
            pass
        n_name = f"r{len(shape) - 1}"
        columns = [v for v in domain.rows if v.name.rstrip("hl") == n_name]
        rows = [v for v in domain.rows if v not in columns]
        row_runs, n_runs = fused(rows, reads.all), self._n_runs(columns, reads)
        domain.row_runs = [*row_runs, *n_runs]
        domain.column_runs = fused(domain.columns, reads.all)
        apart = self.chosen is not None or not row_runs or uses(reads.b, row_runs[-1])
        self.m_run = None if apart else row_runs[-1]
        if self.panels is not None and self.m_run is not None and self.panels.batch > 1 and len(row_runs) == 1:
            self.m_run = None if self._batch_in(self.m_run) else self.m_run
        self.n_run = n_runs[-1] if n_runs else None
        self.k_run = domain.column_runs[-1] if domain.column_runs else None
        self.reads = reads

    def _chosen_blocks(self, outer: Sequence[Run], reads: Reads) -> Blocks:
        if isinstance(self.dot, ScaledDot):
            return Blocks("dot", (SCALED_BLOCK,) * 3)
        if self.tiles is not None:
            bits = self.codes[0].form.bits if self.codes else 16
            return Blocks("dot", *self.tiles.blocks(len(self.dots), bits, self.machine))
        m, n, k = (run.size if run is not None else 1 for run in (self.m_run, self.n_run, self.k_run))
        width = self.a_tensor.dtype.bytes
        if self.machine.capabilities.matrix_units and self._is_for_tensor_cores(m, n, k, reads):
            batch = product(run.size for run in outer)
            if isinstance(m, int) and 0 < m <= FEW_ROWS and width == 2:
                bits = self.codes[0].form.bits if self.codes else 16
                return Blocks("dot", choose_streaming_tiles(m, n, k, batch, self.machine, bits, len(self.dots)))
            m, n, k = (max(1, size) if isinstance(size, int) else _UNKNOWN for size in (m, n, k))
            times = max(1, batch) if isinstance(batch, int) else 1
            best, *_ = estimates(Matmuls(m, n, k, times, width, len(self.dots), self._in_parts), self.machine)
            return Blocks("dot", best.sides, str(best))
        as_bytes = self.panels is not None and self.panels.together > 1
        # A block is a quarter as wide in memory where rows are digits of 8 bits.
        dtype, packed = self.result.dtype, self.panels.NR if self.panels else None
        if self.panels is not None and as_bytes:
            dtype = self.panels.dtype
        in_place = self.panels is not None or self._b_in_place(reads)
        split = as_bytes and self.a_tensor.dtype not in (i8, u8, bf16)
        sizes = [run.size for run in outer]
        return choose_blocks(m, n, k, sizes, dtype, packed, in_place, split, self.machine, joined=as_bytes)

    def _whole_steps(self, depth: int, panels: PackedPanels) -> int:
        """A side along K that is made of the steps that panels are, or all of K: a block ends where a step does."""
        return depth if depth >= panels.K else -(-depth // panels.unit) * panels.unit

    def _is_for_tensor_cores(self, m: Size, n: Size, k: Size, reads: Reads) -> bool:
        """Whether tensor cores take the operands: of 8 bits only where these lie along K and tiles can be copied."""
        narrow, wide = self.a_tensor.dtype, self.result.dtype
        if narrow.bytes != 1 or wide.bytes != 4 or narrow == u8:
            few = isinstance(m, int) and 0 < m <= FEW_ROWS
            # A side of one element is no axis of their tiles, but of those of few rows.
            return narrow.bytes == 2 and narrow.is_float and (few or 1 not in (n, k))
        if not isinstance(m, int) or not isinstance(n, int) or not isinstance(k, int) or self.k_run is None:
            return False
        parts = [coefficient_of(self.domain.in_runs(each), self.k_run.name) for each in (*reads.a, *reads.b)]
        return min(m, n) >= _SIDE and k % _ALIGNED == 0 and all(part is not None and part[0] == 1 for part in parts)

    def _b_in_place(self, reads: Reads) -> bool:
        """Whether b is memory with neighbours along N or K, which is read without a copy."""
        weight = weight_of(self.dot)
        if not isinstance(weight, BlockArgument) or len(reads.b) != 1:
            return False
        if tensor_of(weight.type).dtype != tensor_of(self.dot.operands[1].type).dtype:
            return False
        runs = [run for run in (self.n_run, self.k_run) if run is not None]
        address = self.domain.in_runs(reads.b[0])
        parts = [coefficient_of(address, run.name) for run in runs]
        return all(part is not None for part in parts) and any(part is not None and part[0] == 1 for part in parts)

    @property
    def result(self) -> Tensor:
        return tensor_of(self.dot.results[0].type)

    @property
    def a_tensor(self) -> Tensor:
        return tensor_of(self.dot.operands[0].type)

    @property
    def panels(self) -> PackedPanels | None:
        layout = self.layouts.get(weight_of(self.dot))
        return layout.panels if isinstance(layout, PackedLayout) else None

    @property
    def _in_parts(self) -> bool:
        return self.machine.capabilities.matrix_units and is_in_parts(self.dot)

    # -- addresses -------------------------------------------------------------------------------------------------

    def _a_index(self) -> list[Size]:
        return [*self.domain.row_index[:-1], *self.domain.column_index]

    def _b_index(self) -> list[Size]:
        if self.matrix is not None:
            return [self.matrix, self.domain.row_index[-1], *self.domain.column_index]
        return [*self.domain.row_index[:-2], *self.domain.column_index, self.domain.row_index[-1]]

    def _weights(self, dot: Product) -> SSAValue:
        """A matmul's weights, or all of those that they are chosen from."""
        return dot.operands[1] if self.chosen is None else self.chosen.weights

    def _record(self) -> Reads:
        domain, reads = self.domain, Reads()
        recorder = AddressRecorder(self.layouts, space=domain.bounds, columns=domain.column_index)
        a = self.dot.operands[0]
        recorder.at(Source(a, tensor_of(a.type)), self._a_index())
        reads.a = [address.expr for address in recorder.addresses]
        recorder.addresses.clear()
        recorder.scopes[-1].clear()  # both operands may be one value, read at one place
        for b in [self._weights(dot) for dot in self.dots if self.panels is None and not self.codes]:
            recorder.at(Source(b, tensor_of(b.type)), self._b_index())
        reads.b = [address.expr for address in recorder.addresses]
        recorder.addresses.clear()
        for dot in self.dots:
            recorder.given[dot.results[0]] = (tuple(domain.row_index), Dummy(self.result.dtype))
        for place in self.factors.places(domain.row_index, {}, 0) if self.factors is not None else ():
            recorder.at(*place)
        for value, layout, index in zip(self.group.yielded, self.outputs, self._output_indices(), strict=True):
            recorder.at(Source(value, tensor_of(value.type)), index)
            reads.rest.append(simplify(layout.address(index), domain.bounds))
        reads.rest += [address.expr for address in recorder.addresses]
        self.refusals = recorder.refusals
        return reads

    def _output_indices(self) -> list[list[Size]]:
        return output_indices(self.group, [dot.results[0] for dot in self.dots], self.domain)

    def _n_runs(self, variables: Sequence[Variable], reads: Reads) -> list[Run]:
        """The parts of N. Panels cannot be cut, so where parts are not made of whole ones, N stays one run."""
        runs = fused(variables, reads.all)
        if self.panels is not None and len(runs) > 1 and mod(runs[-1].size, self.panels.NR) != 0:
            return [Run(tuple(variables))]
        return runs

    def _batch_in(self, run: Run) -> bool:
        names = {variable.name for variable in run.variables}
        return any(symbols_of(index) & names for index in self.domain.row_index[:-2])

    # -- code ------------------------------------------------------------------------------------------------------

    def kernel(self) -> Kernel:
        """The code; `prepare` comes before."""
        parts = self.machine.capabilities.async_copies
        kernel = BlockedKernel(self.group, self.name, self.layouts, self.outputs, self.domain, parts=parts)
        self.emit = kernel.emit
        bm, bn, _ = self.blocks.sides
        # Rows with the same weights come one after the other.
        n_base = kernel.start_of(self.n_run, bn) if self.n_run and self.chosen else 0
        for run in self.outer:
            kernel.program(run)
        n_base = kernel.start_of(self.n_run, bn) if self.n_run and not self.chosen else n_base
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
            store_outputs(kernel, dict(zip((dot.results[0] for dot in self.dots), values, strict=True)))
            self.emit.scopes.pop()
        self.emit.place_ahead(kernel.frame.block)
        limit = self.tiles.limit if self.tiles else None
        return kernel.frame.finish(self.blocks, limit=limit, cluster=self.blocks.cluster)

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
        with self.emit.loop(name, run.size, self.blocks.sides[2] if blocked else 1, carried) as state:
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
