"""Groups around a matrix product → one tile kernel.

    graph.group(%x, %w, %c) {              tile.kernel @dot_add grid [batch, column blocks, row blocks] {
      %0 = graph.dot(%x, %w)                 %acc = tile.for k = 0 to K step BK carrying 0 {
      %1 = graph.add(%0, %c)          →        %a = tile.load %x[..] : BM x BK ;  %b = tile.load %w[..] : BK x BN
      %2 = graph.relu(%1)                      tile.yield tile.dot %a, %b, %acc }
      graph.yield %2                         tile.store %y[..], max(%acc + tile.load %c[..], 0)
    }                                      }

What comes before the product (views, casts, cheap elementwise ops) is computed on the operands' tiles, what comes after
it on the result's. Programs of one column block are neighbours, so that the block of b they share stays in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.ir import BlockArgument, OpResult, SSAValue

from weft.ir.expr import (
    Size,
    ceildiv,
    coefficient_of,
    floordiv,
    minimum,
    product,
    simplify,
    symbol,
    symbols_of,
)
from weft.ir.types import DType, Tensor, bf16, f16, i8, tensor_of
from weft.lower.blocked import BlockedKernel, output_indices, store_outputs
from weft.lower.chosen import Chosen
from weft.lower.codes import Codes
from weft.lower.domain import Domain, Run, Variable, fused
from weft.lower.emit import TileValue, register_dtype
from weft.lower.evaluate import AddressRecorder, Dummy, Source
from weft.lower.few_rows import choose_streaming_tiles
from weft.lower.gpu_schedule import choose_product_tiles
from weft.lower.kernels import Kernel
from weft.lower.lowered import Lowered, whole
from weft.lower.machine import Machine
from weft.lower.packing import PackedLayout, PackedPanels, weight_of
from weft.lower.schedule import Blocks, choose_blocks, given_blocks
from weft.ops.dot import Dot
from weft.ops.graph import GroupOp
from weft.ops.layouts import Layout
from weft.passes.claim_libraries import FEW_ROWS
from weft.tile import dialect as tile

_SIDE, _ALIGNED = 64, 16
"""Of operands of 8 bits, the least sides that are worth a tile, and what K must be a multiple of to be copied."""


def lower_dot(
    group: GroupOp, name: str, inputs: Sequence[Layout], outputs: Sequence[Layout], machine: Machine
) -> Lowered:
    """Lower a group that holds one product, with its operands and results in the given layouts."""
    layouts: dict[SSAValue, Layout] = dict(zip(group.block.args, inputs, strict=True))
    dot = next(op for op in group.block.ops if isinstance(op, Dot))
    kernel = _DotLowering(group, name, layouts, outputs, dot, machine).kernel()
    return whole(kernel, len(inputs), len(outputs))


@dataclass
class _Reads:
    """The addresses of a product's operands, and of all that follows it."""

    a: list[Size] = field(default_factory=list[Size])
    b: list[Size] = field(default_factory=list[Size])
    rest: list[Size] = field(default_factory=list[Size])

    @property
    def all(self) -> list[Size]:
        return [*self.a, *self.b, *self.rest]


@dataclass
class _DotLowering:
    """The construction of one kernel. Its rows are the result's dimensions, its one column dimension is K."""

    group: GroupOp
    name: str
    layouts: dict[SSAValue, Layout]
    outputs: Sequence[Layout]
    dot: Dot
    machine: Machine

    def kernel(self) -> Kernel:
        self.chosen = Chosen.of(self.dot) if self.machine.is_gpu else None
        self._split_domain(self._codes())
        if self.codes is not None and (len(self.domain.column_runs) != 1 or len(self.domain.row_runs) > 2):
            self._split_domain(None)
        outer = [run for run in self.domain.row_runs if run not in (self.m_run, self.n_run)]
        self.blocks = given_blocks(self.group, "dot") or self._chosen_blocks(outer, self.reads)
        return self._emit(outer)

    def _codes(self) -> Codes | None:
        """The codes that a product of few rows reads its weights from."""
        shape = self.result.shape
        rows, columns = shape[-2:]
        few = len(shape) == (2 if self.chosen is None else 3) and isinstance(rows, int) and 0 < rows <= FEW_ROWS
        if not self.machine.is_gpu or not few or columns == 1 or self.result.dtype not in (f16, bf16):
            return None
        return Codes.of(self.dot, self.layouts, Domain(shape, (self.a_tensor.shape[-1],)), self.chosen)

    def _split_domain(self, codes: Codes | None) -> None:
        """Find the runs of M, N and K."""
        self.codes = codes
        shape = self.result.shape
        self.domain = domain = Domain(shape, (self.a_tensor.shape[-1],))
        while domain.split([position for index in self._output_indices() for position in index]):
            pass
        while domain.split((reads := self._record()).all):
            pass
        n_name = f"r{len(shape) - 1}"
        columns = [v for v in domain.rows if v.name.rstrip("hl") == n_name]
        rows = [v for v in domain.rows if v not in columns]
        row_runs, n_runs = fused(rows, reads.all), self._n_runs(columns, reads)
        domain.row_runs = [*row_runs, *n_runs]
        domain.column_runs = fused(domain.columns, reads.all)
        apart = self.chosen is not None or not row_runs or _uses(reads.b, row_runs[-1])
        self.m_run = None if apart else row_runs[-1]
        if self.panels is not None and self.m_run is not None and self.panels.batch > 1 and len(row_runs) == 1:
            self.m_run = None if self._batch_in(self.m_run) else self.m_run
        self.n_run = n_runs[-1] if n_runs else None
        self.k_run = domain.column_runs[-1] if domain.column_runs else None
        self.reads = reads

    def _chosen_blocks(self, outer: Sequence[Run], reads: _Reads) -> Blocks:
        m, n, k = (_size(run) for run in (self.m_run, self.n_run, self.k_run))
        width = self.a_tensor.dtype.bytes
        if self.machine.is_gpu and self._is_for_tensor_cores(m, n, k, reads):
            batch = product(run.size for run in outer)
            if isinstance(m, int) and 0 < m <= FEW_ROWS and width == 2:
                bits = self.codes.form.bits if self.codes is not None else 16
                return Blocks("dot", choose_streaming_tiles(m, n, k, batch, self.machine, bits))
            return Blocks("dot", choose_product_tiles(m, n, k, batch, self.machine, width, self._in_parts))
        as_bytes = self.panels is not None and self.panels.together > 1
        return choose_blocks(
            m,
            n,
            k,
            [run.size for run in outer],
            # A block is a quarter as wide in memory where rows are digits of 8 bits.
            i8 if as_bytes else self.result.dtype,
            self.panels.NR if self.panels else None,
            in_place=self.panels is not None or self._b_in_place(reads),
            split=as_bytes and self.a_tensor.dtype != i8,
            machine=self.machine,
        )

    def _is_for_tensor_cores(self, m: Size, n: Size, k: Size, reads: _Reads) -> bool:
        """Whether tensor cores take the operands: of 8 bits only where these lie along K and tiles can be copied."""
        narrow, wide = self.a_tensor.dtype, self.result.dtype
        if narrow.bytes != 1 or wide.bytes != 4:
            return narrow.bytes == 2 and narrow.is_float
        if not isinstance(m, int) or not isinstance(n, int) or not isinstance(k, int) or self.k_run is None:
            return False
        parts = [coefficient_of(self.domain.in_runs(each), self.k_run.name) for each in (*reads.a, *reads.b)]
        return min(m, n) >= _SIDE and k % _ALIGNED == 0 and all(part is not None and part[0] == 1 for part in parts)

    def _b_in_place(self, reads: _Reads) -> bool:
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
        """Whether blocks of K are summed up apart: tensor cores keep fewer digits of sums of 8-bit floats."""
        is_narrow = self.a_tensor.dtype.is_float and self.a_tensor.dtype.bytes == 1
        return self.machine.is_gpu and is_narrow and not self.dot.params.get("fast")

    # -- addresses -------------------------------------------------------------------------------------------------

    def _a_index(self) -> list[Size]:
        return [*self.domain.row_index[:-1], *self.domain.column_index]

    def _b_index(self) -> list[Size]:
        if self.chosen is not None:
            return [self.chosen.number, self.domain.row_index[-1], *self.domain.column_index]
        return [*self.domain.row_index[:-2], *self.domain.column_index, self.domain.row_index[-1]]

    @property
    def _right(self) -> SSAValue:
        """The weights, or all of those that they are chosen from."""
        return self.dot.operands[1] if self.chosen is None else self.chosen.weights

    def _record(self) -> _Reads:
        domain, reads = self.domain, _Reads()
        recorder = AddressRecorder(self.layouts, space=domain.bounds)
        a, b = self.dot.operands[0], self._right
        recorder.at(Source(a, tensor_of(a.type)), self._a_index())
        reads.a = [address.expr for address in recorder.addresses]
        recorder.addresses.clear()
        if self.panels is None and self.codes is None:
            recorder.at(Source(b, tensor_of(b.type)), self._b_index())
        reads.b = [address.expr for address in recorder.addresses]
        recorder.addresses.clear()
        recorder.given[self.dot.results[0]] = (tuple(domain.row_index), Dummy(self.result.dtype))
        for value, layout, index in zip(self.group.yielded, self.outputs, self._output_indices(), strict=True):
            recorder.at(Source(value, tensor_of(value.type)), index)
            reads.rest.append(simplify(layout.address(index), domain.bounds))
        reads.rest += [address.expr for address in recorder.addresses]
        return reads

    def _output_indices(self) -> list[list[Size]]:
        return output_indices(self.group, self.dot.results, self.domain)

    def _n_runs(self, variables: Sequence[Variable], reads: _Reads) -> list[Run]:
        """The parts of N. Panels cannot be cut, so where parts are not made of whole ones, N stays one run."""
        runs = fused(variables, reads.all)
        if self.panels is not None and len(runs) > 1 and not _divides(self.panels.NR, runs[-1].size):
            return [Run(tuple(variables))]
        return runs

    def _batch_in(self, run: Run) -> bool:
        names = {variable.name for variable in run.variables}
        return any(symbols_of(index) & names for index in self.domain.row_index[:-2])

    # -- code ------------------------------------------------------------------------------------------------------

    def _emit(self, outer: Sequence[Run]) -> Kernel:
        kernel = BlockedKernel(
            self.group, self.name, self.layouts, self.outputs, self.domain, parts=self.machine.is_gpu
        )
        self.emit = kernel.emit
        bm, bn, _ = self.blocks.sides
        # Rows that read the same weights come one after the other.
        n_base = kernel.start_of(self.n_run, bn) if self.n_run and self.chosen else 0
        for run in outer:
            kernel.program(run)
        n_base = kernel.start_of(self.n_run, bn) if self.n_run and not self.chosen else n_base
        m_base = kernel.start_of(self.m_run, bm) if self.m_run else 0
        self.bases = {"m": m_base, "n": n_base}
        if self.chosen is not None:
            self.chosen.find(self.emit, self.domain.row_index[0])
        total = self._product()
        self._axes("m", "n")
        store_outputs(kernel, {self.dot.results[0]: TileValue(total, self.result.dtype)})
        return kernel.frame.finish(self.blocks)

    def _axes(self, first: str, second: str) -> None:
        """Make two of the runs m, n and k the axes of the tiles that follow."""
        runs = {"m": self.m_run, "n": self.n_run, "k": self.k_run}
        sides = dict(zip("mnk", self.blocks.sides, strict=True))
        self.emit.axes.clear()
        for position, letter in enumerate((first, second)):
            run = runs[letter]
            if run is not None:
                self.emit.tile_axis(run.name, run.size, position, self.bases[letter], sides[letter])

    def _product(self) -> SSAValue:
        """The sum over all of K: in one step, or in loops that carry it."""
        emit = self.emit
        bm, bn, bk = self.blocks.sides
        dtype = register_dtype(self.result.dtype)
        type_ = tile.TileType.of((bm, bn), dtype)
        one_step = self.k_run is None or (isinstance(self.k_run.size, int) and self.k_run.size <= bk)
        one_step = one_step and not self.machine.is_gpu  # there loops are what copies run ahead in
        outer = self.domain.column_runs[: -1 if one_step else None]
        if self.a_tensor.shape[-1] == 0:
            return emit.add(tile.ConstantOp.make(0.0 if dtype.is_float else 0, type_))
        if not outer:
            self.bases["k"] = 0
            return self._step(None, type_)
        carried = [TileValue(emit.add(tile.ConstantOp.make(0.0 if dtype.is_float else 0, type_)), dtype)]
        self._loops(list(outer), carried, type_)
        return carried[0].ssa

    def _loops(self, runs: list[Run], carried: list[TileValue], type_: tile.TileType) -> None:
        run, *inner = runs
        blocked = run is self.k_run
        name = f"{run.name}_start" if blocked else run.name
        if self.codes is not None:  # by turns, of which codes and factors have a known number each
            with self.emit.loop(name, ceildiv(run.size, self.blocks.sides[2]), 1, carried) as state:
                self.bases["k"] = symbol(name) * self.blocks.sides[2]
                state[0] = TileValue(self._step(state[0].ssa, type_, symbol(name)), carried[0].dtype)
            return
        with self.emit.loop(name, run.size, self.blocks.sides[2] if blocked else 1, carried) as state:
            if inner:
                self._loops(inner, state, type_)
            else:
                self.bases["k"] = symbol(name) if blocked else 0
                state[0] = TileValue(self._step(state[0].ssa, type_), carried[0].dtype)

    def _step(self, total: SSAValue | None, type_: tile.TileType, turn: Size = 0) -> SSAValue:
        """One block of K."""
        bm, bn, bk = self.blocks.sides
        self.emit.scopes.append({})
        self._axes("m", "k")
        as_is = self.panels is not None and self.panels.together > 1
        a = self._tile(self.dot.operands[0], self._a_index(), (bm, bk), None if as_is else type_.dtype)
        self.emit.scopes[-1].clear()
        self._axes("k", "n")
        if self.codes is not None and self.n_run is not None:
            b = self.codes.tile(self.emit, turn, self.n_run, self.bases["n"], (bk, bn))
        elif self.panels:
            b = self._packed_tile()
        else:
            b = self._tile(self._right, self._b_index(), (bk, bn), type_.dtype)
        self.emit.scopes.pop()
        operands = [a, b] if total is None or self._in_parts else [a, b, total]
        made = self.emit.add(tile.DotOp.create(operands=operands, result_types=[type_]))
        if total is None or not self._in_parts:
            return made
        dtype = type_.dtype
        sum_ = self.emit.math("add", TileValue(total, dtype), TileValue(made, dtype))
        assert isinstance(sum_, TileValue)
        return sum_.ssa

    def _tile(self, value: SSAValue, index: Sequence[Size], shape: tuple[int, int], dtype: DType | None) -> SSAValue:
        element = self.emit.at(Source(value, tensor_of(value.type)), index)
        if dtype is not None and dtype.is_integer and not self.machine.is_gpu:
            element = self.emit.cast(element, dtype)
        elif self.machine.is_gpu and isinstance(value, OpResult):
            # The tensor cores take what the program multiplies: numbers of the operand's type.
            element = self.emit.rounded(element, tensor_of(value.type).dtype)
        return self.emit.repeated(element, shape).ssa

    def _packed_tile(self) -> SSAValue:
        """The panels of this block: [panels, BK, NR]."""
        emit, panels, domain = self.emit, self.panels, self.domain
        assert panels is not None
        _, bn, bk = self.blocks.sides
        count, width, together = panels.shape[1], panels.NR, panels.together
        batch, k_size = panels.batch, panels.shape[2] * together
        matrix: Size = 0
        if batch > 1:
            for size, position in zip(self.result.shape[:-2], domain.row_index[:-2], strict=True):
                matrix = matrix * size + position
        n, k, matrix = (self._start(position) for position in (domain.row_index[-1], domain.column_index[0], matrix))
        first = floordiv(n, width)
        k_axis = emit.axes.get(self.k_run.name) if self.k_run else None
        offset = (matrix * count + first) * (k_size * width) + k * width
        held = bn // width
        panel_extent = held if count % held == 0 else minimum(held, count - first)
        k_extent = k_axis.extent if k_axis else 1
        strides, extents, shape = (k_size * width, width, 1), (panel_extent, k_extent, width), (held, bk, width)
        if together > 1:
            strides = (k_size * width, width * together, together, 1)
            extents = (panel_extent, ceildiv(k_extent, together), width, together)
            shape = (held, -(-bk // together), width, together)
        (o, s, e), operands = emit.sizes((offset,), strides, extents)
        op = tile.LoadOp.create(
            operands=[emit.pointers[weight_of(self.dot)], *operands],
            attributes={"offset": o, "strides": s, "extents": e},
            result_types=[tile.TileType.of(shape, register_dtype(panels.dtype))],
        )
        return emit.add(op)

    def _start(self, position: Size) -> Size:
        """The index of a tile's first element."""
        affine = self.emit.affine(self.emit.resolve(position))
        assert affine is not None
        return affine[0]


def _uses(addresses: Sequence[Size], run: Run) -> bool:
    names = {variable.name for variable in run.variables}
    return any(symbols_of(address) & names for address in addresses)


def _size(run: Run | None) -> Size:
    return run.size if run is not None else 1


def _divides(divisor: int, size: Size) -> bool:
    return isinstance(size, int) and size % divisor == 0
