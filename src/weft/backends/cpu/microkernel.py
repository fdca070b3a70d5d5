"""The innermost loops of matrix products: a block of the result in registers, walked along K.

Both kernels compute `c (+)= a @ b` for a few rows and columns; `a` is contiguous along K. They are functions of their
own, so that registers are allotted to them alone and all products of a module share them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from weft.backends.cpu.matrix_kernels import MATRIX_COLUMNS
from weft.backends.cpu.target import CpuTarget
from weft.backends.llvm.builder import Function, Module
from weft.backends.llvm.cast import load_as
from weft.backends.llvm.values import V, const, i64, memory_type, scalar_type, vector
from weft.ir.types import DType, bf16, f32, i8, i32
from weft.lower.machine import CPU, Machine
from weft.ops.matmul.dot import BYTES_TOGETHER

_PARAMS = [
    ("ptr noalias", "c"),
    ("i64", "c_stride"),
    ("ptr noalias", "a"),
    ("i64", "a_stride"),
    ("ptr noalias", "b"),
    ("i64", "b_stride"),
    ("i64", "depth"),
    ("i1", "keep"),
]
_LEAST_CHAINS = 8
"""Sums that must be under way at a time to hide the latency of a multiply-add."""
_LINE_VECTORS = 4
"""Vectors that are read from one stream before turning to the next: a cache line or more."""


@dataclass(frozen=True)
class Blocking:
    """The block of the result that a micro-kernel holds: `rows` times `vectors` registers of `lanes` elements."""

    rows: int
    vectors: int
    lanes: int

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes


def blocking(target: CpuTarget, dtype: DType) -> Blocking:
    """The block that fills the register file of a target, for products computed in `dtype`."""
    lanes = target.vector_bits // max(dtype.bits, 8)
    match target.vector_bits:
        case 512:  # 28 sums of floats leave a register for a factor, and three for what it is multiplied by
            return Blocking(14 if dtype.is_float else 12, 2, lanes)
        case _ if target.registers == 16:
            return Blocking(6, 2, lanes)
        case _:
            return Blocking(4, 4, lanes)


def panel_form(target: CpuTarget, dtype: DType, memory: DType) -> tuple[int, int]:
    """The columns of a panel of packed weights, and how many of K lie together in it."""
    if memory == bf16 and dtype == f32 and target.has_matrix_tiles:
        return MATRIX_COLUMNS, BYTES_TOGETHER // bf16.bytes
    # Digits of floats are worth their number only where one instruction multiplies four of them.
    in_bytes = target.multiplies_bytes if dtype == f32 else target.packs_bytes
    together = BYTES_TOGETHER if memory == i8 and dtype in (f32, i32) and in_bytes else 1
    return blocking(target, dtype).columns, together


def cpu_machine(target: CpuTarget) -> Machine:
    """What lowering knows of a processor. Those of x86 have many cores, as a rule, and far caches between them."""
    return replace(CPU, product_rows=blocking(target, f32).rows) if target.is_x86 else CPU


def multiply_add(b: Function, x: V, y: V, total: V) -> V:
    if x.element in ("float", "double"):
        # Fused where there is an instruction for it, which is quicker and rounds less; never a call.
        return b.intrinsic("fmuladd", x, y, total)
    return b.binary("add", b.binary("mul", x, y), total)


def panel_kernel(module: Module, target: CpuTarget, block: Blocking, dtype: DType, memory: DType) -> str:
    """A kernel for `b` contiguous along N; `memory` is the type of b's elements there. Returns its name.

    The rows' factors are broadcast from a: by lane of a vector along K where instructions take a lane, else by scalar.
    """
    name = f"weft.panel.{block.rows}x{block.vectors}x{block.lanes}.{dtype}.{memory}"
    if not module.add_shared(name):
        return name
    f = Function(module, name, [*_PARAMS, ("i64", "blocks")], attributes="nounwind noinline", linkage="internal")
    c, c_stride, a, a_stride, b, b_stride, depth, keep, blocks = f.args
    element, b_element = scalar_type(dtype), memory_type(memory)
    type_ = vector(element, block.lanes)
    phases = max(1, min(4, _LEAST_CHAINS // (block.rows * block.vectors)))
    slots = [[[f.alloca(type_) for _ in range(block.vectors)] for _ in range(block.rows)] for _ in range(phases)]
    by_lane = target.multiplies_by_lane and dtype.bits >= 32
    unroll = 128 // dtype.bits if by_lane else 4
    whole = f.binary("and", depth, i64(-unroll))
    # A lane costs no register, a broadcast factor does: then it is used up before the next one.
    order = [(r, v) for r in range(block.rows) for v in range(block.vectors)]
    if by_lane:
        order.sort(key=lambda place: place[1])

    def step(k: V, factor: Callable[[int], V], phase: int) -> None:
        row = f.gep(b, f.mul(k, b_stride), b_element)
        right: dict[int, V] = {}
        left: dict[int, V] = {}
        for r, v in order:
            if v not in right:
                address = f.gep(row, i64(v * block.lanes), b_element)
                right[v] = load_as(f, f.load(vector(b_element, block.lanes), address, memory.bytes), memory, dtype)
            if r not in left:
                left[r] = f.splat(factor(r), block.lanes)
            slot = slots[phase][r][v]
            f.store(multiply_add(f, left[r], right[v], f.load(type_, slot, 64)), slot, 64)

    with f.loop(i64(0), blocks, i64(1)) as number:
        first = f.mul(number, i64(block.rows))
        result = f.gep(c, f.mul(first, c_stride), element)
        start = f.gep(a, f.mul(first, a_stride), element)
        rows = [f.gep(start, f.mul(a_stride, i64(r)), element) for r in range(block.rows)]
        places = [
            (slots[0][r][v], f.gep(result, f.add(f.mul(c_stride, i64(r)), i64(v * block.lanes)), element))
            for r in range(block.rows)
            for v in range(block.vectors)
        ]
        _clear(f, slots, type_)
        walk = _Walk(f, start, f.mul(a_stride, i64(dtype.bytes)), block.rows, element) if target.is_x86 else None

        def scalar(k: V) -> Callable[[int], V]:
            return lambda r: f.load(element, f.gep(rows[r], k, element), dtype.bytes)

        def walked(walk: _Walk, pointers: list[V], u: int) -> Callable[[int], V]:
            return lambda r: f.load(element, walk.address(pointers, r, u), dtype.bytes)

        with f.loop(i64(0), whole, i64(unroll)) as k:
            lanes = [f.load(vector(element, unroll), f.gep(row, k, element), dtype.bytes) for row in rows if by_lane]
            pointers = walk.pointers() if walk is not None else []
            for u in range(unroll):
                here = f.add(k, i64(u))
                if walk is not None:
                    step(here, walked(walk, pointers, u), u % phases)
                else:
                    step(here, (lambda r, u=u: f.extract(lanes[r], u)) if by_lane else scalar(here), u % phases)
            if walk is not None:
                walk.advance(pointers, unroll)
        with f.loop(whole, depth, i64(1)) as k:
            step(k, scalar(k), 0)
        for phase in slots[1:]:
            _add_to(f, [slot for slot, _ in places], [slot for row in phase for slot in row], type_, 64)
        _finish(f, places, type_, keep, dtype)
    f.finish()
    return name


class _Walk:
    """Rows that are walked side by side with a pointer for every three: an x86's addresses add one or two strides.

    LLVM would keep a pointer for each, of which an x86 has too few.
    """

    def __init__(self, f: Function, start: V, stride: V, rows: int, element: str) -> None:
        self.f, self.stride, self.element = f, stride, element
        self.slots = [f.alloca("ptr") for _ in range(0, rows, 3)]
        for number, slot in enumerate(self.slots):
            f.store(f.gep(start, f.mul(stride, i64(3 * number)), "i8"), slot, 8)

    def pointers(self) -> list[V]:
        """The pointers of a turn, whose origin LLVM does not see."""
        loaded = [self.f.load("ptr", slot, 8) for slot in self.slots]
        return [self.f.emit("ptr", f'call ptr asm "", "=r,0"({pointer})') for pointer in loaded]

    def address(self, pointers: list[V], row: int, k: int) -> V:
        base = self.f.gep(pointers[row // 3], i64(k), self.element)
        return self.f.gep(base, self.f.mul(self.stride, i64(row % 3)), "i8")

    def advance(self, pointers: list[V], count: int) -> None:
        for pointer, slot in zip(pointers, self.slots, strict=True):
            self.f.store(self.f.gep(pointer, i64(count), self.element), slot, 8)


def slab_kernel(module: Module, rows: int, depth: int, lanes: int, dtype: DType, memory: DType) -> str:
    """A kernel for `b` contiguous along N with many columns and few rows: `depth` rows of b run by side by side.

    The result stays in memory (which is the first-level cache), so that b is read from end to end. Returns its name.
    """
    name = f"weft.slab.{rows}x{depth}.{dtype}.{memory}"
    if not module.add_shared(name):
        return name
    params = [*_PARAMS[:-2], ("i64", "columns")]
    f = Function(module, name, params, attributes="nounwind noinline", linkage="internal")
    c, c_stride, a, a_stride, b, b_stride, columns = f.args
    element, b_element = scalar_type(dtype), memory_type(memory)
    factors = [
        [f.load(element, f.gep(a, f.add(f.mul(a_stride, i64(r)), i64(u)), element), dtype.bytes) for u in range(depth)]
        for r in range(rows)
    ]
    right_rows = [f.gep(b, f.mul(b_stride, i64(u)), b_element) for u in range(depth)]
    result_rows = [f.gep(c, f.mul(c_stride, i64(r)), element) for r in range(rows)]

    def step(n: V, count: int, width: int) -> None:
        for v in range(count):
            at = f.add(n, i64(v * width))
            right = [
                load_as(f, f.load(vector(b_element, width), f.gep(row, at, b_element), memory.bytes), memory, dtype)
                for row in right_rows
            ]
            for r, row in enumerate(result_rows):
                address = f.gep(row, at, element)
                total = const(0, vector(element, width))
                for u in range(depth):
                    total = multiply_add(f, f.splat(factors[r][u], width), right[u], total)
                total = _plus(f, f.load(total.type, address, dtype.bytes), total)
                f.store(total, address, dtype.bytes)

    wide = _LINE_VECTORS * lanes
    whole = f.binary("and", columns, i64(-wide))
    with f.loop(i64(0), whole, i64(wide)) as n:
        for row in right_rows:
            f.prefetch(f.gep(row, f.add(n, f.mul(b_stride, i64(depth))), b_element))
        step(n, _LINE_VECTORS, lanes)
    with f.loop(whole, columns, i64(1)) as n:
        step(n, 1, 1)
    f.finish()
    return name


def row_kernel(module: Module, rows: int, columns: int, lanes: int, dtype: DType, memory: DType) -> str:
    """A kernel for `b` contiguous along K: vectors run along K and are summed at the end. Returns its name."""
    name = f"weft.rows.{rows}x{columns}x{lanes}.{dtype}.{memory}"
    if not module.add_shared(name):
        return name
    f = Function(module, name, _PARAMS, attributes="nounwind noinline", linkage="internal")
    c, c_stride, a, a_stride, b, b_stride, depth, keep = f.args
    element, b_element = scalar_type(dtype), memory_type(memory)
    wide = [[f.alloca(vector(element, lanes)) for _ in range(columns)] for _ in range(rows)]
    narrow = [[f.alloca(element) for _ in range(columns)] for _ in range(rows)]
    _clear(f, [wide], vector(element, lanes))
    _clear(f, [narrow], element)
    addresses = [
        [f.gep(c, f.add(f.mul(c_stride, i64(r)), i64(n)), element) for n in range(columns)] for r in range(rows)
    ]

    def step(k: V, width: int, slots: list[list[V]]) -> None:
        type_ = vector(element, width)
        left = [f.load(type_, f.gep(a, f.add(f.mul(a_stride, i64(r)), k), element), dtype.bytes) for r in range(rows)]
        for n in range(columns):
            address = f.gep(b, f.add(f.mul(b_stride, i64(n)), k), b_element)
            right = load_as(f, f.load(vector(b_element, width), address, memory.bytes), memory, dtype)
            for r in range(rows):
                slot = slots[r][n]
                f.store(multiply_add(f, left[r], right, f.load(type_, slot, 64)), slot, 64)

    unroll = _LINE_VECTORS * lanes
    whole = f.binary("and", depth, i64(-unroll))
    with f.loop(i64(0), whole, i64(unroll)) as k:
        for start in range(0, unroll, lanes):
            step(f.add(k, i64(start)), lanes, wide)
    with f.loop(whole, depth, i64(1)) as k:
        step(k, 1, narrow)
    for r in range(rows):
        for n in range(columns):
            total = _summed(f, f.load(vector(element, lanes), wide[r][n], 64), f.load(element, narrow[r][n], 64))
            f.store(total, narrow[r][n], 64)
    places = [(narrow[r][n], addresses[r][n]) for r in range(rows) for n in range(columns)]
    _finish(f, places, element, keep, dtype)
    f.finish()
    return name


def _clear(f: Function, slots: list[list[list[V]]], type_: str) -> None:
    for phase in slots:
        for row in phase:
            for slot in row:
                f.store(const(0, type_), slot, 64)


def _add_to(f: Function, slots: Sequence[V], others: Sequence[V], type_: str, align: int) -> None:
    for slot, other in zip(slots, others, strict=True):
        f.store(_plus(f, f.load(type_, slot, 64), f.load(type_, other, align)), slot, 64)


def _finish(f: Function, places: Sequence[tuple[V, V]], type_: str, keep: V, dtype: DType) -> None:
    """Write the sums to their places, added to what is there if `keep` says so.

    That is added last and not first: sums of parts lose fewer digits than one long sum.
    """
    with f.when(keep):
        _add_to(f, [slot for slot, _ in places], [address for _, address in places], type_, dtype.bytes)
    for slot, address in places:
        f.store(f.load(type_, slot, 64), address, dtype.bytes)


def _summed(f: Function, wide: V, narrow: V) -> V:
    """The sum of a vector's lanes, in whichever order is quick, and of what is beside it."""
    if wide.element in ("float", "double"):
        suffix = f"v{wide.lanes}f{32 if wide.element == 'float' else 64}"
        name = f"llvm.vector.reduce.fadd.{suffix}"
        f.module.declarations.setdefault(name, f"declare {wide.element} @{name}({wide.element}, {wide.type})")
        return f.emit(wide.element, f"call reassoc {wide.element} @{name}({narrow}, {wide})")
    return f.binary("add", f.call(f"llvm.vector.reduce.add.v{wide.lanes}{wide.element}", wide.element, wide), narrow)


def _plus(f: Function, x: V, y: V) -> V:
    return f.binary("fadd" if x.element in ("float", "double") else "add", x, y)
