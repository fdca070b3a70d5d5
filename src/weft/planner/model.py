"""A model as its configuration says: layers by kind, exact counts of parameters, operations and cache.

Fields are read by what they mean in `transformers` configurations: one with `kv_lora_rank` has latent attention, one
with experts has experts, whatever family it is of. What no field says is in the table of families
(`planner/families.py`); a family that is not in it is counted as a plain decoder, and the plan says so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from weft.planner.errors import ModelError
from weft.planner.families import PLAIN, Family, family_of
from weft.planner.model_names import Named, entry_of


@dataclass(frozen=True)
class SelfAttention:
    """Softmax attention: grouped heads, or a latent cache with `latent` > 0."""

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    window: int = 0
    bias: bool = False
    output_bias: bool = False
    normed: bool = False
    """Whether queries and keys are normed."""
    qk_norm: int = 0
    """Weights of those norms: a head's each, or all heads'; none where they have no weights."""
    gate: bool = False
    sinks: bool = False
    query_rank: int = 0
    latent: int = 0
    rope_dim: int = 0
    index_heads: int = 0
    index_dim: int = 0
    index_top: int = 0


@dataclass(frozen=True)
class RecurrentAttention:
    """Gated linear attention: a state of key × value for each value head, and a short convolution."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    convolution: int


@dataclass(frozen=True)
class FeedForward:
    """A dense block, gated (three matrices) or not (two)."""

    width: int
    gated: bool = True
    bias: bool = False


@dataclass(frozen=True)
class ExpertBlock:
    """Routed experts, and shared ones that every token goes through."""

    experts: int
    per_token: int
    width: int
    shared: int = 0
    shared_gate: bool = False
    bias: bool = False
    router_bias: bool = False


@dataclass(frozen=True)
class Layer:
    """A layer of the decoder: how tokens mix, and what each goes through."""

    mixer: SelfAttention | RecurrentAttention
    block: FeedForward | ExpertBlock


@dataclass(frozen=True)
class Model:
    """A decoder: its layers by kind with how many there are, and the formats of its weights."""

    name: str
    hidden: int
    vocabulary: int
    layers: tuple[tuple[Layer, int], ...]
    tied: bool
    norms: int
    """Norms of the hidden size in a layer."""
    weights: str = "bf16"
    expert_weights: str = "bf16"
    converted: str = ""
    """The format that its weights are brought to, where that is not the checkpoint's own."""
    draft_layers: int = 0
    max_length: int = 0
    assumptions: tuple[str, ...] = ()
    """What was taken for granted because neither a field nor the model's family says it."""

    @property
    def depth(self) -> int:
        return sum(count for _, count in self.layers)

    @property
    def has_experts(self) -> bool:
        return any(isinstance(layer.block, ExpertBlock) for layer, _ in self.layers)

    def with_precision(self, precision: str) -> Model:
        """The model as a checkpoint in another format. Those of weights alone are the experts', where there are any."""
        dense = "bf16" if self.has_experts and precision in ("mxfp4", "int4") else precision
        converted = self.converted if precision in (self.weights, self.expert_weights) else precision
        return replace(self, weights=dense, expert_weights=precision, converted=converted)


@cache
def known_models() -> Mapping[str, Any]:
    """The configurations that come with Weft, by name in lower case."""
    text = (files("weft.planner") / "data" / "models.json").read_text(encoding="utf-8")
    return {name.lower(): each for name, each in json.loads(text)["models"].items()}


def find_model(name: str) -> Model:
    """A model from a configuration folder or file, or one of those that come with Weft, by name."""
    path = Path(name)
    if path.is_dir():
        path = path / "config.json"
    if path.is_file():
        try:
            given = json.loads(path.read_text(encoding="utf-8"))
        except (json.JSONDecodeError, UnicodeDecodeError, OSError) as error:
            raise ModelError(f"the configuration cannot be read: {error}", location=str(path)) from error
        return model_of(path.parent.name if path.name == "config.json" else path.stem, given, str(path))
    known = known_models()
    named = entry_of(name, known)
    if named is not None:
        return _catalogued(name, named)
    if path.suffix == ".json" or path.exists() or ("/" in name and not name.count("/") == 1):
        raise ModelError(f"there is no configuration {name}", hint="give a folder with config.json, or the file")
    names = ", ".join(sorted(key for key, entry in known.items() if not isinstance(entry, str)))
    raise ModelError(f"there is no model {name!r}", hint=f"give a folder with config.json, or one of {names}")


def _catalogued(name: str, named: Named) -> Model:
    """A model of the catalogue; what was read into its name is among its assumptions."""
    known = known_models()
    entry = known[named.entry]
    model = model_of(name, known[entry] if isinstance(entry, str) else entry, "models.json")
    if named.exact:
        return model
    told = f"{name!r}: the sizes of {named.entry}"
    if named.precision and not model.weights.startswith(named.precision) and model.expert_weights != named.precision:
        model = replace(model.with_precision(named.precision), converted="")  # a checkpoint of that name has them
        told += f", weights in {named.precision}"
    return replace(model, assumptions=(*model.assumptions, told))


_LARGEST = 10**9
"""What no size of a model reaches: products of a few of them stay finite."""
_DEEPEST = 10_000


class _Fields:
    """A configuration's fields; one that is missing or not a positive whole number is an error with its name."""

    def __init__(self, given: Mapping[str, Any], location: str) -> None:
        self.given = given
        self.location = location
        self.model_type = str(given.get("model_type") or "")
        known = family_of(self.model_type)
        self.family: Family = known or PLAIN
        self.assumptions: tuple[str, ...] = ()
        if known is None:
            named = f"unknown family {self.model_type[:80]!r}" if self.model_type else "no family (model_type)"
            self.assumptions = (f"{named}: counted as a plain decoder",)
        elif known.uncounted:
            self.assumptions = (f"family {self.model_type[:80]!r}: {known.uncounted} are not counted",)

    def has(self, *names: str) -> bool:
        return any(self.given.get(name) is not None for name in names)

    def number(self, *names: str, default: int | None = None) -> int:
        for name in names:
            value = self.given.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _LARGEST:
                raise ModelError(
                    f"field {name!r} has to be a whole number up to {_LARGEST:,}, not {str(value)[:40]!r}",
                    location=self.location,
                )
            return value
        if default is None:
            raise ModelError(f"the configuration has no field {names[0]!r}", location=self.location)
        return default

    def flag(self, name: str, default: bool = False) -> bool:
        return bool(self.given.get(name, default))

    def sequence(self, name: str) -> list[Any] | None:
        value = self.given.get(name)
        return list(value) if isinstance(value, (list, tuple)) else None  # pyright: ignore[reportUnknownArgumentType,reportUnknownVariableType]


def model_of(name: str, given: Any, location: str) -> Model:
    """A model from a configuration; of one with several parts, the part that makes text."""
    if not isinstance(given, dict):
        raise ModelError("a configuration is an object of fields", location=location)
    whole: dict[str, Any] = dict(given)  # pyright: ignore[reportUnknownArgumentType]
    text = whole.get("text_config")
    if isinstance(text, dict):
        whole = {**whole, **text}
    fields = _Fields(whole, location)
    hidden = fields.number("hidden_size", "n_embd", "d_model")
    depth = fields.number("num_hidden_layers", "n_layer", "num_layers")
    vocabulary = fields.number("vocab_size")
    if not depth or not hidden or not vocabulary:
        raise ModelError("a model has layers, a hidden size and a vocabulary", location=location)
    if depth > _DEEPEST:
        raise ModelError(f"field 'num_hidden_layers' is {depth}, above {_DEEPEST:,}", location=location)
    layers: dict[Layer, int] = {}
    for index in range(depth):
        layer = Layer(_mixer(fields, hidden, index, depth), _block(fields, hidden, index))
        layers[layer] = layers.get(layer, 0) + 1
    weights, experts = _formats(whole)
    return Model(
        name=name,
        hidden=hidden,
        vocabulary=vocabulary,
        layers=tuple(layers.items()),
        tied=fields.flag("tie_word_embeddings", fields.family.tied),
        norms=fields.family.norms,
        weights=weights,
        expert_weights=experts,
        draft_layers=fields.number("num_nextn_predict_layers", default=0),
        max_length=fields.number("max_position_embeddings", default=0),
        assumptions=fields.assumptions,
    )


def _formats(given: Mapping[str, Any]) -> tuple[str, str]:
    """The formats of weights in matmuls and in experts, from `quantization_config`."""
    found: Any = given.get("quantization_config")
    if not isinstance(found, dict):
        return "bf16", "bf16"
    config: dict[str, Any] = dict(found)  # pyright: ignore[reportUnknownArgumentType]
    method = str(config.get("quant_method", "")).lower()
    if method == "mxfp4":
        return "bf16", "mxfp4"
    if method == "fp8" or "fp8" in str(config.get("quant_algo", "")).lower():
        block = "fp8_block" if config.get("weight_block_size") else "fp8"
        return block, block
    if "nvfp4" in str(config.get("quant_algo", "")).lower():
        return "nvfp4", "nvfp4"
    if method in ("compressed-tensors", "gptq", "awq"):
        text = json.dumps(config)
        bits = 4 if '"num_bits": 4' in text or config.get("bits") == 4 else 8
        ignored = json.dumps(config.get("ignore") or [])
        routed_only = "self_attn" in ignored or "shared" in ignored
        return ("bf16" if routed_only else "int4", "int4") if bits == 4 else ("fp8", "fp8")
    return "bf16", "bf16"


def _mixer(fields: _Fields, hidden: int, index: int, depth: int) -> SelfAttention | RecurrentAttention:
    kinds = fields.sequence("layer_types")
    interval = fields.number("full_attention_interval", default=0)
    kind = str(kinds[index]) if kinds and index < len(kinds) else "full_attention"
    if not kinds and interval and fields.has("linear_num_value_heads"):
        kind = "full_attention" if (index + 1) % interval == 0 else "linear_attention"
    if kind == "linear_attention":
        return RecurrentAttention(
            fields.number("linear_num_key_heads"),
            fields.number("linear_num_value_heads"),
            fields.number("linear_key_head_dim"),
            fields.number("linear_value_head_dim"),
            fields.number("linear_conv_kernel_dim", default=4),
        )
    heads = fields.number("num_attention_heads", "n_head")
    if not heads:
        raise ModelError("field 'num_attention_heads' has to be positive", location=fields.location)
    if fields.has("kv_lora_rank"):
        nope, rope = fields.number("qk_nope_head_dim"), fields.number("qk_rope_head_dim")
        return SelfAttention(
            heads, heads, nope + rope, fields.number("v_head_dim"),
            query_rank=fields.number("q_lora_rank", default=0),
            latent=fields.number("kv_lora_rank"),
            rope_dim=rope,
            index_heads=fields.number("index_n_heads", default=0),
            index_dim=fields.number("index_head_dim", default=0),
            index_top=fields.number("index_topk", default=0),
        )  # fmt: skip
    head_dim = fields.number("head_dim", default=0) or hidden // heads
    kv_heads = fields.number("num_key_value_heads", "n_head_kv", default=heads)
    if not kv_heads:
        raise ModelError("field 'num_key_value_heads' has to be positive", location=fields.location)
    windowed = kind in ("sliding_attention", "chunked_attention")
    window = fields.number("sliding_window", "attention_chunk_size", default=0) if windowed else 0
    if not kinds and fields.has("sliding_window") and fields.flag("use_sliding_window", True):
        window = fields.number("sliding_window")
    family = fields.family
    stated = fields.flag("use_qk_norm")
    norm = family.qk_norm if family.always_normed or stated else ""
    if fields.given.get("qk_norm_type") == "per_layer":
        norm = "all heads"
    elif stated:
        norm = norm or "head"
    bias = fields.flag("attention_bias", family.bias)
    return SelfAttention(
        heads, kv_heads, head_dim, head_dim,
        window=window,
        bias=bias,
        output_bias=bias and family.output_bias,
        normed=bool(norm),
        qk_norm={"head": 2 * head_dim, "all heads": (heads + kv_heads) * head_dim}.get(norm, 0),
        gate=fields.flag("attn_output_gate", family.gate),
        sinks=family.sinks,
    )  # fmt: skip


def _block(fields: _Fields, hidden: int, index: int) -> FeedForward | ExpertBlock:
    experts = fields.number("num_experts", "num_local_experts", "n_routed_experts", default=0)
    first = fields.number("first_k_dense_replace", default=0)
    step = fields.number("decoder_sparse_step", "interleave_moe_layer_step", default=1) or 1
    dense = index < first or index in (fields.sequence("mlp_only_layers") or [])
    chosen = fields.sequence("mlp_layer_types")
    if chosen and index < len(chosen):
        dense = str(chosen[index]) == "dense"
    width = fields.number("intermediate_size", "n_inner", default=4 * hidden)
    if not experts or dense or (index + 1) % step:
        gated = str(fields.given.get("hidden_act", fields.given.get("activation_function", "silu"))).lower() in (
            "silu", "swish", "gelu_pytorch_tanh", "gelu_tanh", "swiglu",
        ) and fields.family.gated  # fmt: skip
        wide = fields.number("intermediate_size_mlp", default=width) if experts else width
        return FeedForward(wide, gated, fields.flag("mlp_bias"))
    narrow = fields.number("moe_intermediate_size", default=width)
    shared = fields.number("shared_expert_intermediate_size", default=0)
    shared = shared or fields.number("n_shared_experts", default=0) * narrow
    per_token = fields.number("num_experts_per_tok", "experts_per_token", "num_experts_per_token")
    if not 0 < per_token <= experts:
        raise ModelError(f"field 'num_experts_per_tok' is {per_token} of {experts} experts", location=fields.location)
    if fields.family.shared_expert:
        shared = width
    return ExpertBlock(
        experts,
        per_token,
        narrow,
        shared,
        shared_gate=fields.has("shared_expert_intermediate_size"),
        bias=fields.family.expert_biases,
        router_bias=fields.family.expert_biases,
    )
