"""`checkpoint`, `autocast` and `quantize` of torch functions, alone, nested and under derivatives."""

from __future__ import annotations

import pytest
import torch

import weft
from weft.frontends.torch.func.derivatives import Grad

torch.manual_seed(0)
W, X = torch.randn(6, 6) / 3, torch.randn(4, 6)


def layers(w, x):
    for _ in range(3):
        x = torch.tanh(x @ w)
    return x.pow(2).sum()


def copies(function, *args) -> str:
    program = Grad(function, 0, False, False).program(args, {})
    return str([op.name for op in program.function.block.ops if "weft.recomputed" in op.attributes])


def test_gradients_of_a_checkpointed_function_are_the_same() -> None:
    expected = torch.func.grad(layers)(W, X)
    for save in ((), "dots", ("dot", "tanh")):
        f = weft.func.checkpoint(layers, save=save)
        torch.testing.assert_close(weft.grad(f)(W, X), expected)
        assert ("graph.dot" in copies(f, W, X)) == (save == ())
    torch.testing.assert_close(weft.hessian(f)(W, X), torch.func.hessian(layers)(W, X), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(weft.func.checkpoint(layers)(W, X), layers(W, X))


def test_blocks_are_checkpointed_inside_of_a_function() -> None:
    @weft.func.checkpoint(save="half")
    def block(w, x):
        half = weft.func.checkpoint_name(torch.sin(x @ w), "half")
        return torch.tanh(half @ w)

    def f(w, x):
        return block(w, block(w, x)).exp().sum()

    def plain(w, x):
        for _ in range(2):
            x = torch.tanh(torch.sin(x @ w) @ w)
        return x.exp().sum()

    torch.testing.assert_close(weft.grad(f)(W, X), torch.func.grad(plain)(W, X))
    found = copies(f, W, X)
    assert found.count("graph.dot") == 4 and "graph.exp" not in found  # that is outside of the blocks
    assert "graph.sin" not in found  # it has a name, and is kept
    with pytest.raises(weft.WeftError, match="cannot keep whole"):
        weft.grad(lambda w: weft.func.checkpoint(layers, save="whole")(w, X))(W)


def test_a_compiled_function_and_autograd_take_checkpointed_ones() -> None:
    f = weft.func.checkpoint(layers)
    expected = torch.func.grad(layers)(W, X)
    w = W.clone().requires_grad_()
    torch.compile(lambda w: f(w, X) * 2, backend="weft")(w).backward()
    torch.testing.assert_close(w.grad, 2 * expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_mixed_precision_is_near_and_keeps_types(dtype) -> None:
    f = weft.func.autocast(layers, dtype=dtype)
    for found, expected in ((f(W, X), layers(W, X)), (weft.grad(f)(W, X), torch.func.grad(layers)(W, X))):
        assert found.dtype == torch.float32
        assert (found - expected).norm() < 0.02 * expected.norm()
        assert not torch.equal(found, expected)
    batch = weft.vmap(f, in_axes=(None, 0))(W, X[:, None])
    assert (batch - torch.stack([layers(W, x[None]) for x in X])).norm() < 0.02 * batch.norm()
    inside = weft.grad(lambda w: f(w, X))(W)  # captured by torch's own autocast
    assert (inside - torch.func.grad(layers)(W, X)).norm() < 0.02 * inside.norm()


def test_quantised_functions_train() -> None:
    f = weft.func.quantize(layers)
    for bits, bound in ((8, 0.03), (4, 0.5)):
        f = weft.func.quantize(layers, bits=bits)
        found, expected = weft.grad(f)(W, X), torch.func.grad(layers)(W, X)
        assert 0 < (found - expected).norm() < bound * expected.norm()
        inside = weft.grad(lambda w, f=f: f(w, X))(W)
        torch.testing.assert_close(inside, found, rtol=1e-3, atol=1e-4)
    for wrong in (0, 9, 2.5):
        with pytest.raises(weft.WeftError, match="integers of"):
            weft.func.quantize(layers, bits=wrong)
    with pytest.raises(weft.DTypeError):
        weft.func.autocast(layers, dtype=torch.int8)
    with pytest.raises(weft.DTypeError):
        weft.func.autocast(layers, dtype=torch.float64)


@pytest.mark.parametrize("first", [weft.func.checkpoint, weft.func.autocast, weft.func.quantize])
@pytest.mark.parametrize("second", [weft.func.checkpoint, weft.func.autocast, weft.func.quantize])
def test_they_compose_in_any_order(first, second) -> None:
    expected = torch.func.grad(layers)(W, X)
    found = weft.grad(second(first(layers)))(W, X)
    assert (found - expected).norm() < 0.05 * expected.norm()
    around = second(weft.grad(first(layers)))(W, X)
    assert (around - expected).norm() < 0.05 * expected.norm()


def test_a_named_value_in_an_inner_batch_is_no_loop_over_it() -> None:
    def loss(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        rows = torch.func.vmap(lambda row: weft.func.checkpoint_name(torch.tanh(row @ w), "hidden"))(x)
        return rows.sin().sum()

    w, x = torch.randn(4, 4), torch.randn(3, 4)
    torch._C._functorch._set_vmap_fallback_enabled(False)
    try:
        found = weft.grad(weft.func.checkpoint(loss, save="hidden"))(w, x)
    finally:
        torch._C._functorch._set_vmap_fallback_enabled(True)
    torch.testing.assert_close(found, torch.func.grad(lambda w: torch.tanh(x @ w).sin().sum())(w))
