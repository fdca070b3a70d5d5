"""The references of scatter, index_put and update_slice agree with torch."""

from __future__ import annotations

import numpy as np
import pytest

import weft.ops  # noqa: F401  (fills the registry)
from weft.ops.base import REGISTRY

torch = pytest.importorskip("torch")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(3)


@pytest.mark.parametrize(("kind", "reduce"), [("add", "sum"), ("mul", "prod"), ("max", "amax"), ("min", "amin")])
@pytest.mark.parametrize("dim", [0, 1])
def test_scatter_is_torchs_scatter_reduce(rng: np.random.Generator, kind: str, reduce: str, dim: int) -> None:
    x, updates = rng.standard_normal((4, 5)), rng.standard_normal((4, 5))
    updates[1, 1] = np.nan
    index = rng.integers(0, x.shape[dim], (3, 4))
    source = torch.from_numpy(updates)
    expected = torch.from_numpy(x).scatter_reduce(dim, torch.from_numpy(index), source, reduce, include_self=True)
    actual = REGISTRY["scatter"].cls.reference(x, index, updates, dim=dim, kind=kind)
    np.testing.assert_allclose(actual, expected.numpy(), rtol=1e-12)


def test_scatter_assigns_as_torch_does(rng: np.random.Generator) -> None:
    x, updates = rng.standard_normal((4, 5)), rng.standard_normal((3, 5))
    index = np.stack([rng.permutation(4)[:3] for _ in range(5)], axis=1)
    expected = torch.from_numpy(x).scatter(0, torch.from_numpy(index), torch.from_numpy(updates)).numpy()
    actual = REGISTRY["scatter"].cls.reference(x, index, updates, dim=0, kind="assign")
    np.testing.assert_array_equal(actual, expected)


def test_the_last_of_several_assignments_stays() -> None:
    index, updates = np.array([1, 1, 1]), np.array([3.0, 4.0, 5.0])
    actual = REGISTRY["scatter"].cls.reference(np.zeros(2), index, updates, dim=0, kind="assign")
    np.testing.assert_array_equal(actual, [0, 5])


@pytest.mark.parametrize(("dims", "position", "shape"), [((1, 2), 1, (4, 3, 2)), ((0, 2), 0, (3, 2, 5))])
def test_index_put_accumulates_as_torch_does(
    rng: np.random.Generator, dims: tuple[int, ...], position: int, shape: tuple[int, ...]
) -> None:
    x, updates = rng.standard_normal((4, 5, 6)), rng.standard_normal(shape)
    indices = [rng.integers(-2, 2, (3, 2)), rng.integers(0, 2, (2,))]
    whole: list[object] = [None] * 3
    for d, index in zip(dims, indices, strict=True):
        whole[d] = torch.from_numpy(index)
    expected = torch.ops.aten.index_put(torch.from_numpy(x), whole, torch.from_numpy(updates), True).numpy()
    actual = REGISTRY["index_put"].cls.reference(x, *indices, updates, dims=dims, position=position, accumulate=True)
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


def test_update_slice_is_torchs_slice_scatter(rng: np.random.Generator) -> None:
    x, update = rng.standard_normal((8, 4)), rng.standard_normal((3, 4))
    expected = torch.slice_scatter(torch.from_numpy(x), torch.from_numpy(update), 0, 1, 7, 2).numpy()
    actual = REGISTRY["update_slice"].cls.reference(x, update, starts=(1, 0), steps=(2, 1))
    np.testing.assert_array_equal(actual, expected)
