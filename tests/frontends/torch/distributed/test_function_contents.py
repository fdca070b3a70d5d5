"""A function is another one when anything that it reads is: attributes, elements, constants of modules."""

from __future__ import annotations

import functools
import itertools
import logging
from collections import UserDict
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from weft.frontends.torch.distributed.function_contents import Unknown, content_of

SETTINGS: dict[str, Any] = {"loss": {"alphas": [0.5, 1.0]}}
CONSTANTS = ModuleType("constants_of_a_run")
LOG = logging.getLogger("a run")


@dataclass
class Config:
    alpha: float = 1.0
    steps: int = 0


class Slotted:
    __slots__ = ("alpha", "steps")

    def __init__(self) -> None:
        self.alpha, self.steps = 1.0, 0


class Shared:
    alpha = 1.0
    steps = 0


class ByProperty:
    def __init__(self) -> None:
        self.inner, self.steps = Config(), 0

    @property
    def weight(self) -> float:
        return self.inner.alpha


class ByName:
    def __init__(self) -> None:
        self.held, self.steps = {"alpha": 1.0}, 0

    def __getattr__(self, name: str) -> float:
        return self.held[name]


class Scale:
    def __init__(self) -> None:
        self.alpha, self.steps = 1.0, 0

    def __mul__(self, other: Any) -> Any:
        return self.alpha * other


class Trainer:
    def __init__(self) -> None:
        self.config, self.model, self.steps = Config(), nn.Linear(2, 2), 0
        self.optimizer, self.batches, self.trainer = torch.optim.AdamW(self.model.parameters()), iter(range(3)), self

    def weighted(self, y: torch.Tensor) -> torch.Tensor:
        return self.trainer.config.alpha * y

    def loss(self, y: torch.Tensor) -> torch.Tensor:
        LOG.debug("a loss")
        return self.weighted(y).mean()


class LossModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.alpha, self.steps, self.inner = 1.0, 0, nn.Sequential(nn.Dropout(0.1))

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        return self.inner(y).mean() * self.alpha


def weight_of(config: Any) -> Any:
    return config.alpha


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapped(*args: Any) -> Any:
        return function(*args)

    return wrapped


def changed(obj: Any, name: str, value: Any) -> Callable[[], None]:
    return lambda: setattr(obj, name, value)


def cases() -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """A loss as it is written at every call, and what makes it another."""
    config, slotted, by_property, by_name, scale = Config(), Slotted(), ByProperty(), ByName(), Scale()
    trainer, module, space, user = Trainer(), LossModule(), SimpleNamespace(alpha=1.0), UserDict(alpha=1.0)
    long, deep, matrix = [float(n) for n in range(500)], [[[[[[[[[[1.0]]]]]]]]]], np.ones((3, 3))
    tensor, scheduler = torch.tensor(2.0), torch.optim.lr_scheduler.ExponentialLR(trainer.optimizer, 0.9)
    CONSTANTS.ALPHA = 1.0  # pyright: ignore[reportAttributeAccessIssue]
    of, wide = by_name.held, torch.ones(2, 3)

    def in_module() -> Any:
        return lambda y: CONSTANTS.ALPHA * y.mean()

    return {
        "attribute": (lambda: lambda y: config.alpha * y.mean(), changed(config, "alpha", 0.5)),
        "slot": (lambda: lambda y: slotted.alpha * y.mean(), changed(slotted, "alpha", 0.5)),
        "class": (lambda: lambda y: Shared.alpha * y.mean(), changed(Shared, "alpha", 0.5)),
        "property": (lambda: lambda y: by_property.weight * y, changed(by_property.inner, "alpha", 0.5)),
        "getattr": (lambda: lambda y: getattr(config, "alpha") * y, changed(config, "alpha", 0.25)),  # noqa: B009
        "custom getattr": (lambda: lambda y: by_name.alpha * y.mean(), lambda: of.update(alpha=0.5)),
        "operator": (lambda: lambda y: scale * y.mean(), changed(scale, "alpha", 0.5)),
        "comparison": (lambda: lambda y: y if config == Config() else -y, changed(config, "steps", 1)),
        "function": (lambda: lambda y: weight_of(config) * y.mean(), changed(config, "alpha", 0.125)),
        "decorated": (lambda: decorated(lambda y: config.alpha * y), changed(config, "alpha", 0.75)),
        "no_grad": (lambda: torch.no_grad()(lambda y: config.alpha * y), changed(config, "alpha", 0.875)),
        "method": (lambda: trainer.loss, changed(trainer.config, "alpha", 0.5)),
        "partial": (lambda: functools.partial(Trainer.loss, trainer), changed(trainer.config, "alpha", 0.25)),
        "module": (lambda: module, changed(module, "alpha", 0.5)),
        "submodule": (lambda: lambda y: module(y), changed(module.inner[0], "p", 0.5)),
        "namespace": (lambda: lambda y: space.alpha * y.mean(), changed(space, "alpha", 0.5)),
        "user dict": (lambda: lambda y: user["alpha"] * y.mean(), lambda: user.update(alpha=0.5)),
        "constant": (in_module, changed(CONSTANTS, "ALPHA", 0.5)),
        "long list": (lambda: lambda y: long[300] * y.mean(), lambda: long.__setitem__(300, 0.5)),
        "deep list": (lambda: lambda y: deep[0][0] * y.mean(), lambda: deep[0][0][0][0][0][0][0][0][0].append(2.0)),
        "global dict": (
            lambda: lambda y: SETTINGS["loss"]["alphas"][0] * y,
            lambda: SETTINGS["loss"]["alphas"].append(2.0),
        ),
        "array": (lambda: lambda y: y * float(matrix[0, 0]), lambda: matrix.fill(2.0)),
        "tensor": (lambda: lambda y: y * tensor, lambda: tensor.fill_(3.0)),
        "elements": (lambda: lambda y: y * wide.tolist()[0][0], lambda: wide.fill_(3.0)),
        "shape": (lambda: lambda y, shape=wide.shape: y.view(shape), lambda: None),
        "scheduler": (lambda: lambda y: y * scheduler.get_last_lr()[0], scheduler.step),
    }


@pytest.mark.parametrize("name", list(cases()))
@pytest.mark.filterwarnings("ignore:Detected call")
def test_a_function_is_another_when_what_it_reads_is(name: str) -> None:
    made, change = cases()[name]
    before = content_of(made())
    assert not isinstance(before, Unknown)
    assert content_of(made()) == before
    assert hash(content_of(made())) == hash(before)
    change()
    if name != "shape":
        assert content_of(made()) != before


@pytest.mark.parametrize(
    "thing", [Config(), Slotted(), ByProperty(), Trainer(), LossModule()], ids=lambda thing: type(thing).__name__
)
def test_what_no_loss_reads_does_not_count(thing: Any) -> None:
    function = thing.loss if isinstance(thing, Trainer) else lambda y: y if thing is None else thing.alpha * y
    before = content_of(function)
    thing.steps += 1
    assert content_of(function) == before


def test_tensors_that_programs_read_at_every_call_may_be_written_to() -> None:
    trainer, weights = Trainer(), torch.ones(3)
    function = lambda y: trainer.model(y) * weights  # noqa: E731
    before = content_of(function)
    weights.fill_(2.0)
    trainer.model(torch.ones(2)).sum().backward()
    trainer.optimizer.step()
    assert content_of(function) == before
    trainer.model.weight.requires_grad_(False)
    assert content_of(function) != before


@pytest.mark.parametrize(
    ("held", "why"),
    [
        (list(range(100_000)), "more than"),
        (itertools.count(), "iterator"),
        (np.zeros(100_000), "bytes"),
    ],
)
def test_what_cannot_be_compared_is_told(held: Any, why: str) -> None:
    found = content_of(lambda y: y * held)
    assert isinstance(found, Unknown)
    assert why in found.why
