"""Codes of weights → the packed operand of a product, in registers and by arithmetic on two at a time.

Codes of 4 bits lie eight in a word, and a mask takes two of them that are four apart: such a pair makes one register of
the operand. So its words hold the neighbours (0, 4), (1, 5), (2, 6), (3, 7), and those of the other operand are put in
the same order, which costs less than to move codes.

    int4   the code is or-ed into the last digits of 128 (of 1024 for f16), from which 128 + zero is subtracted
    e2m1   sign, exponent and digit are put where a narrow float has them, and multiplied by 2^126 (2^14)
    int8   a byte becomes the last digits of 2^23 + 128
    e4m3   an instruction, or the way of e2m1 where there is none
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from weft.backends.llvm.builder import Function
from weft.backends.llvm.values import V
from weft.backends.nvidia.emit.block import i32
from weft.backends.nvidia.emit.math import asm
from weft.backends.nvidia.emit.memory.global_memory import joined, pair
from weft.backends.nvidia.ir.alignment import pointer_dtype
from weft.backends.nvidia.ir.dialect import layout_of
from weft.backends.nvidia.target import NO_FP8
from weft.ir.attributes import from_attribute
from weft.ir.types import DType, bf16, f8e4m3, f16, u8
from weft.ops.matmul.quantized import FORMS
from weft.tile import dialect as tile

if TYPE_CHECKING:
    from weft.backends.nvidia.emit.codegen import KernelCodegen

_APART = 4
ONE = {"bf16": 0x3F80, "f16": 0x3C00}
"""The bits of 1."""
_MAGIC = {"bf16": (0x4300, 128.0), "f16": (0x6400, 1024.0)}
"""A power of two whose last digit is 1."""
_DIGIT = {"bf16": 6, "f16": 9}
"""Where the highest digit of a narrow float is."""
_LIFT = {"bf16": 0x7E80, "f16": 0x7400}
"""2^126 and 2^14: what an exponent without bias must be multiplied by for one with a bias of 1."""
_TWO_23 = 0x4B000000


class Decoder:
    """The packed operand of a product, out of words of codes and raw factors: made piece by piece, as it is used."""

    def __init__(self, codegen: KernelCodegen, op: tile.DequantizeOp) -> None:
        self.codegen, self.op = codegen, op
        dtype = from_attribute(op.dtype)
        assert isinstance(dtype, DType)
        self.dtype = dtype
        self.memory = [pointer_dtype(f.owner) for f in op.factors if isinstance(f.owner, tile.LoadOp)]
        narrow = (bf16, f8e4m3, u8) if dtype == bf16 else (f16, f8e4m3)
        # The product of a code and such a factor is rounded once: two at a time, or else each by itself in f32.
        self.narrow = self.memory[:1] != [] and self.memory[0] in narrow
        shared = layout_of(op.factors[0]).offsets if op.factors else ()
        self.places = {offset: number for number, offset in enumerate(shared)}
        self.known: dict[int, tuple[V, V | None]] = {}
        self.scales: dict[int, tuple[V, V | None]] = {}

    def ordered(self, words: Sequence[V]) -> list[V]:
        """The other operand's neighbours (0, 1), (2, 3), (4, 5), (6, 7), in the order of the codes' pairs."""
        return in_order(self.codegen.b, words, FORMS[self.op.form.data].bits)

    @property
    def group(self) -> int:
        """How many neighbours along K have a factor."""
        return self.op.group.value.data

    @property
    def has_offset(self) -> bool:
        """Whether digits begin somewhere else than at zero."""
        return self.op.form.data == "int4"

    def digits(self, first: int, count: int) -> list[V]:
        """So many pairs from one on, without offset and factor."""
        each = 16 // FORMS[self.op.form.data].bits
        words = self.codegen.tiles[self.op.codes][first // each : (first + count) // each]
        words = [_as_it_is(self.codegen.b, word) for word in words]
        return [pair for word in words for pair in self._digits(word)]

    def _digits(self, word: V) -> list[V]:
        if self.has_offset:
            return _digits_of_int4(self.codegen.b, word, self.dtype.name)
        return _decoded(self.codegen, word, self.op.form.data, self.dtype.name, None)

    def scale(self, pair: int) -> tuple[V, V | None]:
        """The factor of a pair, and what is added to its digits, as floats."""
        b = self.codegen.b
        k, n = layout_of(self.op.out).offsets[2 * pair]
        place = self.places[k // self.group, n] if self.places else -1
        if place not in self.scales:
            raws = [self.codegen.tiles[factor][place] for factor in self.op.factors]
            factor = _widened(self.codegen, raws[0], self.memory[0]) if raws else V("float", "1.0")
            _, high = _MAGIC[self.dtype.name]
            offset = V("float", str(-high - FORMS[self.op.form.data].offset)) if self.has_offset else None
            if len(raws) > 1:
                offset = b.binary("fsub", V("float", str(-high)), self._zero(raws[1]))
            self.scales[place] = factor, offset
        return self.scales[place]

    def _zero(self, raw: V) -> V:
        """What is subtracted from codes, as a float."""
        b, memory = self.codegen.b, self.memory[1]
        raw = raw if memory.bits > 8 else b.convert("trunc", raw, "i8")
        return b.convert("sitofp" if memory.kind == "int" else "uitofp", raw, "float")

    def words(self, piece: int, vector: int) -> list[V]:
        """The pairs of a piece of so many neighbours along K."""
        op = self.op
        each, group = 32 // FORMS[op.form.data].bits, op.group.value.data
        layout, count = layout_of(op.out), vector * FORMS[op.form.data].bits // 32
        pairs: list[V] = []
        for number in range(piece * count, (piece + 1) * count):
            k, n = layout.offsets[number * each]
            factor, zero = self._factor(self.places[k // group, n]) if self.places else (None, None)
            word = _as_it_is(self.codegen.b, self.codegen.tiles[op.codes][number])
            found = _decoded(self.codegen, word, op.form.data, self.dtype.name, zero)
            pairs += found if factor is None else [self._scaled(value, factor) for value in found]
        return pairs

    def _factor(self, place: int) -> tuple[V, V | None]:
        """What numbers are multiplied with, and the pair that is added to codes first where they have zeros."""
        if place not in self.known:
            b, name = self.codegen.b, self.dtype.name
            raws = [self.codegen.tiles[factor][place] for factor in self.op.factors]
            if self.memory[0] == self.dtype:
                factor = joined(b, raws[0], raws[0])
            else:
                factor = _widened(self.codegen, raws[0], self.memory[0])
                factor = pair(b, factor, factor, name) if self.narrow else factor
            zero: V | None = None
            if len(raws) > 1:
                _, high = _MAGIC[name]
                number = b.binary("fsub", V("float", str(-high)), self._zero(raws[1]))
                zero = pair(b, number, number, name)
            self.known[place] = factor, zero
        return self.known[place]

    def _scaled(self, value: V, factor: V) -> V:
        b, name = self.codegen.b, self.dtype.name
        if self.narrow:
            return _fma(b, value, factor, 0x8000, name)
        low, high = (b.binary("fmul", half, factor) for half in numbers_of(b, value, name))
        return pair(b, low, high, name)


def in_order(b: Function, words: Sequence[V], bits: int) -> list[V]:
    """Words of neighbours (0, 1), (2, 3), (4, 5), (6, 7) in the order of pairs of codes of so many bits."""
    if bits != 4:
        return list(words)
    result: list[V] = []
    for start in range(0, len(words), 4):
        for first in (start, start + 1):
            pair_of = words[first], words[first + 2]
            result += [_permuted(b, *pair_of, order) for order in (0x5410, 0x7632)]
    return result


def _widened(codegen: KernelCodegen, raw: V, memory: DType) -> V:
    """A factor as a float."""
    b = codegen.b
    match memory.name:
        case "f32":
            return b.bitcast(raw, "float")
        case "bf16":
            return b.bitcast(b.binary("shl", b.convert("zext", raw, "i32"), i32(16)), "float")
        case "f16":
            return asm(b, "float", "cvt.f32.f16 $0, $1;", "=f,h", raw)
        case "ui8":
            exponent = b.convert("zext", raw, "i32")
            bits = b.binary("shl", exponent, i32(23))
            bits = b.select(b.icmp("eq", exponent, i32(0)), i32(0x00400000), bits)
            return b.bitcast(b.select(b.icmp("eq", exponent, i32(255)), i32(0x7FC00000), bits), "float")
        case _:
            (both,) = _of_e4m3(codegen, b.convert("zext", raw, "i32"), "f16", 1)
            return numbers_of(b, both, "f16")[0]


def _decoded(codegen: KernelCodegen, word: V, form: str, dtype: str, zero: V | None) -> list[V]:
    """The pairs of numbers that the codes of a word stand for."""
    b = codegen.b
    match form:
        case "int4":
            _, high = _MAGIC[dtype]
            offset = zero or _both(_bits(-high - FORMS[form].offset, dtype))
            found = _digits_of_int4(b, word, dtype)
            return [_fma(b, digits, _both(ONE[dtype]), offset, dtype) for digits in found]
        case "e2m1":
            return [_lifted(b, part, low, dtype) for part in (word, _shifted(b, word, -8)) for low in (0, 4)]
        case "int8":
            return _of_int8(b, word, dtype)
        case _:
            return _of_e4m3(codegen, word, dtype, 2)


def _digits_of_int4(b: Function, word: V, dtype: str) -> list[V]:
    """Pairs of codes as the last digits of a power of two."""
    magic, _ = _MAGIC[dtype]
    shifted = [b.binary("lshr", word, i32(4 * place)) if place else word for place in range(_APART)]
    return [b.binary("or", b.binary("and", each, i32(0x000F000F)), _both(magic)) for each in shifted]


def _lifted(b: Function, word: V, low: int, dtype: str) -> V:
    """Two floats of 4 bits, the first of which begins at a bit of a word, one of the first 8 of its half.

    A product puts them in two places at once, one of which has the sign where it belongs, the other all else: products
    and masks are done by different units. Those of f16 would overlap, and are shifted twice.
    """
    digit = _DIGIT[dtype]
    left, whole = (12 - low, digit - low), _both(0x8000 | 7 << digit)
    if digit + 4 <= 12:
        moved = b.mul(b.binary("and", word, _both(15 << low)), i32(1 << left[0] | 1 << left[1]))
    else:
        sign, rest = (_shifted(b, word, each) for each in left)
        moved = b.binary("or", b.binary("and", sign, _both(0x8000)), b.binary("and", rest, _both(7 << digit)))
    return _fma(b, b.binary("and", moved, whole), _both(_LIFT[dtype]), 0x8000, dtype)


def _of_int8(b: Function, word: V, dtype: str) -> list[V]:
    above = b.binary("xor", word, i32(0x80808080 - (1 << 32)))  # 128 more
    if dtype == "f16":
        magic, high = _MAGIC[dtype]
        digits = [_permuted(b, above, i32(magic << 16), order) for order in (0x7170, 0x7372)]
        return [_fma(b, each, _both(ONE[dtype]), _both(_bits(-high - 128, dtype)), dtype) for each in digits]
    floats: list[V] = []
    for place in range(4):
        bits = _permuted(b, above, i32(_TWO_23), 0x7440 | place)
        floats.append(b.binary("fsub", b.bitcast(bits, "float"), V("float", str(float(2**23 + 128)))))
    return [pair(b, low, high, dtype) for low, high in zip(floats[::2], floats[1::2], strict=True)]


def _of_e4m3(codegen: KernelCodegen, word: V, dtype: str, count: int) -> list[V]:
    """The first `count` pairs of floats of 8 bits."""
    b = codegen.b
    found: list[V] = []
    for place in range(count):
        low = b.convert("trunc", b.binary("lshr", word, i32(16 * place)) if place else word, "i16")
        if NO_FP8 in codegen.module.lacks:
            both = _half_of_e4m3(b, b.convert("zext", low, "i32"))
        else:
            both = asm(b, "i32", "cvt.rn.f16x2.e4m3x2 $0, $1;", "=r,h", low)
        if dtype != "f16":
            first, second = numbers_of(b, both, "f16")
            both = pair(b, first, second, dtype)
        found.append(both)
    return found


def _half_of_e4m3(b: Function, both: V) -> V:
    """Two floats of 8 bits as f16: an exponent without bias is lifted by 2^8, and 0x7f is no number."""
    apart = _permuted(b, both, i32(0), 0x1404)
    bits = b.binary("and", apart, _both(0x7F00))
    high = b.binary("and", b.binary("add", bits, _both(0x0100)), _both(0x8000))
    nothing = b.sub(high, b.binary("lshr", high, i32(8)))
    value = b.binary("or", b.binary("and", apart, _both(0x8000)), b.binary("lshr", bits, i32(1)))
    return _fma(b, b.binary("or", value, nothing), _both(0x5C00), 0x8000, "f16")


def numbers_of(b: Function, both: V, dtype: str) -> list[V]:
    """The two numbers of a word."""
    if dtype == "bf16":
        high = b.binary("and", both, i32(0xFFFF0000 - (1 << 32)))
        return [b.bitcast(bits, "float") for bits in (b.binary("shl", both, i32(16)), high)]
    halves = [b.convert("trunc", each, "i16") for each in (both, b.binary("lshr", both, i32(16)))]
    return [asm(b, "float", "cvt.f32.f16 $0, $1;", "=f,h", half) for half in halves]


def _fma(b: Function, x: V, y: V, z: V | int, dtype: str) -> V:
    z = _both(z) if isinstance(z, int) else z
    return asm(b, "i32", f"fma.rn.{dtype}x2 $0, $1, $2, $3;", "=r,r,r,r", x, y, z)


def _permuted(b: Function, low: V, high: V, order: int) -> V:
    return asm(b, "i32", f"prmt.b32 $0, $1, $2, {order};", "=r,r,r", low, high)


def _as_it_is(b: Function, word: V) -> V:
    """The same word: LLVM would shift what a loop carries before its iteration, and carry all that comes of it."""
    return asm(b, "i32", "", "=r,0", word)


def _shifted(b: Function, word: V, left: int) -> V:
    return word if not left else b.binary("shl" if left > 0 else "lshr", word, i32(abs(left)))


def _both(bits: int) -> V:
    """A number of 16 bits in both halves of a word."""
    word = bits << 16 | bits
    return i32(word - (1 << 32) if word >> 31 else word)


def _bits(value: float, dtype: str) -> int:
    """A number that a type of 16 bits has, as its bits."""
    kind = {"bf16": bf16, "f16": f16}[dtype].numpy
    return int(np.asarray(value, kind).view(np.uint16))
