"""Global memory: chunks of up to 16 bytes that a thread reads and writes, under a predicate or without."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.backends.llvm.builder import Function
from weft.backends.llvm.cast import load_convert, store_convert
from weft.backends.llvm.values import V, const, memory_type
from weft.backends.nvidia.emit.math import asm
from weft.ir.types import DType

_WORD = {8: ("i8", "b8", "h"), 16: ("i16", "b16", "h"), 32: ("i32", "b32", "r"), 64: ("i64", "b64", "l")}


def load_chunk(
    b: Function,
    address: V,
    dtype: DType,
    count: int,
    predicate: V | None,
    space: str = "global",
    other: float | int = 0,
) -> list[V]:
    """`count` neighbours as registers hold them; what is not read is another number, which the type has."""
    bits = max(dtype.bits, 8)
    width, _ = _words(bits, count)
    pattern = int(np.array(other).astype(dtype.numpy).view(f"u{bits // 8}")) if other else 0
    read = _read(b, address, bits, count, predicate, space, pattern=pattern * ((1 << width) - 1) // ((1 << bits) - 1))
    if dtype.name in ("bf16", "f16"):
        return [value for word in read for value in halves_of(b, word, dtype)]
    raw = [piece for word in read for piece in pieces(b, word, bits, width)]
    return [load_convert(b, b.bitcast(value, memory_type(dtype)), dtype) for value in raw]


ONCE = "global.L1::no_allocate"
"""Global memory that a block reads once: it does not stay in its cache."""


def load_words(
    b: Function, address: V, size: int, count: int, predicate: V | None, space: str = "global", ahead: int = 0
) -> list[V]:
    """`count` neighbours of so many bytes in words of 32 bits, or fewer bits alone; what is not read is zero.

    They begin `ahead` bytes behind the address.
    """
    return _read(b, address, 8 * size, count, predicate, space, ahead)


def load_raw(b: Function, address: V, dtype: DType, predicate: V | None) -> V:
    """An element as memory has it; what is not read is zero. One of 8 bits stands in a word of 16."""
    return _read(b, address, 8 * dtype.bytes, 1, predicate, "global")[0]


def joined(b: Function, low: V, high: V) -> V:
    """Two neighbours of 16 bits in a word."""
    wide = b.binary("shl", b.convert("zext", high, "i32"), V("i32", "16"))
    return b.binary("or", b.convert("zext", low, "i32"), wide)


def _read(
    b: Function, address: V, bits: int, count: int, predicate: V | None, space: str, ahead: int = 0, pattern: int = 0
) -> list[V]:
    """Neighbours as the words that memory holds; what is not read is a pattern in each word."""
    width, words = _words(bits, count)
    llvm_type, ptx_type, constraint = _WORD[width]
    register = "i16" if width == 8 else llvm_type
    outputs = ",".join([f"={constraint}"] * words)
    targets = ", ".join(f"${i}" for i in range(words))
    form = f".v{words}" if words > 1 else ""
    braces = f"{{{targets}}}" if words > 1 else targets
    guard = f"@${words + 1} " if predicate is not None else ""
    # What is not read must still be some value: PTX has no undefined ones.
    clear = (
        "".join(f"mov.b{max(width, 16)} ${i}, {pattern:#x}; " for i in range(words)) if predicate is not None else ""
    )
    result = register if words == 1 else "{" + ", ".join([register] * words) + "}"
    inputs = (",l" if address.type == "i64" else ",r") + (",b" if predicate is not None else "")
    args = (address, *(() if predicate is None else (predicate,)))
    text = f"{clear}{guard}ld.{space}{form}.{ptx_type} {braces}, [${words}{_offset(ahead)}];"
    # An output is written before the address is read where there is a clearing move.
    outputs = outputs.replace("=", "=&") if predicate is not None else outputs
    loaded = asm(b, result, text, outputs + inputs, *args, pure=False)
    return [loaded] if words == 1 else [b.emit(register, f"extractvalue {loaded}, {i}") for i in range(words)]


def store_chunk(
    b: Function, address: V, values: Sequence[V], dtype: DType, predicate: V | None, space: str = "global"
) -> None:
    """Write neighbours."""
    bits = max(dtype.bits, 8)
    width, _ = _words(bits, len(values))
    store_words(b, address, packed(b, values, dtype, bits, width), width, predicate, space=space)


def _offset(ahead: int) -> str:
    return f"+{ahead}" if ahead else ""


def store_words(
    b: Function,
    address: V,
    words: Sequence[V],
    width: int,
    predicate: V | None,
    ahead: int = 0,
    space: str = "global",
) -> None:
    """Write words of so many bits, from `ahead` bytes behind an address on; one of 8 stands in a word of 16."""
    _, ptx_type, constraint = _WORD[width]
    count = len(words)
    sources = ", ".join(f"${i}" for i in range(count))
    form, braces = (f".v{count}", f"{{{sources}}}") if count > 1 else ("", sources)
    guard = f"@${count + 1} " if predicate is not None else ""
    constraints = ",".join([constraint] * count) + ",l" + (",b" if predicate is not None else "") + ",~{memory}"
    args = (*words, address, *(() if predicate is None else (predicate,)))
    asm(
        b,
        "void",
        f"{guard}st.{space}{form}.{ptx_type} [${count}{_offset(ahead)}], {braces};",
        constraints,
        *args,
        pure=False,
    )


def _words(bits: int, count: int) -> tuple[int, int]:
    """The width and number of the words that so many elements make: 32-bit ones where they fill such."""
    total = bits * count
    width = bits if bits == 64 else min(32, total)
    return width, total // width


def pieces(b: Function, word: V, bits: int, width: int) -> list[V]:
    """The elements of a word, lowest first, as integers or floats of memory."""
    if bits == 64 or bits == width:
        return [b.convert("trunc", word, "i8") if bits == 8 else word]
    pieces: list[V] = []
    for position in range(width // bits):
        shifted = b.binary("lshr", word, V(word.type, str(position * bits))) if position else word
        pieces.append(b.convert("trunc", shifted, f"i{bits}"))
    return pieces


def packed(b: Function, values: Sequence[V], dtype: DType, bits: int, width: int) -> list[V]:
    """Elements as the words that memory holds."""
    if dtype.name in ("bf16", "f16") and width == 32:
        return [pair(b, low, high, dtype.name) for low, high in zip(values[::2], values[1::2], strict=True)]
    raw = [_narrowed(b, value, dtype) for value in values]
    raw = [b.bitcast(value, f"i{bits}") for value in raw]
    if bits == width:
        return [b.convert("zext", value, "i16") if bits == 8 else value for value in raw]
    words: list[V] = []
    for start in range(0, len(raw), width // bits):
        word = b.convert("zext", raw[start], f"i{max(width, 16)}")
        for position, value in enumerate(raw[start + 1 : start + width // bits], 1):
            wide = b.convert("zext", value, word.type)
            word = b.binary("or", word, b.binary("shl", wide, V(word.type, str(position * bits))))
        words.append(word)
    return words


def _narrowed(b: Function, value: V, dtype: DType) -> V:
    if dtype.name in ("bf16", "f16"):
        name = f"cvt.rn.{dtype.name}.f32"
        return asm(b, "i16", f"{name} $0, $1;", "=h,f", value)
    return store_convert(b, value, dtype)


def halves_of(b: Function, word: V, dtype: DType) -> list[V]:
    """The narrow floats of a word, of one or two, as registers hold them."""
    raw = pieces(b, word, 16, 16 if word.type == "i16" else 32)
    values = [load_convert(b, b.bitcast(value, memory_type(dtype)), dtype) for value in raw]
    b.halves.update({value.name: (word, part, dtype.name) for part, value in enumerate(values)})
    return values


def word_of(b: Function, low: V, high: V, dtype: str) -> V | None:
    """The word whose halves two floats are, or that repeats one that stands alone; None if there is none."""
    first, second = b.halves.get(low.name), b.halves.get(high.name)
    if first is None or second is None or {first[2], second[2]} != {dtype} or first[0] != second[0]:
        return None
    if first[0].type == "i16":
        return asm(b, "i32", "mov.b32 $0, {$1, $1};", "=r,h", first[0])
    return first[0] if (first[1], second[1]) == (0, 1) else None


def rounded_to(b: Function, value: V, dtype: DType) -> V:
    """A float as the nearest one that a type of 16 bits has."""
    if (known := b.halves.get(value.name)) is not None and known[2] == dtype.name:
        return value
    if dtype.name == "f16":
        return asm(b, "float", "cvt.f32.f16 $0, $1;", "=f,h", _narrowed(b, value, dtype))
    return b.bitcast(pair(b, const(0.0, "float"), value, "bf16"), "float")  # the upper half of a word: a float already


def rounded_pair(b: Function, low: V, high: V) -> tuple[V, V]:
    """Two floats as the nearest ones that bf16 has: these are the upper halves of floats."""
    word = pair(b, low, high, "bf16")
    halves = b.binary("shl", word, V("i32", "16")), b.binary("and", word, V("i32", "-65536"))
    floats = b.bitcast(halves[0], "float"), b.bitcast(halves[1], "float")
    b.halves.update({value.name: (word, part, "bf16") for part, value in enumerate(floats)})
    return floats


def pair(b: Function, low: V, high: V, dtype: str, *, pure: bool = True) -> V:
    """Two floats narrowed to 16 bits, in one word."""
    if pure and (word := word_of(b, low, high, dtype)) is not None:
        return word
    return asm(b, "i32", f"cvt.rn.{dtype}x2.f32 $0, $1, $2;", "=r,f,f", high, low, pure=pure)


def address_of(b: Function, pointer: V, element: int, index: V) -> V:
    """The address of an element as a number."""
    return b.add(pointer, b.mul(index, V("i64", str(element))))
