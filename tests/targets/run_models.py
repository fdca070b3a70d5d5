"""Compiles models for a target that is found by entry point, and compares what they give with eager; prints JSON.

python run_models.py fixed_tiles minilm llama
"""

from __future__ import annotations

import json
import sys

import torch

import weft
from weft.backends.target import targets
from weft.runtime.record import recording
from weft.testing.models import FULL_SIZE, SMALL, padded_tokens

CASES = {
    "minilm": (FULL_SIZE["minilm"].build, padded_tokens(1, 16, 30522)),
    "llama": (SMALL["llama"].build, SMALL["llama"].inputs),
}


def judged(target: str, name: str) -> dict[str, float]:
    """How far a model's results are from eager's, of what eager's are at most; and how many kernels it has."""
    build, inputs = CASES[name]
    model, given = build(), inputs(0)
    with torch.no_grad(), recording() as records:
        expected = model(**given)[0]
        compiled = weft.compile(model, regions=False, dynamic=False, target=target, strict=True, verify=True)
        found = compiled(**given)[0]
    error = ((found - expected).abs().max() / expected.abs().max()).item()
    (record,) = records
    return {
        "error": error,
        "kernels": len(record.kernels),
        "graphs": len(records),
        "left": len(record.claims) + len(record.fallbacks),
    }


if __name__ == "__main__":
    asked, *names = sys.argv[1:]
    models = {name: judged(asked, name) for name in names}
    print(json.dumps({"targets": sorted(targets()), "models": models}))
