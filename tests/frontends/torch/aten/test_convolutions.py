"""Frozen convolutions are Weft's own kernels, right to within twice eager's error in every geometry."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from weft.backends.cpu.target import CpuTarget
from weft.lower.steps import CallStep, Plan
from weft.runtime.record import recording
from weft.testing.comparison import compare


def check(model: nn.Module, *inputs: torch.Tensor, own: bool = True, **options: Any) -> Plan:
    """Compile with frozen weights, compare with float64, and give the plan; `own` convolutions call no library."""
    model = model.eval()
    wide = copy.deepcopy(model).double()
    torch.compiler.reset()
    compiled = torch.compile(model, backend="weft", options={"freeze": True, "cache": False, **options})
    with torch.no_grad(), recording() as records:
        for x in inputs:
            found, eager = compiled(x), model(x)
            assert found.stride() == eager.stride()
            # Hundreds of products, one after the other: with AVX2, torch's library adds them in parts.
            judged = compare(found, eager, wide(x.double()), ulps=4.0)
            assert judged.ok, str(judged)
    assert len(records) == 1
    plan = records[0].plan
    assert plan is not None
    called = [step.target for step in plan.steps if isinstance(step, CallStep)]
    assert called == ([] if own else ["aten::convolution"])
    return plan


class Tail(nn.Module):
    """A convolution with batch norm, an activation and a residual after it."""

    def __init__(self, convolution: nn.Module, channels: int, activation: Callable[..., Any]) -> None:
        super().__init__()
        self.convolution, self.norm, self.activation = convolution, nn.BatchNorm2d(channels), activation
        for tensor in self.norm.state_dict().values():
            if tensor.is_floating_point():
                nn.init.uniform_(tensor, 0.5, 2.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.activation(self.norm(self.convolution(x)))
        return y + x if y.shape == x.shape else y


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize(
    ("channels", "outputs", "size", "settings"),
    [
        (16, 40, (9, 11), {"kernel_size": 1}),
        (64, 32, (14, 14), {"kernel_size": 1, "stride": 2}),
        (3, 17, (23, 20), {"kernel_size": 7, "stride": 2, "padding": 3}),
        (32, 33, (13, 7), {"kernel_size": 3, "padding": 1}),
        (64, 64, (56, 50), {"kernel_size": 3, "padding": 1}),
        (33, 16, (12, 15), {"kernel_size": (1, 5), "padding": (0, 2), "stride": (2, 1)}),
        (24, 8, (17, 19), {"kernel_size": 3, "padding": 2, "dilation": 2, "bias": False}),
        (48, 96, (8, 8), {"kernel_size": 2, "stride": 2}),
        (8, 5, (5, 6), {"kernel_size": 4, "padding": "same"}),
        (1, 6, (28, 28), {"kernel_size": 5}),
        (4, 40, (4, 4), {"kernel_size": 4}),
        (256, 300, (5, 5), {"kernel_size": 3, "padding": 1}),
    ],
)
def test_products(batch: int, channels: int, outputs: int, size: tuple[int, int], settings: dict[str, Any]) -> None:
    check(nn.Conv2d(channels, outputs, **settings), torch.randn(batch, channels, *size))


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(
    ("channels", "size", "settings"),
    [
        (32, (14, 15), {"kernel_size": 3, "padding": 1}),
        (37, (9, 9), {"kernel_size": 3, "stride": 2, "padding": 1}),
        (96, (14, 14), {"kernel_size": 7, "padding": 3}),
        (20, (11, 8), {"kernel_size": 5, "padding": (4, 2), "dilation": (2, 1)}),
        (16, (6, 7), {"kernel_size": (1, 3)}),
        (144, (8, 8), {"kernel_size": 1}),
    ],
)
def test_channels_that_do_not_mix(batch: int, channels: int, size: tuple[int, int], settings: dict[str, Any]) -> None:
    model = nn.Sequential(
        nn.Conv2d(16, channels, 1),
        nn.Conv2d(channels, channels, groups=channels, **settings),
        nn.ReLU6(),
        nn.Conv2d(channels, 16, 1),
    )
    plan = check(model, torch.randn(batch, 16, *size))
    images = [buffer for buffer in plan.buffers if buffer.role == "temporary" and buffer.tensor.rank == 4]
    assert all(buffer.layout.strides[1] == 1 or buffer.layout.strides[3] == 1 for buffer in images)
    check(nn.Conv2d(channels, channels, groups=channels, **settings), torch.randn(batch, channels, *size))


@pytest.mark.parametrize("activation", [F.relu, F.relu6, F.hardswish, F.silu, F.gelu, nn.Identity()])
def test_what_follows_joins_the_product(activation: Callable[..., Any]) -> None:
    plan = check(Tail(nn.Conv2d(24, 24, 3, padding=1), 24, activation), torch.randn(2, 24, 10, 10))
    assert len(plan.steps) <= 4  # the padding, the product, and what brings the result into its order
    check(Tail(nn.Conv2d(24, 24, 3, padding=1, groups=24), 24, activation), torch.randn(1, 24, 10, 10))


class Network(nn.Module):
    """A small network with all that stands between convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = Tail(nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False), 16, F.relu6)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.expand = Tail(nn.Conv2d(16, 64, 1, bias=False), 64, F.hardswish)
        self.depthwise = Tail(nn.Conv2d(64, 64, 3, padding=1, groups=64, bias=False), 64, F.hardswish)
        self.squeeze, self.excite = nn.Conv2d(64, 8, 1), nn.Conv2d(8, 64, 1)
        self.project = Tail(nn.Conv2d(64, 16, 1, bias=False), 16, nn.Identity())
        self.branch = nn.Conv2d(16, 24, 3, padding=1)
        self.mean = nn.AvgPool2d(2)
        self.last = nn.Linear(40, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(self.stem(x))
        y = self.depthwise(self.expand(x))
        scale = torch.sigmoid(self.excite(F.relu(self.squeeze(y.mean((2, 3), keepdim=True)))))
        x = x + self.project(y * scale)
        x = self.mean(torch.cat([x, self.branch(x)], 1))
        return self.last(x.mean((2, 3)))


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_network(batch: int, layout: torch.memory_format) -> None:
    check(Network(), torch.randn(batch, 3, 45, 38).to(memory_format=layout))


def test_symbolic_batch() -> None:
    batches = [torch.randn(batch, 3, 40, 40) for batch in (3, 2, 7)]
    mark: Any = torch._dynamo.mark_dynamic  # type: ignore[attr-defined]
    for x in batches:
        mark(x, 0)
    check(Network(), *batches)
    single = [x[:, :, :, :24].contiguous() for x in batches]
    for x in single:
        mark(x, 0)
    check(nn.Conv2d(3, 12, 3, padding=1), *single)


@pytest.mark.parametrize("channels_last", [False, True])
def test_results_in_their_order(channels_last: bool) -> None:
    model = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 8, 1))
    x = torch.randn(4, 8, 9, 12)
    if channels_last:
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    check(model, x)


def test_other_ranks_and_types() -> None:
    check(nn.Conv1d(12, 20, 5, stride=2, padding=2), torch.randn(3, 12, 31))
    check(nn.Conv1d(12, 12, 3, padding=1, groups=12), torch.randn(2, 12, 31))
    check(nn.Conv3d(4, 9, 3, padding=1, stride=(1, 2, 1)), torch.randn(2, 4, 6, 7, 8))
    check(nn.Conv2d(6, 7, 3).double(), torch.randn(2, 6, 8, 8).double())


def test_values_that_are_not_finite_stay_where_they_are() -> None:
    x = torch.randn(1, 16, 9, 9)
    x[0, 3, 0, 0], x[0, 5, 8, 4] = float("inf"), float("nan")
    for groups in (1, 16):
        check(nn.Conv2d(16, 16, 3, padding=1, groups=groups), x)


@pytest.fixture(params=[True, False])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the machine's library makes code for convolutions: what that does not, Weft takes."""
    monkeypatch.setattr(CpuTarget, "has_library_convolutions", property(lambda self: request.param))
    return request.param


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.Conv2d(16, 32, 3, padding=1, groups=4), (2, 16, 8, 8)),
        (nn.Conv2d(24, 64, (1, 3), stride=(2, 1), dilation=(1, 2), groups=2), (3, 24, 9, 11)),
        (nn.ConvTranspose2d(8, 6, 3, stride=2), (2, 8, 5, 5)),
        (nn.ConvTranspose2d(16, 24, 4, stride=2, padding=1, groups=2), (2, 16, 7, 5)),
        (nn.ConvTranspose1d(8, 6, 3, padding=2, dilation=2), (2, 8, 15)),
    ],
)
def test_what_a_library_keeps_if_it_is_quick(model: nn.Module, shape: tuple[int, ...], library: bool) -> None:
    check(model, torch.randn(shape), own=not library)


def test_what_a_library_keeps() -> None:
    check(nn.Conv2d(8, 16, 3, padding=1, groups=8), torch.randn(1, 8, 8, 8), own=False)


def test_weights_that_may_change(library: bool) -> None:
    check(nn.Conv2d(8, 8, 3), torch.randn(1, 8, 8, 8), own=not library, freeze=False)


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.Conv2d(3, 16, 7, stride=2, padding=3), (4, 3, 33, 32)),
        (nn.Conv2d(16, 8, 3, padding=1, bias=False), (3, 16, 9, 10)),
        (nn.Conv2d(16, 24, 3, stride=(2, 3), padding=(1, 0), dilation=(2, 1)), (4, 16, 11, 12)),
        (nn.Conv2d(16, 32, 1), (3, 16, 8, 8)),
        (nn.Conv2d(32, 48, 3, padding=1, stride=2, groups=4), (2, 32, 9, 7)),
        (nn.Conv2d(3, 24, 16, stride=16), (8, 3, 32, 48)),
        (nn.Conv1d(12, 16, 5, padding=2), (2, 12, 50)),
        (nn.Conv3d(4, 8, 2, stride=2, padding=1), (2, 4, 5, 6, 7)),
        (nn.ConvTranspose2d(16, 5, 3, stride=2, padding=1, output_padding=1), (2, 16, 7, 8)),
    ],
)
def test_training(model: nn.Module, shape: tuple[int, ...], library: bool) -> None:
    torch.manual_seed(0)
    x, eager, wide = torch.randn(shape), copy.deepcopy(model), copy.deepcopy(model).double()
    torch.compiler.reset()
    compiled = torch.compile(model, backend="weft", options={"cache": False})
    weights = torch.randn_like(model(x))

    def gradients(run: Any, owner: nn.Module, x: torch.Tensor) -> list[Any]:
        owner.zero_grad()
        x = x.clone().requires_grad_()
        (run(x) * weights.to(x.dtype)).sum().backward()
        return [x.grad, *(parameter.grad for parameter in owner.parameters())]

    with recording() as records:
        found = gradients(compiled, model, x)
    judged = compare(found, gradients(eager, eager, x), gradients(wide, wide, x.double()))
    assert judged.ok, str(judged)
    called = [step for record in records if record.plan for step in record.plan.steps if isinstance(step, CallStep)]
    assert bool(called) == library
