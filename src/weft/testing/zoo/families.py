"""The families that the installed libraries have, and a small model of each that eager runs.

A family of transformers is a model type, one of diffusers a model class. `small_model` tries the heads of a family (a
language model's before the bare one) under each recipe of `shrink`, until one builds, is small, and runs.
"""

# transformers and diffusers have few types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from weft.errors import WeftError
from weft.testing.bench.benchmark import describe
from weft.testing.models import enlivened, seeded
from weft.testing.zoo import diffusion
from weft.testing.zoo.inputs import input_choices
from weft.testing.zoo.shrink import RECIPES, Recipe, shrunk

LARGEST = 40_000_000
"""Parameters above which a model is not small."""

_HEADS = (
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM",
    "MODEL_FOR_SPEECH_SEQ_2_SEQ",
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT",
    "MODEL_FOR_CAUSAL_LM",
    "MODEL_FOR_MASKED_LM",
    "MODEL_FOR_CTC",
    "MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION",
    "MODEL_FOR_IMAGE_CLASSIFICATION",
    "MODEL",
)


class NoConfigError(WeftError):
    """No small model of a family could be made that eager runs."""


@dataclass(frozen=True, slots=True)
class SmallModel:
    """A model that eager runs: the class, the recipe of its configuration, and which inputs of the choices it takes."""

    family: str
    kind: type[nn.Module]
    recipe: Recipe
    settings: dict[str, Any]
    choice: int

    def build(self, *, lively: bool = True) -> nn.Module:
        """The module with random weights, in eval mode, the same each time."""

        def make() -> nn.Module:
            module = _made(self)
            return enlivened(module) if lively else module

        return seeded(make)

    def inputs(self, module: nn.Module, seed: int) -> dict[str, Tensor]:
        return next(itertools.islice(input_choices(module, seed), self.choice, None))


def family_names() -> list[str]:
    """The model types of transformers that have a model, and the models of diffusers where it is installed."""
    if importlib.util.find_spec("transformers") is None:
        raise WeftError("transformers is not installed", hint="pip install transformers")
    return sorted({name for head in _HEADS for name in _names(head)}) + diffusion.family_names()


def small_model(family: str) -> SmallModel:
    """A model of a family that eager runs; an error that says what was tried where there is none."""
    reasons: dict[str, str] = {}
    for recipe in RECIPES:
        settings = _settings(family, recipe, reasons)
        for kind in _kinds(family) if settings is not None else ():
            model = SmallModel(family, kind, recipe, settings or {}, 0)
            try:
                module = _built(model)
            except Exception as error:  # the library's own checks are of any type
                reasons.setdefault(f"{kind.__name__} is not built", describe(error))
                continue
            choice = _choice(module, kind, reasons)
            if choice is not None:
                return replace(model, choice=choice)
    tried = "; ".join(f"{what}: {why}" for what, why in reasons.items())
    raise NoConfigError(tried or "no model class")


def _choice(module: nn.Module, kind: type[nn.Module], reasons: dict[str, str]) -> int | None:
    """Which of the inputs eager runs with."""
    try:
        for choice, inputs in enumerate(input_choices(module, 0)):
            try:
                _run(module, inputs)
            except Exception as error:
                reasons.setdefault(f"{kind.__name__} does not run", describe(error))
                continue
            return choice
    except Exception as error:  # a configuration in which a size is no number, say
        reasons.setdefault(f"{kind.__name__} has no inputs", describe(error))
    return None


def _settings(family: str, recipe: Recipe, reasons: dict[str, str]) -> dict[str, Any] | None:
    try:
        settings = shrunk(_config(family, {}), recipe)
        _config(family, settings)
    except Exception as error:
        reasons.setdefault("no config", describe(error))
        return None
    return settings


def _made(model: SmallModel) -> nn.Module:
    if model.family.startswith(diffusion.PREFIX):
        return model.kind(**model.settings)
    return model.kind(_config(model.family, model.settings))


def _config(family: str, settings: dict[str, Any]) -> Any:
    if family.startswith(diffusion.PREFIX):
        return diffusion.defaults_of(family)
    auto: Any = importlib.import_module("transformers.models.auto.configuration_auto")
    return auto.CONFIG_MAPPING[family](**settings)


def _kinds(family: str) -> Iterator[type[nn.Module]]:
    if family.startswith(diffusion.PREFIX):
        yield diffusion.kind_of(family)
        return
    library: Any = importlib.import_module("transformers")
    for head in _HEADS:
        names = _names(head).get(family, ())
        for name in (names,) if isinstance(names, str) else names:
            kind = getattr(library, name, None)
            if kind is not None:
                yield kind


def _names(head: str) -> Mapping[str, str | tuple[str, ...]]:
    """The class of each family with a head; versions of the library differ in the heads they know."""
    auto: Any = importlib.import_module("transformers.models.auto.modeling_auto")
    return getattr(auto, f"{head}_MAPPING_NAMES", {})


def _built(model: SmallModel) -> nn.Module:
    size = None
    with contextlib.suppress(Exception), torch.device("meta"):  # some look at values while they are built
        size = sum(each.numel() for each in _made(model).parameters())
    if size is not None and size > LARGEST:
        raise NoConfigError(f"{size / 1e6:.0f} million parameters under the recipe {model.recipe.name}")
    return model.build()


def _run(module: nn.Module, inputs: dict[str, Tensor]) -> None:
    with torch.no_grad():
        found = list(output_tensors(module(**inputs)).values())
    if not found:
        raise NoConfigError("no floating-point result")


def output_tensors(outputs: Any) -> dict[str, Tensor]:
    """The floating-point tensors of a result, by where they stand in it."""
    return {path: leaf for path, leaf in _leaves(outputs, "") if leaf.is_floating_point() and leaf.numel()}


def _leaves(outputs: Any, path: str) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a result; one that a library wraps in a class of its own is a mapping or a sequence too."""
    match outputs:
        case Tensor():
            yield path, outputs
        case Mapping():
            for name, value in outputs.items():
                yield from _leaves(value, f"{path}.{name}")
        case list() | tuple():
            for position, value in enumerate(outputs):
                yield from _leaves(value, f"{path}[{position}]")
        case _:
            return
