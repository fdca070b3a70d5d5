"""How measured services were run: what each campaign's clients send, and what its scripts tell the engines.

A row of measurements has lengths, clients and a mapping. How prompts are cut into steps, and which requests a mean is
over, is in the scripts that made it; without them the time to the first token cannot be told. All numbers here are
read off published scripts, and none off the measurements; one choice between two scripts is (the last line):

- `inferencex`: SemiAnalysisAI/InferenceX, `benchmarks/**/*_h200*.sh` and `*_h100*.sh`, `utils/bench_serving`.
- `nvidia gap-analysis`: ai-dynamo/aiconfigurator, `generator/rule_plugin/benchmark/*.rule`, the engines' templates
  beside them, and `eval/benchmarks/genai_perf_runner.py`. That the rows were made with these is taken from their names.
  Of two templates for vLLM 0.12 one leaves the tokens of a step out; that the general one was used, the rows tell.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from weft.planner.search import ENGINES

_MARGIN = 1500
"""Tokens that aiconfigurator gives a step beside one prompt and a token of each sequence."""
_ASYNC = (0, 14)
"""The version of vLLM from which on the next step is prepared while one runs, where nothing else is asked for."""
_MIXED = (0, 5, 3)
"""The version of SGLang from which on aiconfigurator's template passes `--enable-mixed-chunk`; the one for 0.5.1 looks
for another name, and passes nothing."""


@dataclass(frozen=True)
class Conditions:
    """What a campaign's client sends in a closed loop, and how the engine makes steps of it."""

    shortest: float = 1.0
    """Lengths are drawn evenly from this part of the nominal ones to all of them."""
    rounds: int = 10
    """Requests a client sends, one after another; all clients begin at once, after warm-ups have ended."""
    first: bool = True
    """Whether the requests of the first burst are in the means."""
    engine: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Fields of `Limits`."""

    @property
    def mean(self) -> float:
        """The mean length as a part of the nominal one."""
        return (1.0 + self.shortest) / 2


def conditions(row: Mapping[str, str]) -> Conditions:
    """The conditions of a measured row; of a campaign that does not state them, those of an engine as it comes."""
    campaign, engine = row.get("campaign", ""), row["backend"]
    usual = dict(ENGINES.get(engine, ENGINES["vllm"]))
    if campaign.startswith("inferencex"):
        return Conditions(shortest=0.8, engine={**usual, **_inferencex(row)})
    if "gap-analysis" in campaign:
        return Conditions(engine={**usual, **_aiconfigurator(row)})
    return Conditions(first=False, engine=usual)


def _inferencex(row: Mapping[str, str]) -> dict[str, Any]:
    model, engine = row["model"].lower(), row["backend"]
    isl, osl, clients = _whole(row["isl"]), _whole(row["osl"]), _whole(row["concurrency"])
    ranks = _whole(row["attention_dp_size"])
    if engine == "sglang":
        return {"tokens": (32768 if "deepseek" in model else 16384 if "qwen3.5" in model else 8192) * ranks}
    if engine != "trtllm":
        return {"tokens": 8192 * ranks}
    if "gpt-oss" in model:
        return {"tokens": 20000 * ranks, "sequences": clients, "chunked": False}
    if "llama" not in model:
        return {"tokens": max(8192, -(-(clients + isl + 64) // 64) * 64) * ranks, "chunked": False}
    told: dict[str, Any] = {"tokens": isl + osl, "chunked": False}
    if isl == osl == 1024 and _whole(row["tp_size"]) < 8:
        told |= {"held_steps": 20, "held_tokens": int(0.9 * told["tokens"])}
    return told


def _aiconfigurator(row: Mapping[str, str]) -> dict[str, Any]:
    engine, version = row["backend"], _version(row.get("backend_version", ""))
    isl, ranks = _whole(row["isl"]), _whole(row["attention_dp_size"])
    batch = -(-_whole(row["concurrency"]) // ranks)
    if engine == "sglang":
        mixed = {"mixed": version >= _MIXED} if version is not None else {}
        return {"tokens": (isl + _MARGIN) * ranks, **mixed}
    told: dict[str, Any] = {"tokens": (batch + isl + _MARGIN) * ranks, "sequences": batch * ranks}
    if engine == "trtllm":
        return told | {"chunked": False}
    return told | ({"ahead": version >= _ASYNC} if engine == "vllm" and version is not None else {})


def _version(text: str) -> tuple[int, ...] | None:
    """The numbers of a version, (0, 5, 6) of `0.5.6.post2` and of `v0.5.6`; None of a name, whose engine then behaves
    as engines do."""
    found = re.match(r"v?(\d+(\.\d+)+)", text.strip().lower())
    return tuple(int(each) for each in found.group(1).split(".")) if found else None


def _whole(text: str) -> int:
    return int(float(text)) if text else 1
