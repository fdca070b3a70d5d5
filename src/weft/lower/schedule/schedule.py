"""Schedules as values: which run of the domain is the vector axis, what a tile holds, what a program walks.

The choice is a cost model of one rule: the run through which most bytes are read and written one after the other
becomes the innermost axis. Tiles are sized for the first-level cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from xdsl.dialects.builtin import StringAttr

from weft.errors import LoweringError
from weft.ir.attributes import from_attribute
from weft.ir.expr import Size, coefficient_of, symbols_of
from weft.ir.types import DType
from weft.lower.index_space.domain import Domain, Run
from weft.lower.index_space.evaluate import Address
from weft.lower.machine import CPU, Machine
from weft.lower.schedule.capacities import known_product
from weft.lower.schedule.dot_blocks import even_blocks
from weft.lower.schedule.shared_places import shared_places
from weft.ops.graph import GroupOp
from weft.ops.matmul.attention import WIDEST_HEAD
from weft.passes.grouping.build_groups import SCHEDULE

SHORT = 8
MOST_TAPS = 64


@dataclass(frozen=True)
class Schedule:
    """How a kernel walks its domain.

    `mode` is `pointwise`; `rows`: the columns are tile axes, reduced in one step; `stream`: blocks of the innermost
    columns are loaded in a loop; `lanes`: a row run is the vector axis and all columns are loops; `taps`: the few
    columns of a window are laid out one after the other.

    A schedule that `holds` carries whole tiles through its loops and combines their elements at the end; `outer` is
    then any run. Of the column run `split`, each of `parts` programs takes a part.
    """

    mode: str
    vector: str
    capacity: int
    outer: str | None = None
    outer_capacity: int = 1
    holds: bool = False
    split: str | None = None
    parts: int = 1

    def __str__(self) -> str:
        outer = f", {self.outer} by {self.outer_capacity}" if self.outer else ""
        split = f", {self.split} in {self.parts} parts" if self.split else ""
        return f"#{self.mode}<{self.vector} by {self.capacity}{outer}{split}>"

    def capacity_of(self, run: Run) -> int | None:
        """How many elements of a run a tile holds, if it is an axis of the tiles."""
        return {self.vector: self.capacity, self.outer: self.outer_capacity}.get(run.name)


NOTE = "weft.schedule_note"
"""The attribute of a group that says what its schedule was measured to do."""


@dataclass(frozen=True)
class Blocks:
    """The schedule of a matmul: the sides of its tiles."""

    mode: str
    sides: tuple[int, ...]
    note: str = ""
    """What is expected of it."""
    cluster: int = 1
    """Neighbouring programs that bring operands for each other."""

    def __str__(self) -> str:
        shared = f" in clusters of {self.cluster}" if self.cluster > 1 else ""
        return f"#{self.mode}<{'x'.join(map(str, self.sides))}{shared}>{self.note and f' {self.note}'}"


def given_blocks(group: GroupOp, mode: str) -> Blocks | None:
    """The schedule that a group was given, if it was; a matmul's fourth number is that of a cluster's programs."""
    given, note = group.attributes.get(SCHEDULE), group.attributes.get(NOTE)
    said = note.data if isinstance(note, StringAttr) else ""
    if given is None:
        return None
    sides: tuple[int, ...] = from_attribute(given)  # type: ignore[assignment]
    return Blocks(mode, sides[:3], said, *sides[3:]) if mode == "dot" else Blocks(mode, sides, said)


_MOST_ROWS, _UNKNOWN_ROWS, _FEW_ROWS = 132, 96, 8
_MOST_COLUMNS, _LEAST_COLUMNS, _COLUMN_UNIT, _ROW_UNIT = 256, 64, 32, 12
_DEPTH_BYTES, _FEW_ROWS_DEPTH = 1024, 8192
_SPLIT_ROWS, _SPLIT_COLUMNS = 32, 128
_PROGRAMS = 16
_TILED_ROWS, _TILED_RATE = 32, 1 / 16
"""The rows of blocks of matmuls in matrix tiles, and the time of one as a share of that in f32."""


def choose_blocks(
    m: Size,
    n: Size,
    k: Size,
    batch: Sequence[Size],
    dtype: DType,
    packed: int | None,
    in_place: bool,
    split: bool = False,
    machine: Machine = CPU,
    *,
    joined: bool = False,
    windows: bool = False,
) -> Blocks:
    """The tiles of a matmul [m, k] x [k, n]; `packed` is the width of b's panels if it lies in such.

    Neighbours along K may be `joined` in these; `dtype` is then that of the weights. Rows may be `windows`.

    A block of a (BM x BK) stays in the L2 cache while panels of b pass; column blocks are narrow enough for
    all threads to have some. With few rows b is read once: if it is read `in_place`, then best from end to end. Where
    rows are `split` into digits, they are so for every block of columns: few of those, and more blocks of rows. Panels
    on a machine of many cores are blocks that are even for any number of threads.
    """
    if (fixed := machine.capabilities.matmul_tile) is not None:
        return Blocks("dot", tuple(1 if size == 1 else side for size, side in zip((m, n, k), fixed, strict=True)))
    if machine.capabilities.thread_blocks:
        return Blocks("dot", (_gpu_side(m, 64), _gpu_side(n, 64), _gpu_side(k, 32)))
    few = isinstance(m, int) and m <= _FEW_ROWS
    most = _SPLIT_ROWS if split else _MOST_ROWS
    rows = min(most, _UNKNOWN_ROWS) if not isinstance(m, int) else _even(m, most, _ROW_UNIT)
    depth = _DEPTH_BYTES // (1 if joined else max(dtype.bytes, 4))
    if few and in_place:
        depth = _FEW_ROWS_DEPTH
    if isinstance(k, int):
        whole = k <= depth * 3 // 2
        depth = max(1, k) if whole else _rounded(-(-k // -(-k // depth)), 64) if joined else _even(k, depth, 8)
    known = isinstance(m, int) and isinstance(n, int) and m > 0 and n > 1
    if machine.product_rows and packed is not None and not split and known:
        high, rate = (_TILED_ROWS, _TILED_RATE) if joined else (machine.product_rows, 1.0)
        unit = high, max(packed, _COLUMN_UNIT)
        return Blocks("dot", (*even_blocks(m, n, _known([k]), _known(batch), unit, depth, rate, windows), depth))
    others = _known(batch) * (-(-m // rows) if isinstance(m, int) else 1)
    columns = 1 if n == 1 else _MOST_COLUMNS
    least = _SPLIT_COLUMNS if split else _LEAST_COLUMNS
    while columns > least and isinstance(n, int) and others * -(-n // columns) < _PROGRAMS:
        columns //= 2
    if isinstance(n, int) and n != 1:
        unit = _COLUMN_UNIT if packed is None else max(packed, _COLUMN_UNIT)
        columns = _rounded(-(-n // max(1, -(-n // columns))), unit)
    return Blocks("dot", (rows, columns, depth))


_QUERIES, _KEYS, _KEYS_OF_ONE = 64, 256, 512
_WIDTH_UNIT, _MOST_WIDTH, _UNKNOWN_WIDTH = 16, 512, 64
_LINE_ELEMENTS = 64
"""Elements of 16 bits that TMA brings side by side."""
_FLASH_KEYS = {64: 128, 128: 128, 192: 96}
"""Keys of a block by the width of heads: what registers and two stages of shared memory hold."""
_WIDE_KEYS = 32
"""Keys of a block where heads are wider than a tile; programs have as many columns of values as one holds."""
_MOVED_BLOCKS = {64: (128, 128), 128: (128, 64), 192: (128, 48), 256: (128, 48)}
"""Rows and keys of a block by the width of heads, where tangents are summed up beside values."""
_ALONE_BLOCKS = {192: (128, 48), 256: (128, 48)}
"""The same where tangents are summed up alone."""
_VECTOR_BLOCKS = {64: (128, 128, 64), 128: (128, 64, 128), 192: (128, 32, 128), 256: (64, 32, 128)}
"""Rows, keys and columns of values of a block with tangents where threads multiply, and not tensor cores."""
_FLASH_ROWS = {64: 192}
"""Rows of a block by the width of heads, where three warp groups share keys: they have no registers left for masks."""
_SLOWER_ROWS = 1.13
"""What two warp groups take for as many scores as three."""


def choose_attention_blocks(
    queries: Size,
    keys: Size,
    width: Size,
    out_width: Size,
    machine: Machine = CPU,
    *,
    masked: bool = False,
    moved: bool = False,
    causal: bool = False,
    on_tensor_cores: bool = True,
) -> Blocks:
    """The tiles of attention: queries, keys, width of the queries and of the values; `moved` where there are tangents,
    too, and `on_tensor_cores` where these multiply if there are any."""
    if (fixed := machine.capabilities.matmul_tile) is not None:
        return _fixed_attention_blocks((queries, keys, width, out_width), fixed)
    if machine.capabilities.matrix_units and isinstance(width, int) and isinstance(out_width, int):
        depth, across = (_rounded(size, _LINE_ELEMENTS) for size in (width, out_width))
        if moved and max(depth, across) <= WIDEST_HEAD:
            alone = is_tangent_alone(out_width, machine)
            rows, columns = (_ALONE_BLOCKS if alone else _MOVED_BLOCKS)[max(depth, across)]
            if not on_tensor_cores:
                rows, columns, most = _VECTOR_BLOCKS[max(depth, across)]
                across = min(across, most)
            rows = 64 if isinstance(queries, int) and queries <= 64 else rows
            return Blocks("attention", (rows, min(columns, 64) if masked else columns, depth, across))
        rows = 128 if masked else _FLASH_ROWS.get(max(depth, across), 128)
        if isinstance(queries, int):
            rows = next((side for side in (64, 128) if queries <= side), rows)
        if rows > 128 and isinstance(queries, int) and isinstance(keys, int):
            work = {side: _flash_work(queries, keys, side, causal=causal) for side in (rows, 128)}
            rows = 128 if work[128] * _SLOWER_ROWS < work[rows] else rows
        if max(depth, across) > WIDEST_HEAD:
            return Blocks("attention", (64, _WIDE_KEYS, depth, min(across, WIDEST_HEAD)))
        return Blocks("attention", (rows, _FLASH_KEYS.get(max(depth, across), 64), depth, across))
    if machine.capabilities.thread_blocks:
        depth, across = (_gpu_side(size, _MOST_WIDTH // 2) for size in (width, out_width))
        return Blocks("attention", (_gpu_side(queries, 64), _gpu_side(keys, 64), depth, across))
    rows = _QUERIES if not isinstance(queries, int) else _even(queries, _QUERIES, _ROW_UNIT)
    columns = _KEYS_OF_ONE if rows == 1 else _KEYS
    if isinstance(keys, int):
        columns = 1 if keys == 1 else min(columns, _rounded(keys, _COLUMN_UNIT))
    whole = isinstance(width, int) and width <= _MOST_WIDTH
    depth = max(1, width) if whole and isinstance(width, int) else _UNKNOWN_WIDTH
    whole = isinstance(out_width, int) and out_width <= _MOST_WIDTH
    across = _rounded(out_width, _WIDTH_UNIT) if whole and isinstance(out_width, int) else _UNKNOWN_WIDTH
    return Blocks("attention", (rows, columns, depth, 1 if out_width == 1 else across))


def is_tangent_alone(out_width: Size, machine: Machine = CPU) -> bool:
    """Whether the tangent of attention has a kernel of its own behind that of attention: registers hold one's sums."""
    return isinstance(out_width, int) and out_width > _WIDEST_TOGETHER and machine.capabilities.matrix_units


def _flash_work(queries: int, keys: int, side: int, *, causal: bool) -> int:
    """The scores that tiles of so many rows make, with what lies beyond the last row or key, and past the diagonal."""
    unit, ends = _FLASH_KEYS[_LINE_ELEMENTS], range(side, queries + side, side)
    return side * sum(_rounded(min(keys, end) if causal else keys, unit) for end in ends)


def _fixed_attention_blocks(sizes: Sequence[Size], fixed: tuple[int, int, int]) -> Blocks:
    """Scores are BM x BN, summed over BK of the width; they are multiplied by BN values, where sums are of BK, too."""
    bm, bn, bk = fixed
    if bn != bk:
        raise LoweringError(f"attention needs two products, and tiles of {bm}x{bn}x{bk} fit one of them")
    return Blocks(
        "attention", tuple(1 if size == 1 else side for size, side in zip(sizes, (bm, bn, bk, bn), strict=True))
    )


_GRADIENT_SIDE = 64
_WIDEST_TOGETHER = 128
"""Heads up to which a block's registers hold the gradients of its keys and values both."""
_WIDE_GRADIENT_BLOCKS: dict[int, dict[str, tuple[int, int]]] = {
    192: {"queries": (128, 64), "keys": (64, 128), "values": (64, 128)},
    256: {"queries": (128, 32), "keys": (32, 128), "values": (64, 128)},
}
"""Queries and keys of a block by the width of heads, where keys and values are apart."""


def are_gradients_apart(widths: Sequence[Size], machine: Machine = CPU) -> bool:
    """Whether attention's gradients of keys and of values are kernels of their own, which makes scores once more."""
    wide = any(isinstance(width, int) and width > _WIDEST_TOGETHER for width in widths)
    return wide and machine.capabilities.matrix_units


def choose_gradient_blocks(of: str, sizes: Sequence[Size], machine: Machine = CPU, *, dropped: bool = False) -> Blocks:
    """The tiles of attention's gradients `of` queries, keys or values: queries, keys, width of the queries and of the
    values.

    On a GPU, registers hold a block's scores twice beside what is summed up, and which weights were `dropped`.
    """
    widths = sizes[2:]
    if not machine.capabilities.thread_blocks:
        across = [_rounded(size, _WIDTH_UNIT) if isinstance(size, int) else _UNKNOWN_WIDTH for size in widths]
        sides = (_GRADIENT_SIDE, _GRADIENT_SIDE, *across)
        return Blocks("attention_gradients", tuple(1 if s == 1 else n for s, n in zip(sizes, sides, strict=True)))
    across = [_rounded(size, _LINE_ELEMENTS) if isinstance(size, int) else _UNKNOWN_WIDTH for size in widths]
    if are_gradients_apart(widths, machine):
        wide = _WIDE_GRADIENT_BLOCKS[192 if max(across) <= 192 else 256]
        return Blocks("attention_gradients", (*wide[of], *across))
    narrow = sum(across) <= 2 * _LINE_ELEMENTS
    side = {"queries": (192, 64) if narrow else (128, 128), "keys": (64, 192) if narrow else (64, 128)}
    if dropped:
        side["keys"] = (64, 128) if narrow else (48, 128)
    return Blocks("attention_gradients", (*side[of], *across))


def _gpu_side(size: Size, most: int) -> int:
    """A side of a matmul's tile: whole fragments of the tensor cores, but one of one element is no axis."""
    if size == 1:
        return 1
    return most if not isinstance(size, int) else min(most, _rounded(1 << max(0, size - 1).bit_length(), 16))


def _even(size: int, most: int, unit: int) -> int:
    """A side of at most `most` for blocks of a size: one that divides it, if there is such near, or about the same."""
    if size <= most:
        return max(1, size)
    divisors = [d for d in range(most * 2 // 3, most + 1) if size % d == 0 and d % 4 == 0]
    if divisors:
        return max(divisors, key=lambda d: (d % unit == 0, d))
    return min(most, _rounded(-(-size // -(-size // most)), unit))


def _rounded(size: int, unit: int) -> int:
    return max(unit, -(-size // unit) * unit)


def _known(sizes: Sequence[Size]) -> int:
    total = 1
    for size in sizes:
        total *= size if isinstance(size, int) else 1
    return total


def choose_schedule(
    domain: Domain, addresses: Sequence[Address], machine: Machine = CPU, *, indexed: bool, window: bool = False
) -> Schedule:
    """Pick the schedule of a processor's kernel from its addresses (over runs).

    `indexed` reductions must see one column axis; the columns of others may be those of a `window`.
    """
    runs = [*domain.row_runs, *domain.column_runs]
    if not runs:
        return Schedule("pointwise", "", 1)
    scores = {run.name: contiguous_bytes(run, addresses) for run in runs}
    if not domain.column_runs:
        vector = max(reversed(domain.row_runs), key=lambda run: scores[run.name])
        return _pointwise(domain, vector, addresses, machine)
    if window and not indexed and (taps := _taps(domain, addresses, machine)) is not None:
        return taps
    # What is the same for a whole row is read or written once for all its columns: it does not count.
    columns = {run.name for run in domain.column_runs}
    inner = [address for address in addresses if symbols_of(address.expr) & columns]
    # Nor does what is the same for all rows, which stays in cache, where there is more to read.
    rows = {run.name for run in domain.row_runs}
    inner = [address for address in inner if symbols_of(address.expr) & rows] or inner
    scores = {run.name: contiguous_bytes(run, inner) for run in runs}
    innermost = domain.column_runs[-1]
    row = max(reversed(domain.row_runs), key=lambda run: scores[run.name], default=None)
    if row is not None and scores[row.name] > scores[innermost.name]:
        return Schedule("lanes", row.name, lanes_of(row.size, machine))
    if isinstance(innermost.size, int) and innermost.size <= SHORT:
        # The few columns of a window are no vector: rows that are written side by side are a better one.
        side = max(reversed(domain.row_runs), key=lambda run: contiguous_bytes(run, addresses), default=None)
        if side is not None and contiguous_bytes(side, addresses):
            return Schedule("lanes", side.name, lanes_of(side.size, machine))
    total = known_product(run.size for run in domain.column_runs)
    if total is not None and 0 < total <= machine.row_elements and len(domain.column_runs) <= (1 if indexed else 2):
        assert isinstance(innermost.size, int)
        return Schedule("rows", innermost.name, innermost.size)
    if indexed:
        return Schedule("lanes", row.name if row else "", lanes_of(row.size, machine) if row else 1)
    return Schedule("stream", innermost.name, _capacity(innermost.size, machine.tile_elements))


def _pointwise(domain: Domain, vector: Run, addresses: Sequence[Address], machine: Machine) -> Schedule:
    most = machine.tile_elements
    capacity = _capacity(vector.size, most)
    others = [run for run in domain.row_runs if run is not vector]
    if others and (sides := shared_places(vector, others[-1], addresses, machine)) is not None:
        return Schedule("pointwise", vector.name, sides[1], others[-1].name, sides[0])
    if others and isinstance(vector.size, int) and capacity == vector.size and capacity * 2 <= most:
        outer = others[-1]
        return Schedule("pointwise", vector.name, capacity, outer.name, _capacity(outer.size, max(1, most // capacity)))
    return Schedule("pointwise", vector.name, capacity)


def _taps(domain: Domain, addresses: Sequence[Address], machine: Machine) -> Schedule | None:
    """The schedule of windows over channels that lie side by side, all of which are inside or outside together, or over
    places: where these are counted, it is known for every column of the window which of them are inside."""
    total = known_product(run.size for run in domain.column_runs)
    if total is None or not 0 < total <= MOST_TAPS or not domain.row_runs:
        return None
    vector = max(reversed(domain.row_runs), key=lambda run: contiguous_bytes(run, addresses))
    for address in addresses:
        split = coefficient_of(address.expr, vector.name)
        if split is None or not isinstance(step := split[0], int):
            return None
        if step not in ((0,) if address.purpose == "position" else (0, 1)) and not isinstance(vector.size, int):
            return None
    taps = replace(_pointwise(domain, vector, addresses, machine), mode="taps")
    return taps if contiguous_bytes(vector, addresses) else None


def contiguous_bytes(run: Run, addresses: Sequence[Address]) -> int:
    """The bytes that are read and written one after the other along a run, for each of its elements."""
    total = 0
    for address in addresses:
        split = coefficient_of(address.expr, run.name)
        if address.purpose != "position" and split is not None and split[0] == 1:
            total += address.bytes * (2 if address.purpose == "store" else 1)
    return total


def _capacity(size: Size, limit: int) -> int:
    return min(size, limit) if isinstance(size, int) and size > 0 else limit


def lanes_of(size: Size, machine: Machine) -> int:
    """How many rows a program reduces side by side: a divisor of the size where one is near, to do without edges."""
    if not isinstance(size, int):
        return machine.lanes
    if size <= machine.lanes:
        return max(size, 1)
    return next((n for n in range(machine.lanes, 15, -16) if size % n == 0), machine.lanes)
