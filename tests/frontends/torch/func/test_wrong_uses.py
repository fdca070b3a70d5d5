"""Wrong uses of `weft.func` are typed errors that name the line of the call, and say what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import weft
import weft.func as wf

X = torch.randn(3)


def square(x: Any) -> Any:
    return (x**2).sum()


def noisy(x: torch.Tensor) -> torch.Tensor:
    return torch.dropout(x, 0.5, True)


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "argnums of a string": (lambda: wf.grad(square, "x")(X), "argnums='x'"),
    "argnums of a float": (lambda: wf.grad(square, 1.0)(X), r"argnums=1\.0"),
    "argnums of None": (lambda: wf.hessian(square, None)(X), "argnums=None"),
    "no argnums": (lambda: wf.jacrev(square, ())(X), r"argnums=\(\)"),
    "argnums beyond": (lambda: wf.jacfwd(square, 5)(X), "argnums has 5"),
    "a string": (lambda: wf.grad(square)("abc"), "a leaf of str"),
    "an array": (lambda: wf.jacrev(square)(X.numpy()), "a leaf of ndarray"),
    "integers": (lambda: wf.grad(square)(torch.arange(3)), "int64"),
    "returns nothing": (lambda: wf.grad(lambda x: None)(X), "returns nothing"),
    "returns a float": (lambda: wf.jacfwd(lambda x: 3.0)(X), "returns a float"),
    "returns a string": (lambda: wf.jacrev(lambda x: ("a", x))(X), "returns a str"),
    "vjp of nothing": (lambda: wf.vjp(lambda x: None, X), "vjp of a function that returns nothing"),
    "jvp of a string": (lambda: wf.jvp(lambda x: "a", (X,), (X,)), "jvp of a function that returns a str"),
    "returns a tensor": (lambda: wf.grad(torch.sin)(X), "one number"),
    "no tangents": (lambda: wf.jvp(square, (X,), None), "tuple of tangents, got NoneType"),
    "a tangent": (lambda: wf.jvp(square, (X,), X), "tuple of tangents, got Tensor"),
    "tangents of another shape": (lambda: wf.jvp(square, (X,), (X[:2],)), "a tangent of"),
    "tangents of another type": (lambda: wf.jvp(square, (X,), (X.double(),)), "a tangent of"),
    "too many tangents": (lambda: wf.jvp(square, (X,), (X, X)), "another structure"),
    "axes of a float": (lambda: wf.vmap(square, 0.5)(X), r"in_axes has 0\.5"),
    "axes of a string": (lambda: wf.vmap(square, out_axes="a")(X), "out_axes has 'a'"),
    "axes of a set": (lambda: wf.vmap(square, in_dims={0})(X), "in_dims has {0}"),
    "axes of another structure": (lambda: wf.vmap(torch.add, (0,))(X, X), "does not match"),
    "a negative batch": (lambda: wf.vmap(square, None, axis_size=-1)(X), "size -1"),
    "a batch of a string": (lambda: wf.vmap(square, None, axis_size="a")(X), "size 'a'"),
    "names of a number": (lambda: wf.checkpoint(square, save=3), "save=3"),
    "a name of a number": (lambda: wf.checkpoint_name(X, 3), "3 is no name"),
    "autocast to a string": (lambda: wf.autocast(square, dtype="half"), "autocast to half"),
    "random tangents": (lambda: wf.jacfwd(noisy)(X), "draws random numbers"),
    "random second derivatives": (lambda: wf.hessian(lambda x: noisy(x).sum())(X), "draws random numbers"),
    "random batch inside": (lambda: wf.grad(lambda x: wf.vmap(noisy)(x).sum())(X), "random numbers under vmap"),
    "numbers of NumPy": (lambda: wf.grad(lambda x: torch.tensor(x.numpy()).sum())(X), "decides by its data"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_uses_are_typed_errors_with_a_line(name: str) -> None:
    call, message = WRONG[name]
    with pytest.raises(weft.WeftError, match=message) as error:
        call()
    assert "test_wrong_uses.py" in str(error.value) and error.value.hint


def test_ctc_loss_is_called_on_results() -> None:
    w, x = torch.randn(5, 5, requires_grad=True), torch.randn(6, 3, 5)
    labels = torch.randint(1, 5, (3, 2)), torch.tensor([6] * 3), torch.tensor([2] * 3)

    def loss(scores: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.ctc_loss(scores, *labels)

    def scores(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return (x @ w).log_softmax(-1)

    with pytest.raises(weft.UnsupportedError, match="ctc_loss") as error:
        wf.grad(lambda w: loss(scores(w, x)))(w)
    assert "on the result" in str(error.value)
    (found,) = torch.autograd.grad(loss(wf.vmap(scores, (None, 0))(w, x)), w)
    torch.testing.assert_close(found, torch.autograd.grad(loss(scores(w, x)), w)[0])


def test_what_hints_say_of_random_numbers_works() -> None:
    assert wf.jacfwd(noisy, randomness="same")(X).shape == (3, 3)
    assert wf.jacfwd(wf.jacrev(lambda x: noisy(x).square().sum()), randomness="same")(X).shape == (3, 3)
    with pytest.raises(weft.UnsupportedError) as error:
        wf.hessian(lambda x: noisy(x).sum())(X)
    assert error.value.hint is not None and 'jacfwd(jacrev(f), randomness="same")' in error.value.hint
