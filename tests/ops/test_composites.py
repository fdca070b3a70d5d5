"""The programs of `weft.ops.composites` agree with torch, at fixed and at symbolic sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import weft.ops  # noqa: F401  (fills the registry)
from weft.backends.reference.graph import run
from weft.ir.expr import symbol
from weft.ir.types import Tensor, dtype_of_numpy
from weft.ops import composites
from weft.ops.graph import FuncOp, GraphBuilder, ReturnOp

torch = pytest.importorskip("torch")
functional: Any = torch.nn.functional

CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "softmax": (lambda b, x, w, c: composites.softmax(b, x, 1), lambda x, w, c: x.softmax(1)),
    "log_softmax": (lambda b, x, w, c: composites.log_softmax(b, x, 2), lambda x, w, c: x.log_softmax(2)),
    "logsumexp": (
        lambda b, x, w, c: composites.logsumexp(b, x, (0, 2), keep=False),
        lambda x, w, c: x.logsumexp((0, 2)),
    ),
    "mean": (lambda b, x, w, c: composites.mean(b, x, (0, 2), keep=True), lambda x, w, c: x.mean((0, 2), keepdim=True)),
    "var": (
        lambda b, x, w, c: composites.var(b, x, (0, 2), keep=False, correction=1.5),
        lambda x, w, c: x.var((0, 2), correction=1.5),
    ),
    "std": (lambda b, x, w, c: composites.std(b, x, (1,), keep=False), lambda x, w, c: x.std(1)),
    "layer_norm": (
        lambda b, x, w, c: composites.layer_norm(b, x, w, w, (2,), 1e-5)[0],
        lambda x, w, c: functional.layer_norm(x, (8,), w, w),
    ),
    "layer_norm statistics": (
        lambda b, x, w, c: composites.layer_norm(b, x, None, None, (1, 2), 1e-5),
        lambda x, w, c: torch.native_layer_norm(x, (6, 8), None, None, 1e-5),
    ),
    "rms_norm": (
        lambda b, x, w, c: composites.rms_norm(b, x, w, (2,), 1e-5)[0],
        lambda x, w, c: functional.rms_norm(x, (8,), w, 1e-5),
    ),
    "group_norm": (
        lambda b, x, w, c: composites.group_norm(b, x, c, c, 3, 1e-5),
        lambda x, w, c: torch.native_group_norm(x, c, c, x.shape[0], 6, 8, 3, 1e-5),
    ),
    "batch_norm": (
        lambda b, x, w, c: composites.batch_norm(b, x, c, c, c, b.mul(c, c), 1e-5),
        lambda x, w, c: functional.batch_norm(x, c, c * c, c, c),
    ),
    "batch_norm_training": (
        lambda b, x, w, c: composites.batch_norm_training(b, x, c, None, 1e-5),
        lambda x, w, c: torch.native_batch_norm(x, c, None, None, None, True, 0.1, 1e-5),
    ),
}


def evaluated(build: Callable[..., Any], arrays: list[np.ndarray], rows: Any) -> list[np.ndarray]:
    shapes = [(rows, 6, 8), (8,), (6,)]
    arguments = {
        f"a{n}": Tensor(dtype_of_numpy(a.dtype), s) for n, (a, s) in enumerate(zip(arrays, shapes, strict=True))
    }
    function = FuncOp.make("main", arguments)
    results = build(GraphBuilder(function.block), *function.block.args)
    function.block.add_op(ReturnOp.make(results if isinstance(results, tuple) else [results]))
    function.verify()
    return run(function, arrays)


@pytest.mark.parametrize("rows", [5, symbol("s0")], ids=["fixed", "symbolic"])
@pytest.mark.parametrize("name", CASES)
def test_composite_is_torchs(name: str, rows: Any) -> None:
    rng = np.random.default_rng(3)
    arrays = [rng.standard_normal(shape) for shape in ((5, 6, 8), (8,), (6,))]
    build, of_torch = CASES[name]
    expected = of_torch(*map(torch.from_numpy, arrays))
    for actual, wanted in zip(
        evaluated(build, arrays, rows), expected if isinstance(expected, tuple) else (expected,), strict=True
    ):
        np.testing.assert_allclose(actual, wanted.numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "layer_norm", "rms_norm", "var"])
def test_narrow_floats_are_rounded_once(name: str) -> None:
    rng = np.random.default_rng(3)
    arrays = [rng.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in ((5, 6, 8), (8,), (6,))]
    wide = [array.astype(np.float64) for array in arrays]
    build, _ = CASES[name]
    (actual,), (exact,) = evaluated(build, arrays, 5), evaluated(build, wide, 5)
    np.testing.assert_allclose(actual.astype(np.float64), exact, rtol=2.0**-8, atol=1e-6)


def test_logsumexp_of_infinities() -> None:
    x = np.full((5, 6, 8), -np.inf)
    x[:, 1] = np.inf
    (actual,) = evaluated(CASES["logsumexp"][0], [x, np.zeros(8), np.zeros(6)], 5)
    np.testing.assert_array_equal(actual, torch.from_numpy(x).logsumexp((0, 2)).numpy())
