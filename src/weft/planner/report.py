"""A plan as figures for programs (`figures`), and as text for people (`lines`, `launch`)."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from weft.planner.op_costs import BANDS
from weft.planner.plan import Plan, quantiles
from weft.planner.search import Point
from weft.planner.simulate import Outcome


def point_figures(point: Point) -> dict[str, Any]:
    """One mapping at one concurrency."""
    mapping = point.candidate.mapping
    return {
        "mapping": str(mapping),
        "tp": mapping.tp,
        "pp": mapping.pp,
        "dp": mapping.dp,
        "ep": mapping.ep,
        "gpus": mapping.gpus,
        "concurrency": point.figure("concurrency"),
        "tokens_s_gpu": point.per_gpu,
        "tokens_s_user": point.per_user,
        "tpot_ms": point.figure("tpot") * 1e3,
        "ttft_ms": point.figure("ttft") * 1e3,
    }


def figures(plan: Plan) -> dict[str, Any]:
    """All of a plan, as JSON has it. Times are in milliseconds, memory in bytes."""
    chosen, room = plan.chosen, plan.chosen.candidate.memory
    costs = chosen.candidate.costs
    batch, context = chosen.figure("resident"), plan.traffic.isl + plan.traffic.osl / 2
    split = plan.disaggregated
    return {
        "ok": not plan.gives_way,
        "model": plan.model.name,
        "gpu": plan.gpu.device,
        "hardware_source": plan.gpu.source,
        "engine": plan.settings.engine,
        "definition": "TPOT = (E2E - TTFT) / (output tokens - 1)",
        "traffic": {
            "isl": plan.traffic.isl,
            "osl": plan.traffic.osl,
            "rate": plan.traffic.rate,
            "prefix": plan.traffic.prefix,
        },
        "targets_ms": {
            name: value * 1e3 if math.isfinite(value) else None
            for name, value in (("ttft", plan.targets.ttft), ("tpot", plan.targets.tpot))
        },
        "gives_way": plan.gives_way,
        "assumptions": list(plan.assumptions),
        "calibration": _calibration(plan),
        "chosen": point_figures(chosen),
        "replicas": plan.replicas,
        "spare_replicas": plan.spare,
        "gpus": plan.gpus,
        "nodes": plan.nodes,
        "racks": plan.racks,
        "power_kw": plan.gpus * plan.gpu.power_w / 1e3,
        "dollars_per_million_output_tokens": plan.cost_per_million,
        "dollars_per_gpu_hour": plan.gpu.price_per_hour,
        "simulated": {
            "at_requests_s_per_replica": plan.at_rate,
            "used": plan.used,
            **_seen(plan.outcome),
            "requests_s_per_replica": plan.rate,
            "saturated_requests_s_per_replica": plan.load.saturated,
            "at_most": _seen(plan.load.outcome),
        },
        "breakdown": plan.shares(),
        "operations": [
            {
                "name": part.name,
                "kind": part.kind,
                "ms": costs.part_seconds(part, batch, context) * 1e3,
                "from": part.source,
                "may_be_off_by": BANDS[part.source],
            }
            for part in costs.parts
            if costs.part_seconds(part, batch, context) > 0
        ],
        "uncertainty": plan.band,
        "sensitivity": plan.sensitivity,
        "memory": {
            "weights": room.weights,
            "activations": room.activations,
            "communicators": room.communicators,
            "cache": room.cache,
            "cache_tokens": room.cache_tokens,
            "requests_that_fit": chosen.candidate.fits,
        },
        "alternatives": [point_figures(each) for each in plan.alternatives],
        "front": [point_figures(each) for each in plan.front],
        "disaggregated": None
        if split is None
        else {
            "prefill": str(split.prefill.mapping),
            "prefill_workers": split.prefill_workers,
            "decode": str(split.decode.candidate.mapping),
            "decode_workers": split.decode_workers,
            "gpus": split.gpus,
            "requests_s": split.rate,
            "tokens_s_gpu": split.per_gpu,
            "ttft_ms": split.ttft * 1e3,
            "tpot_ms": split.tpot * 1e3,
            "transfer_ms": split.transfer * 1e3,
            "transfer_from": "specification, unmeasured",
        },
        "launch": launch(plan),
        "configurations": plan.configurations,
    }


def _seen(outcome: Outcome) -> dict[str, Any]:
    """What users see in a simulation."""
    return {
        "ttft_ms": {name: value * 1e3 for name, value in quantiles(outcome.ttft).items()},
        "tpot_ms": {name: value * 1e3 for name, value in quantiles(outcome.tpot).items()},
        "e2e_ms": {name: value * 1e3 for name, value in quantiles(outcome.e2e).items()},
        "iterations": outcome.iterations,
        "preemptions": outcome.preemptions,
    }


def load_words(plan: Plan) -> tuple[str, str]:
    """Which rate was simulated, and how much more a replica bears."""
    shared = f"{plan.traffic.rate:.4g} over {plan.replicas} replica{'s' if plan.replicas > 1 else ''}"
    asked = shared if plan.traffic.rate else "the most that it bears"
    wanted = [
        f"{name} {value * 1e3:.4g} ms"
        for name, value in (("TTFT", plan.targets.ttft), ("TPOT", plan.targets.tpot))
        if math.isfinite(value)
    ]
    kept = f"keeps the targets ({', '.join(wanted)} at p90)" if wanted else "does not fall behind"
    if plan.gives_way:
        kept = "keeps what is planned for in place of the targets"
    most = f"A replica {kept} up to {plan.rate:.4g} requests/s; one that is never idle serves {plan.load.saturated:.4g}"
    return f"{plan.at_rate:.4g} requests/s a replica ({asked})", f"{most}, of which {plan.used * 100:.0f} % are used."


def _calibration(plan: Plan) -> dict[str, Any] | None:
    found = plan.settings.calibration
    if found is None:
        return None
    return {**asdict(found), "after": found.after if math.isfinite(found.after) else None}


def launch(plan: Plan) -> dict[str, str]:
    """Command lines that start one replica, and what TensorRT-LLM takes from a file alone."""
    mapping, settings = plan.chosen.candidate.mapping, plan.settings
    # Ranks whose attention is data parallel have sequences of their own, and engines count those of a rank.
    most = math.ceil(plan.sequences / mapping.dp)
    name, drafted = plan.model.name, settings.draft.tokens
    kv = " --kv-cache-dtype fp8" if settings.kv == "fp8" else ""
    expert = " --enable-expert-parallel" if mapping.ep > 1 else ""
    data = f" --data-parallel-size {mapping.dp}" if mapping.dp > 1 else ""
    how = '"model": "DRAFT"' if settings.draft.cost else '"method": "ngram", "prompt_lookup_max": 4'
    draft = f" --speculative-config '{{{how}, \"num_speculative_tokens\": {drafted}}}'" if drafted else ""
    weights = plan.model.converted
    quantized = " --quantization fp8" if weights == "fp8" else ""  # which vLLM makes of a checkpoint as it loads it
    ep = f" --ep_size {mapping.ep}" if mapping.ep > 1 else ""
    nodes = max(1, math.ceil(mapping.gpus / plan.gpu.gpus_per_node))
    ranks = min(mapping.gpus, plan.gpu.gpus_per_node)
    lines: list[str] = []
    if mapping.dp > 1:
        lines.append("enable_attention_dp: true")
    if settings.kv == "fp8":
        lines.append("kv_cache_config: {dtype: fp8}")
    if drafted:
        kind = "DraftTarget, speculative_model_dir: DRAFT" if settings.draft.cost else "NGram"
        lines.append(f"speculative_config: {{decoding_type: {kind}, max_draft_len: {drafted}}}")
    found = {
        "torchrun": f"torchrun --nnodes {nodes} --nproc-per-node {ranks} serve.py",
        "vllm": (
            f"vllm serve {name} --tensor-parallel-size {mapping.tp} --pipeline-parallel-size {mapping.pp}{data}{expert}"
            f" --max-num-seqs {most} --max-num-batched-tokens {settings.chunk} --max-model-len {plan.longest}"
            f" --gpu-memory-utilization {settings.fraction}{quantized}{kv}{draft}"
        ),
        "tensorrt-llm": (
            f"trtllm-serve {name} --tp_size {mapping.tp * mapping.dp} --pp_size {mapping.pp}{ep}"
            f" --max_batch_size {most} --max_num_tokens {settings.chunk} --max_seq_len {plan.longest}"
            f" --kv_cache_free_gpu_memory_fraction {settings.fraction}"
            + (" --extra_llm_api_options options.yaml" if lines else "")
        ),
    }
    if weights and weights != "bf16":
        engines = "TensorRT-LLM takes" if quantized else "engines take"
        found["weights"] = f"# {engines} weights in {weights} from a checkpoint that has them: name such a one"
    if lines:
        found["options.yaml"] = "# options.yaml\n" + "\n".join(lines)
    return found
