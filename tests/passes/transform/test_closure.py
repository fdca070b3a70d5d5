"""Closure, from the registry: every op through every ordered pair of transformations, or a reason why not."""

from __future__ import annotations

from collections import defaultdict

import pytest

import weft.ops  # noqa: F401  (fills the registry)
from weft.errors import UnsupportedError
from weft.ops.base import REGISTRY, OpSpec
from weft.testing.transform_checks import CHECKS, DERIVATIVES, OpSample, check_pair, is_differentiable, samples

RULES = {"vjp": "vjp", "jvp": "vjp", "vmap": "batch"}
"""The rules of an op that transformations need; the others need none."""
CASES: dict[str, list[OpSample]] = defaultdict(list)
for each in samples(at_most=1):
    CASES[each.spec.name].append(each)


def lacks(spec: OpSpec, transformation: str) -> bool:
    return RULES.get(transformation) in spec.cls.NO_RULE


def check_pairs(sample: OpSample) -> None:
    drawn = sample.drawn()
    if drawn is None:
        return
    for first in CHECKS:
        if first in DERIVATIVES and not is_differentiable(drawn[0]):
            continue
        if lacks(sample.spec, first):
            with pytest.raises(UnsupportedError, match="rule: "):
                CHECKS[first](*drawn)
            continue
        made = CHECKS[first](*drawn)
        for second in CHECKS:
            if second not in DERIVATIVES or is_differentiable(made[0]):
                if lacks(sample.spec, second):
                    continue
                check_pair(first, second, drawn, made)


@pytest.mark.parametrize("name", CASES)
def test_every_pair_of_transformations_is_right(name: str) -> None:
    for sample in CASES[name]:
        check_pairs(sample)


@pytest.mark.slow
@pytest.mark.parametrize("sample", samples(at_most=100), ids=lambda sample: sample.name)
def test_every_pair_is_right_for_every_sample(sample: OpSample) -> None:
    check_pairs(sample)


@pytest.mark.parametrize("spec", list(REGISTRY), ids=lambda spec: spec.name)
def test_an_op_without_a_rule_says_why(spec: OpSpec) -> None:
    takes = any(sample.inputs for sample in spec.samples)
    assert hasattr(spec.cls, "batch") or "batch" in spec.cls.NO_RULE or not takes
    drawn = OpSample(spec, 0).drawn() if spec.samples else None
    if drawn is not None and is_differentiable(drawn[0]):
        assert hasattr(spec.cls, "vjp") or "vjp" in spec.cls.NO_RULE
    for rule, reason in spec.cls.NO_RULE.items():
        assert reason and not hasattr(spec.cls, rule)
