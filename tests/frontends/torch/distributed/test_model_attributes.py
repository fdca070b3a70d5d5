"""Attributes of a model's modules are a part of what programs are kept by, and reach the copy that is traced."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from weft.errors import UnsupportedError
from weft.frontends.torch.distributed.model_attributes import AroundModel, ModelAttributes


class Settings:
    def __init__(self) -> None:
        self.power = 1.0


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = 1.0
        self.settings = Settings()
        self.options: dict[str, Any] = {"shifts": [1.0, 2.0]}
        self.offset = torch.tensor(1.0)
        self.linear = nn.Linear(4, 4)
        self.dropout = nn.Dropout(0.1)
        self.act: nn.Module = nn.ReLU()


def watched() -> tuple[Scaled, Scaled, ModelAttributes]:
    model = Scaled()
    traced = copy.deepcopy(model)
    return model, traced, ModelAttributes(model, traced)


def _set(name: str, value: Any) -> Callable[[Scaled], None]:
    return lambda model: setattr(model, name, value)


CHANGES: dict[str, Callable[[Scaled], Any]] = {
    "a number": _set("scale", 2.0),
    "a number of another kind": _set("scale", 1),
    "an object's": lambda model: setattr(model.settings, "power", 3.0),
    "in a list in a dictionary": lambda model: model.options["shifts"].__setitem__(1, 5.0),
    "one that was not there": _set("other", 1.0),
    "one that goes": lambda model: delattr(model, "scale"),
    "of a module below": lambda model: setattr(model.dropout, "p", 0.5),
    "a module": _set("act", nn.GELU()),
    "a tensor": _set("offset", torch.tensor(1.0)),
    "a tensor's element": lambda model: model.offset.add_(1.0),
    "a hook": lambda model: model.register_forward_hook(lambda *_: None),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_makes_another_state(change: Callable[[Scaled], Any]) -> None:
    model, _, attributes = watched()
    assert [attributes.state(), attributes.state()] == [0, 0]
    change(model)
    assert [attributes.state(), attributes.state()] == [1, 1]


def test_what_is_set_to_what_it_was_is_the_state_that_it_was() -> None:
    model, traced, attributes = watched()
    found: list[tuple[int, float]] = []
    for scale in (2.0, 1.0, float("2.0"), 3.0, 1.0):
        model.scale = scale
        found.append((attributes.state(), traced.scale))
    assert found == [(1, 2.0), (0, 1.0), (1, 2.0), (2, 3.0), (0, 1.0)]


def test_modes_and_tensors_of_modules_are_no_change() -> None:
    model, _, attributes = watched()
    model.eval()
    with torch.no_grad():
        model.linear.weight.add_(1.0)
    assert attributes.state() == 0


def test_the_traced_copy_has_what_the_model_has() -> None:
    model, traced, attributes = watched()
    weight, settings = traced.linear.weight, model.settings
    for change in CHANGES.values():
        change(model)
    attributes.state()
    assert not hasattr(traced, "scale")
    assert traced.settings.power == 3.0
    assert traced.settings is not settings
    assert traced.options == {"shifts": [1.0, 5.0]}
    assert traced.dropout.p == 0.5
    assert isinstance(traced.act, nn.GELU)
    assert traced.linear.weight is weight
    assert traced.offset is model.offset


def test_a_module_with_tensors_that_is_put_in_is_refused() -> None:
    model, _, attributes = watched()
    model.linear = nn.Linear(4, 4)
    for _ in range(2):
        with pytest.raises(UnsupportedError, match="with tensors took the place of 'linear'"):
            attributes.state()


def test_a_module_around_a_model_has_its_attributes() -> None:
    class Around(AroundModel):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.kept = 1
            self.model = model

    model = Scaled()
    around = Around(model)
    assert around.scale == 1.0
    around.scale, around.kept, around.new = 2.0, 3, 4
    assert (model.scale, around.kept, around.new) == (2.0, 3, 4)
    assert not hasattr(model, "kept")
    assert not hasattr(model, "new")
    with pytest.raises(AttributeError):
        _ = around.absent


def test_what_is_set_around_a_model_is_not_set_in_it() -> None:
    """Models have stages and attributes, too."""

    class Around(AroundModel):
        own = frozenset({"stages", "attributes"})

        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model
            self.stages = {"linear": (0,)}
            self.attributes = "its own"

    class Staged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stages = nn.Sequential(nn.Linear(2, 2))
            self.attributes = 3

    model = Staged()
    around = Around(model)
    assert around.stages == {"linear": (0,)} and around.attributes == "its own"
    assert isinstance(model.stages, nn.Sequential) and model.attributes == 3
