"""Paddings that wrap around and are written piece by piece become one movement."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import weft
from weft.ir.types import Tensor, f32
from weft.passes.simplify.eliminate_dead import EliminateDead
from weft.passes.simplify.simplify import Simplify

PASSES = (Simplify(), EliminateDead())


def copied(b: Any, x: Any, dim: int, target: int, source: int, count: int) -> Any:
    """`x` with elements of a dimension written to another place, too."""
    shape = b.tensor(x).shape
    starts, at = (tuple(place if d == dim else 0 for d in range(len(shape))) for place in (source, target))
    part = tuple(count if d == dim else size for d, size in enumerate(shape))
    update = b.slice(x, starts=starts, shape=part, steps=(1,) * len(shape))
    return b.update_slice(x, update, starts=at, steps=(1,) * len(shape))


def circular(b: Any, x: Any, low: tuple[int, ...], high: tuple[int, ...]) -> Any:
    """As torch pads: the middle first, then both ends of each dimension, the last one first."""
    x = b.pad(x, low=low, high=high, value=0.0)
    for dim in reversed(range(len(low))):
        size = b.tensor(x).shape[dim]
        if low[dim]:
            x = copied(b, x, dim, 0, size - high[dim] - low[dim], low[dim])
        if high[dim]:
            x = copied(b, x, dim, size - high[dim], low[dim], high[dim])
    return x


@pytest.mark.parametrize(
    ("shape", "low", "high"),
    [
        ((7,), (2,), (3,)),
        ((7,), (0,), (3,)),
        ((7,), (7,), (7,)),
        ((2, 5, 6), (0, 1, 3), (0, 2, 0)),
        ((3, 4), (1, 0), (0, 0)),
    ],
)
def test_padding_that_wraps_is_one_movement(
    passes: Any, shape: tuple[int, ...], low: tuple[int, ...], high: tuple[int, ...]
) -> None:
    passes.rewrites(
        PASSES,
        {"x": Tensor(f32, shape)},
        lambda b, x: circular(b, x, low, high),
        lambda b, x: b.pad_mode(x, low=low, high=high, mode="wrap"),
    )


@pytest.mark.parametrize(
    ("target", "source", "count"),
    [(0, 3, 2), (5, 2, 2), (0, 4, 6), (2, 0, 3)],
    ids=["not the end", "not the beginning", "more than the middle", "into the middle"],
)
def test_other_copies_within_a_tensor_stay(passes: Any, target: int, source: int, count: int) -> None:
    def body(b: Any, x: Any) -> Any:
        return copied(b, x, 0, target, source, count)

    passes.rewrites(PASSES, {"x": Tensor(f32, (10, 3))}, body, body)


@pytest.mark.parametrize(
    ("shape", "pads"),
    [
        ((2, 3, 7), (2, 3)),
        ((2, 3, 5, 6), (1, 2, 3, 4)),
        ((3, 4, 5, 6), (1, 2, 3, 4, 2, 1)),
        ((2, 3, 5, 6), (-1, 2, 3, -2)),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.complex64])
def test_circular_padding_is_eagers(shape: tuple[int, ...], pads: tuple[int, ...], dtype: torch.dtype) -> None:
    x = (torch.randn(shape) * 5).to(dtype)

    def pad(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(x, pads, mode="circular")

    compiled = torch.compile(pad, backend="weft", dynamic=False)
    torch.testing.assert_close(compiled(x), pad(x), rtol=0, atol=0)


def test_circular_padding_takes_no_temporaries() -> None:
    explained = weft.explain(
        lambda x: torch.nn.functional.pad(x, (1, 2, 3, 4), mode="circular"), torch.randn(2, 3, 8, 9)
    )
    assert "1 kernel, launched 1 time" in str(explained)


def summed(b: Any, first: Any, second: Any, *, value: float = 0.0) -> Any:
    """Two tensors of 3 x 4 beside each other, by zeros around each; the second one's sum comes first."""
    left = b.pad(first, low=(0, 0), high=(0, 4), value=value)
    return b.add(b.pad(second, low=(0, 4), high=(0, 0), value=0.0), left)


def test_halves_of_the_same_elements_are_put_side_by_side(passes: Any) -> None:
    def expected(b: Any, x: Any, g: Any) -> Any:
        halves = b.mul(x, g), b.neg(g)
        return b.concat(*(b.add(half, b.full_like(half, 0)) for half in halves), dim=1)

    passes.rewrites(
        PASSES,
        dict.fromkeys("xg", Tensor(f32, (3, 4))),
        lambda b, x, g: summed(b, b.mul(x, g), b.neg(g)),
        expected,
    )


def test_other_sums_of_padded_tensors_stay(passes: Any) -> None:
    for body in (
        lambda b, x, g: summed(b, b.exp(x), b.neg(g)),  # nothing is read twice
        lambda b, x, g: summed(b, b.mul(x, g), b.neg(g), value=1.0),
    ):
        passes.rewrites(PASSES, dict.fromkeys("xg", Tensor(f32, (3, 4))), body, body)


def test_the_gradient_of_a_gated_unit_has_the_bits_of_its_halves() -> None:
    def gated(x: torch.Tensor) -> torch.Tensor:
        return x[:, :4].neg() * x[:, 4:]

    x = torch.tensor([[0.0, -0.0, -1.0, 2.0, 3.0, -0.0, 4.0, -5.0]]).repeat(3, 1).requires_grad_()
    given = torch.tensor([-0.0, -1.0, 2.0, -3.0]).repeat(3, 1)
    found, expected = (
        torch.autograd.grad(run(x), x, given)[0] for run in (torch.compile(gated, backend="weft"), gated)
    )
    assert torch.equal(found.view(torch.int32), expected.view(torch.int32))
