"""What `weft fuzz` found, each as short as it became: results are eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor


def check(function: Callable[..., Any], *args: Tensor) -> None:
    torch.compiler.reset()
    found = torch.compile(function, backend="weft", options={"cache": False})(*(arg.clone() for arg in args))
    torch.testing.assert_close(found, function(*(arg.clone() for arg in args)))


def filled_row(x: Tensor) -> Tensor:
    x[-1].fill_(1)
    return x


@pytest.mark.parametrize(
    "function",
    [
        filled_row,
        torch.ones_like,
        lambda x: torch.full_like(x, 3),
        lambda x: x.new_full((2,), 1 + 2j),
        lambda x: x.index_fill(0, torch.tensor([0]), 1 + 2j),
        lambda x: torch.lerp(x, x * 2, 0.5),
        lambda x: x.fill_diagonal_(1),
    ],
    ids=["fill", "ones_like", "full_like", "new_full", "index_fill", "lerp", "fill_diagonal"],
)
def test_complex_numbers_are_filled_with_what_is_given(function: Callable[[Tensor], Tensor]) -> None:
    """`pin_memory=False` among the options was taken for the number."""
    check(function, torch.complex(torch.randn(3, 4), torch.randn(3, 4)))


def test_a_constant_that_is_spread_out_for_a_call_of_torch() -> None:
    """The call wants strides of 0; the constant lay densely, with its dimensions in another order."""

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        spread = torch.tensor([1.0, 2.0]).sin().expand(4, 2)
        number = torch.tensor([1 + 2j, 3 - 1j]).expand(1, 2)
        return torch.cdist(x, spread), torch.index_put(x + 0j, (torch.tensor([0]),), number)

    check(function, torch.randn(3, 2))


@pytest.mark.parametrize("count", [16, 48, 144])
@pytest.mark.parametrize("function", [torch.log1p, torch.nn.functional.elu, torch.asinh])
def test_signs_that_are_copied_by_wide_vectors(function: Callable[[Tensor], Tensor], count: int) -> None:
    """LLVM's AVX-512 instructions for a choice between bits were garbage, in the last 16 elements of bf16."""
    check(function, torch.randn(count).clamp(-0.9, 3).bfloat16())
    check(function, torch.randn(count).clamp(-0.9, 3))


def test_bits_that_are_put_together_and_chosen() -> None:
    def function(x: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        mixed = (x & 0x7FFF00FF) | (v & ~0x7FFF00FF)
        return torch.where(w > 0, v, mixed), torch.where(w > 0, mixed, v), torch.where(w > 0, mixed, x)

    for dtype in (torch.int32, torch.int64):
        check(function, *(torch.randint(-(2**31), 2**31, (67,)).to(dtype) for _ in range(3)))


def test_strides_of_an_argument_that_nothing_reads() -> None:
    """Tracing names the stride of a tensor that is another argument's base anew, and passes only the other's."""

    def function(x: Tensor, part: Tensor) -> Tensor:
        torch.atan2(x, x + 9)
        return part.narrow(-1, 0, 1)

    torch.compiler.reset()
    compiled = torch.compile(function, backend="weft", options={"fallback": "error", "cache": False})
    with torch.no_grad():
        for x in (torch.randn(4), torch.randn(9)[1::2].detach()):
            part = x[1:]
            torch.testing.assert_close(compiled(x, part), function(x, part))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: ((x - 1) / x.sum(1).view(0, 1)).sum(1),
        lambda x: (x + 1, x.amax(1, keepdim=True) * x, x.sum(0)),
        lambda x: (x / x.norm(dim=1, keepdim=True)).sum(1, keepdim=True).view(3, 0),
        lambda x: x[:, torch.zeros(0, dtype=torch.int64)].sum(1).view(0, 1).softmax(0),
    ],
    ids=["sums of quotients", "results", "norms", "places"],
)
def test_reductions_of_no_rows(function: Callable[[Tensor], Any]) -> None:
    """The place of a sum was lost where there is no row: its loop stood inside of another over the same columns."""
    torch.compiler.reset()
    x = torch.randn(0, 5)
    found = torch.compile(function, backend="weft", options={"cache": False, "fallback": "error"})(x)
    torch.testing.assert_close(found, function(x), check_stride=True)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, z: x + z,
        lambda x, z: (z - x, x * z, z / (x + 3)),
        lambda x, z: torch.where(x[0] > 0, x, z),
        lambda x, z: (x == z, torch.addcmul(z, x, z)),
    ],
    ids=["add", "arithmetic", "where", "compared"],
)
def test_real_tensors_that_complex_ones_are_spread_over(function: Callable[..., Any]) -> None:
    """The imaginary part of a real tensor was one 0, which did not spread the other's."""
    torch.compiler.reset()
    x, z = torch.randn(3, 5), torch.complex(torch.randn(5), torch.randn(5))
    found = torch.compile(function, backend="weft", options={"cache": False, "fallback": "error"})(x, z)
    torch.testing.assert_close(found, function(x, z))


@pytest.mark.parametrize("function", [torch.exp, torch.reciprocal, lambda z: (2 - 1j) / z], ids=["exp", "1/z", "c/z"])
def test_complex_numbers_without_end(function: Callable[[Tensor], Tensor]) -> None:
    """Divided by infinity or 0 they were not numbers, nor were exponentials of minus infinity and beyond f32."""
    ends = torch.tensor([0.0, -0.0, 1.0, -2.0, 1e9, float("inf"), -float("inf"), float("nan")])
    numbers = torch.complex(*(part.flatten() for part in torch.meshgrid(ends, ends, indexing="ij")))
    torch.compiler.reset()
    found, expected = torch.compile(function, backend="weft")(numbers), torch.stack([function(z) for z in numbers])
    torch.testing.assert_close(torch.view_as_real(found), torch.view_as_real(expected), equal_nan=True)
