"""Resizing without aliasing and its gradients: by Weft, as eager does it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

FORMS: dict[str, dict[str, Any]] = {
    "smaller and larger": {"size": (5, 20)},
    "by factors": {"scale_factor": (1.7, 0.4)},
    "corners aligned": {"size": (9, 4), "align_corners": True},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_images(mode: str, form: str) -> None:
    def resized(x: Tensor) -> Tensor:
        return F.interpolate(x, mode=mode, antialias=True, **FORMS[form])

    torch.compiler.reset()
    run = torch.compile(resized, backend="weft", options={"strict": True, "cache": False})
    x = torch.randn(2, 3, 17, 13, requires_grad=True)
    results = [(y, torch.autograd.grad(y.square().sum(), x)) for y in (run(x), resized(x))]
    torch.testing.assert_close(*results)
