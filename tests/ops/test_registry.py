"""What holds for every op of the registry: these tests are generated from the ops' classes and samples."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from xdsl.ir import SSAValue

import weft.ops  # noqa: F401  (fills the registry)
from weft.backends.reference.graph import run
from weft.errors import DTypeError
from weft.ir.types import DType, Tensor, dtype_of_numpy, f64, tensor_of
from weft.ops.base import REGISTRY, OpSpec
from weft.ops.dialect import parse_module
from weft.ops.graph import FuncOp, GraphBuilder, ReturnOp, module_of
from weft.ops.samples import Sample
from weft.passes.differentiate import vjp_function

SPECS = list(REGISTRY)


def cases(wanted: Callable[[OpSpec], bool] = lambda spec: True) -> list[Any]:
    """Every sample of every op."""
    return [
        pytest.param(spec, sample, id=f"{spec.name}-{number}")
        for spec in SPECS
        if wanted(spec)
        for number, sample in enumerate(spec.samples)
    ]


def drawn(sample: Sample, dtype: DType) -> list[np.ndarray]:
    rng = np.random.default_rng(20)
    return [source.array(rng, dtype) for source in sample.inputs]


def types_of(arrays: Sequence[np.ndarray]) -> list[Tensor]:
    return [Tensor(dtype_of_numpy(array.dtype), array.shape) for array in arrays]


def as_tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def function_of(tensors: Sequence[Tensor], body: Callable[[GraphBuilder, Sequence[SSAValue]], Any]) -> FuncOp:
    function = FuncOp.make("f", {f"x{i}": tensor for i, tensor in enumerate(tensors)})
    b = GraphBuilder(function.block)
    b.insert(ReturnOp.make(as_tuple(body(b, function.block.args))))
    function.verify()
    return function


def call_of(spec: OpSpec, tensors: Sequence[Tensor], sample: Sample) -> FuncOp:
    return function_of(tensors, lambda b, args: b.emit(spec.name, *args, **sample.params))


def close(actual: np.ndarray, expected: np.ndarray, ulps: float) -> None:
    """Within some ulps of the largest magnitude; NaN, infinities, integers and booleans are equal."""
    assert actual.shape == expected.shape
    if not dtype_of_numpy(actual.dtype).is_float:
        np.testing.assert_array_equal(actual, expected)
        return
    format_ = ml_dtypes.finfo(actual.dtype)
    a, e = actual.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(e)
    np.testing.assert_array_equal(a[~finite], e[~finite])
    largest = np.abs(e[finite]).max(initial=0)
    bound = ulps * max(float(format_.eps) * largest, float(format_.smallest_subnormal))
    np.testing.assert_allclose(a[finite], e[finite], rtol=0, atol=bound)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_op_is_complete(spec: OpSpec) -> None:
    assert spec.samples
    assert spec.cls.__doc__
    assert hasattr(spec.cls, "reference")


@pytest.mark.parametrize(("spec", "sample"), cases())
def test_type_rule_agrees_with_reference(spec: Any, sample: Sample) -> None:
    for dtype in sample.dtypes:
        arrays = drawn(sample, dtype)
        with np.errstate(all="ignore"):
            results = as_tuple(spec.cls.reference(*arrays, **sample.params))
        rule = as_tuple(spec.cls.infer(*types_of(arrays), **sample.params))
        assert types_of(results) == list(rule)


@pytest.mark.parametrize(("spec", "sample"), cases())
def test_reference_agrees_with_float64(spec: Any, sample: Sample) -> None:
    for dtype in sample.dtypes:
        arrays = drawn(sample, dtype)
        wide = [
            array.astype(np.float64) if source.dtype is None else array
            for array, source in zip(arrays, sample.inputs, strict=True)
        ]
        if not dtype.is_float or dtype == f64 or not takes(spec, wide, sample):
            continue
        results = as_tuple(spec.cls.reference(*arrays, **sample.params))
        expected = as_tuple(spec.cls.reference(*wide, **sample.params))
        for actual, oracle in zip(results, expected, strict=True):
            close(actual, oracle, ulps=4 if dtype.bits == 32 else 1)


@pytest.mark.parametrize(("spec", "sample"), cases())
def test_text_reads_back(spec: OpSpec, sample: Sample) -> None:
    module = module_of(call_of(spec, types_of(drawn(sample, sample.dtypes[0])), sample))
    again = parse_module(str(module))
    assert again.is_structurally_equivalent(module)
    assert str(again) == str(module)


def takes(spec: OpSpec, arrays: Sequence[np.ndarray], sample: Sample) -> bool:
    try:
        spec.cls.infer(*types_of(arrays), **sample.params)
    except DTypeError:
        return False
    return True


def differentiable(spec: OpSpec, sample: Sample) -> bool:
    arrays = drawn(sample, f64)
    if not any(dtype.is_float for dtype in sample.dtypes) or not takes(spec, arrays, sample):
        return False
    results = as_tuple(spec.cls.infer(*types_of(arrays), **sample.params))
    return any(t.dtype == f64 for t in results) and any(t.dtype == f64 for t in types_of(arrays))


@pytest.mark.parametrize(
    ("spec", "sample"), [c for c in cases(lambda spec: hasattr(spec.cls, "vjp")) if differentiable(*c.values)]
)
def test_gradient_agrees_with_finite_differences(spec: OpSpec, sample: Sample) -> None:
    rng = np.random.default_rng(5)
    arrays = drawn(sample, f64)
    function = call_of(spec, types_of(arrays), sample)
    derivative = vjp_function(function)
    derivative.verify()
    results = [tensor_of(value.type) for value in function.returned.operands]
    seeds = [rng.standard_normal(t.shape) for t in results if t.dtype == f64]  # type: ignore[arg-type]
    moving = [i for i, array in enumerate(arrays) if array.dtype == np.float64]
    gradients = run(derivative, [*arrays, *seeds])
    step = 1e-6
    for _ in range(2):
        direction = {i: rng.standard_normal(arrays[i].shape) for i in moving}
        above, below = (
            [r for r in run(function, moved(arrays, direction, sign * step)) if r.dtype == np.float64]
            for sign in (1, -1)
        )
        rises = [
            (np.where(a == b, 0, a) - np.where(a == b, 0, b)) * g for a, b, g in zip(above, below, seeds, strict=True)
        ]
        slope = sum(float(np.sum(rise)) for rise in rises) / (2 * step)
        parts = [direction[i] * gradient for i, gradient in zip(moving, gradients, strict=True)]
        scale = sum(float(np.sum(np.abs(part))) for part in parts)
        assert slope == pytest.approx(sum(float(np.sum(part)) for part in parts), abs=1e-6 * max(scale, 1e-2))


def moved(arrays: Sequence[np.ndarray], direction: dict[int, np.ndarray], step: float) -> list[np.ndarray]:
    return [array + step * direction[i] if i in direction else array for i, array in enumerate(arrays)]


def batchings(count: int) -> list[tuple[bool, ...]]:
    return [flags for flags in itertools.product((True, False), repeat=count) if any(flags)]


@pytest.mark.parametrize(("spec", "sample"), cases(lambda spec: hasattr(spec.cls, "batch")))
def test_batching_agrees_with_a_loop(spec: Any, sample: Sample) -> None:
    rng = np.random.default_rng(6)
    dtype, count = sample.dtypes[0], 3
    for batched in batchings(len(sample.inputs)):
        # An operand that is not batched is the same array in each call.
        calls = [[source.array(rng, dtype) for source in sample.inputs] for _ in range(count)]
        calls = [[x if flag else same for x, same, flag in zip(c, calls[0], batched, strict=True)] for c in calls]
        arrays = [np.stack(xs) if flag else xs[0] for xs, flag in zip(zip(*calls, strict=True), batched, strict=True)]
        function = function_of(
            types_of(arrays), lambda b, args, batched=batched: spec.cls.batch(b, tuple(args), batched, **sample.params)
        )
        single = call_of(spec, types_of(calls[0]), sample)
        results = run(function, arrays)
        assert [tensor_of(value.type) for value in function.returned.operands] == types_of(results)
        for actual, *expected in zip(results, *(run(single, call) for call in calls), strict=True):
            close(actual, np.stack(expected), ulps=4)
