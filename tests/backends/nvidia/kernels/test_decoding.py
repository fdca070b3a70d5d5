"""One token of a small decoder as PTX: norms go behind products, rotations and rows of caches are one kernel."""

from __future__ import annotations

import pytest
import torch

from weft.runtime.record import recording
from weft.testing.gpu.llama import Llama, LlamaShape

from ..emulated_graphs import emulated

SHAPE = LlamaShape(layers=2, width=128, heads=2, kv_heads=1, inner=256, vocabulary=256, room=32)


@pytest.mark.parametrize("batch", [1, 3])
def test_a_token(batch: int) -> None:
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        models = [Llama(SHAPE, batch).eval() for _ in range(2)]
    finally:
        torch.set_default_dtype(before)
    own, theirs = models
    for name, buffer in own.named_buffers():
        if name.endswith(("keys", "values")):
            buffer.normal_()
    theirs.load_state_dict(own.state_dict())
    exact = Llama(SHAPE, batch).eval()
    exact.load_state_dict(own.state_dict())
    ids, position = torch.randint(256, (batch, 1)), torch.tensor([7])
    with torch.no_grad(), recording() as records:
        found, eager, wanted = emulated(own)(ids, position), theirs(ids, position), exact.float()(ids, position)
    error, usual = ((each.float() - wanted).norm() / wanted.norm() for each in (found, eager))
    assert error < 1.5 * usual
    for (name, mine), other in zip(own.named_buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(mine, other, atol=0.05, rtol=0.05, msg=name)
    kernels = [kernel.name for record in records for kernel in record.kernels]
    assert any("put_and_index_put" in name for name in kernels) and not any(name.startswith("sum") for name in kernels)
