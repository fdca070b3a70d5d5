"""Loops with a condition: gradients, and duals after a call without them, compiled and what turns written out give."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._higher_order_ops import while_loop
from torch.autograd import forward_ad

from weft.frontends.torch.transforms import control_functions
from weft.func import grad, jvp, vmap

W, Y = torch.randn(3, 3, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64)


def looped(w: Tensor, y: Tensor) -> Tensor:
    def turn(n: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return n + 1, x + 0.1 * torch.tanh(x @ w)

    return while_loop(lambda n, x: n < 4, turn, (torch.tensor(0), y))[1]


def written_out(w: Tensor, y: Tensor) -> Tensor:
    for _ in range(4):
        y = y + 0.1 * torch.tanh(y @ w)
    return y


def gradients(function: Any) -> tuple[Tensor, ...]:
    w, y = (each.clone().requires_grad_() for each in (W, Y))
    return torch.autograd.grad(function(w, y).pow(2).sum(), (w, y))


def test_gradients_of_what_is_carried_and_of_what_is_captured() -> None:
    torch.compiler.reset()
    compiled = torch.compile(looped, backend="weft", options={"fallback": "error"})
    torch.testing.assert_close(gradients(compiled), gradients(written_out))


def test_duals_of_what_was_compiled_without_them() -> None:
    torch.compiler.reset()
    compiled = torch.compile(written_out, backend="weft", options={"fallback": "error"})
    gradients(compiled)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(W.clone().requires_grad_(), W.cos())
        mine, eager = (forward_ad.unpack_dual(each(dual, Y)).tangent for each in (compiled, written_out))
    torch.testing.assert_close(mine, eager)


def square_root(a: Tensor) -> Tensor:
    """By Newton's method, as many turns as it takes."""

    def turn(x: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
        return (x + a / x) / 2, (x * x - a).abs()

    return while_loop(lambda x, error: error > 1e-10, turn, (a.clone(), torch.ones((), dtype=a.dtype)))[0]


def test_all_derivatives_of_a_batch_whose_loops_end_at_different_turns() -> None:
    numbers = torch.tensor([2.0, 9.0, 100.0], dtype=torch.float64)
    slopes = 0.5 / numbers.sqrt()
    torch.testing.assert_close(vmap(grad(square_root))(numbers), slopes)
    torch.testing.assert_close(jvp(vmap(square_root), (numbers,), (torch.ones_like(numbers),))[1], slopes)
    torch.testing.assert_close(vmap(grad(grad(square_root)))(numbers), -0.25 * numbers**-1.5)


def test_gradients_of_a_loop_and_products_with_its_hessian() -> None:
    losses = [lambda w, y, f=f: f(w, y).pow(2).sum() for f in (looped, written_out)]
    mine, wanted = grad(losses[0], (0, 1)), torch.func.grad(losses[1], (0, 1))
    torch.testing.assert_close(mine(W, Y), wanted(W, Y))
    along = (W.cos(), Y.sin())
    torch.testing.assert_close(jvp(mine, (W, Y), along)[1], torch.func.jvp(wanted, (W, Y), along)[1])


@contextmanager
def counted_turns() -> Generator[list[int]]:
    """How often bodies are run while torch traces."""
    count, own = [0], control_functions._own

    def counting(body: Any) -> Any:
        inner = own(body)

        def run(*given: Any) -> Any:
            count[0] += 1
            return inner(*given)

        return run

    with patch.object(control_functions, "_own", counting):
        yield count


def test_the_hessian_of_a_compiled_loop_traces_each_body_once() -> None:
    torch.compiler.reset()
    compiled = torch.compile(lambda y: looped(W, y).pow(2).sum(), backend="weft", options={"fallback": "error"})
    with counted_turns() as count:
        found = torch.func.hessian(compiled)(Y)
    torch.testing.assert_close(found, torch.func.hessian(lambda y: written_out(W, y).pow(2).sum())(Y))
    assert count[0] < 100, "a tangent of a gradient needs no loops inside of those of the gradient"
