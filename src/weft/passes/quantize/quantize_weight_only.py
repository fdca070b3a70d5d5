"""Hold the frozen weights of a GPU's matmuls in 4 or 8 bits: less memory to read, less exact results.

`hoist_constants` then computes codes and factors once, and `fuse_dequantization` lets matmuls of few rows read them.

    int4, int4_64, int4_32   integers of 4 bits, with a factor of bf16 (or f16) for 128, 64 or 32 neighbours
    int8, fp8                integers or e4m3, with a factor of f32 for a row
    mxfp4                    e2m1, with a power of two for 32 neighbours
    nvfp4                    e2m1, with a factor of e4m3 for 16 neighbours, and one of f32 for all

Factors of f32 are left to what follows a matmul. In f16, whose largest number is 65504, that is only done where the
matmul's own kernel applies them before it rounds; others read weights that were multiplied by them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import BlockArgument, OpResult, SSAValue
from xdsl.passes import ModulePass

from weft.ir.types import bf16, f8e4m3, f16, f32, i8, i32, tensor_of, u8
from weft.ops.graph import FuncOp, GraphBuilder
from weft.ops.indexing.index import Take
from weft.ops.matmul.dot import Dot
from weft.passes.dot.read_gathered_weights import chosen_by, weights_of
from weft.passes.quantize.fuse_dequantization import is_narrow
from weft.passes.simplify.constant_values import fixed_values

_LEAST_SIDE = 128
"""Smaller weights take little memory, and their matmuls little time."""
_GROUPS = {"int4": 128, "int4_64": 64, "int4_32": 32, "mxfp4": 32, "nvfp4": 16}
_LARGEST = {"int8": 127.0, "fp8": 448.0, "int4": 7.0, "e2m1": 6.0}
_BETWEEN = ((0.25, "gt"), (0.75, "ge"), (1.25, "gt"), (1.75, "ge"), (2.5, "gt"), (3.5, "ge"), (5.0, "gt"))
"""Above which numbers the magnitude of the nearest e2m1 is the next: of two that are as near, the even one."""


@dataclass(frozen=True)
class QuantizeWeightOnly(ModulePass):
    """Matmuls with constant 16-bit weights of at least 128 by 128, whose K groups divide.

    %y = graph.dot %x, (graph.permute %w)   →   %s = graph.max (graph.abs %w) / 7 over groups of 128
                                                %c = graph.cast (graph.round (graph.div %w, %s)) + 8, two in a byte
                                                %v = graph.dequantize %c, %s {form = "int4"}
                                                %y = graph.dot %x, (graph.permute %v)
    """

    name: ClassVar[str] = "quantize_weight_only"

    form: str = "int4"
    streamed: bool = True
    """Whether `fuse_dequantization` follows."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if isinstance(function, FuncOp) and "constants" in function.attributes:
                fixed, known = fixed_values(function), _Known()
                for dot in [each for each in function.block.ops if isinstance(each, Dot)]:
                    self._rewrite(function, dot, fixed, known)

    def _rewrite(self, function: FuncOp, dot: Dot, fixed: set[SSAValue], known: _Known) -> None:
        weight = weights_of(dot)
        if weight is None or weight not in fixed or dot.operands[0] in fixed or not _reads_argument(weight):
            return
        tensor = tensor_of(weight.type)
        *lead, k = (size for size in tensor.shape if isinstance(size, int))
        if tensor.dtype not in (bf16, f16) or len(lead) + 1 != tensor.rank:
            return
        if min(lead[-1], k) < _LEAST_SIDE or k % _GROUPS.get(self.form, 8):
            return
        b = GraphBuilder(function.block, dot.location, before=dot)
        apart = tensor.dtype == bf16 or (self.streamed and is_narrow(dot))
        if (weight, apart) not in known:
            coded = _coded(b, weight, self.form, tuple(lead), k)
            known[weight, apart] = coded if apart else coded.multiplied(b)
        coded, take = known[weight, apart], chosen_by(dot)
        if take is None:
            made = b.dot(dot.operands[0], b.permute(coded.weights, dims=(1, 0)))
        else:
            chosen = b.take(coded.weights, take.operands[1], dim=0)
            made = b.dot(dot.operands[0], b.permute(chosen, dims=(0, 2, 1)))
        if coded.factor is not None:
            made = b.cast(b.mul(b.cast(made, dtype=f32), _factor(b, coded.factor, take)), dtype=tensor.dtype)
        dot.results[0].replace_all_uses_with(made)
        dot.detach()
        dot.erase()


def _factor(b: GraphBuilder, factor: SSAValue, take: Take | None) -> SSAValue:
    """What a matmul is multiplied by: of many matrices, the factors of those that are chosen for its rows."""
    if take is None or not b.tensor(factor).rank:
        return factor
    found = b.take(factor, take.operands[1], dim=0)
    rows, columns = b.tensor(found).shape
    return b.reshape(found, shape=(rows, 1, columns))


@dataclass(frozen=True)
class _Coded:
    """Weights as they are widened, and what matmuls with them are multiplied by."""

    weights: SSAValue
    factor: SSAValue | None = None

    def multiplied(self, b: GraphBuilder) -> _Coded:
        """The weights times their factor."""
        if self.factor is None:
            return self
        shape = b.tensor(self.factor).shape
        factor = b.reshape(self.factor, shape=(*shape, 1)) if shape else self.factor
        wide = b.mul(b.cast(self.weights, dtype=f32), factor)
        return _Coded(b.cast(wide, dtype=b.tensor(self.weights).dtype))


_Known = dict[tuple[SSAValue, bool], _Coded]
"""Weights that were coded, by whether their factor is apart."""


def _coded(b: GraphBuilder, weight: SSAValue, form: str, lead: tuple[int, ...], k: int) -> _Coded:
    n = prod(lead)
    dtype, wide = tensor_of(weight.type).dtype, b.cast(b.reshape(weight, shape=(n, k)), dtype=f32)

    def whole(parts: Sequence[SSAValue], kind: str) -> SSAValue:
        """The weights that codes, and factors, stand for, in all their dimensions."""
        shaped = [b.reshape(part, shape=(*lead, b.tensor(part).shape[-1])) for part in parts]
        return b.dequantize(*shaped, form=kind, dtype=dtype)

    if form in ("int8", "fp8"):
        scales = _scales(b, wide, _LARGEST[form])
        scaled = b.div(wide, scales)
        codes = b.cast(b.round(scaled), dtype=i8) if form == "int8" else b.cast(scaled, dtype=f8e4m3)
        kind = "int8" if form == "int8" else "e4m3"
        return _Coded(whole([codes], kind), b.reshape(scales, shape=lead))
    groups = b.reshape(wide, shape=(n, k // _GROUPS[form], _GROUPS[form]))
    flat = (n, k // _GROUPS[form])
    if form.startswith("int4"):
        scales = b.cast(_scales(b, groups, _LARGEST["int4"]), dtype=dtype)
        scaled = b.round(b.div(groups, b.cast(scales, dtype=f32)))
        limited = b.maximum(b.minimum(scaled, b.full_like(scaled, 7.0)), b.full_like(scaled, -8.0))
        codes = b.cast(b.add(limited, b.full_like(limited, 8.0)), dtype=u8)
        return _Coded(whole([_two_in_a_byte(b, codes, n, k), b.reshape(scales, shape=flat)], "int4"))
    factor: SSAValue | None = None
    if form == "mxfp4":
        scales, spread = _powers(b, groups)
    else:
        scales, spread, factor = _two_levels(b, wide, groups)
    codes = _two_in_a_byte(b, _nearest_e2m1(b, b.div(groups, spread)), n, k)
    return _Coded(whole([codes, b.reshape(scales, shape=flat)], "e2m1"), factor)


def _scales(b: GraphBuilder, value: SSAValue, most: float) -> SSAValue:
    """The factors of what lies along the last dimension, so that its largest becomes `most`."""
    largest = b.max(b.abs(value), dims=(b.tensor(value).rank - 1,), keep=True)
    scales = b.div(largest, b.full_like(largest, most))
    return b.where(b.eq(scales, b.full_like(scales, 0.0)), b.full_like(scales, 1.0), scales)


def _powers(b: GraphBuilder, groups: SSAValue) -> tuple[SSAValue, SSAValue]:
    """The exponents of groups, two below that of their largest, and the powers that they stand for."""
    largest = b.max(b.abs(groups), dims=(2,), keep=True)
    bits = b.bitcast(largest, dtype=i32)
    exponent = b.sub(b.shr(bits, b.full_like(bits, 23)), b.full_like(bits, 2))
    exponent = b.maximum(exponent, b.full_like(exponent, 1))
    power = b.bitcast(b.shl(exponent, b.full_like(exponent, 23)), dtype=f32)
    return b.cast(exponent, dtype=u8), power


def _two_levels(b: GraphBuilder, wide: SSAValue, groups: SSAValue) -> tuple[SSAValue, SSAValue, SSAValue]:
    """The factors of groups as e4m3, what groups are divided by, and the factor of all."""
    largest = b.max(b.abs(wide), dims=(0, 1), keep=False)
    whole = b.div(largest, b.full_like(largest, _LARGEST["e2m1"] * _LARGEST["fp8"]))
    whole = b.where(b.eq(whole, b.full_like(whole, 0.0)), b.full_like(whole, 1.0), whole)
    most = b.max(b.abs(groups), dims=(2,), keep=True)
    scales = b.cast(b.div(b.div(most, b.full_like(most, _LARGEST["e2m1"])), whole), dtype=f8e4m3)
    spread = b.cast(scales, dtype=f32)
    zero = b.eq(spread, b.full_like(spread, 0.0))
    spread = b.mul(b.where(zero, b.full_like(spread, 1.0), spread), whole)
    return scales, spread, whole


def _nearest_e2m1(b: GraphBuilder, value: SSAValue) -> SSAValue:
    size = b.abs(value)
    code = b.full(value=0, shape=b.tensor(value).shape, dtype=u8)
    for number, above in _BETWEEN:
        code = b.add(code, b.cast(b.emit(above, size, b.full_like(size, number)), dtype=u8))
    negative = b.cast(b.lt(value, b.full_like(value, 0.0)), dtype=u8)
    return b.add(code, b.mul(negative, b.full_like(negative, 8)))


def _two_in_a_byte(b: GraphBuilder, codes: SSAValue, n: int, k: int) -> SSAValue:
    pairs = b.reshape(codes, shape=(n, k // 2, 2))
    low, high = (b.slice(pairs, starts=(0, 0, place), shape=(n, k // 2, 1), steps=(1, 1, 1)) for place in (0, 1))
    both = b.bitwise_or(low, b.shl(high, b.full_like(high, 4)))
    return b.reshape(both, shape=(n, k // 2))


def _reads_argument(value: SSAValue) -> bool:
    """Whether a value is made of weights that the program was given."""
    if isinstance(value, BlockArgument):
        return True
    return isinstance(value, OpResult) and any(map(_reads_argument, value.op.operands))
