"""A mapping: how a replica's ranks share a model, and the per-rank program that follows from its configuration."""

from __future__ import annotations

from dataclasses import dataclass, replace

from weft.planner.model import ExpertBlock, FeedForward, Layer, Model, RecurrentAttention, SelfAttention
from weft.planner.program import (
    BYTES,
    Attention,
    Collective,
    Elementwise,
    Experts,
    Gemm,
    LinearAttention,
    Operation,
    RankProgram,
)


@dataclass(frozen=True, order=True)
class Mapping:
    """Parallel sizes of one replica. With `dp` > 1 attention is data parallel and experts see all ranks' tokens."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    moe_tp: int = 1
    ep: int = 1

    @property
    def gpus(self) -> int:
        return self.tp * self.pp * self.dp

    def __str__(self) -> str:
        parts = [f"TP{self.tp}"]
        parts += [f"PP{self.pp}"] if self.pp > 1 else []
        parts += [f"DP{self.dp}"] if self.dp > 1 else []
        parts += [f"EP{self.ep}"] if self.ep > 1 else []
        return " ".join(parts)


def fits_heads(model: Model, mapping: Mapping) -> bool:
    """Whether heads, experts and layers divide; KV heads are copied where there are more ranks."""
    for layer, _ in model.layers:
        mixer, block = layer.mixer, layer.block
        heads = mixer.heads if isinstance(mixer, SelfAttention) else mixer.value_heads
        if heads % mapping.tp:
            return False
        if isinstance(mixer, SelfAttention) and mixer.kv_heads % mapping.tp and mapping.tp % mixer.kv_heads:
            return False
        if isinstance(block, ExpertBlock) and (block.experts % mapping.ep or block.width % mapping.moe_tp):
            return False
        if isinstance(block, FeedForward) and block.width % mapping.tp:
            return False
    return mapping.pp <= model.depth


def rank_program(model: Model, mapping: Mapping, kv_bytes: float = 2.0) -> RankProgram:
    """What each rank runs in a forward pass of all stages, and what the fullest rank holds."""
    operations: list[Operation] = []
    weights = kv = state = 0.0
    windows: dict[int, float] = {}
    for layer, count in model.layers:
        mixed, mixer_weights = _mixer(model, layer, mapping)
        block, block_weights = _block(model, layer, mapping)
        operations += [_times(op, count) for op in (*mixed, *block)]
        weights += count * (mixer_weights + block_weights + model.norms * model.hidden * 2)
        mixer = layer.mixer
        if isinstance(mixer, RecurrentAttention):
            state += count * _state(mixer) / mapping.tp * 4
            continue
        per_token = cache_bytes(mixer, mapping.tp, kv_bytes) * count
        kv += per_token
        if mixer.window:
            windows[mixer.window] = windows.get(mixer.window, 0.0) + per_token
    operations += _ends(model, mapping)
    vocabulary = model.vocabulary * model.hidden * 2 / mapping.tp
    ends = vocabulary if model.tied else 2 * vocabulary
    stages = mapping.pp
    if stages > 1:
        send = model.hidden * 2.0
        operations.append(Collective("stage to stage", "send", 2, send, count=stages - 1))
    # The first and the last stage hold an end each; layers are cut as evenly as they come.
    fullest = -(-model.depth // stages) / model.depth
    return RankProgram(
        tuple(operations),
        weight_bytes=weights * fullest + (ends if stages == 1 else vocabulary) + model.hidden * 2,
        kv_bytes_per_token=kv * fullest,
        state_bytes_per_sequence=state * fullest,
        tokens_share=1.0 / mapping.dp,
        stages=stages,
        window_tokens=tuple((window, size * fullest) for window, size in windows.items()),
    )


def cache_bytes(mixer: SelfAttention, tp: int, kv_bytes: float) -> float:
    """Bytes of cache of one token in one layer on one rank; a latent cache is on every rank."""
    if mixer.latent:
        index = mixer.index_dim * 1.0 + (4.0 if mixer.index_dim else 0.0)
        return (mixer.latent + mixer.rope_dim) * kv_bytes + index
    return max(mixer.kv_heads // tp, 1) * (mixer.head_dim + mixer.value_dim) * kv_bytes


def _times(op: Operation, count: int) -> Operation:
    return replace(op, count=op.count * count)


def _gemm(name: str, n: float, k: float, weights: str, phase: str = "both") -> tuple[Gemm, float]:
    op = Gemm(name, round(n), round(k), weights, phase="prefill" if phase == "prefill" else "both")
    return op, round(n) * round(k) * BYTES[weights]


def _reduce(name: str, model: Model, group: int) -> list[Operation]:
    return [Collective(name, "all_reduce", group, model.hidden * 2.0)] if group > 1 else []


def _norm(name: str, model: Model) -> Elementwise:
    """The residual is added and the sum normed in one kernel: two read, two written."""
    return Elementwise(name, 4.0 * model.hidden * 2)


def _mixer(model: Model, layer: Layer, mapping: Mapping) -> tuple[list[Operation], float]:
    mixer = layer.mixer
    if isinstance(mixer, RecurrentAttention):
        return _recurrent(model, mixer, mapping)
    if mixer.latent:
        return _latent(model, mixer, mapping)
    tp, w = mapping.tp, model.weights
    heads, kv_heads = mixer.heads // tp, max(mixer.kv_heads // tp, 1)
    wide = (heads * (2 if mixer.gate else 1)) * mixer.head_dim + kv_heads * (mixer.head_dim + mixer.value_dim)
    qkv, a = _gemm("qkv", wide, model.hidden, w)
    out, b = _gemm("attention output", model.hidden, heads * mixer.value_dim, w)
    weights = a + b + mixer.qk_norm * 2
    weights += (wide * 2 if mixer.bias else 0) + (model.hidden * 2 if mixer.output_bias else 0)
    weights += heads * 2 if mixer.sinks else 0
    moved = (heads * mixer.head_dim + kv_heads * (mixer.head_dim + mixer.value_dim)) * 2.0 * 2
    operations: list[Operation] = [_norm("input norm", model), qkv]
    operations += [Elementwise("norms of queries and keys", moved)] if mixer.normed else []
    operations += [
        Elementwise("rotary and cache", moved),
        Attention("attention", heads, kv_heads, mixer.head_dim, mixer.value_dim, mixer.window),
    ]
    operations += [Elementwise("attention gate", 3.0 * heads * mixer.value_dim * 2)] if mixer.gate else []
    operations += [out, *_reduce("attention all-reduce", model, tp)]
    return operations, weights


def _latent(model: Model, mixer: SelfAttention, mapping: Mapping) -> tuple[list[Operation], float]:
    tp, w = mapping.tp, model.weights
    heads = mixer.heads // tp
    nope = mixer.head_dim - mixer.rope_dim
    weights = 0.0
    operations: list[Operation] = [_norm("input norm", model)]

    def add(name: str, n: float, k: float, fmt: str = w, phase: str = "both") -> None:
        nonlocal weights
        op, size = _gemm(name, n, k, fmt, phase)
        operations.append(op)
        weights += size

    if mixer.query_rank:
        add("latent down", mixer.query_rank + mixer.latent + mixer.rope_dim, model.hidden)
        operations.append(Elementwise("latent norms", 2.0 * (mixer.query_rank + mixer.latent) * 2))
        weights += (mixer.query_rank + mixer.latent) * 2
        add("queries up", heads * mixer.head_dim, mixer.query_rank)
    else:
        add("queries and latent", heads * mixer.head_dim + mixer.latent + mixer.rope_dim, model.hidden)
        operations.append(Elementwise("latent norm", 2.0 * mixer.latent * 2))
        weights += mixer.latent * 2
    add("keys and values up", heads * (nope + mixer.value_dim), mixer.latent, w, "prefill")
    if mixer.index_heads:
        add("index queries", mixer.index_heads * mixer.index_dim, mixer.query_rank or model.hidden)
        add("index keys and weights", mixer.index_dim + mixer.index_heads, model.hidden, "bf16")
        operations.append(Attention("index scores", mixer.index_heads, 1, mixer.index_dim, 0))
        operations.append(Elementwise("index top", 4.0 * mixer.index_top))
        weights += 2 * mixer.index_dim * 2
    operations += [
        Elementwise("rotary and cache", (heads * mixer.head_dim + mixer.latent + mixer.rope_dim) * 4.0),
        Gemm("absorb keys", mixer.latent, nope, "bf16", phase="decode", batch=heads),
        Attention(
            "attention", heads, heads, mixer.head_dim, mixer.value_dim,
            latent=mixer.latent, rope_dim=mixer.rope_dim, limit=mixer.index_top,
        ),
        Gemm("absorb values", mixer.value_dim, mixer.latent, "bf16", phase="decode", batch=heads),
    ]  # fmt: skip
    add("attention output", model.hidden, heads * mixer.value_dim)
    operations += _reduce("attention all-reduce", model, tp)
    return operations, weights


def _state(mixer: RecurrentAttention) -> int:
    widths = 2 * mixer.key_heads * mixer.key_dim + mixer.value_heads * mixer.value_dim
    return mixer.value_heads * mixer.key_dim * mixer.value_dim + widths * (mixer.convolution - 1) // 2


def _recurrent(model: Model, mixer: RecurrentAttention, mapping: Mapping) -> tuple[list[Operation], float]:
    tp, w = mapping.tp, model.weights
    keys = mixer.key_heads * mixer.key_dim / tp
    values = mixer.value_heads * mixer.value_dim / tp
    mixed, a = _gemm("queries, keys, values, gate", 2 * keys + 2 * values, model.hidden, w)
    rates, b = _gemm("decay and rate", 2 * mixer.value_heads / tp, model.hidden, "bf16")
    out, c = _gemm("attention output", model.hidden, values, w)
    convolved = 2 * keys + values
    weights = a + b + c + convolved * mixer.convolution * 2 + 2 * mixer.value_heads / tp * 2 + mixer.value_dim * 2
    flops = round(6 * mixer.value_heads / tp * mixer.key_dim * mixer.value_dim)
    operations: list[Operation] = [
        _norm("input norm", model),
        mixed,
        rates,
        Elementwise("short convolution", convolved * 2 * (1 + mixer.convolution)),
        LinearAttention("recurrence", round(_state(mixer) / tp), flops),
        Elementwise("gated norm", 3.0 * values * 2),
        out,
        *_reduce("attention all-reduce", model, tp),
    ]
    return operations, weights


def _dense(model: Model, width: float, name: str, w: str, *, gated: bool = True) -> tuple[list[Operation], float]:
    up, a = _gemm(f"{name} up", (2 if gated else 1) * width, model.hidden, w)
    down, b = _gemm(f"{name} down", model.hidden, width, w)
    return [up, Elementwise(f"{name} activation", (3.0 if gated else 2.0) * width * 2), down], a + b


def _block(model: Model, layer: Layer, mapping: Mapping) -> tuple[list[Operation], float]:
    block = layer.block
    if isinstance(block, FeedForward):
        # With data-parallel attention dense blocks are whole on every rank.
        operations, weights = _dense(model, block.width / mapping.tp, "block", model.weights, gated=block.gated)
        bias = (2 * block.width / mapping.tp + model.hidden) * 2 if block.bias else 0
        return [
            _norm("block norm", model),
            *operations,
            *_reduce("block all-reduce", model, mapping.tp),
        ], weights + bias
    router, a = _gemm("router", block.experts, model.hidden, "bf16")
    local = block.experts / mapping.ep
    experts = local * 3 * model.hidden * (block.width / mapping.moe_tp) * BYTES[model.expert_weights]
    experts += local * (2 * block.width / mapping.moe_tp + model.hidden) * 2 if block.bias else 0
    weights = a + experts + (block.experts * 2 if block.router_bias else 0)
    operations: list[Operation] = [_norm("block norm", model), router, Elementwise("top experts", block.experts * 4.0)]
    group = mapping.tp * mapping.dp
    if mapping.dp > 1:
        payload = model.hidden * (1.0 if model.expert_weights in ("fp8", "fp8_block") else 2.0)
        operations.append(Collective("dispatch", "all_gather", group, payload * mapping.dp))
    operations.append(
        Experts(
            "experts", model.hidden, block.width, block.per_token, block.experts,
            mapping.moe_tp, mapping.ep, model.expert_weights,
        )
    )  # fmt: skip
    if block.shared:
        shared, b = _dense(model, block.shared / mapping.tp, "shared expert", model.weights)
        operations += [*shared, Elementwise("shared sum", 3.0 * model.hidden * 2)]
        weights += b + (model.hidden * 2 if block.shared_gate else 0)
    if mapping.dp > 1:
        operations.append(Collective("combine", "reduce_scatter", group, model.hidden * 2.0 * mapping.dp))
    else:
        operations += _reduce("expert all-reduce", model, mapping.tp)
    return operations, weights


def _ends(model: Model, mapping: Mapping) -> list[Operation]:
    vocabulary = -(-model.vocabulary // mapping.tp)
    ends: list[Operation] = [
        Elementwise("embedding", 2.0 * model.hidden * 2),
        Elementwise("last norm", 4.0 * model.hidden * 2, rows="sequences"),
        Gemm("vocabulary", vocabulary, model.hidden, "bf16", rows="sequences"),
        Elementwise("sampling", model.vocabulary * 4.0 * 2, rows="sequences"),
    ]
    if mapping.tp > 1:
        # A rank has some rows of the embedding, and zeros for all others.
        ends += _reduce("embedding all-reduce", model, mapping.tp)
        ends.append(Collective("gather of logits", "all_gather", mapping.tp, model.vocabulary * 2.0, rows="sequences"))
    return ends
