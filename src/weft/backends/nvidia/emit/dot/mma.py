"""Dots by `mma.sync`: the tensor cores that every GPU has since Ampere, as LLVM code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import TypeAlias

from weft.backends.llvm.builder import Function
from weft.backends.llvm.values import V
from weft.backends.nvidia.emit.block import i32
from weft.backends.nvidia.ir.mma import HALF, LANES, Fragments


def reads_alone(b: Function, lane: V) -> V:
    """Whether a lane is the one that reads, of those which hold the same part of a row: that of column 2t."""
    return b.icmp("eq", lane, b.mul(b.binary("and", lane, i32(LANES - 1)), i32(2 * LANES + 1)))


Right: TypeAlias = Callable[[int, int, int, int], Sequence[V]]
"""Gives words of the right operand when they are needed: by chunk along K, by column, and which of how many parts."""


def multiply(
    b: Function,
    fragments: Fragments,
    left: Sequence[V],
    right: Right,
    total: Sequence[V],
    dtype: str,
) -> list[V]:
    """Add a dot of packed operands to the accumulators of a warp.

    Where there is but one tile, two sums take turns: an instruction does not wait for the one before it.
    """
    if fragments.turned:
        return _multiply_turned(b, fragments, left, right, total, dtype)
    halves, words = fragments.halves, fragments.vector // 2
    zero, nothing = V("float", "0.0"), i32(0)
    result = list(total)
    alone = fragments.tiles_m * fragments.tiles_n == 1 and words > 2
    beside = [zero] * 4
    for chunk in range(fragments.chunks):
        for column in range(fragments.tiles_n):
            weights = right(chunk, column, 0, 1)
            for row in range(fragments.tiles_m):
                place = 2 * halves * (row * fragments.tiles_n + column)
                sums = [*result[place : place + 2 * halves], *[zero] * (4 - 2 * halves)]
                for step in range(0, words, 2):
                    a: list[V] = []
                    for word in (step, step + 1):
                        first = ((chunk * fragments.tiles_m + row) * halves) * words + word
                        a += [left[first], left[first + words] if halves == 2 else nothing]
                    if alone and step % 4:
                        beside = instruction(b, beside, a, weights[step : step + 2], dtype)
                    else:
                        sums = instruction(b, sums, a, weights[step : step + 2], dtype)
                result[place : place + 2 * halves] = sums[: 2 * halves]
    if alone:
        result = [b.binary("fadd", one, other) for one, other in zip(result, beside, strict=False)]
    return result


def _multiply_turned(
    b: Function,
    fragments: Fragments,
    left: Sequence[V],
    right: Right,
    total: Sequence[V],
    dtype: str,
) -> list[V]:
    """The same with columns in place of rows, two times eight of them in an instruction."""
    parts = max(1, fragments.vector // HALF)  # few at a time: those of two columns are held
    words, result = fragments.vector // 2 // parts, list(total)
    alone, beside = fragments.tiles_n == 2 and words > 2, [V("float", "0.0")] * 4
    pieces = product(range(fragments.chunks), range(0, fragments.tiles_n, 2), range(parts))
    for chunk, column, part in pieces:
        rows = left[(chunk * parts + part) * words :][:words]
        pair, place = [right(chunk, each, part, parts) for each in (column, column + 1)], 2 * column
        for step in range(0, words, 2):
            columns = [weights[word] for word in (step, step + 1) for weights in pair]
            if alone and step % 4:
                beside = instruction(b, beside, columns, rows[step : step + 2], dtype)
            else:
                sums = result[place : place + 4]
                result[place : place + 4] = instruction(b, sums, columns, rows[step : step + 2], dtype)
    return [b.binary("fadd", one, other) for one, other in zip(result, beside, strict=True)] if alone else result


def instruction(b: Function, sums: Sequence[V], left: Sequence[V], right: Sequence[V], dtype: str) -> list[V]:
    name = f"mma.sync.aligned.m16n8k16.row.col.f32.{dtype}.{dtype}.f32"
    text = f"{name} {{$0, $1, $2, $3}}, {{$4, $5, $6, $7}}, {{$8, $9}}, {{$10, $11, $12, $13}};"
    struct = "{ float, float, float, float }"
    operands = ", ".join(map(str, [*left, *right, *sums]))
    codes = ",".join(["=f"] * 4 + ["r"] * 6 + ["f"] * 4)
    made = b.emit(struct, f'call {struct} asm sideeffect "{text}", "{codes}"({operands}) #1')
    return [b.emit("float", f"extractvalue {made}, {i}") for i in range(4)]
