"""Training steps of models within memory budgets: GPT-2's, ViT's and ResNet-50's structure, at small widths."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from weft.runtime.record import recording
from weft.testing.allocated_memory import allocated_peak
from weft.testing.models import configured, image, logits_loss, seeded, tokens

pytestmark = pytest.mark.slow

_NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
MODELS: dict[str, Any] = {
    "gpt2": (
        lambda: configured(
            "GPT2",
            "LMHeadModel",
            {"n_layer": 6, "n_embd": 64, "n_head": 4, "vocab_size": 128, "use_cache": False, **_NO_DROPOUT},
        ),
        tokens(4, 64, 128),
    ),
    "vit": (
        lambda: configured(
            "ViT",
            "ForImageClassification",
            {
                "hidden_size": 64,
                "num_hidden_layers": 6,
                "num_attention_heads": 4,
                "intermediate_size": 256,
                "image_size": 32,
                "patch_size": 4,
            },
        ),
        image(4, 32),
    ),
    "resnet50": (
        lambda: configured(
            "ResNet",
            "ForImageClassification",
            {"embedding_size": 16, "hidden_sizes": [32, 64, 128, 256], "depths": [3, 4, 6, 3]},
        ),
        image(4, 64),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_peaks_are_monotone_and_what_was_predicted(name: str) -> None:
    make, inputs = MODELS[name]
    model: nn.Module = seeded(make).train()
    given = inputs(0)

    def gradients(call: Any) -> list[torch.Tensor]:
        model.zero_grad()
        logits_loss(call(**given)).backward()
        return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]

    exact, peaks = gradients(model), dict[float, int]()
    for budget in (1.0, 0.8, 0.6, 0.4, 0.3):
        torch._dynamo.reset()
        compiled: Any = torch.compile(model, backend="weft", options={"memory_budget": budget})
        with recording() as records:
            found = gradients(compiled)
        away = torch.cat([(one - other).flatten() for one, other in zip(found, exact, strict=True)]).norm()
        assert away <= 1e-3 * torch.cat([each.flatten() for each in exact]).norm()
        (predicted,) = (record.peak for record in records if record.peak is not None)
        model.zero_grad()
        peaks[budget] = allocated_peak(lambda call=compiled: logits_loss(call(**given)).backward())
        print(f"{name} at {budget}: {peaks[budget]} bytes, predicted {predicted}", flush=True)
        assert abs(peaks[budget] - predicted) <= 0.01 * predicted
    assert list(peaks.values()) == sorted(peaks.values(), reverse=True)
