"""Sorting on a CPU: stable, NaN as the greatest value; by radix, by merging where lines are short, or by selection.

Keys are compared as unsigned numbers of the same order. What is moved are entries, one i64 each: such a number of up to
32 bits above and the position below, so that all entries differ; of wider keys the position alone. The radix sort goes
byte by byte and leaves out those that are the same everywhere, as in most integers. A few first elements of many are
selected: most are not better than the worst of those chosen, and a vector of them is done with one comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weft.backends.llvm.builder import Function, Module, mangle
from weft.backends.llvm.cast import load_convert
from weft.backends.llvm.math_expression import E
from weft.backends.llvm.values import V, i64, memory_type, vector
from weft.ir.attributes import from_attribute
from weft.ir.types import DType
from weft.tile import dialect as tile

if TYPE_CHECKING:
    from weft.backends.cpu.codegen import KernelCodegen

_RUN = 12
"""Elements that are put in order by insertion before runs are merged."""
_RADIX_FROM = 160
_MOST_SELECTED, _SELECTED_SHARE = 128, 8


def emit_sort(codegen: KernelCodegen, op: tile.SortOp) -> None:
    """Call the sorting function of the keys' type, which is added to the module once."""
    b, pointer_type = codegen.b, op.keys.type
    assert isinstance(pointer_type, tile.PointerType)
    name = _sorting_function(codegen.module, pointer_type.dtype, bool(from_attribute(op.descending)))
    offset = codegen.size(op.offset.data[0], op.indices)
    pointers = [
        b.gep(codegen.pointers[pointer], offset, memory)
        for pointer, memory in (
            (op.keys, memory_type(pointer_type.dtype)),
            (op.positions, "i64"),
            (op.scratch_keys, memory_type(pointer_type.dtype)),
            (op.scratch_positions, "i64"),
        )
    ]
    sizes = [codegen.size(size, op.indices) for size in (*op.count.data, *op.first.data)]
    b.do(f"call void @{name}({', '.join(map(str, [*pointers, *sizes]))})")


def _sorting_function(module: Module, dtype: DType, descending: bool) -> str:
    name = f"weft.sort.{dtype.name}.{'descending' if descending else 'ascending'}"
    if not any(text.startswith(f"define internal void @{name}(") for text in module.functions):
        arrays = ["keys", "positions", "scratch_keys", "scratch_positions"]
        params = [*(("ptr noalias", array) for array in arrays), ("i64", "count"), ("i64", "first")]
        b = Function(module, name, params, linkage="internal")
        _Sorting(b, dtype, descending).emit()
        b.finish()
    return name


@dataclass(frozen=True)
class _Variable:
    """A local variable, which LLVM turns into registers."""

    b: Function
    slot: V
    type: str = "i64"

    @classmethod
    def of(cls, b: Function, value: V) -> _Variable:
        variable = cls(b, b.alloca(value.type), value.type)
        variable.set(value)
        return variable

    def get(self) -> V:
        return self.b.load(self.type, self.slot, 8)

    def set(self, value: V) -> None:
        self.b.store(value, self.slot, 8)


@contextmanager
def _while(b: Function, condition: Callable[[], V]) -> Generator[None]:
    head, body, after = b.label("head"), b.label("body"), b.label("after")
    b.branch(head)
    b.start(head)
    b.branch_if(condition(), body, after)
    b.start(body)
    yield
    b.branch(head)
    b.start(after)


class _Sorting:
    """The function that sorts one row."""

    def __init__(self, b: Function, dtype: DType, descending: bool) -> None:
        self.b = b
        self.dtype = dtype
        self.descending = descending
        self.keys, self.positions, self.scratch_keys, self.scratch_positions, self.count, self.first = b.args
        self.packed = dtype.bits <= 32
        self.lanes = 16 if self.packed else 8

    def emit(self) -> None:
        b = self.b
        few = b.icmp("sle", self.first, i64(_MOST_SELECTED))
        small = b.icmp("sle", b.mul(self.first, i64(_SELECTED_SHARE)), self.count)
        select, longer, merge, radix, end = (b.label(name) for name in ("select", "longer", "merge", "radix", "end"))
        b.branch_if(b.binary("and", few, small), select, longer)
        b.start(select)
        with b.when(b.icmp("sgt", self.first, i64(0))):
            self._select()
        self._deliver(self.scratch_positions)
        b.branch(end)
        b.start(longer)
        b.branch_if(b.icmp("slt", self.count, i64(_RADIX_FROM)), merge, radix)
        b.start(merge)
        self._sort_runs()
        self._deliver(self._merge_runs())
        b.branch(end)
        b.start(radix)
        self._deliver(self._radix_sort())
        b.branch(end)
        b.start(end)

    # -- entries ---------------------------------------------------------------------------------------------------

    def _order(self, position: V, lanes: int = 1) -> E:
        """Keys as unsigned numbers of 32 or 64 bits that have the order of the sort."""
        b, memory = self.b, memory_type(self.dtype)
        raw = b.load(vector(memory, lanes), b.gep(self.keys, position, memory), self.dtype.bytes)
        key = E(b, load_convert(b, raw, self.dtype))
        width = 32 if self.packed else 64
        if self.dtype.is_float:
            bits = key.compare("oeq", 0.0).select(0, key.bits())  # -0 is 0
            order = bits ^ (bits.op("ashr", bits.of(width - 1)) | -(1 << (width - 1)))
            order = key.compare("uno", key).select(-1, order)
        elif self.dtype.kind == "int":
            order = key.to("sext", f"i{width}") ^ -(1 << (width - 1))
        else:
            order = key.to("zext", f"i{width}")
        return order ^ -1 if self.descending else order

    def _entry(self, position: V) -> V:
        if not self.packed:
            return position
        order = self._order(position).to("zext", "i64").v
        return self.b.binary("or", self.b.binary("shl", order, i64(32)), position)

    def _less(self, x: V, y: V) -> V:
        """Whether one entry comes before another by its key."""
        if self.packed:
            return self.b.icmp("ult", x, y)
        return self._order(x).compare("ult", self._order(y)).v

    def _load(self, array: V, index: V) -> V:
        return self.b.load("i64", self.b.gep(array, index, "i64"), 8)

    def _store(self, value: V, array: V, index: V) -> None:
        self.b.store(value, self.b.gep(array, index, "i64"), 8)

    # -- steps -----------------------------------------------------------------------------------------------------

    def _insert(self, array: V, entry: V, hole: _Variable, low: V) -> None:
        """Move what comes after the entry up by one, from `hole` down to `low`, and put it there."""
        b = self.b
        head, body, after = b.label("head"), b.label("body"), b.label("after")
        inside = b.label("inside")
        b.branch(head)
        b.start(head)
        here = hole.get()
        b.branch_if(b.icmp("sgt", here, low), inside, after)
        b.start(inside)
        previous = self._load(array, b.sub(here, i64(1)))
        b.branch_if(self._less(entry, previous), body, after)
        b.start(body)
        self._store(previous, array, here)
        hole.set(b.sub(here, i64(1)))
        b.branch(head)
        b.start(after)
        self._store(entry, array, hole.get())

    def _select(self) -> None:
        """The first entries, in order, in the scratch array."""
        b, chosen = self.b, self.scratch_positions
        last = b.sub(self.first, i64(1))
        with b.loop(i64(0), self.first, i64(1)) as position:
            self._insert(chosen, self._entry(position), _Variable.of(b, position), i64(0))

        def visit(position: V) -> None:
            entry = self._entry(position)
            with b.when(self._less(entry, self._load(chosen, last))):
                self._insert(chosen, entry, _Variable.of(b, last), i64(0))

        whole = b.add(self.first, b.binary("and", b.sub(self.count, self.first), i64(-self.lanes)))
        with b.loop(self.first, whole, i64(self.lanes)) as start:
            worst = self._load(chosen, last)
            bound = b.convert("trunc", b.binary("lshr", worst, i64(32)), "i32") if self.packed else self._order(worst).v
            better = self._order(start, self.lanes).compare("ult", E(b, b.splat(bound, self.lanes))).v
            some = b.call(f"llvm.vector.reduce.or.{mangle(better.type)}", "i1", better)
            with b.when(some), b.loop(start, b.add(start, i64(self.lanes)), i64(1)) as position:
                visit(position)
        with b.loop(whole, self.count, i64(1)) as position:
            visit(position)

    def _radix_sort(self) -> V:
        """Byte by byte from the lowest, each time stable; returns the array that the entries end in."""
        b = self.b
        digits, first_bit = (4, 32) if self.packed else (8, 0)
        counts = b.alloca("i64", digits * 256)
        b.call("llvm.memset.p0.i64", "void", counts, V("i8", "0"), i64(digits * 256 * 8), V("i1", "false"))
        with b.loop(i64(0), self.count, i64(1)) as position:
            entry = self._entry(position)
            self._store(entry, self.positions, position)
            number = entry
            if not self.packed:
                number = self._order(position).v
                self._store(number, self.scratch_keys, position)
            for digit in range(digits):
                byte = b.binary("and", b.binary("lshr", number, i64(first_bit + 8 * digit)), i64(255))
                place = b.add(byte, i64(256 * digit))
                self._store(b.add(self._load(counts, place), i64(1)), counts, place)
        source, target = (_Variable.of(b, array) for array in (self.positions, self.scratch_positions))
        with b.loop(i64(0), i64(digits), i64(1)) as digit:
            places = b.gep(counts, b.mul(digit, i64(256)), "i64")
            shift = b.add(b.mul(digit, i64(8)), i64(first_bit))

            def byte_of(entry: V) -> V:
                number = entry if self.packed else self._load(self.scratch_keys, entry)
                return b.binary("and", b.binary("lshr", number, shift), i64(255))

            old, new = source.get(), target.get()
            alike = self._load(places, byte_of(self._load(old, i64(0))))
            with b.when(b.icmp("ne", alike, self.count)):
                total = _Variable.of(b, i64(0))
                with b.loop(i64(0), i64(256), i64(1)) as byte:
                    start = total.get()
                    total.set(b.add(start, self._load(places, byte)))
                    self._store(start, places, byte)
                with b.loop(i64(0), self.count, i64(1)) as position:
                    entry = self._load(old, position)
                    byte = byte_of(entry)
                    place = self._load(places, byte)
                    self._store(b.add(place, i64(1)), places, byte)
                    self._store(entry, new, place)
                source.set(new)
                target.set(old)
        return source.get()

    def _sort_runs(self) -> None:
        b = self.b
        with b.loop(i64(0), self.count, i64(_RUN)) as low:
            high = b.intrinsic("smin", b.add(low, i64(_RUN)), self.count)
            with b.loop(low, high, i64(1)) as position:
                entry = self._entry(position)
                self._insert(self.positions, entry, _Variable.of(b, position), low)

    def _merge_runs(self) -> V:
        """Merge pairs of runs from one array to the other until one run is left; returns the array it is in."""
        b = self.b
        source, target = (_Variable.of(b, array) for array in (self.positions, self.scratch_positions))
        width = _Variable.of(b, i64(_RUN))
        with _while(b, lambda: b.icmp("slt", width.get(), self.count)):
            old, new = source.get(), target.get()
            step = b.mul(width.get(), i64(2))
            with b.loop(i64(0), self.count, step) as low:
                middle = b.intrinsic("smin", b.add(low, width.get()), self.count)
                high = b.intrinsic("smin", b.add(low, step), self.count)
                self._merge(old, new, low, middle, high)
            source.set(new)
            target.set(old)
            width.set(step)
        return source.get()

    def _merge(self, source: V, target: V, low: V, middle: V, high: V) -> None:
        """Without branches on the comparison: which run comes next cannot be foretold."""
        b = self.b
        left, right, out = (_Variable.of(b, value) for value in (low, middle, low))

        def both() -> V:
            return b.binary("and", b.icmp("slt", left.get(), middle), b.icmp("slt", right.get(), high))

        with _while(b, both):
            x, y = self._load(source, left.get()), self._load(source, right.get())
            second = self._less(y, x)
            self._store(b.select(second, y, x), target, out.get())
            taken = b.convert("zext", second, "i64")
            right.set(b.add(right.get(), taken))
            left.set(b.add(left.get(), b.sub(i64(1), taken)))
            out.set(b.add(out.get(), i64(1)))
        for run, end in ((left, middle), (right, high)):
            with _while(b, lambda run=run, end=end: b.icmp("slt", run.get(), end)):
                self._store(self._load(source, run.get()), target, out.get())
                run.set(b.add(run.get(), i64(1)))
                out.set(b.add(out.get(), i64(1)))

    def _deliver(self, entries: V) -> None:
        """Write the keys and positions that the entries stand for."""
        b, memory = self.b, memory_type(self.dtype)
        with b.loop(i64(0), self.first, i64(1)) as i:
            entry = self._load(entries, i)
            position = b.binary("and", entry, i64(0xFFFFFFFF)) if self.packed else entry
            key = b.load(memory, b.gep(self.keys, position, memory), self.dtype.bytes)
            b.store(key, b.gep(self.scratch_keys, i, memory), self.dtype.bytes)
            self._store(position, self.positions, i)
        bytes_ = b.mul(self.first, i64(self.dtype.bytes))
        b.call("llvm.memcpy.p0.p0.i64", "void", self.keys, self.scratch_keys, bytes_, V("i1", "false"))
