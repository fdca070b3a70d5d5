"""Closure, from the registry: every op through every ordered pair of transformations, or a reason why not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import pytest

import weft.ops  # noqa: F401  (fills the registry)
from weft.ops.base import REGISTRY, OpSpec
from weft.testing.conformance.transform_pairs import run_pairs
from weft.testing.transform_checks import OpSample, is_differentiable, samples

CASES: dict[str, list[OpSample]] = defaultdict(list)
for each in samples(at_most=1):
    CASES[each.spec.name].append(each)


def check_pairs(chosen: Sequence[OpSample]) -> None:
    assert not [verdict for verdict in run_pairs(chosen).verdicts if verdict.status == "wrong"]


@pytest.mark.parametrize("name", CASES)
def test_every_pair_of_transformations_is_right(name: str) -> None:
    check_pairs(CASES[name])


@pytest.mark.slow
@pytest.mark.parametrize("sample", samples(at_most=100), ids=lambda sample: sample.name)
def test_every_pair_is_right_for_every_sample(sample: OpSample) -> None:
    check_pairs([sample])


@pytest.mark.parametrize("spec", list(REGISTRY), ids=lambda spec: spec.name)
def test_an_op_without_a_rule_says_why(spec: OpSpec) -> None:
    takes = any(sample.inputs for sample in spec.samples)
    assert hasattr(spec.cls, "batch") or "batch" in spec.cls.NO_RULE or not takes
    drawn = OpSample(spec, 0).drawn() if spec.samples else None
    if drawn is not None and is_differentiable(drawn[0]):
        assert hasattr(spec.cls, "vjp") or "vjp" in spec.cls.NO_RULE
    for rule, reason in spec.cls.NO_RULE.items():
        assert reason and not hasattr(spec.cls, rule)


def test_pairs_that_do_not_exist_have_reasons_and_those_that_do_are_counted() -> None:
    report = run_pairs([CASES["argmax"][0], CASES["tanh"][0]])
    assert len(report.verdicts) == 72 and not report.having("wrong")
    assert {each.sample.partition("[")[0] for each in report.having("excluded")} == {"argmax"}
    assert all(each.reason for each in report.having("excluded"))
    assert len(report.pairs()) == 36


def test_a_wrong_rule_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = REGISTRY["tanh"].cls.vjp
    wrong = staticmethod(lambda b, grads, operands, results, **params: (b.neg(rule(b, grads, operands, results)[0]),))
    monkeypatch.setattr(REGISTRY["tanh"].cls, "vjp", wrong)
    found = run_pairs([CASES["tanh"][0]]).having("wrong")
    assert {("vjp", "vmap"), ("checkpoint", "vjp"), ("vmap", "jvp")} <= {(each.first, each.second) for each in found}
