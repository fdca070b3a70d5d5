"""The references of sort and topk, and of the reductions and scans that order elements, agree with torch."""

from __future__ import annotations

import numpy as np
import pytest

import weft.ops  # noqa: F401  (fills the registry)
from weft.ops.base import REGISTRY

torch = pytest.importorskip("torch")


def tied(shape: tuple[int, ...]) -> np.ndarray:
    """An array with equal elements, infinities and NaN."""
    rng = np.random.default_rng(3)
    x = rng.integers(-3, 3, shape).astype(np.float64)
    x[rng.random(shape) < 0.1] = np.nan
    x[rng.random(shape) < 0.1] = -np.inf
    return x


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dim", [0, 1])
def test_sort_is_torchs(dim: int, descending: bool) -> None:
    x = tied((12, 17))
    values, places = REGISTRY["sort"].cls.reference(x, dim=dim, descending=descending, stable=True)
    expected = torch.sort(torch.from_numpy(x), dim=dim, descending=descending, stable=True)
    np.testing.assert_array_equal(values, expected.values.numpy())
    np.testing.assert_array_equal(places, expected.indices.numpy())


@pytest.mark.parametrize("largest", [False, True])
def test_topk_is_torchs(largest: bool) -> None:
    x = tied((12, 17))
    values, places = REGISTRY["topk"].cls.reference(x, k=6, dim=1, largest=largest, sorted=True)
    np.testing.assert_array_equal(values, torch.topk(torch.from_numpy(x), 6, 1, largest).values.numpy())
    np.testing.assert_array_equal(np.take_along_axis(x, places, 1), values)


@pytest.mark.parametrize(("name", "of_torch"), [("max", "amax"), ("min", "amin")])
def test_a_nan_is_the_extremum(name: str, of_torch: str) -> None:
    x = tied((12, 17))
    expected = getattr(torch, of_torch)(torch.from_numpy(x), 1).numpy()
    np.testing.assert_array_equal(REGISTRY[name].cls.reference(x, dims=(1,), keep=False), expected)


@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_the_first_extremum_is_found(name: str) -> None:
    x = tied((12, 17))
    reference = REGISTRY[name].cls.reference
    of_torch = getattr(torch, name)
    for dim in (0, 1):
        actual = reference(x, dims=(dim,), keep=True)
        np.testing.assert_array_equal(actual, of_torch(torch.from_numpy(x), dim, keepdim=True).numpy())
    np.testing.assert_array_equal(reference(x, dims=(0, 1), keep=False), of_torch(torch.from_numpy(x)).numpy())


@pytest.mark.parametrize("name", ["cummax", "cummin"])
def test_running_extrema_are_torchs(name: str) -> None:
    x = tied((6, 40))
    values, places = REGISTRY[name].cls.reference(x, dim=1)
    expected = getattr(torch, name)(torch.from_numpy(x), 1)
    np.testing.assert_array_equal(values, expected.values.numpy())
    np.testing.assert_array_equal(places, expected.indices.numpy())


def test_logcumsumexp_is_torchs() -> None:
    x = np.random.default_rng(3).uniform(-900, 900, (4, 30))
    x[0, :3] = -np.inf
    expected = torch.logcumsumexp(torch.from_numpy(x), 1).numpy()
    np.testing.assert_allclose(REGISTRY["logcumsumexp"].cls.reference(x, dim=1), expected, rtol=1e-12)
