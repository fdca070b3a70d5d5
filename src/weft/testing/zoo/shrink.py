"""Small configurations of model families, made from the fields of their config classes by what the fields are called.

    shrunk(LlamaConfig(), RECIPES[0])    # {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, ...}

Nothing here knows a family. Equal names get equal sizes throughout, so that parts which have to fit one another do; a
family whose parts do not fit under one recipe gets the next, which changes less.
"""

# Fields of a configuration have any type.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

VOCABULARY = 128
_NAMED_FIRST = ("pad", "bos", "eos", "unk")
_SPECIAL_FROM = 8
"""Token ids below this are the special ones; inputs are drawn from here on."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How far a configuration is reduced; `width` None leaves widths and heads as they are."""

    name: str
    width: int | None = 64
    heads: int = 4
    head_dim: int = 16
    layers: int = 2
    image: int = 64

    @property
    def inner(self) -> int:
        return 2 * (self.width or 0)


RECIPES = (
    Recipe("small"),
    Recipe("wider heads", head_dim=32),
    Recipe("shallow", width=None),
    Recipe("large image", image=224),
    Recipe("four layers", layers=4),
    Recipe("shallow, large image", width=None, image=224),
    Recipe("deep", width=None, layers=12),
)

_LAYER_COUNTS = ("num_hidden_layers", "num_layers", "n_layer")
MOST_KINDS = 4
"""Layers that are kept for the sake of their kinds, at most."""

_DROPS = re.compile(r"drop|(mask|apply)_\w+_prob$|^mask_(time|feature)_prob")
_LAYERS = re.compile(r"(layers|n_layer|num_layer|depth|num_blocks|n_blocks|num_stacks|repeat)$")
_TOKENS = re.compile(r"(token|image|audio|video|start|end|row|newline)_(id|index|idx|ids)$|_token$")
_VOCABULARY = re.compile(r"vocab(ulary)?_size(_\d+)?$")
_POSITIONS = re.compile(r"^(max_\w*positions?|max_\w*position_embeddings|n_positions|n_ctx|max_sequence_length)$")
_KEY_HEADS = re.compile(r"(kv|key_value|query_group)\w*(heads|groups)$|^num_kv|^n_kv")
_HEADS = re.compile(r"(^|_)(n_)?heads?$|num_\w*heads$|attention_heads$")
_HEAD_DIM = re.compile(r"(head_dim|head_size|headdim|d_kv|d_head|kv_channels|attention_key_size)$")
_INNER = re.compile(
    r"(intermediate_\w*size|ffn_\w*(dim|size)|ffn_inner|d_ff|n_inner|mlp_dim|feed_forward\w*size|ff_dim)$"
)
_WIDTH = re.compile(
    r"(hidden_size|hidden_dim|d_model|n_embd|embed_dim|embedding_size|embedding_dim|model_dim|proj\w*_dim)$"
)
_NARROW = re.compile(
    r"(hidden|embed|model|proj|latent|lru_width|rank|state)\w*(size|dim|width|rank)$|^dim$|_rank$|lru_width$"
)
_EXPERTS = re.compile(r"experts$")
_CHOSEN = re.compile(r"experts_per_tok(en)?$|(^|_)top_?k$|moe_k$")
_IMAGE = re.compile(r"^(image|img|input|sample)_size$|^(target|input)_image_size$|^resolution$")
_DEPTHS = re.compile(r"(depths|layers|blocks|layer_depths)$")
_ROTARY = re.compile(r"^(rotary_dim|rotary_ndims|rope_dim)$")
_GROUPS = re.compile(r"^(mamba_)?n_?groups$")
_WINDOW = re.compile(r"^(sliding_window|attention_window\w*|attention_chunk_size|(mamba_|ssm_)?chunk_size)$")


def shrunk(config: Any, recipe: Recipe) -> dict[str, Any]:
    """What to give the config's class instead of its defaults; parts that are configs are dictionaries."""
    ids = iter(range(VOCABULARY - 1, _SPECIAL_FROM, -1))
    return _changes(config, recipe, ids)


def _changes(config: Any, recipe: Recipe, ids: Iterator[int]) -> dict[str, Any]:
    values = {name: getattr(config, name, None) for name in _settable(config)}
    changes: dict[str, Any] = {}
    for name, value in values.items():
        if _is_config(value):
            changes[name] = {**_changes(value, recipe, ids), "model_type": getattr(value, "model_type", "")}
            continue
        found = _value(name, value, values, recipe, ids)
        if found is not None and found != value:
            changes[name] = found
    changes.update(_kinds_of_layers(values, recipe))
    return changes


def _value(name: str, value: Any, values: Mapping[str, Any], recipe: Recipe, ids: Iterator[int]) -> Any:
    """The value of a field in a small config; None where it stays."""
    match value:
        case bool():
            return False if name in ("use_cache", "apply_spec_augment") else None
        case float():
            return 0.0 if _DROPS.search(name) else None
        case int():
            return _whole(name, value, values, recipe, ids)
        case dict():
            return _rotation(value, recipe)
        case list() | tuple():
            return _listed(name, value, values, recipe, ids)
        case _:
            return None


def _whole(name: str, value: int, values: Mapping[str, Any], recipe: Recipe, ids: Iterator[int]) -> int | None:
    if _TOKENS.search(name):
        return _token(name, value, ids)
    if value <= 0:
        return None
    if _VOCABULARY.search(name):
        return min(value, VOCABULARY)
    if _LAYERS.search(name) and "feat" not in name:
        return min(value, recipe.layers)
    if _IMAGE.search(name):
        return min(value, 16) if name == "sample_size" else _side(value, values, recipe)  # of latents
    if _POSITIONS.search(name):
        return min(value, VOCABULARY)
    if _WINDOW.search(name):
        return min(value, 8)
    if _CHOSEN.search(name):
        return min(value, 2)
    if _EXPERTS.search(name):
        return min(value, 4)
    if name in ("n_group", "topk_group"):
        return 1
    if _GROUPS.search(name):
        return min(value, 2)
    if name == "codebook_size":
        return min(value, 64)
    return None if recipe.width is None or _is_hierarchical(values) else _width(name, value, values, recipe)


def _width(name: str, value: int, values: Mapping[str, Any], recipe: Recipe) -> int | None:
    width = recipe.width or 0
    if _KEY_HEADS.search(name):
        heads = next((v for n, v in values.items() if _HEADS.search(n) and isinstance(v, int)), 0)
        return recipe.heads if value >= heads else min(value, recipe.heads // 2)
    if _HEAD_DIM.search(name):
        return min(value, recipe.head_dim)
    if _ROTARY.search(name):
        return min(value, recipe.head_dim // 2)
    if _HEADS.search(name):
        return min(value, recipe.heads)
    if _INNER.search(name):
        return min(value, recipe.inner)
    if _WIDTH.search(name) or _NARROW.search(name):
        return min(value, width)
    return None


def _token(name: str, value: int, ids: Iterator[int]) -> int | None:
    if value < _SPECIAL_FROM:
        return None
    for position, start in enumerate(_NAMED_FIRST):
        if name.startswith(start):
            return position
    return value if value < VOCABULARY else next(ids)


def _side(value: int, values: Mapping[str, Any], recipe: Recipe) -> int:
    patch: Any = values.get("patch_size")
    patch = patch[0] if isinstance(patch, list | tuple) and patch else patch
    if not isinstance(patch, int) or patch <= 1 or _is_hierarchical(values):
        return min(value, recipe.image)
    return min(value, max(recipe.image // patch, 4) * patch)


def _listed(name: str, value: Sequence[Any], values: Mapping[str, Any], recipe: Recipe, ids: Iterator[int]) -> Any:
    if not value or not all(isinstance(each, int) and not isinstance(each, bool) for each in value):
        return None
    if _IMAGE.search(name):
        return [_side(each, values, recipe) for each in value]
    if _TOKENS.search(name):
        return [_token(name, each, ids) or each for each in value]
    if _DEPTHS.search(name) and "kernel" not in name:
        return [min(each, recipe.layers) for each in value]
    if name == "block_out_channels" and recipe.width is not None:
        return [recipe.width // 2, *[recipe.width] * (len(value) - 1)]  # group norms divide these by 32
    if name == "hidden_sizes" and recipe.width is not None and min(value) >= 2 * recipe.head_dim:
        divisor = 2 ** ((min(value) // recipe.head_dim).bit_length() - 1)
        return [each // divisor for each in value] if all(each % divisor == 0 for each in value) else None
    return None


def _rotation(value: dict[str, Any], recipe: Recipe) -> dict[str, Any] | None:
    """Rotary parameters whose sections fill half a head."""
    if recipe.width is None or not isinstance(value.get("mrope_section"), list | tuple):
        return None
    share = float(value.get("partial_rotary_factor", 1.0))
    half = int(recipe.head_dim * share) // 2
    first = half // 4
    return {**value, "mrope_section": [first, (half - first) // 2, half - first - (half - first) // 2]}


def _kinds_of_layers(values: Mapping[str, Any], recipe: Recipe) -> dict[str, Any]:
    """Lists that have an entry for each layer, cut so that every kind of layer is there."""
    count = next((name for name in _LAYER_COUNTS if isinstance(values.get(name), int)), None)
    if count is None:
        return {}
    lists: dict[str, Sequence[Any]] = {
        name: value
        for name, value in values.items()
        if isinstance(value, list | tuple) and _length(value) == values[count]
    }
    if not lists:
        return {}
    rows = list(zip(*lists.values(), strict=True))
    kinds = [row for position, row in enumerate(rows) if row not in rows[:position]][:MOST_KINDS]
    kept = kinds + rows[: max(recipe.layers - len(kinds), 0)]
    found = {name: [row[position] for row in kept] for position, name in enumerate(lists)}
    return {**found, count: len(kept)}


def _is_hierarchical(values: Mapping[str, Any]) -> bool:
    """Whether widths are given stage by stage: then they fit one another as they are."""
    names = ("depths", "hidden_sizes", "num_heads", "embed_dims", "num_attention_heads", "out_channels", "dims")
    return any(isinstance(values.get(name), list | tuple) for name in names)


def _length(value: Sequence[Any]) -> int:
    return len(value)


def _is_config(value: Any) -> bool:
    return hasattr(value, "to_dict") and hasattr(value, "model_type")


def _settable(config: Any) -> list[str]:
    """The names that the class takes."""
    if is_dataclass(config):
        return [each.name for each in fields(config) if each.init and not each.name.startswith("_")]
    return [name for name in vars(config) if not name.startswith("_")]
