"""The rule by which results are judged: what passes, what does not, and what is told about it."""

import math

import pytest
import torch

from weft.testing.comparison import compare, compare_close, error_vs_float64, widen

EPS = torch.finfo(torch.float32).eps


def with_error(reference64, error):
    """A float32 result whose error against the reference is `error` of the largest magnitude."""
    result = reference64.clone()
    result[0] += error * reference64.abs().max()
    return result.float()


@pytest.fixture
def reference64():
    return torch.tensor([1.0, -2.0, 0.5, 4.0], dtype=torch.float64)


def test_error_is_relative_to_the_largest_magnitude(reference64):
    assert error_vs_float64(reference64 + torch.tensor([0, 0, 0.5, 0]), reference64) == 0.125


def test_error_against_zero_is_absolute():
    assert error_vs_float64(torch.full((3,), 0.25), torch.zeros(3, dtype=torch.float64)) == 0.25


def test_error_skips_what_is_not_finite():
    actual = torch.tensor([1.0, math.inf, math.nan])
    assert error_vs_float64(actual, torch.tensor([1.0, math.inf, 2.0], dtype=torch.float64)) == 0
    assert error_vs_float64(actual[1:], torch.full((2,), math.nan, dtype=torch.float64)) == 0


@pytest.mark.parametrize(("mine", "eagers", "ok"), [(1.5, 0, True), (2.5, 0, False), (19, 10, True), (21.5, 10, False)])
def test_twice_eagers_error_or_two_ulp(reference64, mine, eagers, ok):
    actual, eager = with_error(reference64, mine * EPS), with_error(reference64, eagers * EPS)
    comparison = compare(actual, eager, reference64)
    assert comparison.ok is ok
    assert comparison.error == pytest.approx(mine * EPS, abs=EPS / 4)
    assert comparison.eager_error == pytest.approx(eagers * EPS, abs=EPS / 4)


def test_the_ulp_is_that_of_the_dtype(reference64):
    actual = (reference64 * (1 + torch.finfo(torch.bfloat16).eps)).bfloat16()
    assert compare(actual, reference64.bfloat16(), reference64).ok
    assert not compare(actual.float(), reference64.float(), reference64).ok


def test_equal_results_still_report_eagers_error(reference64):
    eager = with_error(reference64, 50 * EPS)
    leaf = compare(eager.clone(), eager, reference64).leaves[0]
    assert leaf.verdict == "equal"
    assert leaf.error == leaf.eager_error > 40 * EPS


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_patterns_must_be_eagers(reference64, bad):
    eager, actual = reference64.float(), reference64.float()
    actual[1] = bad
    for one, other in ((actual, eager), (eager, actual)):
        assert not compare(one, other, reference64).ok
        assert not compare_close(one, other).ok
    assert compare(actual, actual.clone(), reference64).ok


def test_where_the_oracle_is_not_finite_eager_judges(reference64):
    oracle = reference64.clone()
    oracle[2] = math.nan
    eager, actual = reference64.float(), reference64.float()
    actual[2] += 1
    assert not compare(actual, eager, oracle, together=True).ok


def test_where_eager_overflows_only_the_pattern_counts():
    oracle = torch.tensor([1e60, 3.0], dtype=torch.float64)
    eager = oracle.float()
    assert math.isinf(eager[0])
    assert compare(eager + torch.tensor([0.0, EPS * 3]), eager, oracle).ok


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_floats_of_8_bits(dtype):
    reference = torch.tensor([1.0, -2.0, 0.53, 4.0, math.nan], dtype=torch.float64)
    eager = reference.to(dtype)
    assert compare(eager.clone(), eager, reference).ok
    near, far = eager.clone(), eager.clone()
    near.view(torch.uint8)[2] += 1
    far.view(torch.uint8)[3] += 16
    assert compare(near, eager, reference).ok
    wrong = compare(far, eager, reference)
    assert not wrong.ok and wrong.wrong[0].dtype == str(dtype).removeprefix("torch.")


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.uint8])
def test_integers_must_be_equal(dtype):
    eager, actual = torch.ones(4, dtype=dtype), torch.ones(4, dtype=dtype)
    assert compare(actual, eager, eager).ok
    actual[0] = 0
    found = compare(actual, eager, eager)
    assert not found.ok
    assert "1 of 4 elements differ" in str(found)


def test_kinds_must_be_eagers(reference64):
    eager = reference64.float()
    for actual in (eager.double(), eager[:2], eager.reshape(2, 2), eager.to_sparse(), 1.0, None):
        assert not compare_close(actual, eager).ok
    assert not compare_close([eager], (eager,)).ok
    assert not compare_close({"a": 1.0}, {"a": 1}).ok
    assert compare_close({"a": 1.0, "b": None, "c": "x"}, {"a": 1.0, "b": None, "c": "x"}).ok


def test_trees_name_the_leaf_that_is_wrong(reference64):
    eager = {"x": reference64.float(), "y": [reference64.float()]}
    actual = {"x": reference64.float(), "y": [with_error(reference64, 100 * EPS)]}
    found = compare(actual, eager, {"x": reference64, "y": [reference64]})
    assert [leaf.path for leaf in found.wrong] == ["['y'][0]"]
    assert found.worst is found.wrong[0]
    assert "allowed" in str(found)


def test_oracle_of_another_structure_is_a_mistake(reference64):
    with pytest.raises(ValueError, match="2 leaves"):
        compare(reference64.float(), reference64.float(), [reference64, reference64])


def test_zero_but_for_rounding_is_judged_on_the_scale_of_the_whole(reference64):
    noise = torch.tensor([1e-18], dtype=torch.float64)
    eager, actual = (reference64.float(), torch.tensor([1e-10])), (reference64.float(), torch.tensor([-9e-10]))
    assert compare(actual, eager, (reference64, noise)).ok
    assert not compare(actual[1], eager[1], noise).ok


def test_together_takes_eagers_largest_error(reference64):
    eager = [with_error(reference64, 0), with_error(reference64, 10 * EPS)]
    actual = [with_error(reference64, 15 * EPS), with_error(reference64, 0)]
    assert not compare(actual, eager, [reference64] * 2).ok
    found = compare(actual, eager, [reference64] * 2, together=True)
    assert found.ok
    assert found.within_only_together == found.leaves[:1]
    assert "2 tensors right (1 beyond their own bound)" in str(found)
    actual[0] = with_error(reference64, 25 * EPS)
    assert not compare(actual, eager, [reference64] * 2, together=True).ok


def test_tolerances_are_torchs(reference64):
    eager = reference64.float()
    assert compare_close(eager + 1e-5, eager).ok
    assert not compare_close(eager + 3e-5, eager).ok
    assert compare_close(eager + 3e-5, eager, atol=1e-4).ok
    half = eager.to(torch.complex32)
    assert compare_close(half, half.clone()).ok


def test_widen_keeps_structure_and_the_wish_for_gradients():
    tree = {
        "x": torch.ones(2, requires_grad=True),
        "i": torch.ones(2, dtype=torch.int32),
        "c": 1j * torch.ones(1),
        "n": 3,
    }
    wide = widen(tree)
    assert wide["x"].dtype == torch.float64
    assert wide["x"].requires_grad
    assert wide["c"].dtype == torch.complex128
    assert wide["i"].dtype == torch.int32
    assert wide["n"] == 3


def test_empty_tensors_are_right():
    empty = torch.empty(0, 3)
    assert compare(empty, empty.clone(), empty.double()).ok
    assert compare_close(empty, empty.clone()).ok
    assert compare((), (), ()).worst is None
