"""Let kernels that read the same along different dimensions widen it each: a copy in f32 takes twice the memory.

The gradient of a modulated norm, `n * (1 + a[:, None]) + b[:, None]`, is summed up over the tokens of each image for
those of `a` and `b`, and over each token's features for that of the norm: no kernel does both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.ir import OpResult, SSAValue
from xdsl.passes import ModulePass

from weft.ir.expr import product
from weft.ir.types import tensor_of
from weft.ops.base import Elementwise, View, viewed
from weft.ops.graph import FuncOp, OpaqueOp
from weft.ops.matmul.dot import Dot
from weft.ops.reduce import DimensionReduction
from weft.passes.grouping.build_groups import CLAIM, INLINED, is_free
from weft.passes.grouping.kernel_groups import sums_between

_CHEAP = frozenset(f"graph.{name}" for name in ("cast", "add", "sub", "mul", "neg"))
_LEAST = 1 << 16
"""How many elements such a value has: smaller ones stay in a cache."""
_FEWER = 64
"""How many times fewer elements an operand has to count as nothing."""


@dataclass(frozen=True)
class WidenBesideSums(ModulePass):
    """Cheap wide values that sums between other dimensions and reductions of rows read are computed by each of them.

    %w = graph.cast %g : bf16 → f32                  %w = graph.cast %g {weft.inlined}
    %b = graph.sum %w dims=[1] keep             →    %b = graph.sum %w dims=[1] keep
    %s = graph.sum %w dims=[2] keep                  %s = graph.sum %w dims=[2] keep

    What they are computed of is in memory and takes at most half of what they would.
    """

    name: ClassVar[str] = "widen_beside_sums"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if isinstance(function, FuncOp) and "prepares" not in function.attributes:
                _inline(function)


def _inline(function: FuncOp) -> None:
    read: dict[SSAValue, frozenset[SSAValue]] = {}
    """What candidates are computed of."""
    for op in function.block.ops:
        if isinstance(op, Elementwise) and (sources := _narrow_sources(op, read)) is not None:
            read[op.results[0]] = sources
    if not read or not any(sums_between(op) for op in function.block.ops):
        return
    for value in read:
        reductions = list(_reductions(value))
        between = [sums_between(op) for op in reductions]
        if any(between) and not all(between) and _is_computed_along(value):
            assert isinstance(value, OpResult)
            value.op.attributes[INLINED] = UnitAttr()


def _narrow_sources(op: Elementwise, read: dict[SSAValue, frozenset[SSAValue]]) -> frozenset[SSAValue] | None:
    """What an op's result is computed of, if that is in memory and takes at most half as much."""
    (result,) = op.results
    made = tensor_of(result.type)
    size = product(made.shape)
    if op.name not in _CHEAP or CLAIM in op.attributes or not isinstance(size, int) or size < _LEAST:
        return None
    found: set[SSAValue] = set()
    for operand in map(viewed, op.operands):
        if operand in read:
            found |= read[operand]
        elif _is_there(operand):
            found.add(operand)
        else:
            return None
    tensors = [tensor_of(value.type) for value in found]
    sizes = [product(tensor.shape) for tensor in tensors]
    taken = sum(
        tensor.dtype.bytes * elements
        for tensor, elements in zip(tensors, sizes, strict=True)
        if isinstance(elements, int) and elements * _FEWER > size
    )
    fixed = all(isinstance(elements, int) for elements in sizes)
    return frozenset(found) if fixed and 2 * taken <= made.dtype.bytes * size else None


def _is_there(value: SSAValue) -> bool:
    """Whether a value is in memory without a kernel, or would be with one that multiplies."""
    return not isinstance(value, OpResult) or isinstance(value.op, OpaqueOp | Dot) or is_free(value.op)


def _reductions(value: SSAValue) -> Iterator[DimensionReduction]:
    """The reductions that a value goes into, through elementwise ops."""
    waiting, seen = [value], {value}
    while waiting:
        for use in waiting.pop().uses:
            user = use.operation
            if isinstance(user, DimensionReduction):
                yield user
            elif isinstance(user, Elementwise | View):
                waiting += [result for result in user.results if result not in seen]
                seen.update(user.results)


def _is_computed_along(value: SSAValue) -> bool:
    """Whether all that read a value can compute it: what walks elements, or reduces them."""
    for use in value.uses:
        user = use.operation
        if isinstance(user, View):
            if not all(map(_is_computed_along, user.results)):
                return False
        elif not isinstance(user, Elementwise | DimensionReduction) or CLAIM in user.attributes:
            return False
    return True
