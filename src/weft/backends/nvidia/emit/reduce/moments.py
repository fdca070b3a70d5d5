"""Code for moments: each thread has the mean of its elements, the squares from there, and how many they are."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from weft.backends.llvm.builder import Function
from weft.backends.llvm.values import V, const
from weft.backends.nvidia.emit.emitters import EMITTERS
from weft.backends.nvidia.emit.math import emit_map, reciprocal
from weft.backends.nvidia.emit.reduce.across_threads import Exchange, Parts, groups, reduce_axis, tree
from weft.backends.nvidia.ir.dialect import SHARED, integer, layout_of
from weft.backends.nvidia.ir.fused_reductions import MomentsOp
from weft.backends.nvidia.ir.row_streams import CROSSES
from weft.backends.nvidia.ir.shared_bytes import part_bytes
from weft.ir.types import f32

if TYPE_CHECKING:
    from weft.backends.nvidia.emit.codegen import KernelCodegen

_ZERO, _ONE = const(0.0, "float"), const(1.0, "float")


@EMITTERS.register(MomentsOp)
def emit_moments(codegen: KernelCodegen, op: MomentsOp) -> None:
    b, layout, axis = codegen.b, layout_of(op.value), op.axis.value.data
    exists, values = codegen.existing(op.value, layout), codegen.tiles[op.value]
    mine = [
        _of_thread(b, [values[r] for r in line], [exists[r] for r in line])
        for line in groups(layout, axis, list(range(layout.count)))
    ]
    alone = replace(layout, registers=tuple(mode for mode in layout.registers if mode.axis != axis))
    via = Exchange(integer(op, SHARED), part_bytes(op), codegen.crossing if CROSSES in op.attributes else None)
    whole = reduce_axis(b, codegen.threads, alone, axis, mine, lambda x, y: _joined(b, x, y), via)
    codegen.tiles[op.total] = [_float(b, "mul", mean, count) for mean, _, count in whole]
    codegen.tiles[op.squares] = [squares for _, squares, _ in whole]


def _float(b: Function, name: str, *args: V) -> V:
    return emit_map(b, name, args, f32)


def _of_thread(b: Function, values: list[V], exists: list[V | None]) -> Parts:
    def there(value: V, exist: V | None) -> V:
        return value if exist is None else b.select(exist, value, _ZERO)

    def added(terms: list[V]) -> V:
        return tree([(term,) for term in terms], lambda x, y: (_float(b, "add", x[0], y[0]),))[0]

    if any(exist is not None for exist in exists):
        count = added([there(_ONE, exist) for exist in exists])
        share = reciprocal(b, _float(b, "max", count, _ONE))
    else:
        count, share = const(float(len(values)), "float"), const(1 / len(values), "float")
    mean = _float(b, "mul", added([there(v, e) for v, e in zip(values, exists, strict=True)]), share)
    apart = [there(_float(b, "sub", value, mean), exist) for value, exist in zip(values, exists, strict=True)]
    squares = _float(b, "mul", apart[0], apart[0])
    for each in apart[1:]:
        squares = b.intrinsic("fma", each, each, squares)
    return mean, squares, count


def _joined(b: Function, x: Parts, y: Parts) -> Parts:
    """Of two parts of a row, both."""
    count = _float(b, "add", x[2], y[2])
    share = _float(b, "mul", y[2], reciprocal(b, _float(b, "max", count, _ONE)))
    apart = _float(b, "sub", y[0], x[0])
    between = _float(b, "mul", _float(b, "mul", apart, apart), _float(b, "mul", x[2], share))
    return b.intrinsic("fma", apart, share, x[0]), _float(b, "add", _float(b, "add", x[1], y[1]), between), count
