"""Groups that work row by row and sum up columns of few long rows → a kernel for the rows, and one for the columns.

graph.group(%x, %dy) {                        tile.kernel @.._rows grid [300]   y = dy - sum (dy * x)   (300 × 9216)
  %p = graph.mul %dy, %x                →     tile.kernel @.._sums grid [576] {
  %d = graph.sub %dy, graph.sum %p dims=[1]     %x = tile.load %x0[..] : 16x300 ; %dy = …
  graph.yield %d, graph.sum %p dims=[0] }       tile.store %w[..], tile.reduce sum (%dy * %x) axis 1 }

Programs that stay (`column_sums`) write their sums and read them again, two rows' worth or more for each row of a
program: of few rows that is more than to read the rows again, which are in the cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from weft.ir.expr import product
from weft.ir.types import tensor_of
from weft.lower.groups.kernels import GroupLowering, lower_group, prepare_group
from weft.lower.lowered import Argument, KernelCall, Lowered
from weft.lower.machine import Machine
from weft.lower.refusal import Refusal
from weft.lower.regroup import drop_unused, regroup
from weft.lower.schedule.capacities import power_below
from weft.lower.schedule.schedule import Schedule
from weft.ops.base import Reduction
from weft.ops.graph import GroupOp
from weft.ops.layouts import StridedLayout
from weft.passes.grouping.kernel_groups import is_column_sum

_WAYS = 3
"""Of a program's sums: they are written, read, and given back to memory by the cache."""
_SUM_BYTES = 4
_WORTH = 4 << 20
"""Bytes of sums from which on they take longer than what is between two kernels varies by."""
_HELD, _SECTOR = 8192, 32
"""Elements that a program reads of a tensor at once, and bytes that memory brings in any case."""


def are_rows_few(rows: int, columns: int, read: int, programs: int, sums: int) -> bool:
    """Whether all programs' sums are more bytes than the rows that they are of, whose elements have so many to read."""
    written = programs * sums * _WAYS * _SUM_BYTES
    return written * columns >= _WORTH and rows * read <= written


def lower_apart(
    group: GroupOp,
    name: str,
    inputs: Sequence[StridedLayout],
    outputs: Sequence[StridedLayout],
    parts: tuple[Sequence[int], Sequence[int]],
    in_place: Mapping[int, int],
    machine: Machine,
) -> Lowered | None:
    """The two kernels of a group whose results are, in `parts`, of the rows and of the sums; None if the sums need what
    rows are reduced to, or more columns at once than a program holds.

    What rows are written over is read for the sums before.
    """
    (early, rows), (late, sums) = (
        (part, regroup(group, lambda _, c, p=part: [c.yielded[n] for n in p])) for part in parts
    )
    of_rows, of_sums = drop_unused(rows), drop_unused(sums)
    prepared = _prepared(sums, f"{name}_sums", [inputs[n] for n in of_sums], [outputs[n] for n in late], machine)
    if prepared is None:
        return None
    places = {result: of_rows.index(operand) for result, operand in in_place.items()}
    layouts = [inputs[n] for n in of_rows]
    kernel = lower_group(rows, f"{name}_rows", layouts, [outputs[n] for n in early], places, machine)
    written = [Argument("output", n) for place, n in enumerate(early) if place not in in_place]
    first = KernelCall(kernel, (*(Argument("input", n) for n in of_rows), *written))
    results = [Argument("output", n) for n in late]
    second = KernelCall(prepared.kernel(), (*(Argument("input", n) for n in of_sums), *results))
    return Lowered((second, first) if in_place else (first, second))


def _prepared(
    sums: GroupOp, name: str, inputs: Sequence[StridedLayout], outputs: Sequence[StridedLayout], machine: Machine
) -> GroupLowering | None:
    """Sums of columns as a kernel whose programs read all rows of so many neighbours as memory brings."""
    if not all(is_column_sum(op) for op in sums.block.ops if isinstance(op, Reduction)):
        return None
    prepared = prepare_group(sums, name, inputs, outputs, machine=machine)
    if isinstance(prepared, Refusal) or (len(prepared.domain.row_runs), len(prepared.domain.column_runs)) != (1, 1):
        return None
    (columns,), (rows,) = prepared.domain.row_runs, prepared.domain.column_runs
    full = product((columns.size, rows.size))
    wide = [t.dtype.bytes for t in (tensor_of(a.type) for a in sums.block.args) if product(t.shape) == full]
    if not isinstance(rows.size, int) or not isinstance(columns.size, int) or rows.size > _HELD or not wide:
        return None
    side = min(power_below(_HELD // rows.size), 2 * _SECTOR // min(wide), columns.size)
    if side * min(wide) < _SECTOR:
        return None
    return replace(prepared, schedule=Schedule("rows", rows.name, rows.size, columns.name, side))
