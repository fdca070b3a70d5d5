"""Checks of transformations on the registry's samples: derivatives against finite differences, batches against loops.

Each check takes a function in float64, so that a transformation can be checked on what another has made of an op.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from xdsl.ir import SSAValue

from weft.backends.reference.graph import run
from weft.errors import DTypeError
from weft.ir.types import Tensor, dtype_of_numpy, f32, f64, tensor_of
from weft.ops.base import REGISTRY, OpSpec
from weft.ops.graph import FuncOp, GraphBuilder, ReturnOp
from weft.ops.samples import Sample
from weft.passes.differentiate import vjp_function
from weft.passes.transform.autocast import autocast_function
from weft.passes.transform.checkpoint import checkpoint_function
from weft.passes.transform.jvp import jvp_function
from weft.passes.transform.quantize import quantize_function
from weft.passes.transform.vmap import vmap_function

_STEP = 1e-6
_BATCH = 3
_JUMPS = frozenset({"round[5]", "dot[5]"})
"""Samples of integers and halves: as float64 they lie at jumps, or differences of them cancel."""
_AUTOCAST, _QUANTIZE = 1e-5, 0.05

Arrays = list[np.ndarray]
Drawn = tuple[FuncOp, Arrays]
"""A function and arguments for it."""


class DisagreementError(AssertionError):
    """A transformed function whose results are wrong."""


@dataclass(frozen=True)
class OpSample:
    """A sample of an op, in float64 where its element type is free."""

    spec: OpSpec
    number: int

    @property
    def name(self) -> str:
        return f"{self.spec.name}[{self.number}]"

    @property
    def sample(self) -> Sample:
        return self.spec.samples[self.number]

    def drawn(self) -> Drawn | None:
        """The op as a function, and arguments; None where it has none of float64."""
        rng = np.random.default_rng(7)
        arrays = [source.array(rng, f64) for source in self.sample.inputs]
        types = [Tensor(dtype_of_numpy(array.dtype), array.shape) for array in arrays]
        function = FuncOp.make(self.spec.name, {f"x{n}": each for n, each in enumerate(types)})
        b = GraphBuilder(function.block)
        try:
            found = b.emit(self.spec.name, *function.block.args, **self.sample.params)
        except DTypeError:
            return None
        results = cast("tuple[SSAValue, ...]", found if isinstance(found, tuple) else (found,))
        b.insert(ReturnOp.make(results))
        return function, arrays


def samples(at_most: int) -> list[OpSample]:
    """Samples of every op of the registry: the first ones, without empty tensors."""
    found: list[OpSample] = []
    for spec in REGISTRY:
        usable = [
            OpSample(spec, number)
            for number, sample in enumerate(spec.samples)
            if all(np.prod(source.shape) for source in sample.inputs) and f"{spec.name}[{number}]" not in _JUMPS
        ]
        found += usable[:at_most]
    return found


def _floats(values: Sequence[SSAValue]) -> list[int]:
    return [n for n, value in enumerate(values) if tensor_of(value.type).dtype == f64]


def is_differentiable(function: FuncOp) -> bool:
    """Whether there is something to differentiate: arguments and results of float64."""
    return bool(_floats(function.block.args)) and bool(_floats(function.returned.operands))


def _slope(function: FuncOp, arrays: Arrays, direction: dict[int, np.ndarray]) -> list[np.ndarray]:
    """The derivative of the results of float64 along a direction, by central differences of fourth order."""
    step = _STEP**0.75
    wanted = _floats(function.returned.operands)

    def at(distance: float) -> list[np.ndarray]:
        moved = [x + distance * direction[n] if n in direction else x for n, x in enumerate(arrays)]
        found = run(function, moved)
        return [found[n] for n in wanted]

    sides = [at(distance * step) for distance in (1, -1, 2, -2)]
    with np.errstate(invalid="ignore"):
        return [
            np.where((a == b) & (c == d), 0.0, (8 * (a - b) - (c - d)) / (12 * step))
            for a, b, c, d in zip(*sides, strict=True)
        ]


def _normal(rng: np.random.Generator, shape: Any) -> np.ndarray:
    return np.asarray(cast(Any, rng).standard_normal(shape))


def _close(actual: float, expected: float, scale: float, what: str) -> None:
    if np.isnan(actual) and np.isnan(expected):
        return  # powers of negative numbers have no derivative in the exponent
    if not abs(actual - expected) <= 1e-6 * max(scale, 1e-2):
        raise DisagreementError(f"{what}: {actual} instead of {expected}, of terms that sum up to {scale}")


def check_vjp(function: FuncOp, arrays: Arrays) -> Drawn:
    """Gradients against the slope along a direction."""
    rng = np.random.default_rng(8)
    made = vjp_function(function)
    made.verify()
    results = [tensor_of(function.returned.operands[n].type) for n in _floats(function.returned.operands)]
    seeds = [_normal(rng, tensor.shape) for tensor in results]
    gradients = run(made, [*arrays, *seeds])
    places = _floats(function.block.args)
    direction = {n: _normal(rng, arrays[n].shape) for n in places}
    slopes = _slope(function, arrays, direction)
    expected = sum(float(np.sum(slope * seed)) for slope, seed in zip(slopes, seeds, strict=True))
    parts = [direction[n] * gradient for n, gradient in zip(places, gradients, strict=True)]
    scale = sum(float(np.sum(np.abs(part))) for part in parts)
    _close(sum(float(np.sum(part)) for part in parts), expected, scale, "vjp")
    return made, [*arrays, *seeds]


def check_jvp(function: FuncOp, arrays: Arrays) -> Drawn:
    """Tangents of the results against their slope."""
    rng = np.random.default_rng(9)
    made = jvp_function(function)
    made.verify()
    direction = {n: _normal(rng, arrays[n].shape) for n in _floats(function.block.args)}
    given = [*arrays, *direction.values()]
    found = run(made, given)
    values, tangents = found[: len(function.returned.operands)], found[len(function.returned.operands) :]
    for value, expected in zip(values, run(function, arrays), strict=True):
        np.testing.assert_array_equal(value, expected)
    for tangent, slope in zip(tangents, _slope(function, arrays, direction), strict=True):
        weights = _normal(rng, tangent.shape)
        scale = float(np.sum(np.abs(tangent * weights)))
        _close(float(np.sum(tangent * weights)), float(np.sum(slope * weights)), scale, "jvp")
    return made, given


def check_vmap(function: FuncOp, arrays: Arrays, tolerance: float = 1e-9) -> Drawn:
    """A batch against a loop; of several arguments the second is shared. The batch stands last in odd arguments."""
    rng = np.random.default_rng(10)
    places = _floats(function.block.args) or list(range(len(arrays)))
    shared = places[1:2]
    axes = [None if n in shared or n not in places else -1 if n % 2 else 0 for n in range(len(arrays))]
    calls = [
        [x if axis is None or x.dtype != np.float64 else x * (1 + 0.01 * rng.random(x.shape)) for x, axis in pairs]
        for pairs in [list(zip(arrays, axes, strict=True))] * _BATCH
    ]
    made = vmap_function(function, _BATCH, axes, randomness="different")
    made.verify()
    stacked = [
        xs[0] if axis is None else np.stack(xs, axis=axis)
        for xs, axis in zip(zip(*calls, strict=True), axes, strict=True)
    ]
    for actual, *expected in zip(run(made, stacked), *(run(function, call) for call in calls), strict=True):
        np.testing.assert_allclose(actual, np.stack(expected), rtol=tolerance, atol=tolerance)
    return made, stacked


def check_checkpoint(function: FuncOp, arrays: Arrays) -> Drawn:
    """The same bits."""
    made = checkpoint_function(function)
    made.verify()
    for actual, expected in zip(run(made, arrays), run(function, arrays), strict=True):
        np.testing.assert_array_equal(actual, expected)
    return made, arrays


def check_autocast(function: FuncOp, arrays: Arrays) -> Drawn:
    """What f32 computes in the place of f64, to its digits."""
    made = autocast_function(function, f32, f64)
    made.verify()
    _near(run(made, arrays), run(function, arrays), _AUTOCAST, "autocast")
    return made, arrays


def check_quantize(function: FuncOp, arrays: Arrays) -> Drawn:
    """What integers of 8 bits compute, to theirs."""
    made = quantize_function(function)
    made.verify()
    _near(run(made, arrays), run(function, arrays), _QUANTIZE, "quantize")
    return made, arrays


def _near(actual: Arrays, expected: Arrays, tolerance: float, what: str) -> None:
    """Raise unless floats are near, by the norm of what is finite, and others equal."""
    for found, wanted in zip(actual, expected, strict=True):
        if found.dtype.kind != "f":
            np.testing.assert_array_equal(found, wanted)
            continue
        finite = np.isfinite(wanted)
        np.testing.assert_array_equal(np.isfinite(found), finite)
        distance = float(np.linalg.norm((found - wanted)[finite]))
        if distance > tolerance * max(float(np.linalg.norm(wanted[finite])), 1e-2):
            raise DisagreementError(f"{what}: results are {distance} away")


CHECKS: dict[str, Callable[[FuncOp, Arrays], Drawn]] = {
    "vjp": check_vjp,
    "jvp": check_jvp,
    "vmap": check_vmap,
    "checkpoint": check_checkpoint,
    "autocast": check_autocast,
    "quantize": check_quantize,
}
DERIVATIVES = ("vjp", "jvp")
INEXACT = {"autocast": _AUTOCAST, "quantize": _QUANTIZE}
"""Transformations that change values, and by how much."""


def check_pair(first: str, second: str, plain: Drawn, made: Drawn) -> None:
    """The second transformation of what the first has made of a plain function.

    Differences of functions with few digits say nothing of derivatives: these are compared with the plain function's.
    """
    function, arrays = made
    if first not in INEXACT:
        CHECKS[second](function, arrays)
    elif second == "vmap":
        check_vmap(function, arrays, 10 * INEXACT[first])
    elif second in DERIVATIVES:
        transform = vjp_function if second == "vjp" else jvp_function
        derived, expected = transform(function), transform(plain[0])
        derived.verify()
        rng = np.random.default_rng(11)
        types = [tensor_of(value.type) for value in list(expected.block.args)[len(arrays) :]]
        given = [*arrays, *(_normal(rng, each.shape) for each in types)]
        _near(run(derived, given), run(expected, given), INEXACT[first], f"{second} of {first}")
    else:
        CHECKS[second](function, arrays)
