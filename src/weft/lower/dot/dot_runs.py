"""The index space of a group around a matmul: which runs of rows, columns and K its kernel has, and their blocks.

All of it is known before there is code, and so is whether there will be any: `prepare` gives the reason why not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from xdsl.ir import BlockArgument, SSAValue

from weft.ir.expr import Size, coefficient_of, mod, product, simplify, split_multiple, symbols_of
from weft.ir.types import Tensor, bf16, i8, tensor_of, u8
from weft.lower.dot.block_scales import BlockFactors
from weft.lower.dot.fused_dequantization import QuantizedWeights, codes_of
from weft.lower.dot.gathered_weights import GatheredWeights
from weft.lower.dot.grouped_gemm import GroupedTiles
from weft.lower.dot.skinny_gemm import choose_streaming_tiles
from weft.lower.emit.blocked import Reads, output_indices, uses
from weft.lower.emit.row_reductions import reduced_sizes
from weft.lower.index_space.domain import Domain, Run, Variable, fused
from weft.lower.index_space.evaluate import AddressRecorder, Dummy, Source
from weft.lower.machine import Machine
from weft.lower.packing import PackedLayout, PackedPanels, weight_of
from weft.lower.refusal import Refusal
from weft.lower.schedule.dot_model import Matmuls, Split, estimates, is_in_parts, products_of, split_of
from weft.lower.schedule.schedule import Blocks, choose_blocks, given_blocks
from weft.ops.base import Reduction, viewed
from weft.ops.graph import GroupOp
from weft.ops.layouts import StridedLayout
from weft.ops.matmul.dot import SCALED_BLOCK, Dot, ScaledDot, TiledDot
from weft.passes.claim_libraries import FEW_ROWS

_UNKNOWN = 4096
"""What a size is taken for that is not known."""
_SIDE, _ALIGNED = 64, 16
"""Of operands of 8 bits, the least sides that are worth a tile, and what K must be a multiple of to be copied."""
_COPIED = 8
"""Elements of 16 bits at multiples of which rows begin that TMA brings."""


Product: TypeAlias = Dot | ScaledDot | TiledDot


@dataclass
class DotRuns:
    """What one kernel walks. Its rows are the result's dimensions, its one column dimension is K."""

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
        if (refused := self._tiles_refusal() or self._rows_refusal() or self._panels_refusal()) is not None:
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

    def _panels_refusal(self) -> Refusal | None:
        """Why panels with neighbours along K together are not read run by run: a run has to begin where those do."""
        if self.panels is None or self.panels.together == 1 or len(self.domain.column_runs) < 2:
            return None
        size = self.domain.column_runs[-1].size
        aligned = isinstance(size, int) and size % self.panels.together == 0
        return None if aligned else Refusal(f"runs of K that are no multiple of {self.panels.together}")

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
        self.m_run = None if apart else self._rows_of_tiles(row_runs, reads)
        if self.panels is not None and self.m_run is not None and self.panels.batch > 1 and len(row_runs) == 1:
            self.m_run = None if self._batch_in(self.m_run) else self.m_run
        self.n_run = n_runs[-1] if n_runs else None
        self.k_run = domain.column_runs[-1] if domain.column_runs else None
        self.reads = reads

    def _rows_of_tiles(self, runs: Sequence[Run], reads: Reads) -> Run:
        """The run of M that tiles have rows of: the last one; where that is short, and tiles are large, the longest.

        Of windows of 7 by 7 of many images, rows at one place of a window make a tile: those of a window's row do not.
        """
        last = runs[-1]
        if not self.machine.capabilities.matrix_units or not isinstance(last.size, int) or last.size >= _SIDE:
            return last
        known = [run for run in runs if isinstance(run.size, int) and not uses(reads.b, run)]
        longest = max(reversed(known), key=lambda run: int(run.size))  # type: ignore[arg-type]
        return longest if int(longest.size) >= 2 * last.size else last  # type: ignore[arg-type]

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
            best, *_ = estimates(self._matmuls(), self.machine)
            return Blocks("dot", best.sides, str(best))
        as_bytes = self.panels is not None and self.panels.together > 1
        # A block is a quarter as wide in memory where rows are digits of 8 bits.
        dtype, packed = self.result.dtype, self.panels.NR if self.panels else None
        if self.panels is not None and as_bytes:
            dtype = self.panels.dtype
        in_place = self.panels is not None or self._b_in_place(reads)
        split = as_bytes and self.a_tensor.dtype not in (i8, u8, bf16)
        sizes = [run.size for run in outer]
        windows = len(self.domain.column_runs) > 1  # K in several runs
        return choose_blocks(
            m, n, k, sizes, dtype, packed, in_place, split, self.machine, joined=as_bytes, windows=windows
        )

    def _matmuls(self) -> Matmuls:
        """What the kernel multiplies, as the model of its time sees it."""
        sizes = [run.size if run is not None else 1 for run in (self.m_run, self.n_run, self.k_run)]
        m, n, k = (max(1, size) if isinstance(size, int) else _UNKNOWN for size in sizes)
        batch = product(run.size for run in self.outer)
        times = max(1, batch) if isinstance(batch, int) else 1
        width, loaded = self.a_tensor.dtype.bytes, self._is_loaded()
        return Matmuls(m, n, k, times, width, len(self.dots), self._in_parts, loaded)

    def _is_loaded(self) -> bool:
        """Whether an operand is memory whose rows begin anywhere, so that threads load it: TMA does not."""
        if self.k_run is None or len(self.domain.column_runs) != 1 or self.a_tensor.dtype.bytes != 2:
            return False
        pairs = [(self.dot.operands[0], self.reads.a, self.m_run), (self._weights(self.dot), self.reads.b, self.n_run)]
        return any(self._begins_anywhere(*pair) for pair in pairs)

    def _begins_anywhere(self, operand: SSAValue, reads: Sequence[Size], across: Run | None) -> bool:
        root = viewed(operand)
        if not isinstance(root, BlockArgument) or tensor_of(root.type).dtype != self.a_tensor.dtype:
            return False
        for address in reads:
            rest, steps = self.domain.in_runs(address), list[Size]()
            for run in [each for each in (self.k_run, across) if each is not None]:
                split = coefficient_of(rest, run.name)
                if split is None:
                    return False
                steps, rest = [*steps, split[0]], split[1]
            apart = [step for step in steps if step != 1]
            if any(split_multiple(step, _COPIED)[1] != 0 for step in (*apart, rest)):
                return True
        return False

    def split(self) -> Split | None:
        """Into which parts K is best cut, each for programs of its own, if it is."""
        plain = self.chosen is None and self.tiles is None and self.panels is None and not self.codes
        reduces = any(isinstance(op, Reduction) for op in self.group.block.ops)
        if not plain or reduces or given_blocks(self.group, "dot") is not None or len(self.domain.column_runs) != 1:
            return None
        if not self.machine.capabilities.matrix_units or self.m_run is None or self.n_run is None or self.k_run is None:
            return None
        known = products_of([dot for dot in self.dots if isinstance(dot, Dot)]) is not None
        sizes = self.m_run.size, self.n_run.size, self.k_run.size
        if not known or not self._is_for_tensor_cores(*sizes, self.reads):
            return None
        return split_of(self._matmuls(), self.machine)

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
