"""Calls like an earlier one, which are not looked at again: what differs from it is still noticed."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

import weft
from weft.artifact.read import Model
from weft.errors import DTypeError, GuardError, ShapeError
from weft.testing.hostile_artifacts import layer_inputs, layer_source


def exact(x: np.ndarray) -> np.ndarray:
    weight, bias = (layer_source().weights[name].astype(np.float64) for name in ("w", "b"))
    return np.tanh(x.astype(np.float64) @ weight + np.exp(bias))


def check(model: Model, x: np.ndarray) -> None:
    np.testing.assert_allclose(model(x)[0], exact(x), rtol=0, atol=16 * float(np.finfo(np.float32).eps))


def test_other_sizes_and_strides_between_equal_calls(layer: Path) -> None:
    model = weft.load(layer)
    for rows in (3, 5, 3, 3, 0, 5, 1, 3):
        x = layer_inputs(rows)
        check(model, x)
        check(model, np.asfortranarray(x))
        check(model, np.repeat(x, 2, axis=0)[::2])
        check(model, x)


def test_memory_that_is_not_aligned(layer: Path) -> None:
    model, x = weft.load(layer), layer_inputs(4)
    check(model, x)
    shifted = np.zeros(x.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(x.shape)
    shifted[...] = x
    check(model, shifted)
    check(model, x)


def test_results_are_memory_of_their_own(layer: Path) -> None:
    model = weft.load(layer)
    first = model(layer_inputs(4))[0]
    kept = first.copy()
    model(np.zeros_like(layer_inputs(4)))
    np.testing.assert_array_equal(first, kept)


def test_wrong_arguments_after_right_ones(layer: Path) -> None:
    model, x = weft.load(layer), layer_inputs(4)
    for _ in range(2):
        check(model, x)
        with pytest.raises(DTypeError):
            model(x.astype(np.float64))
        with pytest.raises(DTypeError):
            model(x.astype(">f4"))
        with pytest.raises(ShapeError):
            model(x[:, :-1])
        with pytest.raises(GuardError):
            model(x, x)
        np.testing.assert_array_equal(model(**{model.inputs[0]: x})[0], model(x)[0])


def test_threads_have_tables_of_their_own(layer: Path) -> None:
    model, wrong = weft.load(layer, threads=1), list[Exception]()

    def run(rows: int) -> None:
        try:
            x = layer_inputs(rows)
            for _ in range(200):
                check(model, x)
        except Exception as error:
            wrong.append(error)

    running = [threading.Thread(target=run, args=(rows,)) for rows in (2, 2, 7, 7)]
    for each in running:
        each.start()
    for each in running:
        each.join()
    assert not wrong
