"""Innermost loops of products with weights of 8 bits, four neighbours along K together: sums are i32, and exact.

Rows of more than 8 bits are split into digits of 8, whose sums are joined in registers: two for rows of i16, three for
rows of floats, as 24 bits of a row's largest element are what a product in f32 keeps, too.
"""

from __future__ import annotations

from weft.backends.cpu.microkernel import Blocking
from weft.backends.cpu.target import CpuTarget
from weft.backends.llvm.builder import Function, Module
from weft.backends.llvm.values import V, const, i64, vector
from weft.ir.types import DType, f32, i8, i16, u8
from weft.ops.matmul.dot import BYTES_TOGETHER

DIGITS = {i8: 1, u8: 1, i16: 2, f32: 3}
"""The digits of 8 bits that an element of a row is split into."""
_LARGEST = 127 * 2.0**16
"""What the largest element of a row becomes: its first digit is 127."""
_LEAST = 2.0**-100
"""Rows of smaller elements lose digits: the factor of a row has to be a normal number."""
_HALVES = -0x7F7F7F80
"""128 in each of four bytes."""
_LANES = 16
_PAIRS = {16: "llvm.x86.avx512.pmaddw.d.512", 8: "llvm.x86.avx2.pmadd.wd", 4: "llvm.x86.sse2.pmadd.wd"}
"""Sums of two products of 16 bits, by how many there are."""


def byte_kernel(module: Module, target: CpuTarget, block: Blocking, left: DType, *, one: bool = False) -> str:
    """`c (+)= a @ b` for blocks of rows, their digits one below the other, and one panel. Returns its name.

    c is i32, or f32 where the rows were floats: then they have factors, too. With `one` there is a single block.
    """
    digits = DIGITS[left]
    # An x86 multiplies unsigned by signed, others signed by signed: to rows of the other kind 128 is added (or taken
    # off, which are the same bits), and what a row of nothing else gives is taken off (or added) at the end. That is
    # the same for all blocks, and made before them; a single block makes it in passing, and reads the panel once.
    # Pairs of 16 bits hold bytes of either kind.
    in_pairs = target.multiplies_pairs
    offset = not in_pairs and target.is_x86 != (left == u8)
    in_passing = offset and one
    name = f"weft.bytes.{block.rows}x{block.vectors}x{block.lanes}.{left}{'.one' if in_passing else ''}"
    if not module.add_shared(name):
        return name
    params = [("ptr noalias", "c"), ("i64", "c_stride"), ("ptr noalias", "a"), ("i64", "a_stride")]
    params += [("ptr noalias", "b"), ("i64", "depth"), ("i1", "keep"), ("i64", "blocks"), ("ptr noalias", "factors")]
    f = Function(module, name, params, attributes="nounwind noinline", linkage="internal")
    c, c_stride, a, a_stride, b, depth, keep, blocks, factors = f.args
    type_ = vector("i32", block.lanes)
    height = block.rows * digits
    slots = [[f.alloca(type_) for _ in range(block.vectors)] for _ in range(height)]
    offsets = [f.alloca(type_) for _ in range(block.vectors)] if offset else []
    whole = f.binary("and", depth, i64(-BYTES_TOGETHER))
    unroll = BYTES_TOGETHER if target.multiplies_by_lane else 1
    unrolled = f.binary("and", depth, i64(-BYTES_TOGETHER * unroll))
    tail = [f.alloca("i32") for _ in range(height)]

    def columns_of(k: V) -> list[V]:
        panel = f.gep(b, f.mul(k, i64(block.columns)), "i8")
        addresses = [f.gep(panel, i64(v * block.lanes * BYTES_TOGETHER), "i8") for v in range(block.vectors)]
        return [f.load(vector("i8", block.lanes * BYTES_TOGETHER), address, 1) for address in addresses]

    def add_products(row: V, right: V, place: V) -> None:
        f.store(_multiply_add(f, target, row, right, f.load(type_, place, 64)), place, 64)

    def step(k: V, factors: list[V]) -> None:
        """Four of K: the factors of a row are the bytes of an i32."""
        rows = [f.splat(factor, block.lanes) for factor in factors]
        if offset:
            rows = [f.binary("xor", row, const(_HALVES, type_)) for row in rows]
        if in_passing:
            rows.append(const(_HALVES, type_))
        columns = columns_of(k)
        if in_pairs:
            halves = [_pairs(f, right, signed=True) for right in columns]
            for row, slot in zip(rows, slots, strict=True):
                left_halves = _pairs(f, row, signed=left != u8)
                for right_halves, place in zip(halves, slot, strict=True):
                    total = f.load(type_, place, 64)
                    for x, y in zip(left_halves, right_halves, strict=True):
                        total = f.binary("add", total, f.call(_PAIRS[block.lanes], type_, x, y))
                    f.store(total, place, 64)
            return
        for v, right in enumerate(columns):
            for row, slot in zip(rows, [*slots, offsets] if in_passing else slots, strict=True):
                add_products(row, right, slot[v])

    def total(row: int, v: int) -> list[V]:
        """The sums of a row's digits."""
        sums = [f.load(type_, slots[row * digits + digit][v], 64) for digit in range(digits)]
        return [f.binary("sub", each, f.load(type_, offsets[v], 64)) for each in sums] if offset else sums

    for place in offsets:
        f.store(const(0, type_), place, 64)
    if offset and not in_passing:
        some = f.select(f.icmp("ne", blocks, i64(0)), depth, i64(0))  # rows may be too few for one block
        with f.loop(i64(0), some, i64(BYTES_TOGETHER)) as k:
            for right, place in zip(columns_of(k), offsets, strict=True):
                add_products(const(_HALVES, type_), right, place)
    with f.loop(i64(0), blocks, i64(1)) as number:
        first = f.mul(number, i64(block.rows))
        result = f.gep(c, f.mul(first, c_stride), "i32")
        top = f.mul(first, i64(digits))
        starts = [f.gep(a, f.mul(f.add(top, i64(r)), a_stride), "i8") for r in range(height)]
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
            factor = f.load("float", f.gep(factors, f.add(first, i64(r)), "float"), 4) if left == f32 else None
            for v in range(block.vectors):
                address = f.gep(result, f.add(f.mul(c_stride, i64(r)), i64(v * block.lanes)), "i32")
                joined = _joined(f, total(r, v), factor)
                old = f.select(keep, f.load(joined.type, address, 4), const(0, joined.type))
                f.store(f.binary("add" if factor is None else "fadd", joined, old), address, 4)
    f.finish()
    return name


def join_digits(module: Module, lanes: int, left: DType) -> str:
    """`c (+)=` what sums of digits stand for, of rows whose digits' sums lie one below the other. Returns its name.

    Rows have whole vectors of columns. c is as that of `byte_kernel`.
    """
    digits = DIGITS[left]
    name = f"weft.join.{lanes}.{left}"
    if not module.add_shared(name):
        return name
    params = [("ptr noalias", "c"), ("ptr noalias", "sums"), ("i64", "stride"), ("i64", "rows"), ("i64", "columns")]
    params += [("i1", "keep"), ("ptr noalias", "factors")]
    f = Function(module, name, params, attributes="nounwind noinline", linkage="internal")
    c, sums, stride, rows, columns, keep, factors = f.args
    type_ = vector("i32", lanes)
    with f.loop(i64(0), rows, i64(1)) as row:
        factor = f.load("float", f.gep(factors, row, "float"), 4) if left == f32 else None
        result = f.gep(c, f.mul(row, stride), "i32")
        tops = [f.gep(sums, f.mul(f.add(f.mul(row, i64(digits)), i64(d)), stride), "i32") for d in range(digits)]
        with f.loop(i64(0), columns, i64(lanes)) as n:
            joined = _joined(f, [f.load(type_, f.gep(top, n, "i32"), 4) for top in tops], factor)
            address = f.gep(result, n, "i32")
            old = f.select(keep, f.load(joined.type, address, 4), const(0, joined.type))
            f.store(f.binary("add" if factor is None else "fadd", joined, old), address, 4)
    f.finish()
    return name


def _joined(f: Function, sums: list[V], factor: V | None) -> V:
    """The sum that the digits' sums stand for, the most significant first: as an i32, or scaled as floats."""
    if factor is None:
        total = sums[0]
        for each in sums[1:]:
            total = f.binary("add", f.binary("shl", total, const(8, total.type)), each)
        return total
    total, *rest = [f.convert("sitofp", each, "float") for each in sums]
    for each in rest:
        total = f.intrinsic("fmuladd", total, const(2.0**8, total.type), each)
    return f.binary("fmul", total, f.splat(factor, total.lanes))


def _pairs(f: Function, value: V, *, signed: bool) -> tuple[V, V]:
    """The bytes at even and at odd places, each in 16 bits."""
    whole = f.bitcast(value, vector("i16", value.lanes * int(value.element[1:]) // 16))
    byte = const(8, whole.type)
    if not signed:
        return f.binary("and", whole, const(0xFF, whole.type)), f.binary("lshr", whole, byte)
    return f.binary("ashr", f.binary("shl", whole, byte), byte), f.binary("ashr", whole, byte)


def _multiply_add(f: Function, target: CpuTarget, row: V, right: V, total: V) -> V:
    """Add the products of the four bytes of every lane."""
    lanes = total.lanes
    if target.is_x86:
        wide = right.type
        return f.call(f"llvm.x86.avx512.vpdpbusd.{lanes * 32}", total.type, total, f.bitcast(row, wide), right)
    bytes_ = f.bitcast(row, right.type)
    return f.call(f"llvm.aarch64.neon.sdot.v{lanes}i32.v{lanes * 4}i8", total.type, total, right, bytes_)


def split_integers(module: Module) -> str:
    """Rows of i16 → rows of two digits. Returns its name. What is above 127 * 257 has no such digits.

    x = d0 * 2^8 + d1, digits being signed.
    """
    name = "weft.split.i16"
    if not module.add_shared(name):
        return name
    params = [("ptr noalias", "digits"), ("i64", "stride"), ("ptr noalias", "a")]
    params += [("i64", "a_stride"), ("i64", "rows"), ("i64", "depth")]
    f = Function(module, name, params, attributes="nounwind noinline", linkage="internal")
    digits, stride, a, a_stride, rows, depth = f.args
    whole = f.binary("and", depth, i64(-_LANES))
    with f.loop(i64(0), rows, i64(1)) as row:
        source = f.gep(a, f.mul(row, a_stride), "i16")
        target = f.gep(digits, f.mul(row, f.mul(stride, i64(DIGITS[i16]))), "i8")
        for start, stop, lanes in ((i64(0), whole, _LANES), (whole, depth, 1)):
            with f.loop(start, stop, i64(lanes)) as k:
                value = f.load(vector("i16", lanes), f.gep(source, k, "i16"), 2)
                _store_digits(f, value, DIGITS[i16], f.gep(target, k, "i8"), stride)
    f.finish()
    return name


def split_floats(module: Module) -> str:
    """Rows of f32 → rows of digits, the most significant first, and the factor of each row. Returns its name.

    x = factor * (d0 * 2^16 + d1 * 2^8 + d2), digits being signed. A row with an element that is no finite number has a
    factor that is none either.
    """
    name = "weft.split.f32"
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
        target = f.gep(digits, f.mul(row, f.mul(stride, i64(DIGITS[f32]))), "i8")
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
    whole = vector("i32", lanes)
    suffix = (f"v{lanes}i32", f"v{lanes}f32") if lanes > 1 else ("i32", "f32")
    integers = f.call(f"llvm.fptosi.sat.{suffix[0]}.{suffix[1]}", whole, f.intrinsic("rint", value))
    _store_digits(f, integers, DIGITS[f32], target, stride)


def _store_digits(f: Function, rest: V, digits: int, target: V, stride: V) -> None:
    bytes_ = vector("i8", rest.lanes)
    for digit in reversed(range(digits)):
        f.store(f.emit(bytes_, f"trunc {rest} to {bytes_}"), f.gep(target, f.mul(stride, i64(digit)), "i8"), 1)
        # What is left of a digit above 127, which stands for a negative one, goes to the next.
        rest = f.binary("ashr", f.binary("add", rest, const(128, rest.type)), const(8, rest.type))
