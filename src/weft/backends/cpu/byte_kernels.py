"""Innermost loops of products with weights of 8 bits, four neighbours along K together: sums are i32, and exact.

A row of floats is split into three digits of 8 bits, rows of integers for the same kernel; 24 bits of its largest
element are what a product in f32 keeps, too.
"""

from __future__ import annotations

from weft.backends.cpu.microkernel import BYTES_TOGETHER, Blocking
from weft.backends.cpu.target import CpuTarget
from weft.backends.llvm.builder import Function, Module, V, const, i64, vector

DIGITS = 3
_LARGEST = 127 * 2.0**16
"""What the largest element of a row becomes: its first digit is 127."""
_LEAST = 2.0**-100
"""Rows of smaller elements lose digits: the factor of a row has to be a normal number."""
_LANES = 16


def byte_kernel(module: Module, target: CpuTarget, block: Blocking) -> str:
    """`c (+)= a @ b` for blocks of rows of i8 that are contiguous along K, and one panel. Returns its name."""
    name = f"weft.bytes.{block.rows}x{block.vectors}x{block.lanes}"
    if not module.add_shared(name):
        return name
    params = [("ptr noalias", "c"), ("i64", "c_stride"), ("ptr noalias", "a"), ("i64", "a_stride")]
    params += [("ptr noalias", "b"), ("i64", "depth"), ("i1", "keep"), ("i64", "blocks")]
    f = Function(module, name, params, attributes="nounwind noinline", linkage="internal")
    c, c_stride, a, a_stride, b, depth, keep, blocks = f.args
    type_ = vector("i32", block.lanes)
    # An x86 multiplies unsigned by signed: 128 is added to the rows, and a row of nothing else taken off at the end.
    offset = target.is_x86
    slots = [[f.alloca(type_) for _ in range(block.vectors)] for _ in range(block.rows + offset)]
    whole = f.binary("and", depth, i64(-BYTES_TOGETHER))
    unroll = BYTES_TOGETHER if target.multiplies_by_lane else 1
    unrolled = f.binary("and", depth, i64(-BYTES_TOGETHER * unroll))
    tail = [f.alloca("i32") for _ in range(block.rows)]

    def step(k: V, factors: list[V]) -> None:
        """Four of K: the factors of a row are the bytes of an i32."""
        rows = [f.splat(factor, block.lanes) for factor in factors]
        if offset:
            rows = [f.binary("xor", row, const(-0x7F7F7F80, type_)) for row in rows]
            rows.append(const(-0x7F7F7F80, type_))
        panel = f.gep(b, f.mul(k, i64(block.columns)), "i8")
        for v in range(block.vectors):
            address = f.gep(panel, i64(v * block.lanes * BYTES_TOGETHER), "i8")
            right = f.load(vector("i8", block.lanes * BYTES_TOGETHER), address, 1)
            for row, slot in zip(rows, slots, strict=True):
                f.store(_multiply_add(f, target, row, right, f.load(type_, slot[v], 64)), slot[v], 64)

    with f.loop(i64(0), blocks, i64(1)) as number:
        first = f.mul(number, i64(block.rows))
        result = f.gep(c, f.mul(first, c_stride), "i32")
        starts = [f.gep(a, f.mul(f.add(first, i64(r)), a_stride), "i8") for r in range(block.rows)]
        for slot in (slot for row in slots for slot in row):
            f.store(const(0, type_), slot, 64)
        if unroll > 1:
            with f.loop(i64(0), unrolled, i64(BYTES_TOGETHER * unroll)) as k:
                loaded = [f.load(vector("i32", unroll), f.gep(start, k, "i8"), 1) for start in starts]
                for u in range(unroll):
                    step(f.add(k, i64(u * BYTES_TOGETHER)), [f.extract(row, u) for row in loaded])
        with f.loop(unrolled if unroll > 1 else i64(0), whole, i64(BYTES_TOGETHER)) as k:
            step(k, [f.load("i32", f.gep(start, k, "i8"), 1) for start in starts])
        rest = f.sub(depth, whole)
        with f.when(f.icmp("ne", rest, i64(0))):
            for start, slot in zip(starts, tail, strict=True):
                f.store(const(0, "i32"), slot, 4)
                with f.loop(i64(0), rest, i64(1)) as k:
                    byte = f.load("i8", f.gep(start, f.add(whole, k), "i8"), 1)
                    f.store(byte, f.gep(slot, k, "i8"), 1)
            step(whole, [f.load("i32", slot, 4) for slot in tail])
        for r in range(block.rows):
            for v in range(block.vectors):
                total = f.load(type_, slots[r][v], 64)
                if offset:
                    total = f.binary("sub", total, f.load(type_, slots[-1][v], 64))
                address = f.gep(result, f.add(f.mul(c_stride, i64(r)), i64(v * block.lanes)), "i32")
                old = f.select(keep, f.load(type_, address, 4), const(0, type_))
                f.store(f.binary("add", total, old), address, 4)
    f.finish()
    return name


def _multiply_add(f: Function, target: CpuTarget, row: V, right: V, total: V) -> V:
    """Add the products of the four bytes of every lane."""
    lanes = total.lanes
    if target.is_x86:
        wide = right.type
        return f.call(f"llvm.x86.avx512.vpdpbusd.{lanes * 32}", total.type, total, f.bitcast(row, wide), right)
    bytes_ = f.bitcast(row, right.type)
    return f.call(f"llvm.aarch64.neon.sdot.v{lanes}i32.v{lanes * 4}i8", total.type, total, right, bytes_)


def split_kernel(module: Module) -> str:
    """Rows of f32 → rows of digits, the most significant first, and the factor of each row. Returns its name.

    x = factor * (d0 * 2^16 + d1 * 2^8 + d2), digits being signed. A row with an element that is no finite number has a
    factor that is none either.
    """
    name = "weft.split"
    if not module.add_shared(name):
        return name
    params = [("ptr noalias", "digits"), ("i64", "stride"), ("ptr noalias", "factors"), ("ptr noalias", "a")]
    params += [("i64", "a_stride"), ("i64", "rows"), ("i64", "depth")]
    f = Function(module, name, params, attributes="nounwind noinline", linkage="internal")
    digits, stride, factors, a, a_stride, rows, depth = f.args
    wide, narrow = f.alloca(vector("float", _LANES)), f.alloca("float")
    whole = f.binary("and", depth, i64(-_LANES))

    with f.loop(i64(0), rows, i64(1)) as row:
        source = f.gep(a, f.mul(row, a_stride), "float")
        target = f.gep(digits, f.mul(row, f.mul(stride, i64(DIGITS))), "i8")
        parts = ((i64(0), whole, _LANES, wide), (whole, depth, 1, narrow))
        for start, stop, lanes, slot in parts:
            type_ = vector("float", lanes)
            f.store(const(_LEAST, type_), slot, 64)
            with f.loop(start, stop, i64(lanes)) as k:
                value = f.intrinsic("fabs", f.load(type_, f.gep(source, k, "float"), 4))
                f.store(f.intrinsic("maximum", value, f.load(type_, slot, 64)), slot, 64)
        every = f.load(vector("float", _LANES), wide, 64)
        most = f.call(f"llvm.vector.reduce.fmaximum.v{_LANES}f32", "float", every)
        most = f.intrinsic("maximum", most, f.load("float", narrow, 64))
        f.store(f.binary("fdiv", most, const(_LARGEST, "float")), f.gep(factors, row, "float"), 4)
        inverse = f.binary("fdiv", const(_LARGEST, "float"), most)
        for start, stop, lanes, _ in parts:
            with f.loop(start, stop, i64(lanes)) as k:
                value = f.load(vector("float", lanes), f.gep(source, k, "float"), 4)
                _split(f, f.binary("fmul", value, f.splat(inverse, lanes)), f.gep(target, k, "i8"), stride)
    f.finish()
    return name


def _split(f: Function, value: V, target: V, stride: V) -> None:
    lanes = value.lanes
    whole, bytes_ = vector("i32", lanes), vector("i8", lanes)
    suffix = (f"v{lanes}i32", f"v{lanes}f32") if lanes > 1 else ("i32", "f32")
    rest = f.call(f"llvm.fptosi.sat.{suffix[0]}.{suffix[1]}", whole, f.intrinsic("rint", value))
    for digit in reversed(range(DIGITS)):
        f.store(f.emit(bytes_, f"trunc {rest} to {bytes_}"), f.gep(target, f.mul(stride, i64(digit)), "i8"), 1)
        # What is left of a digit above 127, which stands for a negative one, goes to the next.
        rest = f.binary("ashr", f.binary("add", rest, const(128, whole)), const(8, whole))


def join_kernel(module: Module, columns: int, lanes: int) -> str:
    """The sums of all digits of rows → their products, in a panel's columns of c. Returns its name."""
    name = f"weft.join.{columns}"
    if not module.add_shared(name):
        return name
    params = [("ptr noalias", "c"), ("i64", "c_stride"), ("ptr noalias", "sums"), ("ptr noalias", "factors")]
    params += [("i64", "rows"), ("i1", "keep")]
    f = Function(module, name, params, attributes="nounwind noinline", linkage="internal")
    c, c_stride, sums, factors, rows, keep = f.args
    type_ = vector("float", lanes)
    with f.loop(i64(0), rows, i64(1)) as row:
        factor = f.splat(f.load("float", f.gep(factors, row, "float"), 4), lanes)
        result, source = f.gep(c, f.mul(row, c_stride), "float"), f.gep(sums, f.mul(row, i64(DIGITS * columns)), "i32")
        for n in range(0, columns, lanes):
            total = const(0, type_)
            for digit in range(DIGITS):
                place = f.gep(source, i64(digit * columns + n), "i32")
                value = f.convert("sitofp", f.load(vector("i32", lanes), place, 4), "float")
                total = value if not digit else f.intrinsic("fmuladd", total, const(2.0**8, type_), value)
            address = f.gep(result, i64(n), "float")
            old = f.select(keep, f.load(type_, address, 4), const(0, type_))
            f.store(f.binary("fadd", f.binary("fmul", total, factor), old), address, 4)
    f.finish()
    return name
