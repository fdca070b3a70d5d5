"""The oracle of tangents: what torch forgets without a word is no zero."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from weft.testing.conformance.conformance import run_opinfo
from weft.testing.conformance.transform_cases import run_oracle


def test_tangents_that_torch_forgets_are_taken_from_differences() -> None:
    def function(x: torch.Tensor, *_: Any) -> torch.Tensor:
        return torch.scatter_reduce(x, 0, torch.tensor([0, 0, 1]), x * 2, "prod")

    x = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64, requires_grad=True)
    (tangent,) = run_oracle(function, (x, (), {}), lambda found: found, "forward")
    along = torch.randn(3, generator=torch.Generator().manual_seed(20), dtype=torch.float64)
    with torch.no_grad():
        moved = [function(x + step * along) for step in (1e-6, -1e-6)]
    torch.testing.assert_close(tangent, (moved[0] - moved[1]) / 2e-6, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_tangents_that_torch_forgets_are_not_judged_by_gradients(dtype: torch.dtype) -> None:
    def function(x: torch.Tensor, *_: Any) -> tuple[torch.Tensor, ...]:
        forgotten = torch.scatter_reduce(x, 0, torch.tensor([0, 0, 1]), x * 2, "prod")
        # The gradient of this flows to the places that are written, where its tangent flows to all others.
        return forgotten, torch.as_strided_scatter(x * 1, x[:1].sin(), (1,), (1,)), x.argmax()

    x = torch.tensor([1.0, 2.0, 3.0], dtype=dtype, requires_grad=True)
    _, written, place = run_oracle(function, (x, (), {}), lambda found: found, "forward")
    along = torch.randn(3, generator=torch.Generator().manual_seed(20), dtype=torch.float64).to(dtype)
    torch.testing.assert_close(written, torch.cat([x.detach().cos()[:1] * along[:1], along[1:]]))
    assert place.dtype == torch.int64
    assert place == 0


class _Square(torch.autograd.Function):
    """Whose gradient is not differentiated on, as those of torch's chunked losses."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x.detach())
        return x * x

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return (2 * x * grads[0]).detach()


def test_tangents_of_gradients_that_are_not_differentiated_on_are_taken_from_differences() -> None:
    def function(x: torch.Tensor, *_: Any) -> Any:
        return _Square.apply(x)

    x = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64, requires_grad=True)
    (tangent,) = run_oracle(function, (x, (), {}), lambda found: found, "forward-over-reverse")
    along, seed = (torch.randn(3, generator=torch.Generator().manual_seed(n), dtype=torch.float64) for n in (20, 21))
    torch.testing.assert_close(tangent, 2 * along * seed)


def test_where_reverse_mode_has_no_second_derivative_forward_mode_is_the_oracle() -> None:
    x = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    (tangent,) = run_oracle(torch.linalg.norm, (x, (), {}), lambda found: found, "forward-over-reverse")
    torch.testing.assert_close(tangent, torch.zeros(3, dtype=torch.float64))


@pytest.mark.parametrize(("strict", "refused"), [(False, []), (True, ["linalg_eigvals"])])
def test_what_torch_must_carry_out_under_a_transformation_is_refused_when_strict(
    strict: bool, refused: list[str]
) -> None:
    report = run_opinfo(
        "weft",
        ops=["linalg.eigvals", "sin"],
        dtypes=["float64"],
        samples=1,
        jobs=0,
        strict=strict,
        transform="vmap",
    )
    assert report.ok
    assert [case.op for case in report.having("refused")] == refused
    assert len(report.having("passed")) == 2 - len(refused)


def test_second_derivatives_that_torch_forgets_come_from_differences() -> None:
    class Forgetful(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.gradient = 3 * x.detach() ** 2
            return x**3

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
            return grads[0] * ctx.gradient

    x = torch.randn(5, dtype=torch.float64, requires_grad=True)
    forgotten, known, linear = (
        run_oracle(function, (x, (), {}), lambda found: found, "gradgrad")[1][0]
        for function in (Forgetful.apply, lambda x: x**3, lambda x: 2 * x)
    )
    torch.testing.assert_close(forgotten, known)
    assert not linear.any()
