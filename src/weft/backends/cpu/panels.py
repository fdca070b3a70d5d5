"""Copies a block of a matrix into panels: `width` columns side by side, K after K, as the micro-kernels read them.

`panel[n // columns][k][n % columns] = b[k, n]` for n < width, and 0 up to the last panel's full width. Elements are
converted on the way to the type that the product is computed in.
"""

from __future__ import annotations

from contextlib import ExitStack

from weft.backends.llvm.builder import Function, Module
from weft.backends.llvm.cast import load_as
from weft.backends.llvm.values import V, const, i64, memory_type, scalar_type, vector
from weft.ir.types import DType

_PARAMS = [
    ("ptr noalias", "panel"),
    ("ptr noalias", "b"),
    ("i64", "stride"),
    ("i64", "width"),
    ("i64", "depth"),
]
_AHEAD = 8
"""Rows between the one that is copied and the one that is fetched: their distance is too long for the hardware."""
PANEL_GAP = 1
"""Rows left free between panels, so that their starts do not all fall into one set of the cache."""


def copy_panels(module: Module, columns: int, lanes: int, dtype: DType, memory: DType) -> str:
    """A function for b contiguous along N, with `stride` elements from row to row: any width, in panels of `columns`.

    Rows of b are read from end to end. Returns its name.
    """
    name = f"weft.copy_panels.{columns}.{dtype}.{memory}"
    if not module.add_shared(name):
        return name
    f = Function(module, name, _PARAMS, attributes="nounwind noinline", linkage="internal")
    panel, b, stride, width, depth = f.args
    element, b_element = scalar_type(dtype), memory_type(memory)
    rest = f.binary("urem", width, i64(columns))
    whole = f.sub(width, rest)
    rows = f.add(depth, i64(PANEL_GAP))
    with f.loop(i64(0), depth, i64(1)) as k:
        source, target = f.gep(b, f.mul(k, stride), b_element), f.gep(panel, f.mul(k, i64(columns)), element)
        with f.loop(i64(0), whole, i64(columns)) as n:
            place = f.gep(target, f.mul(n, rows), element)
            f.prefetch(f.gep(source, f.add(n, f.mul(stride, i64(_AHEAD))), b_element))
            for v in range(0, columns, lanes):
                raw = f.load(vector(b_element, lanes), f.gep(source, f.add(n, i64(v)), b_element), memory.bytes)
                f.store(load_as(f, raw, memory, dtype), f.gep(place, i64(v), element), dtype.bytes)
        with f.when(f.icmp("ne", rest, i64(0))):
            place = f.gep(target, f.mul(whole, rows), element)
            with f.loop(i64(0), rest, i64(1)) as n:
                raw = f.load(b_element, f.gep(source, f.add(whole, n), b_element), memory.bytes)
                f.store(load_as(f, raw, memory, dtype), f.gep(place, n, element), dtype.bytes)
            _pad(f, place, rest, columns, dtype)
    f.finish()
    return name


def transpose_panel(module: Module, columns: int, side: int, dtype: DType, memory: DType) -> str:
    """A function for b contiguous along K, with `stride` elements from column to column. Returns its name.

    Blocks of `side` by `side` elements are transposed in registers.
    """
    name = f"weft.transpose_panel.{columns}by{side}.{dtype}.{memory}"
    if not module.add_shared(name):
        return name
    f = Function(module, name, _PARAMS, attributes="nounwind noinline", linkage="internal")
    panel, b, stride, width, depth = f.args
    element, b_element = scalar_type(dtype), memory_type(memory)

    def move(n: V, k: V) -> None:
        raw = f.load(b_element, f.gep(b, f.add(f.mul(n, stride), k), b_element), memory.bytes)
        address = f.gep(panel, f.add(f.mul(k, i64(columns)), n), element)
        f.store(load_as(f, raw, memory, dtype), address, dtype.bytes)

    whole_n, whole_k = (f.binary("and", size, i64(-side)) for size in (width, depth))
    with f.loop(i64(0), whole_n, i64(side)) as n:
        with f.loop(i64(0), whole_k, i64(side)) as k:
            rows: list[V] = []
            for i in range(side):
                address = f.gep(b, f.add(f.mul(f.add(n, i64(i)), stride), k), b_element)
                rows.append(load_as(f, f.load(vector(b_element, side), address, memory.bytes), memory, dtype))
            for i, row in enumerate(transposed(f, rows)):
                address = f.gep(panel, f.add(f.mul(f.add(k, i64(i)), i64(columns)), n), element)
                f.store(row, address, dtype.bytes)
        with f.loop(whole_k, depth, i64(1)) as k:
            for i in range(side):
                move(f.add(n, i64(i)), k)
    with f.loop(whole_n, width, i64(1)) as n, f.loop(i64(0), depth, i64(1)) as k:
        move(n, k)
    with ExitStack() as edge:
        edge.enter_context(f.when(f.icmp("ne", width, i64(columns))))
        k = edge.enter_context(f.loop(i64(0), depth, i64(1)))
        _pad(f, f.gep(panel, f.mul(k, i64(columns)), element), width, columns, dtype)
    f.finish()
    return name


def _pad(f: Function, row: V, width: V, columns: int, dtype: DType) -> None:
    element = scalar_type(dtype)
    with f.loop(width, i64(columns), i64(1)) as n:
        f.store(const(0, element), f.gep(row, n, element), dtype.bytes)


def transposed(f: Function, rows: list[V]) -> list[V]:
    """The transpose of a square of vectors, by exchanging ever larger blocks of lanes between pairs of rows."""
    count = len(rows)
    distance = 1
    while distance < count:
        result = list(rows)
        for i in range(count):
            if i & distance:
                continue
            low, high = rows[i], rows[i + distance]
            for position, offset in ((i, 0), (i + distance, distance)):
                lanes = [(lane & ~distance) + offset + (count if lane & distance else 0) for lane in range(count)]
                mask = ", ".join(f"i32 {lane}" for lane in lanes)
                result[position] = f.emit(low.type, f"shufflevector {low}, {high}, <{count} x i32> <{mask}>")
        rows = result
        distance *= 2
    return rows
