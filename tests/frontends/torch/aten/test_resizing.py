"""Gradients of resizing on a GPU are gathered by kernels of Weft's own, and are what float64 gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from weft.frontends.torch.capture.whole_resizing import whole_resizing
from weft.lower.machine import gpu_machine
from weft.lower.steps import CallStep
from weft.testing.interpreted import GpuInterpreter

Sizes = tuple[int, ...]
CASES: list[tuple[Sizes, dict[str, Any]]] = [
    ((2, 3, 5), {"size": 20, "mode": "linear"}),
    ((2, 3, 9), {"size": 4, "mode": "linear", "align_corners": True}),
    ((2, 3, 4, 5), {"scale_factor": 4, "mode": "bilinear"}),
    ((2, 3, 4, 5), {"size": (9, 3), "mode": "bilinear"}),
    ((2, 3, 4, 1), {"size": (7, 3), "mode": "bilinear", "align_corners": True}),
    ((1, 2, 6, 7), {"scale_factor": 1.6, "mode": "bilinear"}),
    ((1, 2, 4, 5), {"scale_factor": 2, "mode": "bicubic"}),
    ((1, 2, 4, 5), {"size": (7, 3), "mode": "bicubic", "align_corners": True}),
    ((1, 2, 3, 2, 4), {"scale_factor": 2, "mode": "trilinear"}),
    ((2, 3, 5), {"scale_factor": 3, "mode": "nearest"}),
    ((2, 3, 4, 5), {"scale_factor": 2, "mode": "nearest"}),
    ((2, 3, 4, 5), {"size": (7, 3), "mode": "nearest"}),
    ((2, 3, 4, 5), {"size": (7, 3), "mode": "nearest-exact"}),
    ((2, 3, 4, 5), {"scale_factor": 1.7, "mode": "nearest-exact"}),
    ((1, 2, 3, 2, 4), {"scale_factor": 2, "mode": "nearest"}),
]


def gradient(x: torch.Tensor, weights: torch.Tensor, backend: Any = None, **options: Any) -> torch.Tensor:
    def function(x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return (F.interpolate(x, **options) * weights).sum()

    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    torch.compiler.reset()
    with whole_resizing():
        loss = torch.compile(function, backend=backend)(x, weights) if backend else function(x, weights)
        loss.backward()
    assert x.grad is not None
    return x.grad


LAYOUTS = [(*case, False) for case in CASES] + [(*case, True) for case in CASES if len(case[0]) == 4]


@pytest.mark.parametrize(
    ("shape", "options", "channels_last"),
    LAYOUTS,
    ids=["_".join(map(str, (*options.values(), *["last"][:last]))) for _, options, last in LAYOUTS],
)
def test_gradients_are_gathered(shape: Sizes, options: dict[str, Any], channels_last: bool) -> None:
    x = torch.randn(shape)
    x = x.to(memory_format=torch.channels_last) if channels_last else x
    weights = torch.randn_like(F.interpolate(x, **options))
    backend = GpuInterpreter(gpu_machine())
    found = gradient(x, weights, backend, **options)
    wide = gradient(x.double(), weights.double(), **options)
    calls = [step.target for each in backend.plans for step in each.plan.steps if isinstance(step, CallStep)]
    assert calls == []
    torch.testing.assert_close(found.double(), wide, rtol=2e-5, atol=2e-5)


def test_narrow_gradients_are_summed_wide() -> None:
    x = torch.randn(2, 3, 4, 5, dtype=torch.bfloat16)
    options: dict[str, Any] = {"scale_factor": 4, "mode": "bilinear"}
    weights = torch.randn(2, 3, 16, 20, dtype=torch.bfloat16)
    backend = GpuInterpreter(gpu_machine())
    found = gradient(x, weights, backend, **options)
    wide = gradient(x.double(), weights.double(), **options)
    torch.testing.assert_close(found, wide.to(torch.bfloat16), rtol=8e-3, atol=1e-3)


def test_torch_has_its_own_parts_again() -> None:
    op, key = torch.ops.aten.upsample_bilinear2d.vec, torch._C.DispatchKey.Autograd
    before = op.py_kernels[key]
    with whole_resizing(), whole_resizing():
        assert key not in op.py_kernels
    assert op.py_kernels[key] is before
    with whole_resizing("cpu"):
        assert op.py_kernels[key] is before


def test_resizing_to_symbolic_sizes_keeps_torchs_parts() -> None:
    found: list[bool] = []

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
        key = torch._C.DispatchKey.Autograd
        with whole_resizing("cuda", module):
            found.append(key not in torch.ops.aten.upsample_bilinear2d.vec.py_kernels)
        return module

    def resized(x: Tensor) -> Tensor:
        return F.interpolate(x, size=(x.shape[2] * 3, x.shape[3] + 1), mode="bilinear")

    for dynamic in (False, True):
        torch._dynamo.reset()
        torch.compile(resized, backend=backend, dynamic=dynamic)(torch.rand(3, 2, 4, 5))
    torch.compile(torch.sin, backend=backend)(torch.rand(3))
    assert found == [True, False, False]


def test_torchs_rounding_of_places_on_a_processor_is_kept() -> None:
    def gradient_of(g: Tensor) -> Tensor:
        return torch.ops.aten.upsample_nearest2d_backward(g, [8, 10], [2, 3, 4, 5], 2.1, 1.95)

    torch._dynamo.reset()
    g = torch.randn(2, 3, 8, 10)
    compiled = torch.compile(gradient_of, backend="weft", options={"cache": False, "fallback": "quiet"})
    torch.testing.assert_close(compiled(g), gradient_of(g))


@pytest.mark.parametrize(("size", "count"), [(22050, 160_000), (441_000, 705_600)])
@pytest.mark.parametrize("operator", ["_upsample_nearest_exact1d_backward", "upsample_nearest1d_backward"])
def test_no_result_of_a_long_line_is_lost(size: int, count: int, operator: str) -> None:
    """Where neighbouring floats are further apart than a fixed margin."""

    def gradient_of(g: Tensor) -> Tensor:
        return getattr(torch.ops.aten, operator)(g, [count], [1, 1, size])

    torch._dynamo.reset()
    compiled = torch.compile(gradient_of, backend="weft", options={"cache": False, "fallback": "error"})
    g = torch.randint(-4, 5, (1, 1, count)).float()
    assert torch.equal(compiled(g), gradient_of(g))
