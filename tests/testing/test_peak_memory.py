"""Peak memory: what calls take beyond the state between them, with packed weights counted by themselves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn

from weft.testing import peak_memory
from weft.testing.bench.benchmark_case import Case, CaseResult
from weft.testing.peak_memory import SETTINGS, Memory, MemoryResult, set_bytes, weight_bytes
from weft.tools.bench.report import Results, line

MB = 1 << 20

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


MEASURED = """
import json
import torch
from torch import nn
from weft.testing import peak_memory
from weft.testing.peak_memory import give_back, growth_over, weight_bytes

MB = 1 << 20
kept = []

def with_something_to_stay():
    if not kept:
        kept.append(torch.ones(64 * MB, dtype=torch.uint8))
    torch.ones(32 * MB, dtype=torch.uint8)

def with_something_given_back():
    if not kept:
        kept.append(torch.ones(48 * MB, dtype=torch.uint8))

found = {"temporary": growth_over(with_something_to_stay, give_back)}
kept.clear()
found["kept"] = growth_over(with_something_given_back, lambda: (kept.clear(), give_back()))
kept.clear()
model = nn.Sequential(nn.Linear(256, 4096), nn.GELU(), nn.Linear(4096, 256)).eval()
x = torch.randn(1024, 256)
compiled = torch.compile(model, backend="weft", options={"cache": False, "freeze": True})
with torch.no_grad():
    found["weft"] = growth_over(lambda: compiled(x), give_back)
    found["wrong"] = float((compiled(x) - model(x)).abs().max())
found["packed"], found["weights"] = peak_memory.packed_bytes(), weight_bytes([model])
print(json.dumps(found))
"""


@linux
def test_only_what_calls_take_counts() -> None:
    """In a process of its own, as the suite does it: allocators keep memory, and settings that forbid it come first."""
    command = [sys.executable, "-W", "ignore", "-c", MEASURED]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **SETTINGS})
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert 30 * MB < found["temporary"] < 44 * MB  # what the first call made and keeps is part of the state
    assert 46 * MB < found["kept"] < 60 * MB
    hidden = 1024 * 4096 * 4
    assert found["wrong"] < 1e-4 and hidden // 2 < found["weft"] < 3 * hidden
    assert found["packed"] <= found["weights"] + MB


def test_memory_that_is_a_weights_own_or_shared_counts_once() -> None:
    weight = torch.randn(100)
    made = torch.randn(50)

    class Set:
        memory = (weight.detach(),)
        tensors = {0: weight[:10], 1: made, 2: made[5:]}

    found: Any = Set()
    assert set_bytes(found) == 200
    shared = nn.Linear(10, 10, bias=False)
    twin = nn.Linear(10, 10, bias=False)
    twin.weight = shared.weight
    assert weight_bytes([shared, twin]) == 400


def test_a_contender_is_measured_here() -> None:
    def build() -> Any:
        model, x = nn.Linear(8, 8).eval(), torch.randn(2, 8)

        def start(contender: Any) -> Any:
            run = contender.compile(model)
            return lambda: run(x)

        return start

    if not sys.platform.startswith("linux"):
        pytest.skip("reads /proc")
    found = peak_memory.measure_here(Case("models", "linear", build), "eager", 0)
    assert found.weights == 8 * 8 * 4 + 8 * 4 and found.growth >= 0


def test_a_process_that_fails_says_why() -> None:
    result = peak_memory.measure_memory("no_such_model")
    assert set(result.failures) == {"eager", "weft"} and "no model is called no_such_model" in result.failures["weft"]
    assert not result.ok and result.ratio is None


def test_the_report() -> None:
    result = MemoryResult("tiny", {"eager": Memory(4 * 10**6, 0, 10**7), "weft": Memory(2 * 10**6, 5 * 10**6, 10**7)})
    results = Results("here", list[CaseResult](), weighed=[result])
    figures = results.figures()
    assert figures["ok"] and figures["memory_ratio"] == 0.5 and figures["packed_share"] == 0.5
    assert "| tiny | 4.0 | 2.0 | 2.00 | 5.0 | 10.0 |" in results.markdown()["memory"]
    assert "weft MB 2.0" in line(result)


def test_growth_that_cannot_be_told_from_none_counts_as_equal() -> None:
    assert MemoryResult("tiny", {"eager": Memory(0, 0, 1), "weft": Memory(4096, 0, 1)}).ratio == 1.0
    assert MemoryResult("tiny", {"eager": Memory(0, 0, 1), "weft": Memory(4 * MB, 0, 1)}).ratio == 4.0
