"""Splits of dimensions as splits of their factors and back: what a sharding rule is applied by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from weft.ir.expr import Size
from weft.ir.sharding import Mesh, Sharding, Split, Splits, fits
from weft.ops.sharding_rules import Dims, ShardingRule

FactorSplits = dict[str, Splits]


def decompose(splits: Splits, factors: Sequence[str], sizes: Mapping[str, Size], mesh: Mesh) -> FactorSplits | None:
    """The splits of a dimension as those of its factors; None where a split does not fall on factors.

    [8 = 4*2 {dp, tp/2}]   →   4 {dp}, 2 {tp}        on a mesh of dp=2, tp=2
    """
    if not splits:
        return {}
    if len(factors) == 1:
        return {factors[0]: splits}
    held: list[int] = []
    for factor in factors:
        size = sizes[factor]
        if not isinstance(size, int):
            return None
        held.append(size)
    found: FactorSplits = {}
    for split in splits:
        count = mesh.size([split.axis])
        place = _place(held, split.blocks)
        if place is None:
            return None
        inner = split.blocks // prod(held[:place])
        if held[place] % (inner * count):
            return None
        held[place] //= count
        found[factors[place]] = (*found.get(factors[place], ()), Split(split.axis, inner))
    return found


def _place(held: Sequence[int], blocks: int) -> int | None:
    """The factor within which a dimension of that many blocks is cut."""
    for place, size in enumerate(held):
        outer = prod(held[:place])
        if blocks % outer == 0 and (blocks // outer) < size:
            return place
    return None


def compose(found: Mapping[str, Splits], factors: Sequence[str], sizes: Mapping[str, Size], mesh: Mesh) -> Splits:
    """The splits of a dimension whose factors are split."""
    if len(factors) == 1:
        return tuple(found.get(factors[0], ()))
    splits: list[Split] = []
    outer = 1
    for factor in factors:
        size = sizes[factor]
        for split in found.get(factor, ()):
            splits.append(Split(split.axis, outer * split.blocks))
            size = size // mesh.size([split.axis])
        if isinstance(size, int):
            outer *= size
    return tuple(splits)


def tensor_factors(
    sharding: Sharding, dims: Dims, rule: ShardingRule, mesh: Mesh
) -> tuple[FactorSplits, set[str]]:
    """The splits of a tensor's factors, and the axes whose splits fall on none."""
    found: FactorSplits = {}
    lost: set[str] = set()
    for splits, factors in zip(sharding.dims, dims, strict=True):
        own = decompose(splits, factors, rule.sizes, mesh) if factors else (None if splits else {})
        if own is None or any(factor in rule.fixed for factor in own):
            lost |= {split.axis for split in splits}
        else:
            found |= own
    return found, lost


def sharding_by(found: Mapping[str, Splits], dims: Dims, sizes: Mapping[str, Size], mesh: Mesh) -> Sharding:
    """The sharding of a tensor whose factors are split."""
    return Sharding(tuple(compose(found, factors, sizes, mesh) for factors in dims))


def fitting(splits: Splits, size: Size, mesh: Mesh) -> Splits:
    """The first of the splits, as far as a factor of that size takes them."""
    while splits and not fits(size, splits, mesh):
        splits = splits[:-1]
    return splits
