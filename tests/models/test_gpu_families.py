"""Transformers families as a GPU's kernels compute them, on the interpreter: forward and one training step."""

from __future__ import annotations

import pytest
import torch

from weft.backends.nvidia.target import target_named
from weft.lower.machine import gpu_machine
from weft.pipelines import compile_kernels
from weft.testing.conformance.model_check import check_model
from weft.testing.interpreted import GpuInterpreter
from weft.testing.models import SMALL


@pytest.mark.slow
@pytest.mark.parametrize("name", list(SMALL))
def test_a_family_computes_what_eager_does(name: str) -> None:
    backend = GpuInterpreter(gpu_machine())
    report = check_model(SMALL[name], lambda module: torch.compile(module, backend=backend, fullgraph=True))
    assert report.ok, str(report)
    for planned in backend.plans:
        code = compile_kernels(planned.kernels, target_named("sm_90a"))
        assert code.launches.keys() == planned.kernels.keys()
