"""How an op is split, given how its operands lie and how its results are wanted."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.expr import Size, product
from weft.ir.sharding import Mesh, Sharding, Split
from weft.ir.types import Tensor
from weft.ops.sharding_rules import Dims, ShardingRule
from weft.passes.sharding.factor_splits import FactorSplits, fitting, tensor_factors


def choose_splits(
    rule: ShardingRule,
    operands: Sequence[tuple[Tensor, Sharding]],
    results: Sequence[tuple[Tensor, Sharding]],
    mesh: Mesh,
) -> FactorSplits:
    """The splits of an op's factors. Of factors that claim one axis, the one that most tensors split over it has it,
    and of several the one with the fewest bytes to send.

        x [{}, {tp}] · w [{tp}, {}]  →  k over tp: no operand moves, and the result is a sum over tp
    """
    sides = [
        *((tensor, sharding, dims, True) for (tensor, sharding), dims in zip(operands, rule.operands, strict=True)),
        *((tensor, sharding, dims, False) for (tensor, sharding), dims in zip(results, rule.results, strict=True)),
    ]
    found = [tensor_factors(sharding, dims, rule, mesh)[0] for _, sharding, dims, _ in sides]
    claims: dict[str, dict[str, list[Split]]] = {}
    for factors in found:
        for factor, splits in factors.items():
            for split in splits:
                claims.setdefault(split.axis, {}).setdefault(factor, []).append(split)

    def cost(axis: str, factor: str) -> tuple[int, float]:
        votes = sum(any(s.axis == axis for s in factors.get(factor, ())) for factors in found)
        moved = 0.0
        for (tensor, sharding, dims, is_operand), factors in zip(sides, found, strict=True):
            moved += _bytes(tensor) * _moved(axis, factor, sharding, dims, factors, is_operand, rule)
        return -votes, moved

    owners = {axis: min(factors, key=lambda factor: cost(axis, factor)) for axis, factors in claims.items()}
    chosen: FactorSplits = {}
    for factors in found:
        for factor, splits in factors.items():
            own = tuple(split for split in splits if owners[split.axis] == factor)
            if len(own) > len(chosen.get(factor, ())):
                chosen[factor] = fitting(own, rule.sizes[factor], mesh)
    return chosen


def _bytes(tensor: Tensor) -> int:
    count: Size = product(tensor.shape)
    return (count if isinstance(count, int) else 1) * tensor.dtype.bytes


def _moved(
    axis: str,
    factor: str,
    sharding: Sharding,
    dims: Dims,
    factors: FactorSplits,
    is_operand: bool,
    rule: ShardingRule,
) -> float:
    """The share of a tensor that is sent when the axis goes to the factor."""
    has_axis = axis in sharding.axes
    if any(split.axis == axis for split in factors.get(factor, ())):
        return 0
    has_factor = any(factor in dim for dim in dims)
    if is_operand:
        return 0 if not has_axis else 0.5 if has_factor else 1
    if factor in rule.reduced:
        return 1 if has_axis else 2
    return 0 if not has_factor else 0.5 if has_axis else 1
