"""Weights of few bits, and matrices that are chosen for rows, on a GPU that is there."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch

from weft.config import CODES
from weft.testing.devices import CudaDevice
from weft.testing.gpu.case import Place
from weft.testing.gpu.gemv import WEIGHTS
from weft.testing.gpu.narrow import coded, mxfp4
from weft.testing.gpu.products import expert_layer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]
OPTIONS = {"cache": False}


def normal(*shape: int, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16) * scale


def relative(actual: torch.Tensor, exact: torch.Tensor) -> float:
    return float((actual.double() - exact.double()).norm() / exact.double().norm())


def compiled(function: Callable[..., torch.Tensor], **options: object) -> Callable[..., torch.Tensor]:
    torch._dynamo.reset()
    return torch.compile(function, backend="weft", options=OPTIONS | options)


@pytest.mark.parametrize("rows", [1, 5, 16, 200])
@pytest.mark.parametrize("form", WEIGHTS)
def test_weights_of_every_form(form: str, rows: int) -> None:
    weights = WEIGHTS[form]
    with torch.no_grad():
        parts = weights.make(Place(CudaDevice()), 512, 1024)
        x = normal(rows, 1024)
        exact = weights.function(x.double(), *(p.double() if p.dtype == torch.bfloat16 else p for p in parts))
        assert relative(compiled(weights.function)(x, *parts), exact) < 2**-7


@pytest.mark.parametrize("rows", [1, 16, 64])
@pytest.mark.parametrize("form", CODES)
def test_frozen_weights_are_coded_on_the_gpu(form: str, rows: int) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(1024, 512), torch.nn.SiLU(), torch.nn.Linear(512, 256, bias=False))
    model = model.cuda().bfloat16()
    x = normal(rows, 1024)
    with torch.no_grad():
        found = compiled(model, quantize=form)(x)
        exact = copy.deepcopy(model).double()
        for layer in (0, 2):
            exact[layer].weight.copy_(coded(model[layer].weight, form))
        eager = copy.deepcopy(exact).bfloat16()
        wanted = exact(x.double())
        # What is left is rounding to bfloat16, of what is between the layers too, and of the library's partial sums.
        assert relative(found, wanted) < max(2**-7, 2 * relative(eager(x), wanted))


class Gate(torch.nn.Module):
    """A gate and what it opens as one product that is cut in halves."""

    def __init__(self) -> None:
        super().__init__()
        self.both = torch.nn.Linear(1024, 2 * 8200, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.both(x).chunk(2, -1)
        return torch.nn.functional.silu(gate) * up


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("form", ["int4", "int4_32", "mxfp4", "int8"])
def test_gates_with_codes(form: str, rows: int) -> None:
    model, x = Gate().cuda().bfloat16(), normal(rows, 1024)
    with torch.no_grad():
        exact = copy.deepcopy(model).double()
        exact.both.weight.copy_(coded(model.both.weight, form))
        assert relative(compiled(model, quantize=form)(x), exact(x.double())) < 2**-6


@pytest.mark.parametrize("of_4_bits", [False, True])
@pytest.mark.parametrize("tokens", [1, 7, 300])
def test_experts(tokens: int, of_4_bits: bool) -> None:
    x, router = normal(tokens, 512), normal(8, 512)
    if of_4_bits:
        parts: list[torch.Tensor] = []
        for sides in ((1024, 512), (512, 512)):
            codes = torch.randint(256, (8, sides[0], sides[1] // 2), device="cuda", dtype=torch.uint8)
            parts += [codes, torch.randint(117, 121, (8, sides[0], sides[1] // 32), device="cuda", dtype=torch.uint8)]
    else:
        parts = [normal(8, 1024, 512, scale=0.05), normal(8, 512, 512, scale=0.05)]

    def layer(x: torch.Tensor, router: torch.Tensor, *parts: torch.Tensor) -> torch.Tensor:
        if len(parts) == 4:
            parts = mxfp4(parts[0], parts[1], x.dtype), mxfp4(parts[2], parts[3], x.dtype)
        return expert_layer(x, router, parts[0], parts[1], chosen=2)

    with torch.no_grad():
        assert relative(compiled(layer)(x, router, *parts), layer(x, router, *parts)) < 2e-2
