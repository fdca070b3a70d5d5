"""A function that is transformed in each turn of a loop is traced once, while it reads what it read."""

from __future__ import annotations

import copy
import functools
import logging
import pickle

import pytest
import torch

import weft
import weft.func
from weft.diagnostics import forget

SCALE = 2.0
WEIGHT = torch.randn(3)


def loss(x: torch.Tensor) -> torch.Tensor:
    return (inner(x) * SCALE).sum()


def inner(x: torch.Tensor) -> torch.Tensor:
    return x.square() * WEIGHT


@pytest.mark.parametrize(
    "make",
    [
        weft.grad,
        weft.vmap,
        weft.hessian,
        weft.func.jacrev,
        weft.func.checkpoint,
        lambda f: weft.grad(f, (0,)),
        lambda f: weft.vmap(weft.grad(f), ([0], None), out_axes={"a": 1}),
    ],
)
def test_a_function_is_transformed_once(make) -> None:
    assert make(loss) is make(loss)
    assert make(inner) is not make(loss)


def test_options_tell_what_is_made_apart() -> None:
    assert weft.grad(loss) is not weft.grad(loss, (0,))
    assert weft.vmap(loss, 0) is not weft.vmap(loss, None)


def test_what_a_function_reads_may_be_another_in_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(3)
    for scale in (2.0, 3.0, -0.0, 0.0):
        monkeypatch.setitem(globals(), "SCALE", scale)
        monkeypatch.setitem(globals(), "WEIGHT", torch.randn(3))
        torch.testing.assert_close(weft.grad(loss)(x), 2 * x * WEIGHT * SCALE)
        torch.testing.assert_close(weft.vjp(loss, x)[0], loss(x))
        torch.testing.assert_close(weft.jvp(loss, (x,), (x,))[0], loss(x))
    monkeypatch.setitem(globals(), "inner", torch.sin)
    torch.testing.assert_close(weft.vjp(loss, x)[0], loss(x))


def test_closures_and_defaults_may_be_others() -> None:
    x, factor = torch.randn(3), 1.0

    def scaled(x: torch.Tensor, by: float = 2.0) -> torch.Tensor:
        return (x * factor * by).sum()

    for factor in (1.0, 4.0):
        torch.testing.assert_close(weft.grad(scaled)(x), torch.full_like(x, factor * 2))
    scaled.__defaults__ = (5.0,)
    torch.testing.assert_close(weft.grad(scaled)(x), torch.full_like(x, 20))


def test_numbers_that_python_reads_of_a_tensor_may_change() -> None:
    x, factor = torch.randn(3), torch.tensor(2.0)

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return (x * factor.item()).sum()

    for _ in range(2):
        torch.testing.assert_close(weft.grad(scaled)(x), factor.expand(3))
        factor += 1


def test_modules_are_kept_while_they_are_as_they_were() -> None:
    net, x = torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.Dropout(1.0)), torch.randn(3)
    assert weft.vmap(net) is weft.vmap(net)
    assert not weft.vjp(net, x)[0].any()
    net.eval()
    torch.testing.assert_close(weft.vjp(net, x)[0], net(x))
    net[0].weight = torch.nn.Parameter(torch.ones(1, 3))
    torch.testing.assert_close(weft.vjp(net, x)[0], net(x))
    again = pickle.loads(pickle.dumps(net))
    torch.testing.assert_close(weft.vjp(copy.deepcopy(again), x)[0], net(x))


def test_attributes_of_objects_are_read_anew() -> None:
    class Model:
        by = 2.0

        def loss(self, x: torch.Tensor) -> torch.Tensor:
            return (x * self.by).sum()

    model, x = Model(), torch.randn(3)
    for model.by in (1.0, 3.0):
        torch.testing.assert_close(weft.grad(model.loss)(x), torch.full_like(x, model.by))


def test_what_wraps_a_function_is_another() -> None:
    x = torch.randn(3)
    weft.vjp(loss, x)

    @functools.wraps(loss)
    def twice(x: torch.Tensor) -> torch.Tensor:
        return 2 * loss(x)

    torch.testing.assert_close(weft.vjp(twice, x)[0], 2 * loss(x))


def _told(caplog: pytest.LogCaptureFixture, run) -> list[str]:
    forget()
    with caplog.at_level(logging.WARNING, logger="weft.tracing"):
        run()
    return [each.getMessage() for each in caplog.records if each.name == "weft.tracing"]


def test_functions_that_are_made_in_a_loop_are_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    def run() -> None:
        for _ in range(20):
            weft.grad(lambda x: x.square().sum())(torch.ones(2))

    (told,) = _told(caplog, run)
    assert "test_kept_transforms.py" in told and "outside of the loop" in told


def test_numbers_that_change_are_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    gradient = weft.grad(lambda x, n: (x * n).sum())
    (told,) = _told(caplog, lambda: [gradient(torch.ones(2), n) for n in range(20)] and None)
    assert "new numbers of Python" in told and "torch.tensor(n)" in told


def test_sizes_that_change_are_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    gradient = weft.grad(lambda x: x.sum())
    (told,) = _told(caplog, lambda: [gradient(torch.ones(n)) for n in range(1, 20)] and None)
    assert "new sizes" in told


def test_both_names_of_an_option_of_vmap_are_refused() -> None:
    for options in ({"in_axes": 0, "in_dims": 0}, {"out_axes": 1, "out_dims": 0}, {"in_axes": (0, None), "in_dims": 1}):
        with pytest.raises(weft.WeftError, match=r"is given (in|out)_axes=") as error:
            weft.vmap(torch.add, **options)
        assert "test_kept_transforms.py" in str(error.value)
