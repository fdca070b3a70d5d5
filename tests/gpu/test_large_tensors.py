"""Tensors with more elements than 32 bits count: every kind of kernel reads and writes past them."""

from __future__ import annotations

import fcntl
import gc
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

COLUMNS = 1024
ROWS = (1 << 31) // COLUMNS + 3
FLAT = (1 << 31) + 1077
FAR = (1 << 31) + 5
AT_ONCE = 3
ENDS = (slice(0, 4), slice(ROWS // 2, ROWS // 2 + 4), slice(ROWS - 4, ROWS))


def compiled(function: Callable[..., Tensor], *args: Tensor) -> Tensor:
    torch.compiler.reset()
    return torch.compile(function, backend="weft", fullgraph=True, options={"cache": False})(*args)


@pytest.fixture(autouse=True)
def _one_of_few(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests that run beside each other share the GPU's memory: three of these at most, and they give it back."""
    number = zlib.crc32(request.node.name.encode()) % AT_ONCE
    with (Path(tempfile.gettempdir()) / f"weft-large-tensors-{number}").open("w") as slot:
        fcntl.flock(slot, fcntl.LOCK_EX)
        yield
        torch.compiler.reset()
        gc.collect()
        torch.cuda.empty_cache()


def some_rows() -> Tensor:
    return torch.randn(ROWS, COLUMNS, device="cuda", dtype=torch.bfloat16)


def some_bytes() -> Tensor:
    return torch.randint(-100, 100, (FLAT,), device="cuda", dtype=torch.int8)


def scaled(x: Tensor) -> Tensor:
    return x * 2 + 1


def over_rows(x: Tensor) -> Tensor:
    return F.softmax(x, dim=-1)


def sums_of_rows(x: Tensor) -> Tensor:
    return x.float().sum(-1)


def normalized(x: Tensor) -> Tensor:
    return F.layer_norm(x, (COLUMNS,))


def turned(x: Tensor) -> Tensor:
    """Each row backwards, in a result whose rows lie apart."""
    return F.pad(x.flip(-1), (1, 2))


@pytest.mark.parametrize("function", [scaled, over_rows, sums_of_rows, normalized, turned])
def test_rows(function: Callable[[Tensor], Tensor]) -> None:
    rows = some_rows()
    found = compiled(function, rows)
    for some in ENDS:
        torch.testing.assert_close(found[some], function(rows[some]))


def test_rows_that_lie_side_by_side() -> None:
    rows = some_rows()
    found = compiled(lambda x: x.t().contiguous(), rows)
    for some in ENDS:
        torch.testing.assert_close(found[:, some], rows[some].t(), rtol=0, atol=0)


def test_sums_over_all_rows() -> None:
    rows = some_rows()
    found = compiled(lambda x: x.float().sum(0), rows)
    exact = torch.stack([column.double().sum() for column in rows[:, :8].unbind(1)])
    # Partial sums grow as the root of how many numbers they have.
    torch.testing.assert_close(found[:8].double(), exact, rtol=0, atol=ROWS**0.5 * 1e-3)


def test_one_dimension() -> None:
    flat = some_bytes()
    found = compiled(lambda x: x // 3 + 1, flat)
    for some in (slice(0, 99), slice(FAR - 99, FAR + 99), slice(FLAT - 99, FLAT)):
        assert torch.equal(found[some], flat[some] // 3 + 1)


def test_the_sum_of_all() -> None:
    flat = some_bytes()
    assert compiled(lambda x: x.sum(), flat) == flat.sum()


def test_the_place_of_the_largest() -> None:
    flat = some_bytes()
    flat[FAR] = 127
    assert compiled(lambda x: x.argmax(), flat) == FAR


def test_elements_by_their_places() -> None:
    flat = some_bytes()
    places = torch.randint(FLAT, (1000,), device="cuda")
    places[:3] = torch.tensor([FAR, FLAT - 1, -1], device="cuda")
    assert torch.equal(compiled(lambda x, i: x[i] + 1, flat, places), flat[places] + 1)


def test_a_column_chosen_in_each_row() -> None:
    rows = some_rows()
    places = torch.randint(COLUMNS, (ROWS, 1), device="cuda")
    assert torch.equal(compiled(lambda x, i: x.gather(1, i), rows, places), rows.gather(1, places))


def test_elements_written_by_their_places() -> None:
    flat = some_bytes()
    places = torch.tensor([0, FAR, FLAT - 1], device="cuda")
    values = torch.tensor([1, 2, 3], device="cuda", dtype=torch.int8)
    found = compiled(lambda x, i, v: x.scatter(0, i, v), flat, places, values)
    assert torch.equal(found[places], values) and torch.equal(found[FAR + 1 : -1], flat[FAR + 1 : -1])


def test_a_view_that_begins_far_behind() -> None:
    flat = some_bytes()
    assert torch.equal(compiled(lambda x: x[FAR:] + x[: FLAT - FAR], flat), flat[FAR:] + flat[: FLAT - FAR])


def test_written_in_place() -> None:
    flat = some_bytes()

    def f(x: Tensor) -> Tensor:
        x[FAR:].add_(1)
        return x[FAR:]

    expected = flat[FAR:] + 1
    assert torch.equal(compiled(f, flat), expected) and torch.equal(flat[FAR:], expected)
