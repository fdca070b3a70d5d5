"""Every lowering rule that reads by index says the same as its op's reference, one element at a time."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import weft.ops  # noqa: F401  (fills the registry)
from weft.ir.expr import Size
from weft.ir.types import DType, Tensor, dtype_of_numpy
from weft.ops.base import REGISTRY, Movement, Reduction, Scatter
from weft.ops.numerics import NARROW
from weft.tile.functions import COMBINERS, FUNCTIONS


@dataclass
class Array:
    """An operand: a NumPy array."""

    array: np.ndarray

    @property
    def tensor(self) -> Tensor:
        return Tensor(dtype_of_numpy(self.array.dtype), self.array.shape)


@dataclass
class Scalar:
    """A value: one NumPy element."""

    array: np.ndarray

    @property
    def dtype(self) -> DType:
        return dtype_of_numpy(self.array.dtype)


class ScalarBody:
    """Carries a rule out at one index, where every index expression is a number."""

    def at(self, operand: Array, index: Sequence[Size], mask: Scalar | None = None, other: float = 0) -> Scalar:
        array = operand.array
        if mask is not None and not mask.array:
            return self.constant(other, operand.tensor.dtype)
        assert len(index) == array.ndim
        assert all(0 <= i < size for i, size in zip(index, array.shape, strict=True)), (index, array.shape)
        return Scalar(np.asarray(array[tuple(index)]))

    def constant(self, value: float, dtype: DType) -> Scalar:
        return Scalar(np.asarray(value).astype(dtype.numpy))

    def math(self, function: str, *values: Scalar) -> Scalar:
        FUNCTIONS[function].result_dtype(*(value.dtype for value in values))
        return Scalar(np.asarray(FUNCTIONS[function].numpy(*(value.array for value in values))))

    def cast(self, value: Scalar, dtype: DType) -> Scalar:
        return Scalar(np.asarray(FUNCTIONS["cast"].numpy(value.array, dtype.numpy)))

    def bitcast(self, value: Scalar, dtype: DType) -> Scalar:
        return Scalar(np.asarray(FUNCTIONS["bitcast"].numpy(value.array, dtype.numpy)))

    def rounded(self, value: Scalar, dtype: DType) -> Scalar:
        return value

    def where(self, condition: Scalar, yes: Scalar, no: Scalar) -> Scalar:
        assert yes.dtype == no.dtype
        return yes if condition.array else no

    def position(self, index: Size, dtype: DType) -> Scalar:
        return self.constant(index, dtype)

    def index(self, value: Scalar, size: Size) -> int:
        assert 0 <= int(value.array) < size, (value, size)
        return int(value.array)

    def inside(self, index: int, size: int) -> Scalar | None:
        return Scalar(np.asarray(0 <= index < size))

    def both(self, a: Scalar | None, b: Scalar | None) -> Scalar | None:
        if a is None or b is None:
            return b if a is None else a
        return Scalar(np.asarray(a.array & b.array))


def indices(shape: Sequence[Any]) -> itertools.product[tuple[int, ...]]:
    return itertools.product(*(range(size) for size in shape))


def pulled(cls: Any, operands: list[Array], result: Tensor, params: dict[str, Any]) -> np.ndarray:
    body = ScalarBody()
    out = np.zeros(result.shape, result.dtype.numpy)
    for index in indices(result.shape):
        value = cls.pull(body, index, *operands, **params)
        assert value.dtype == result.dtype
        out[index] = value.array
    return out


def reduced(cls: Any, operands: list[Array], result: Tensor, params: dict[str, Any]) -> np.ndarray:
    body = ScalarBody()
    combiner = COMBINERS[cls.KIND]
    ranges = cls.ranges(*(x.tensor for x in operands), **params)
    out = np.zeros(result.shape, result.dtype.numpy)
    for index in indices(result.shape):
        elements = [cls.element(body, index, over, *operands, **params) for over in indices(ranges)]
        if elements:
            dtype = combiner.accumulator(elements[0].dtype)
            value = Scalar(combiner.reduce(np.asarray([e.array for e in elements], dtype.numpy), 0))
        else:
            value = body.constant(combiner.identity(result.dtype), result.dtype)
        if hasattr(cls, "finish"):
            value = cls.finish(body, value, index, *operands, **params)
        out[index] = value.array.astype(result.dtype.numpy)
    return out


def scattered(cls: Any, operands: list[Array], result: Tensor, params: dict[str, Any]) -> np.ndarray:
    body = ScalarBody()
    kind = params.get("kind") or getattr(cls, "KIND", None) or ("add" if params["accumulate"] else "assign")
    function = {"assign": lambda old, new: new} | {name: FUNCTIONS[name].numpy for name in ("add", "mul", "max", "min")}
    out = operands[0].array.copy()
    if out.dtype in NARROW:  # combined in f32, rounded once
        out = out.astype(np.float32)
    for index in indices(cls.updates(*(x.tensor for x in operands), **params)):
        target = tuple(cls.target(body, index, *operands, **params))
        update = cls.update(body, index, *operands, **params).array.astype(out.dtype)
        out[target] = function[kind](out[target], update)
    return out.astype(result.dtype.numpy)


CASES = [
    pytest.param(spec, sample, dtype, id=f"{spec.name}-{number}-{dtype}")
    for spec in REGISTRY
    if issubclass(spec.cls, Movement | Reduction | Scatter)
    for number, sample in enumerate(spec.samples)
    for dtype in sample.dtypes
]


@pytest.mark.parametrize(("spec", "sample", "dtype"), CASES)
def test_rule_agrees_with_reference(spec: Any, sample: Any, dtype: DType) -> None:
    rng = np.random.default_rng(7)
    arrays = [source.array(rng, dtype) for source in sample.inputs]
    operands = [Array(array) for array in arrays]
    params = dict(sample.params)
    result = spec.cls.infer(*(x.tensor for x in operands), **params)
    expected = spec.cls.reference(*arrays, **params)
    assert expected.dtype == result.dtype.numpy
    assert expected.shape == result.shape
    evaluate = pulled if issubclass(spec.cls, Movement) else scattered if issubclass(spec.cls, Scatter) else reduced
    actual = evaluate(spec.cls, operands, result, params)
    if result.dtype.is_float:
        # Narrow floats may round the other way once; wider ones are summed in another order.
        epsilon = 2.0**-7 if result.dtype.bits < 32 else 2.0**-20
        np.testing.assert_allclose(actual.astype(float), expected.astype(float), rtol=epsilon, atol=epsilon)
    else:
        np.testing.assert_array_equal(actual, expected)
