"""The ops' samples on a GPU, judged as on the CPU."""

from __future__ import annotations

import pytest
import torch

from weft.ops.base import OpSpec
from weft.testing.gpu.corpus import generated_ops
from weft.testing.gpu.op_checks import checked
from weft.testing.op_cases import op_cases

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


@pytest.mark.parametrize("spec", generated_ops(), ids=lambda spec: spec.name)
def test_an_op_agrees_with_float64(spec: OpSpec) -> None:
    assert not (wrong := [f"{name}: {text}" for name, text, _ in checked(op_cases(spec)) if text]), "\n".join(wrong)
