"""Formats that a GPU's tensor cores lack: weights are held in them all the same, and multiplied in bf16.

The catalogue has a peak for every format that is multiplied in, and 0 for others. Engines run checkpoints in such a
format with kernels that widen weights on their way to the tensor cores (Marlin: `W8A16`, `W4A16`), and warn; a plan
does the same.
"""

from __future__ import annotations

from dataclasses import replace

from weft.planner.hardware import Gpu
from weft.planner.model import Model
from weft.planner.program import WEIGHTS_ONLY


def lacks(gpu: Gpu, weights: str) -> bool:
    """Whether tensor cores do not multiply in a format that has a peak of its own."""
    if weights in ("fp8", "fp8_block"):
        return not gpu.fp8
    return weights == "nvfp4" and not gpu.fp4


def held(model: Model, gpu: Gpu, kv: str = "bfloat16") -> Model:
    """A model as a GPU runs it: formats that it lacks hold weights alone, and the assumptions say so."""
    told: list[str] = []
    for name in dict.fromkeys((model.weights, model.expert_weights)):
        if lacks(gpu, name):
            told.append(
                f"{gpu.device} has no tensor cores for {name}: weights are held in it and multiplied in bf16, "
                "so that memory is saved and time in compute is not"
            )
    if kv == "fp8" and not gpu.fp8:
        told.append(f"{gpu.device} has no tensor cores for fp8: the cache is held in it and multiplied in bf16")
    told = [each for each in told if each not in model.assumptions]
    weights, experts = (
        WEIGHTS_ONLY[each] if lacks(gpu, each) else each for each in (model.weights, model.expert_weights)
    )
    return replace(model, weights=weights, expert_weights=experts, assumptions=(*model.assumptions, *told))
