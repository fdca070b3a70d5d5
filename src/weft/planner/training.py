"""Training at scale: how ranks share a model, what each holds, how long a step takes and how much of the peak it uses.

A rank's forward pass is the one that serving is priced from (`planner/step_costs.py`) with logits of all tokens and
their loss. Its backward pass has two matmuls for each, of other shapes, from the same tables; attention's as measured;
and the same collectives. Every micro-batch's gradients are added to sums in fp32. Pipelines run 1F1B, interleaved where
stages hold several pieces. Gradients are reduced, and sharded weights gathered, beside the passes: what does not fit
beside them is added. Nothing is fitted to whole runs; hosts, stragglers and kernels that links slow down are left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from weft.planner.attention_costs import LENGTHS
from weft.planner.collectives import CollectiveCosts
from weft.planner.counts import counts
from weft.planner.errors import CapacityError, TrafficError
from weft.planner.hardware import Gpu
from weft.planner.mapping import Mapping, fits_heads, rank_program
from weft.planner.model import ExpertBlock, FeedForward, Model, SelfAttention
from weft.planner.op_costs import STREAMED, OpCosts, over_rows
from weft.planner.program import Attention, Collective, Gemm
from weft.planner.search import mappings, open_costs
from weft.planner.step_costs import Part, step_costs

_BACKWARD = {"experts": 2.0, "attention": 2.93, "elementwise": 2.0, "loss": 2.0, "collective": 1.0, "recurrence": 2.0}
"""A backward operation's time in forward ones: two products for each. Attention's is the middle of 48 measured ratios,
16 shapes on an H200 by Weft, cuDNN and FlashAttention-2, which are 2.5 to 3.3 (benchmarks/results/
2026-11-16-c8378b4-gpu-attention.json): five products for two, at a lower share of the peak."""
_NOT_TRAINED = ("sampling", "gather of logits", "stage to stage")
"""Operations of serving that a training step does not have: a loss needs no whole logits on one rank."""
_OPTIMIZER, _WEIGHTS, _GRADIENTS = 12.0, 2.0, 4.0
"""Bytes of a parameter: fp32 master weight and two moments of Adam; bf16 weights; gradients summed in fp32."""
_SUMMED = 2.0 + 2 * 4.0
"""Bytes of a parameter that each micro-batch moves: its gradient in bf16 is read, its sum in fp32 read and written."""
_LOSS = 2.0
"""Bytes of a logit in the loss's forward pass, read in bf16; the backward pass reads it and writes its gradient."""
_WIRE = 2.0
"""Bytes of a parameter or gradient that crosses a link: bf16."""
_UNEVEN = 1.05
"""Stages may be longer than the mean by so much to be interleaved."""
_RESERVE = 4e9
"""Bytes that frameworks, communicators and fragmentation take: an assumption."""


@dataclass(frozen=True)
class Job:
    """What is trained: `batch` sequences of `seq` tokens a step, on so many GPUs."""

    gpus: int
    batch: int
    seq: int
    tokens: float = 0.0
    """Tokens of the whole run, for its days and dollars; 0 where only a step is asked for."""


@dataclass(frozen=True)
class Layout:
    """How a job is laid out: the mapping of one copy of the model, copies of it, and what is kept or computed again."""

    mapping: Mapping
    copies: int
    micro: int
    """Sequences of a micro-batch on each rank of attention."""
    pieces: int
    """Pieces of layers that a stage holds: more than one interleaves."""
    recompute: bool
    sharded: bool
    """Whether weights and gradients are sharded over data-parallel ranks as well (FSDP), not the optimizer alone."""

    @property
    def data_parallel(self) -> int:
        return self.copies * self.mapping.dp

    def __str__(self) -> str:
        words = [f"TP{self.mapping.tp}", f"PP{self.mapping.pp}", f"DP{self.data_parallel}"]
        words += [f"EP{self.mapping.ep}"] if self.mapping.ep > 1 else []
        words += [f"interleaved {self.pieces}"] if self.pieces > 1 else []
        words += ["FSDP" if self.sharded else "ZeRO-1", f"micro-batch {self.micro}"]
        return " ".join([*words, *(["recomputed"] if self.recompute else [])])


@dataclass(frozen=True)
class TrainingStep:
    """One layout, priced: seconds of a step by what they go into, and bytes of the fullest rank."""

    layout: Layout
    seconds: float
    parts: dict[str, float]
    memory: dict[str, float]
    mfu: float
    causal_mfu: float
    """The same with the half of attention that a causal mask leaves: what is computed at all."""
    tokens_s_gpu: float

    @property
    def bytes(self) -> float:
        return sum(self.memory.values())


@dataclass(frozen=True)
class TrainingPlan:
    """The quickest layout that fits, others, and what each rank holds."""

    model: Model
    gpu: Gpu
    job: Job
    chosen: TrainingStep
    alternatives: list[TrainingStep]
    layouts: int

    @property
    def days(self) -> float:
        rate = self.chosen.tokens_s_gpu * self.job.gpus
        return self.job.tokens / rate / 86400 if self.job.tokens else 0.0

    @property
    def dollars(self) -> float:
        return self.days * 24 * self.job.gpus * self.gpu.price_per_hour


def job_of(text: str) -> Job:
    """A job from words: `gpus=1024,batch=1024,seq=8192`, and `tokens=15e12` of the whole run."""
    found: dict[str, float] = {}
    ranges = {"gpus": (1, 1e6), "batch": (1, 1e9), "seq": (1, 1e8), "tokens": (1, 1e18)}
    for part in text.split(","):
        name, equals, value = part.strip().partition("=")
        if not equals or name not in ranges:
            raise TrafficError(f"training has no field {name!r}", hint="--train gpus=1024,batch=1024,seq=8192")
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        least, most = ranges[name]
        if not (least <= number <= most) or (name != "tokens" and number != int(number)):
            raise TrafficError(f"field {name!r} of training is {value!r}", hint=f"a whole number from 1 to {most:g}")
        found[name] = number
    for name in ("gpus", "batch", "seq"):
        if name not in found:
            raise TrafficError(f"training needs the field {name!r}", hint="--train gpus=1024,batch=1024,seq=8192")
    return Job(int(found["gpus"]), int(found["batch"]), int(found["seq"]), found.get("tokens", 0.0))


def layouts(model: Model, gpu: Gpu, job: Job) -> Iterator[Layout]:
    """Every way to lay a job out that divides: GPUs by the mapping, the batch by copies and micro-batches."""
    for mapping in mappings(model, gpu, job.gpus):
        if mapping.dp > gpu.nvlink_domain or mapping.pp > 64 or not fits_heads(model, mapping):
            continue
        copies, rest = divmod(job.gpus, mapping.gpus)
        if rest or not copies or job.batch % (copies * mapping.dp):
            continue
        each = job.batch // (copies * mapping.dp)
        for micro in (1, 2, 4, 8, 16):
            if each % micro:
                continue
            pieces = [1]
            if mapping.pp > 1 and (each // micro) % mapping.pp == 0:
                pieces += [v for v in range(2, 21) if uneven(model, mapping.pp, v) < _UNEVEN]
            for count in pieces:
                for recompute in (False, True):
                    yield Layout(mapping, copies, micro, count, recompute, False)
                    if mapping.pp == 1 and copies > 1:
                        yield Layout(mapping, copies, micro, count, recompute, True)


def uneven(model: Model, stages: int, pieces: int) -> float:
    """How much longer the longest stage is than the mean, where layers do not divide by stages and pieces."""
    parts = stages * pieces
    return math.ceil(model.depth / parts) * parts / model.depth


def activation_bytes(model: Model, mapping: Mapping) -> tuple[float, float]:
    """Bytes that a token leaves in all layers for the backward pass, and in a layer's input alone; on one rank.

    Each matmul's input and each nonlinearity's; attention keeps no scores. Sequences are split over tensor ranks."""
    kept = 0.0
    for layer, count in model.layers:
        mixer, block = layer.mixer, layer.block
        if isinstance(mixer, SelfAttention):
            inner = mixer.heads * (mixer.head_dim + mixer.value_dim)
            inner += mixer.latent or mixer.kv_heads * (mixer.head_dim + mixer.value_dim)
        else:
            inner = 2 * mixer.key_heads * mixer.key_dim + 3 * mixer.value_heads * mixer.value_dim
        if isinstance(block, FeedForward):
            wide = (3 if block.gated else 2) * block.width
        else:
            assert isinstance(block, ExpertBlock)
            wide = 3 * (block.width * block.per_token + block.shared) + model.hidden * block.per_token
        kept += count * (4 * model.hidden + inner + wide) * 2.0
    return kept / mapping.tp, model.depth * model.hidden * 2.0 / mapping.tp


@dataclass(frozen=True)
class _Rank:
    """What a mapping's ranks run, priced over rows, and what one holds."""

    parts: tuple[Part, ...]
    matmuls: tuple[Gemm, ...]
    parameters: float
    share: float
    """The part of a replica's tokens that a rank's own operations see."""


class TrainingCosts:
    """Prices layouts of one model on one GPU; a mapping's curves are made once."""

    def __init__(self, model: Model, gpu: Gpu, costs: OpCosts, job: Job) -> None:
        self.model, self.gpu, self.costs, self.job = trained(model), gpu, costs, job
        self.kept: dict[Mapping, _Rank] = {}
        self.priced: dict[tuple[Mapping, int], tuple[dict[str, float], dict[str, float]]] = {}
        self.flops = 3.0 * counts(self.model, Mapping(), job.seq, all_logits=True).flops * job.batch
        whole = attention_flops(self.model, job.seq)
        self.causal_flops = self.flops - 3.0 * whole * (1 - 1 / job.seq) / 2 * job.batch

    def _rank(self, mapping: Mapping) -> _Rank:
        if mapping not in self.kept:
            program = rank_program(self.model, mapping)
            priced = step_costs(program, self.costs, "bfloat16")
            matmuls = tuple(op for op in program.operations if isinstance(op, Gemm) and op.phase != "decode")
            self.kept[mapping] = _Rank(priced.parts, matmuls, program.weight_bytes / 2.0, program.tokens_share)
        return self.kept[mapping]

    def passes(self, mapping: Mapping, micro: int) -> tuple[dict[str, float], dict[str, float]]:
        """Seconds of a micro-batch's forward and backward pass through all stages, by kind of operation."""
        if (mapping, micro) not in self.priced:
            self.priced[mapping, micro] = self._passes(mapping, micro)
        return self.priced[mapping, micro]

    def _passes(self, mapping: Mapping, micro: int) -> tuple[dict[str, float], dict[str, float]]:
        rank = self._rank(mapping)
        rows = float(micro * self.job.seq)
        streamed = self.gpu.bandwidth * STREAMED
        forward = {"loss": rows * self.model.vocabulary / mapping.tp * _LOSS / streamed}
        for part in rank.parts:
            if part.name in _NOT_TRAINED or part.axis in ("decode", "decode attention"):
                continue
            if part.axis == "prefill attention":
                seconds = _along(part, self.job.seq) * micro
            else:
                seconds = float(over_rows(rows / rank.share if part.axis == "experts" else rows, part.seconds))
            forward[part.kind] = forward.get(part.kind, 0.0) + seconds
        backward = {kind: seconds * _BACKWARD[kind] for kind, seconds in forward.items() if kind != "matmul"}
        backward["matmul"] = sum(self._gradients(op, rows) * op.count for op in rank.matmuls)
        backward["gradient sums"] = rank.parameters * mapping.pp * _SUMMED / streamed
        return forward, backward

    def _gradients(self, op: Gemm, rows: float) -> float:
        """A matmul's two in the backward pass: its input's (rows × n by n × k), its weights' (n × rows by rows × k)."""
        of_input = float(self.costs.gemm(Gemm(op.name, op.k, op.n)).at(rows))
        of_weights = float(self.costs.gemm(Gemm(op.name, op.k, int(rows))).at(op.n))
        return of_input + of_weights

    def step(self, layout: Layout) -> TrainingStep:
        """A whole step of one layout."""
        mapping, stages = layout.mapping, layout.mapping.pp
        forward, backward = self.passes(mapping, layout.micro)
        if layout.recompute:
            again = sum(seconds for kind, seconds in forward.items() if kind != "loss")
            backward = {**backward, "recomputing": again}
        micro_batches = self.job.batch // (layout.data_parallel * layout.micro)
        longest = uneven(self.model, stages, layout.pieces) / stages
        ahead, back = sum(forward.values()) * longest, sum(backward.values()) * longest
        kinds = dict.fromkeys((*forward, *backward))
        parts = {kind: (forward.get(kind, 0.0) + backward.get(kind, 0.0)) * longest * micro_batches for kind in kinds}
        parts["pipeline bubble"] = (stages - 1) / layout.pieces * (ahead + back)
        parameters = self._rank(mapping).parameters
        once = self.across(parameters * _WIRE, layout)
        if layout.sharded:
            exposed = max(0.0, once - ahead) + max(0.0, 2 * once - back)
            parts["data parallel"] = exposed * micro_batches + once
        else:
            parts["data parallel"] = max(0.0, once - ahead / layout.pieces) + max(0.0, once - back / layout.pieces)
        if stages > 1:
            sent = layout.micro * self.job.seq * self.model.hidden * 2.0 / mapping.tp
            parts["stage to stage"] = 2 * (stages - 1) * (self.gpu.network_latency + sent / self.gpu.network)
        owned = parameters / layout.data_parallel
        parts["optimizer"] = owned * 2 * (_OPTIMIZER + _GRADIENTS) / self.gpu.bandwidth
        seconds = sum(parts.values())
        return TrainingStep(
            layout, seconds, parts, self.memory(layout, micro_batches),
            self.flops / (seconds * self.job.gpus * self.gpu.bf16),
            self.causal_flops / (seconds * self.job.gpus * self.gpu.bf16),
            self.job.batch * self.job.seq / seconds / self.job.gpus,
        )  # fmt: skip

    def across(self, size: float, layout: Layout) -> float:
        """Seconds to gather, or to reduce and scatter, so many bytes over the ranks of data parallelism."""
        group, gpu = layout.data_parallel, self.gpu
        if group == 1:
            return 0.0
        near = min(group, max(1, gpu.nvlink_domain // layout.mapping.tp))
        nodes = -(-group // near)
        gathered = Collective("data parallel", "all_gather", near, size)
        inside = float(CollectiveCosts(self.costs).seconds(gathered, size)[0]) if near > 1 else 0.0
        between = size * (nodes - 1) / nodes / (near * gpu.network) + math.log2(nodes) * gpu.network_latency
        return inside + (between if nodes > 1 else 0.0)

    def memory(self, layout: Layout, micro_batches: int) -> dict[str, float]:
        """Bytes of the fullest rank, by what they are for."""
        parameters = self._rank(layout.mapping).parameters
        whole, inputs = activation_bytes(self.model, layout.mapping)
        stages = layout.mapping.pp
        # 1F1B keeps a micro-batch for each stage after this one; interleaving a little more.
        held = min(micro_batches, stages) * (1 + (stages - 1) / (stages * layout.pieces) * (layout.pieces > 1))
        tokens = layout.micro * self.job.seq
        layers = self.model.depth
        kept = (inputs + whole / layers) / stages if layout.recompute else whole / stages
        logits = tokens * self.model.vocabulary / layout.mapping.tp * 4.0
        share = layout.data_parallel if layout.sharded else 1
        gathered = 2 * parameters / max(layers / stages, 1.0) * (_WEIGHTS + _GRADIENTS) if layout.sharded else 0.0
        return {
            "weights": parameters * _WEIGHTS / share + gathered,
            "gradients": parameters * _GRADIENTS / share,
            "optimizer": parameters * _OPTIMIZER / layout.data_parallel,
            "activations": tokens * kept * held + logits,
            "reserve": _RESERVE,
        }


def trained(model: Model) -> Model:
    """A model as it is trained, in bf16, whatever a checkpoint's weights are held in."""
    if model.weights == model.expert_weights == "bf16":
        return model
    held = " and ".join(dict.fromkeys(each for each in (model.weights, model.expert_weights) if each != "bf16"))
    told = f"the checkpoint's weights are in {held}: training is planned in bf16"
    return replace(model.with_precision("bf16"), assumptions=(*model.assumptions, told))


def attention_flops(model: Model, seq: int) -> int:
    """Operations of attention over the whole square of one sequence, as counts have them."""
    program = rank_program(model, Mapping())
    found = (op for op in program.operations if isinstance(op, Attention))
    return sum(2 * seq * seq * op.heads * (op.head_dim + op.value_dim) * op.count for op in found)


def _along(part: Part, length: float) -> float:
    return float(np.interp(length, LENGTHS, part.seconds))


def plan_training(model: Model, gpu: Gpu, job: Job, tables: Path | None = None, engine: str = "trtllm") -> TrainingPlan:
    """The quickest layout of a job that fits; of near-equals (1 %) the one with fewer stages and tensor ranks."""
    costs = TrainingCosts(model, gpu, replace(open_costs(gpu, tables, engine), sustained=True), job)
    fitting: list[TrainingStep] = []
    nearest: TrainingStep | None = None
    count = 0
    for layout in layouts(model, gpu, job):
        found = costs.step(layout)
        count += 1
        if found.bytes <= gpu.memory:
            fitting.append(found)
        elif nearest is None or found.bytes < nearest.bytes:
            nearest = found
    if not fitting:
        raise _refuse(model, gpu, job, nearest)
    fitting.sort(key=lambda each: each.seconds)
    level = [each for each in fitting if each.seconds <= fitting[0].seconds * 1.01]
    chosen = min(level, key=lambda each: (each.layout.mapping.pp * each.layout.mapping.tp, each.seconds))
    others: dict[Mapping, TrainingStep] = {}
    for each in fitting:
        if each is not chosen:
            others.setdefault(each.layout.mapping, each)
    return TrainingPlan(costs.model, gpu, job, chosen, list(others.values())[:5], count)


def _refuse(model: Model, gpu: Gpu, job: Job, nearest: TrainingStep | None) -> CapacityError:
    if nearest is None:
        return CapacityError(
            f"a batch of {job.batch} on {job.gpus} GPUs divides into no layout of {model.name}",
            hint="a batch that is a multiple of the GPUs, or GPUs by a power of two, divides",
        )
    lacking = (nearest.bytes - gpu.memory) / 1e9
    most = max(nearest.memory, key=lambda name: nearest.memory[name])
    scale = math.ceil(job.gpus * nearest.bytes / gpu.memory)
    advice = {
        "activations": "shorter sequences (seq)",
        "weights": "more GPUs, which share them",
        "gradients": "more GPUs, which share them",
        "optimizer": "more GPUs, which share it",
        "reserve": "a GPU with more memory",
    }[most]
    return CapacityError(
        f"training {model.name} does not fit on {job.gpus} × {gpu.device}: the roomiest layout, {nearest.layout}, "
        f"lacks {lacking:.1f} GB on each GPU, most of it for {most}",
        hint=f"{advice}; or about gpus={2 ** math.ceil(math.log2(scale))}; or a GPU with more memory",
    )
