"""Cross-entropy of 16-bit logits on a GPU: no f32 copy of them exists, forward or backward, whatever form it has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.nn import functional as F

from weft.frontends.torch.capture.decompositions import decompositions
from weft.ir.expr import product
from weft.ir.types import f32
from weft.lower.machine import gpu_machine
from weft.lower.plan import Planned
from weft.testing.interpreted import GpuInterpreter

BATCH, TOKENS, WIDTH, WORDS = 2, 9, 16, 203


def shifted(logits: Tensor, labels: Tensor, **settings: Any) -> Tensor:
    """Logits that are cut, as older training loops do it."""
    return F.cross_entropy(logits[:, :-1].reshape(-1, WORDS), labels[:, 1:].reshape(-1), **settings)


def padded(logits: Tensor, labels: Tensor, **settings: Any) -> Tensor:
    """Labels that are shifted, as transformers does it."""
    moved = F.pad(labels, (0, 1), value=-100)[:, 1:].contiguous()
    return F.cross_entropy(logits.view(-1, WORDS), moved.view(-1), **settings)


def capped(logits: Tensor, labels: Tensor) -> Tensor:
    return padded(30.0 * torch.tanh(logits / 30.0), labels)


FORMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "shifted": shifted,
    "padded": padded,
    "capped": capped,
    "smoothed": lambda logits, labels: padded(logits, labels, label_smoothing=0.1),
    "summed": lambda logits, labels: shifted(logits, labels, reduction="sum"),
    "each": lambda logits, labels: shifted(logits, labels, reduction="none").square().mean(),
    "ignoring": lambda logits, labels: shifted(logits, labels.masked_fill(labels % 3 == 0, 7), ignore_index=7),
}


def trained(backend: Any, form: Callable[[Tensor, Tensor], Tensor], hidden: Tensor, weight: Tensor, labels: Tensor):
    def loss(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
        return form((hidden @ weight.T).float(), labels)

    given = [hidden.clone().requires_grad_(), weight.clone().requires_grad_()]
    torch._dynamo.reset()
    found = (torch.compile(loss, backend=backend) if backend else loss)(*given, labels)
    found.backward()
    return found.detach(), *(each.grad for each in given)


@pytest.mark.parametrize("name", FORMS)
def test_logits_are_never_widened_in_memory(name: str) -> None:
    plans: list[Planned] = []
    interpreter = GpuInterpreter(gpu_machine(), plans)
    backend = aot_autograd(
        fw_compiler=interpreter._compile,  # pyright: ignore[reportPrivateUsage]
        decompositions=decompositions("cuda"),
        partition_fn=min_cut_rematerialization_partition,
    )
    torch.manual_seed(0)
    hidden, weight = torch.randn(BATCH, TOKENS, WIDTH), torch.randn(WORDS, WIDTH)
    labels = torch.randint(WORDS, (BATCH, TOKENS))
    narrow = [each.to(torch.bfloat16) for each in (hidden, weight)]
    found = trained(backend, FORMS[name], *narrow, labels)
    expected = trained(None, FORMS[name], *(each.double() for each in narrow), labels)
    for mine, theirs in zip(found, expected, strict=True):
        error = (mine.double() - theirs).abs().max() / theirs.abs().max()
        assert error < 2e-2
    assert len(plans) == 2
    rows = BATCH * (TOKENS - 1)
    wide = [
        (planned.plan.name, buffer)
        for planned in plans
        for buffer in planned.plan.buffers
        if buffer.tensor.dtype == f32 and product(buffer.tensor.shape) >= rows * WORDS
    ]
    assert not wide
