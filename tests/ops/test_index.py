"""The references of gather, take and index agree with torch."""

from __future__ import annotations

import numpy as np
import pytest

import weft.ops  # noqa: F401  (fills the registry)
from weft.ops.base import REGISTRY

torch = pytest.importorskip("torch")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(3)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_gather_is_torchs(rng: np.random.Generator, dim: int) -> None:
    x = rng.standard_normal((4, 5, 6))
    index = rng.integers(0, x.shape[dim], (3, 4, 5))
    expected = torch.gather(torch.from_numpy(x), dim, torch.from_numpy(index)).numpy()
    np.testing.assert_array_equal(REGISTRY["gather"].cls.reference(x, index, dim=dim), expected)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_take_is_torchs_index_select(rng: np.random.Generator, dim: int) -> None:
    x = rng.standard_normal((4, 5, 6))
    index = rng.integers(0, x.shape[dim], 7)
    expected = torch.index_select(torch.from_numpy(x), dim, torch.from_numpy(index)).numpy()
    np.testing.assert_array_equal(REGISTRY["take"].cls.reference(x, index, dim=dim), expected)


def test_take_is_torchs_embedding(rng: np.random.Generator) -> None:
    table, index = rng.standard_normal((10, 4)), rng.integers(0, 10, (2, 3))
    expected = torch.nn.functional.embedding(torch.from_numpy(index), torch.from_numpy(table)).numpy()
    np.testing.assert_array_equal(REGISTRY["take"].cls.reference(table, index, dim=0), expected)


@pytest.mark.parametrize(
    ("shapes", "dims", "position"),
    [
        ([(3,)], (1,), 1),
        ([(3, 2), (2,)], (1, 2), 1),
        ([(3, 1), (2,)], (0, 2), 0),
        ([(), (2,), (3, 1)], (1, 2, 3), 1),
        ([(4,), (4,), (4,), (4,)], (0, 1, 2, 3), 0),
    ],
)
def test_index_is_torchs(
    rng: np.random.Generator, shapes: list[tuple[int, ...]], dims: tuple[int, ...], position: int
) -> None:
    x = rng.standard_normal((4, 5, 6, 7))
    indices = [rng.integers(-x.shape[d], x.shape[d], shape) for d, shape in zip(dims, shapes, strict=True)]
    whole = [slice(None)] * 4
    for d, index in zip(dims, indices, strict=True):
        whole[d] = torch.from_numpy(np.asarray(index))
    expected = torch.from_numpy(x)[tuple(whole)].numpy()
    actual = REGISTRY["index"].cls.reference(x, *map(np.asarray, indices), dims=dims, position=position)
    np.testing.assert_array_equal(actual, expected)


def test_an_index_outside_gives_the_nearest_element() -> None:
    x, index = np.arange(3.0), np.array([-9, -4, -1, 2, 3, 9])
    expected = [0, 0, 2, 2, 2, 2]
    np.testing.assert_array_equal(REGISTRY["take"].cls.reference(x, index, dim=0), expected)
