"""The models of diffusers as families of the zoo: a class is a family, its defaults are the configuration."""

# diffusers has few types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import importlib
import importlib.util
import inspect
from types import SimpleNamespace
from typing import Any

from torch import nn

PREFIX = "diffusers."
CHANNELS = 32
"""Of a stage: what most group norms divide."""


def family_names() -> list[str]:
    """The model classes of diffusers, in alphabetical order; none where it is not installed."""
    if importlib.util.find_spec("diffusers") is None:
        return []
    models: Any = importlib.import_module("diffusers.models")
    kinds = {name: getattr(models, name, None) for name in dir(models)}
    return sorted(
        PREFIX + name
        for name, kind in kinds.items()
        if isinstance(kind, type) and issubclass(kind, models.ModelMixin) and kind is not models.ModelMixin
    )


def kind_of(family: str) -> type[nn.Module]:
    """The class of a family."""
    return getattr(importlib.import_module("diffusers.models"), family.removeprefix(PREFIX))


def defaults_of(family: str) -> SimpleNamespace:
    """The arguments of a family's class that have defaults."""
    parameters = inspect.signature(kind_of(family)).parameters.values()
    given = {each.name: each.default for each in parameters if each.default is not inspect.Parameter.empty}
    return SimpleNamespace(**given)
