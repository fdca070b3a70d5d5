"""Find weights that a program widens from few bits before it multiplies with them.

Programs say this in many ways: masks and shifts, stacks, casts, factors that are repeated or broadcast. So what is
compared is not how they say it but what comes out: the ops between a matmul and its codes are evaluated at some
places, for every code, and the result is that of a `graph.dequantize` or it is left alone. All ops but a stack of two
treat all places alike, so that some places are enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import ClassVar

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import OpResult, SSAValue
from xdsl.passes import ModulePass

from weft.ir.expr import product
from weft.ir.types import DType, Tensor, bf16, f8e4m3, f16, f32, tensor_of, u8
from weft.ops.base import Elementwise, GraphOp
from weft.ops.graph import FuncOp, GraphBuilder
from weft.ops.matmul.dot import Dot
from weft.ops.matmul.quantized import FORMS, SCALES, dequantized
from weft.passes.dot.read_gathered_weights import weights_of
from weft.passes.probe import Probe, is_placewise
from weft.passes.simplify.constant_values import made_by, number_of

_LEAST_GROUP = 16
_VIEWS = ("graph.reshape", "graph.broadcast", "graph.permute")
_PLACES = 24
_CODES = 256
_TIMES = 8
"""How often every code is tried, with other factors each time."""
_ULPS = {f32: 2.0**-23, f16: 2.0**-10, bf16: 2.0**-7}
_LEAST = {f32: 2.0**-149, f16: 2.0**-24, bf16: 2.0**-133}
_MOST = {f32: 2.0**127, f16: 2.0**15, bf16: 2.0**127}
_MAGNITUDES = {f8e4m3: 5, f16: 8}
_LARGE = 20
"""Up to which power of two, and down to its inverse, factors are tried; in types that have few, up to others."""


@dataclass(frozen=True)
class RecognizeDequantization(ModulePass):
    """%q = graph.bitwise_and … ; %h = graph.shr … ; %w = graph.mul (graph.sub (graph.cast …)), %s
    %y = graph.dot %x, (graph.permute %w)                 →

    %w = graph.dequantize %codes, %s {form = "int4"}
    %y = graph.dot %x, (graph.permute %w)
    """

    name: ClassVar[str] = "recognize_dequantization"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if isinstance(function, FuncOp):
                for dot in [each for each in function.block.ops if isinstance(each, Dot)]:
                    _recognize(function, dot)


def _recognize(function: FuncOp, dot: Dot) -> None:
    weight = weights_of(dot)
    if not isinstance(weight, OpResult) or weight.op.name == "graph.dequantize":
        return
    found = _Candidate.of(weight)
    if found is None:
        return
    for form in FORMS:
        if FORMS[form].dtype == tensor_of(found.codes.type).dtype and found.is_coded(form):
            b = GraphBuilder(function.block, weight.op.location, before=weight.op)
            found.use_exponents()
            weight.replace_all_uses_with(found.built(b, form))
            return


@dataclass
class _Candidate:
    """Weights [N, K], and the tensors that they are made of."""

    weight: SSAValue
    codes: SSAValue
    scales: SSAValue | None = None
    zeros: SSAValue | None = None
    turned: dict[SSAValue, bool] = field(default_factory=dict[SSAValue, bool])
    """Whether factors lie as [K / group, N]."""

    @classmethod
    def of(cls, weight: SSAValue) -> _Candidate | None:
        tensor = tensor_of(weight.type)
        if tensor.dtype not in (bf16, f16) or not tensor.is_static:
            return None
        leaves = list(dict.fromkeys(_leaves(weight, _size(weight) // 2)))
        if None in leaves:
            return None
        large = [leaf for leaf in leaves if leaf is not None and _size(leaf) * 2 >= _size(weight)]
        small = [leaf for leaf in leaves if leaf is not None and leaf not in large]
        coded = {form.dtype for form in FORMS.values()}
        if len(large) != 1 or len(small) > 2 or tensor_of(large[0].type).dtype not in coded:
            return None
        found = cls(weight, large[0])
        for leaf in small:
            if tensor_of(leaf.type).dtype.is_float and found.scales is None:
                found.scales = leaf
            elif tensor_of(leaf.type).dtype.is_integer and found.zeros is None:
                found.zeros = leaf
            else:
                return None
        return found if found.zeros is None or found.scales is not None else None

    @property
    def tensor(self) -> Tensor:
        return tensor_of(self.weight.type)

    @property
    def lead(self) -> tuple[int, ...]:
        """All sides but K."""
        return tuple(int(size) for size in self.tensor.shape[:-1])  # type: ignore[arg-type]

    @property
    def sides(self) -> tuple[int, int]:
        """How many rows there are, and K."""
        return prod(self.lead), int(self.tensor.shape[-1])  # type: ignore[arg-type]

    def is_coded(self, form: str) -> bool:
        """Whether the weights are what codes of a form stand for."""
        n, k = self.sides
        together = FORMS[form].together
        if _size(self.codes) * together != n * k or (self.zeros is not None and not FORMS[form].offset):
            return False
        factors = [factor for factor in (self.scales, self.zeros) if factor is not None]
        if not all(self._shares(factor) for factor in factors):
            return False
        if not is_placewise(self.weight, {self.codes, *factors}):
            return False
        rng = np.random.default_rng(0)
        codes = np.tile(np.arange(_CODES, dtype=np.uint8), _TIMES)
        known = {self.codes: codes.view(tensor_of(self.codes.type).dtype.numpy)}
        computed = _floats(self.weight, {self.codes, *factors})
        sampled = np.ones(len(codes))
        if self.scales is not None:
            dtype = tensor_of(self.scales.type).dtype
            sampled = _factors(rng, len(codes), computed | {dtype}).astype(dtype.numpy)
            known[self.scales] = sampled
        if self.zeros is not None:
            known[self.zeros] = rng.integers(0, 16, len(codes)).astype(tensor_of(self.zeros.type).dtype.numpy)
        for row, column in self._places(rng):
            probe = Probe(known)
            actual = probe.value(self.weight, (*map(int, np.unravel_index(row, self.lead)), column))
            if probe.places.get(self.codes) != {row * (k // together) + column // together}:
                return False
            if not all(self._is_at(probe.places.get(factor), factor, row, column) for factor in factors):
                return False
            parts = [known[factor][:, None] for factor in factors]
            scales, zeros = (*parts, None, None)[:2]
            exact = dequantized(known[self.codes][:, None], scales, zeros, form, together)[:, column % together]
            if not _agree(actual, exact, sampled.astype(f32.numpy), computed):
                return False
        return True

    def _shares(self, factor: SSAValue) -> bool:
        n, k = self.sides
        count = _size(factor)
        if tensor_of(factor.type).dtype not in SCALES and factor is self.scales:
            return False
        if count == 1:
            return True
        return count % n == 0 and count > 0 and k % (count // n) == 0 and k // (count // n) >= _LEAST_GROUP

    def _places(self, rng: np.random.Generator) -> Iterator[tuple[int, int]]:
        n, k = self.sides
        yield from ((0, 0), (0, 1), (0, k - 1), (n - 1, k - 1), (n - 1, k // 2))
        for _ in range(_PLACES):
            yield int(rng.integers(n)), int(rng.integers(k))

    def _is_at(self, places: set[int] | None, factor: SSAValue, row: int, column: int) -> bool:
        n, k = self.sides
        if _size(factor) == 1:
            return places == {0}
        count = _size(factor) // n
        shared = column // (k // count)
        straight, turned = {row * count + shared}, {shared * n + row}
        if self.turned.get(factor, False) is False and places == straight:
            if straight != turned:
                self.turned[factor] = False
            return True
        if self.turned.get(factor, True) is True and places == turned and len(self.lead) == 1:
            self.turned[factor] = True
            return True
        return False

    def use_exponents(self) -> None:
        """Let exponents of 8 bits stand for the powers of two that are computed from them."""
        if self.scales is not None:
            powers, self.scales = self.scales, _exponents(self.scales)
            self.turned[self.scales] = self.turned.get(powers, False)

    def built(self, b: GraphBuilder, form: str) -> SSAValue:
        n, k = self.sides
        operands = [b.reshape(self.codes, shape=(*self.lead, k // FORMS[form].together))]
        for factor in (self.scales, self.zeros):
            if factor is not None and _size(factor) == 1:
                one = b.reshape(factor, shape=(1,) * (len(self.lead) + 1))
                operands.append(b.broadcast(one, shape=(*self.lead, 1)))
            elif factor is not None:
                count = _size(factor) // n
                turned = self.turned.get(factor, False)
                flat = b.reshape(factor, shape=(count, n) if turned else (*self.lead, count))
                flat = b.permute(flat, dims=(1, 0)) if turned else flat
                operands.append(b.reshape(flat, shape=(*self.lead, count)))
        return b.dequantize(*operands, form=form, dtype=self.tensor.dtype)


def _size(value: SSAValue) -> int:
    size = product(tensor_of(value.type).shape)
    return size if isinstance(size, int) else 0


def _leaves(value: SSAValue, least: int) -> Iterator[SSAValue | None]:
    """What a value is computed from, through ops that treat all places alike; None where there are others."""
    if number_of(value) is not None:
        return
    op = value.op if isinstance(value, OpResult) and isinstance(value.op, GraphOp) else None
    if op is None or (_size(value) < least and least > 1):
        yield _narrowest(value) if _size(value) > 1 else value
    elif isinstance(op, Elementwise) or op.name in _VIEWS or _is_stack(op):
        for operand in op.operands:
            yield from _leaves(operand, least)
    else:
        yield None


def _narrowest(value: SSAValue) -> SSAValue:
    """What a value is a widening cast of, seen through views; itself, if it is none."""
    source = found = value
    while (op := made_by(source, *_VIEWS, "graph.cast")) is not None and _size(op.operands[0]) == _size(value):
        source = op.operands[0]
        kept, dtype = tensor_of(source.type).dtype, tensor_of(value.type).dtype
        if kept.is_integer or (kept.is_float and dtype.is_float and kept.bits < dtype.bits):
            found = source
    return found


def _exponents(scales: SSAValue) -> SSAValue:
    """The exponents of 8 bits that powers of two are computed from; the powers, if they are not."""
    leaves = [leaf for leaf in dict.fromkeys(_leaves(scales, 1)) if leaf is not None]
    if len(leaves) != 1 or tensor_of(leaves[0].type).dtype != u8 or _size(leaves[0]) != _size(scales):
        return scales
    if not is_placewise(scales, leaves):
        return scales
    known = np.arange(_CODES, dtype=np.uint8)
    shape = [int(size) for size in tensor_of(scales.type).shape]  # type: ignore[arg-type]
    for place in {0, min(1, _size(scales) - 1), _size(scales) // 3, _size(scales) - 1}:
        probe = Probe({leaves[0]: known})
        powers = probe.value(scales, [int(i) for i in np.unravel_index(place, shape)]).astype(np.float32)
        normal = slice(1, _CODES - 2)
        if probe.places != {leaves[0]: {place}} or not (powers[normal] == 2.0 ** (known[normal] - 127.0)).all():
            return scales
    return leaves[0]


def _is_stack(op: GraphOp) -> bool:
    """Whether an op puts two side by side along a dimension of its own."""
    if op.name != "graph.concat":
        return False
    dim: int = op.params["dim"]
    return len(op.operands) == 2 and all(tensor_of(operand.type).shape[dim] == 1 for operand in op.operands)


def _floats(value: SSAValue, leaves: set[SSAValue]) -> set[DType]:
    """The types of floats that a value is computed in, from leaves."""
    found, seen, ahead = set[DType](), set(leaves), [value]
    while ahead:
        each = ahead.pop()
        if each in seen or number_of(each) is not None:
            continue
        seen.add(each)
        found.add(tensor_of(each.type).dtype)
        ahead += each.op.operands if isinstance(each, OpResult) else ()
    return found & set(_ULPS)


def _factors(rng: np.random.Generator, count: int, dtypes: set[DType]) -> np.ndarray:
    """Factors of many magnitudes and both signs, every other a power of two."""
    most = min(_MAGNITUDES.get(dtype, _LARGE) for dtype in dtypes)
    powers = 2.0 ** rng.integers(-most, most + 1, count) * rng.choice([-1.0, 1.0], count)
    return powers * np.where(rng.integers(0, 2, count), rng.uniform(1, 2, count), 1.0)


def _agree(actual: np.ndarray, exact: np.ndarray, factors: np.ndarray, computed: set[DType]) -> bool:
    """Whether weights are what they should be: exactly with powers of two, else up to a few roundings."""
    ulp, least = (max(table[dtype] for dtype in computed) for table in (_ULPS, _LEAST))
    with np.errstate(all="ignore"):
        near = np.isfinite(exact) & (np.abs(exact) < min(_MOST[dtype] for dtype in computed))
        numbers = np.abs(exact / factors)
    step = numbers[near & (numbers > 0)].min(initial=1) * np.abs(factors)
    rounded = np.abs(np.frexp(factors)[0]) != 0.5
    allowed = np.where(rounded, ulp * (2 * np.abs(exact) + step) + least, 0)
    wide = np.broadcast_to(actual, exact.shape).astype(f32.numpy)
    return bool((np.abs(wide[near] - exact[near]) <= allowed[near]).all())
