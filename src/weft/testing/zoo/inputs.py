"""Inputs of a model, made from its forward's signature and its configuration."""

# Configurations have no types, and torch leaves some of its arguments without.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from weft.testing.zoo.shrink import VOCABULARY

BATCH, LENGTH = 2, 20
_LOWEST = 8


def input_choices(module: Any, seed: int) -> Iterator[dict[str, Tensor]]:
    """Inputs to try, what is usual first: a model takes what its forward's parameters are called."""
    parameters = inspect.signature(module.forward).parameters
    known = [name for name in _MAKERS if name in parameters]
    tried: list[list[str]] = []
    for wanted in _wanted(module, parameters):
        names = [name for name in dict.fromkeys(wanted) if name in known]
        if not names or names in tried:
            continue
        tried.append(names)
        generator = torch.Generator().manual_seed(seed)
        made = {name: _MAKERS[name](module, generator) for name in names}
        yield made
        for name in ("input_features", "input_values"):
            if name in made:  # some have time before frequency
                yield {**made, name: _audio_features(module, generator)}
        for name in ("hidden_states", "sample"):
            if name in made:  # latents of images, or of videos, or in a row
                yield {**made, name: made[name][:, :, None].repeat(1, 1, 2, 1, 1)}
                yield {**made, name: made[name].flatten(2).mT.contiguous()}


def _wanted(module: Any, parameters: Mapping[str, inspect.Parameter]) -> Iterator[list[str]]:
    """The names of inputs to try together."""
    required = [
        name
        for name, each in parameters.items()
        if each.default is inspect.Parameter.empty and each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    ]
    main: str | Sequence[str] | None = getattr(module, "main_input_name", None)
    if main is None:  # a model of diffusers
        minimal = ["sample", "hidden_states", "timestep", *required, "encoder_hidden_states"]
        yield minimal
    else:
        minimal = [*([main] if isinstance(main, str) else main), *required]
        if "input_ids" in minimal:
            yield [*minimal, "decoder_input_ids", "attention_mask"]
        yield [*minimal, "decoder_input_ids"]
        yield minimal
        yield ["input_ids", "pixel_values"]
        yield ["input_ids", "pixel_values", "decoder_input_ids"]
    yield list(parameters)


def _config(module: Any, *names: str, default: int) -> int:
    """The first of these fields that the configuration or a part of it has."""
    for config in _parts(module.config):
        for name in names:
            value = getattr(config, name, None)
            value = value[0] if isinstance(value, list | tuple) and value else value
            if isinstance(value, int) and not isinstance(value, bool):
                return value
    return default


def _parts(config: Any) -> Iterator[Any]:
    yield config
    for value in list(vars(config).values()):
        if hasattr(value, "to_dict") and hasattr(value, "model_type"):
            yield from _parts(value)


def _ids(module: Any, generator: torch.Generator) -> Tensor:
    high = min(_config(module, "vocab_size", "text_vocab_size", default=VOCABULARY), VOCABULARY)
    special = {value for config in _parts(module.config) for value in vars(config).values() if isinstance(value, int)}
    plain = [each for each in range(min(_LOWEST, high // 2), high) if each not in special or each < 64] or [0]
    chosen = torch.randint(0, len(plain), (BATCH, LENGTH), generator=generator)
    return torch.tensor(plain)[chosen]


def _mask(module: Any, generator: torch.Generator) -> Tensor:
    mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
    mask[-1, LENGTH - LENGTH // 4 :] = 0
    return mask


def _image(module: Any, generator: torch.Generator) -> Tensor:
    side = _config(module, "image_size", "img_size", "input_size", "resolution", default=64)
    channels = _config(module, "num_channels", "in_channels", "in_chans", default=3)
    return torch.randn(BATCH, channels, side, side, generator=generator)


def _wave(module: Any, generator: torch.Generator) -> Tensor:
    return torch.randn(BATCH, 2048, generator=generator)


def _features(module: Any, generator: torch.Generator) -> Tensor:
    bins = _config(module, "num_mel_bins", "feature_size", "input_feat_per_channel", "input_dim", default=80)
    length = 2 * _config(module, "max_source_positions", default=32)
    return torch.randn(BATCH, bins, min(length, 3000), generator=generator)


def _audio_features(module: Any, generator: torch.Generator) -> Tensor:
    return _features(module, generator).mT.contiguous()


def _boxes(module: Any, generator: torch.Generator) -> Tensor:
    corner = torch.randint(0, 40, (BATCH, LENGTH, 2), generator=generator)
    return torch.cat([corner, corner + torch.randint(1, 40, (BATCH, LENGTH, 2), generator=generator)], dim=-1)


def _video(module: Any, generator: torch.Generator) -> Tensor:
    image = _image(module, generator)
    frames = _config(module, "num_frames", "frames_per_clip", default=4)
    return torch.stack([image] * frames, dim=1)


def _latents(module: Any, generator: torch.Generator) -> Tensor:
    side = min(_config(module, "sample_size", default=16), 32)
    channels = _config(module, "in_channels", "latent_channels", default=4)
    return torch.randn(BATCH, channels, side, side, generator=generator)


def _times(module: Any, generator: torch.Generator) -> Tensor:
    return torch.randint(1, 900, (BATCH,), generator=generator)


def _conditions(module: Any, generator: torch.Generator) -> Tensor:
    names = ("cross_attention_dim", "joint_attention_dim", "caption_channels", "text_dim", "text_embed_dim")
    return torch.randn(BATCH, 7, _config(module, *names, default=64), generator=generator)


def _pooled(module: Any, generator: torch.Generator) -> Tensor:
    return torch.randn(BATCH, _config(module, "pooled_projection_dim", default=64), generator=generator)


_MAKERS: dict[str, Callable[[Any, torch.Generator], Tensor]] = {
    "input_ids": _ids,
    "attention_mask": _mask,
    "decoder_input_ids": _ids,
    "pixel_values": _image,
    "pixel_values_videos": _video,
    "input_values": _wave,
    "input_features": _features,
    "bbox": _boxes,
    "sample": _latents,
    "hidden_states": _latents,
    "timestep": _times,
    "encoder_hidden_states": _conditions,
    "pooled_projections": _pooled,
    "class_labels": _times,
}
