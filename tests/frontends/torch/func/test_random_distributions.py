"""Random numbers of other distributions under `weft.func`: of the call's seed, or refused."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import weft
from weft.errors import UnsupportedError

Function = Callable[[Tensor], Tensor]
DRAWN: dict[str, Function] = {
    "normal of numbers": lambda x: x + torch.normal(0.0, 1.0, (3,)),
    "normal of tensors": lambda x: torch.normal(x, x.abs() + 1),
    "normal of means": lambda x: torch.normal(x, 2.0),
    "normal of deviations": lambda x: torch.normal(0.0, x.abs() + 1),
    "cauchy": lambda x: x.clone().cauchy_(),
    "log normal": lambda x: x.clone().log_normal_(),
    "geometric": lambda x: x.clone().geometric_(0.05),
    "rrelu": lambda x: F.rrelu(x - 3, training=True),
}
RANGES = [
    *((-1, 2), (0, 1 << 14), (5, 5 + (1 << 30)), (-(1 << 45), 1 << 45)),
    *((-(1 << 62), 1 << 61), (-(1 << 63), (1 << 63) - 1)),
]
REFUSED: dict[str, Function] = {
    "poisson": lambda x: x + torch.poisson(torch.full((3,), 5.0)),
    "binomial": lambda x: torch.binomial(torch.full((3,), 9.0), x * 0 + 0.5),
    "gamma": lambda x: torch._standard_gamma(x.abs() + 2),
}


@pytest.mark.parametrize("function", DRAWN.values(), ids=DRAWN.keys())
def test_a_batch_has_the_numbers_that_it_is_told_to_have(function: Function) -> None:
    x = torch.zeros(2, 3)
    apart = weft.vmap(function, randomness="different")(x)
    alike = weft.vmap(function, randomness="same")(x)
    assert not torch.equal(apart[0], apart[1]) and torch.equal(alike[0], alike[1])
    with pytest.raises(UnsupportedError, match="random numbers under vmap"):
        weft.vmap(function)(x)


def test_what_is_computed_again_is_of_the_same_numbers() -> None:
    def noisy(x: Tensor) -> Tensor:
        return (x * torch.normal(0.0, 1.0, (3,)) * F.rrelu(-x, training=True)).sum()

    x = torch.ones(3)
    value, gradient = weft.func.value_and_grad(weft.func.checkpoint(noisy))(x)
    torch.testing.assert_close(gradient.sum(), 2 * value)  # it is of the second degree
    value, pull = weft.vjp(noisy, x)
    for _ in range(2):
        torch.testing.assert_close(pull(torch.tensor(1.0))[0].sum(), 2 * value)


@pytest.mark.parametrize("function", REFUSED.values(), ids=REFUSED.keys())
def test_numbers_that_no_seed_makes_are_refused_by_line(function: Function) -> None:
    with pytest.raises(UnsupportedError, match=r"Poisson, binomial, gamma or Dirichlet.*") as raised:
        weft.vmap(function, randomness="different")(torch.zeros(2, 3))
    assert "test_random_distributions.py" in str(raised.value) and "as an argument" in str(raised.value)


def test_distributions_are_theirs() -> None:
    torch.manual_seed(3)
    x = torch.zeros(200_000, 1)
    drawn = weft.vmap(lambda x: torch.normal(x + 3, 2.0), randomness="different")(x)
    assert abs(float(drawn.mean()) - 3) < 0.03 and abs(float(drawn.std()) - 2) < 0.03
    drawn = weft.vmap(lambda x: x.clone().geometric_(0.3), randomness="different")(x)
    assert abs(float(drawn.mean()) - 1 / 0.3) < 0.03 and float(drawn.min()) == 1
    drawn = weft.vmap(lambda x: x.clone().cauchy_(2.0, 3.0), randomness="different")(x)
    assert abs(float(drawn.median()) - 2) < 0.05 and abs(float(drawn.quantile(0.75)) - 5) < 0.1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_numbers_of_16_bits_are_below_one(dtype: torch.dtype) -> None:
    """Rounded to 16 bits, numbers just below 1 are 1, and what is exponentially distributed was infinite."""
    x = torch.zeros(2, 20_000, dtype=dtype)
    assert weft.vmap(torch.rand_like, randomness="different")(x).max() < 1
    waited = weft.vmap(lambda x: x.clone().exponential_(), randomness="different")(x)
    assert waited.dtype == dtype and waited.isfinite().all()
    assert abs(waited.double().mean() - 1) < 0.03 and (waited > 5.6).any()


def test_numbers_have_the_type_of_their_means() -> None:
    x = torch.zeros(2, 3)
    drawn = weft.vmap(lambda x: torch.normal(x, x.double() + 1), randomness="different")(x)
    assert drawn.dtype == torch.normal(x, x.double() + 1).dtype == torch.float32


@pytest.mark.parametrize("function", [lambda x: torch.normal(x, -1.0), lambda x: x + torch.normal(0.0, -1.0, (3,))])
def test_deviations_below_zero_are_refused_as_in_eager(function: Function) -> None:
    with pytest.raises(RuntimeError, match=r"normal expects std >= 0\.0, but found std -1"):
        weft.vmap(function, randomness="different")(torch.zeros(2, 3))


def test_doubles_and_large_integers_have_more_than_24_bits() -> None:
    def drawn(x: Tensor) -> tuple[Tensor, ...]:
        uniform, normal = torch.rand(5000, dtype=torch.float64), torch.randn(5000, dtype=torch.float64)
        integers = [torch.randint(low, high, (5000,)) for low, high in RANGES]
        return x, uniform, normal, *integers

    _, uniform, normal, *integers = weft.func.checkpoint(drawn)(torch.zeros(1))
    assert uniform.min() >= 0 and uniform.max() < 1 and abs(uniform.mean() - 0.5) < 0.03
    assert len((uniform * 2**24).frac().unique()) > 4900
    assert abs(normal.std() - 1) < 0.05 and len(normal.unique()) == 5000
    for (low, high), found in zip(RANGES, integers, strict=True):
        assert low <= int(found.min()) and int(found.max()) < high
        places = (found.double() - low) / (high - low)
        assert abs(places.mean() - 0.5 + 0.5 / (high - low)) < 0.03
        assert len((found & 0xFF).unique()) == min(high - low, 256)
        assert abs(((found & 1) == 1).double().mean() - (0.5 if high - low > 3 else 2 / 3)) < 0.03


def test_complex_numbers_have_both_parts() -> None:
    def drawn(x: Tensor) -> tuple[Tensor, ...]:
        return x, torch.randn(4000, dtype=torch.complex128), torch.rand(4000, dtype=torch.complex64)

    _, normal, uniform = weft.func.checkpoint(drawn)(torch.zeros(1))
    assert abs(normal.abs().square().mean() - 1) < 0.1 and abs(normal.imag.std() - math.sqrt(0.5)) < 0.05
    assert abs(uniform.imag.mean() - 0.5) < 0.03 and not torch.equal(uniform.real, uniform.imag)
