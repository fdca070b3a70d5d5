"""No attribute makes a kernel leave its arrays: the type rule refuses it, or what is lowered stays inside."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from xdsl.ir import SSAValue

import weft.ops.dialect  # noqa: F401  fills the registry
from weft.backends.reference.tile import AccessError
from weft.errors import WeftError
from weft.ir.expr import product
from weft.ir.types import Tensor, dtype_of_numpy
from weft.ops.base import REGISTRY, OpSpec
from weft.ops.graph import GraphBuilder
from weft.testing.kernels import Trial, group_of, run_interpreted

# Made by a pass of numbers that it worked out: a graph from elsewhere may not have it.
_TRUSTING = {"tiled_dot"}
_SPECS = [spec for spec in REGISTRY if spec.name not in _TRUSTING and any(sample.params for sample in spec.samples)]
_MOST = 4096


def _odd(value: Any, chance: random.Random) -> Any:
    match value:
        case bool():
            return not value
        case int():
            return value + chance.choice((-3, -2, -1, 1, 2, 5)) if chance.random() < 0.5 else chance.randrange(-7, 18)
        case float():
            return chance.choice((-1.0, 0.3, 1e9, float("nan"), float("inf")))
        case tuple() if value:
            place = chance.randrange(len(value))
            return (*value[:place], _odd(value[place], chance), *value[place + 1 :])
        case _:
            return value


def _tried(spec: OpSpec, number: int, turn: int) -> None:
    chance = random.Random(f"{spec.name} {number} {turn}")
    sample = spec.samples[number]
    arrays = [source.array(np.random.default_rng(0), sample.dtypes[0]) for source in sample.inputs]
    for place, array in enumerate(arrays):
        if array.dtype in (np.int32, np.int64) and chance.random() < 0.5:  # indices, or what is taken for them
            arrays[place] = array * chance.choice((1000, -50, 7))
    params = {key: _odd(value, chance) if chance.random() < 0.5 else value for key, value in sample.params.items()}
    tensors = [Tensor(dtype_of_numpy(array.dtype), array.shape) for array in arrays]

    def body(b: GraphBuilder, *operands: SSAValue) -> Any:
        made = b.emit(spec.name, *operands, **params)
        (made if isinstance(made, SSAValue) else made[0]).owner.verify()  # type: ignore[union-attr]
        return made

    try:
        group = group_of(tensors, body)
        trial = Trial.of(group, spec.name)
        if all(product(output.shape) < _MOST for output in trial.outputs):  # type: ignore[operator]
            run_interpreted(trial, arrays)
    except AccessError as error:
        raise AssertionError(f"{spec.name} of {', '.join(map(str, tensors))} by {params}: {error}") from error
    except Exception as error:
        if type(error).__name__ not in _REFUSALS and not isinstance(error, WeftError):
            raise


_REFUSALS = {"VerifyException", "TypeError", "KeyError", "ValueError", "ZeroDivisionError", "OverflowError"}
"""What parsing an artifact's graph and compiling it turn into errors of Weft's own."""


@pytest.mark.parametrize("spec", _SPECS, ids=lambda spec: spec.name)
def test_odd_attributes_are_refused_or_read_nothing_foreign(spec: OpSpec) -> None:
    numbers = [n for n, sample in enumerate(spec.samples) if sample.params]
    for turn in range(6):
        _tried(spec, numbers[turn % len(numbers)], turn)


@pytest.mark.parametrize(
    ("name", "shape", "params"),
    [
        ("as_strided", (10,), {"shape": (4, 3), "strides": (3, -3), "offset": 1}),
        ("as_strided", (10,), {"shape": (2, 2), "strides": (100, -100), "offset": 0}),
        ("windows", (2, 5, 6, 4), {"window": (2, 3), "strides": (1, 4), "dilation": (-3, 1)}),
        ("sum_pool", (9,), {"window": (3,), "strides": (2,), "padding": ((0, 0),), "dilation": (-1,)}),
        ("max_pool", (9,), {"window": (3,), "strides": (0,), "padding": ((0, 0),), "dilation": (1,)}),
    ],
)
def test_steps_that_leave_the_operand_are_refused(name: str, shape: tuple[int, ...], params: dict[str, Any]) -> None:
    with pytest.raises(WeftError):
        REGISTRY[name].cls.infer(Tensor(dtype_of_numpy(np.dtype(np.float32)), shape), **params)
