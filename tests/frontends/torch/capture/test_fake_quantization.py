from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

OPTIONS: dict[str, Any] = {"cache": False, "fallback": "error"}
SCALES, POINTS = torch.tensor([0.1, 0.033, 2.0, 0.7]), torch.tensor([0, 3, -128, 127], dtype=torch.int32)
FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "numbers": lambda x: torch.fake_quantize_per_tensor_affine(x, 0.037, 5, -128, 127),
    "tensors": lambda x: torch.fake_quantize_per_tensor_affine(x, SCALES[1:2], POINTS[1:2], 0, 15),
    "channels": lambda x: torch.fake_quantize_per_channel_affine(x, SCALES, POINTS, 1, -128, 127),
    "last": lambda x: torch.fake_quantize_per_channel_affine(x, SCALES[:3], POINTS[:3], 2, -128, 127),
}


def gradients(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    y = function(x)
    (gradient,) = torch.autograd.grad((y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape)).sum(), x)
    return y, gradient


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("form", FORMS)
def test_values_and_gradients_are_eagers(form: str, dtype: torch.dtype) -> None:
    torch.compiler.reset()
    x = (torch.randn(5, 4, 3) * 20).to(dtype)
    compiled = torch.compile(FORMS[form], backend="weft", options=OPTIONS)
    for found, expected in zip(gradients(compiled, x), gradients(FORMS[form], x), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_what_has_no_end_is_at_one_of_the_range() -> None:
    """In eager, which makes integers of them, processors decide."""
    torch.compiler.reset()
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 1e30])
    found = torch.compile(FORMS["numbers"], backend="weft", options=OPTIONS)(x)
    torch.testing.assert_close(found, torch.tensor([-133, 122, -133, 122]) * 0.037)


def test_zero_points_out_of_the_range_raise_as_in_eager() -> None:
    torch.compiler.reset()
    points = POINTS.clone()
    compiled = torch.compile(
        lambda x, points: torch.fake_quantize_per_channel_affine(x, SCALES, points, 0, -128, 127),
        backend="weft",
        options=OPTIONS,
    )
    x = torch.randn(4, 3)
    compiled(x, points)
    points[2] = 300
    with pytest.raises(RuntimeError, match="must be between"):
        compiled(x, points)


def test_a_layer_is_trained_with_observers() -> None:
    """The module of torch.ao: statistics are observed, the scale is computed of them, weights are rounded by it."""
    quantization = pytest.importorskip("torch.ao.quantization")

    def trained(wrap: Callable[[nn.Module], Any]) -> list[Tensor]:
        torch.manual_seed(1)
        fake = quantization.FakeQuantize(observer=quantization.MovingAverageMinMaxObserver, quant_min=0, quant_max=255)
        model = nn.Sequential(nn.Linear(6, 8), fake, nn.ReLU(), nn.Linear(8, 3))
        optimizer, run = torch.optim.SGD(model.parameters(), lr=0.1), wrap(model)
        for _ in range(3):
            optimizer.zero_grad()
            run(torch.randn(5, 6)).square().mean().backward()
            optimizer.step()
        return [*model.parameters(), *(buffer for buffer in model.buffers() if buffer.is_floating_point())]

    torch.compiler.reset()
    found = trained(lambda model: torch.compile(model, backend="weft", options={"cache": False}))
    for each, expected in zip(found, trained(lambda model: model), strict=True):
        torch.testing.assert_close(each, expected, rtol=1e-4, atol=1e-5)
