"""Modules of torch that are no transformers run as integers: the bits of the graph, and near what the floats are."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from weft.backends.reference.graph import run
from weft.errors import UnsupportedError
from weft.spatial.machine import streaming_machine
from weft.spatial.scheduler.compile import compile_graph
from weft.spatial.simulator.run import simulate
from weft.spatial.verifier.verify import violations
from weft.testing.spatial.transformers import exported_graph
from weft.tools.spatial_models import quantized_model

TSP1 = streaming_machine("tsp1")


class Computed(nn.Module):
    """A function of a module's output and its input."""

    def __init__(self, inner: nn.Module, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.inner, self.function = inner, function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.inner(x), x)


class Block(nn.Module):
    """Two convolutions with a norm, and what was before them beside."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm, self.second = nn.BatchNorm2d(channels), nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.second(torch.relu(self.norm(self.first(x)))))


class Added(nn.Module):
    """The sum of two rows: products of an image that is flattened, or one of them its sum over pixels."""

    def __init__(self, ins: int, outs: int, pixels: bool = False) -> None:
        super().__init__()
        self.first, self.second, self.pixels = nn.Linear(ins, outs), nn.Linear(ins, outs), pixels
        self.inner = nn.Conv2d(ins if pixels else 1, ins if pixels else 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.inner(x))
        if self.pixels:
            return x.sum((2, 3)) + self.second(x.sum((2, 3)))
        return self.first(x.flatten(1)) + self.second(x.flatten(1))


IMAGES = {
    "image": (nn.Conv2d(3, 50, 5, stride=2, padding=2), (1, 3, 17, 19)),
    "image of one channel": (nn.Conv2d(1, 1, (1, 3), stride=(2, 1), padding=(0, 1)), (1, 1, 8, 9)),
    "groups and dilation": (nn.Conv2d(12, 18, 3, padding=2, groups=3, dilation=2), (1, 12, 7, 9)),
    "depthwise": (
        nn.Sequential(
            nn.Conv2d(3, 24, 3, 2, 1),
            nn.ReLU6(),
            nn.Conv2d(24, 24, 3, 1, 1, groups=24),
            nn.BatchNorm2d(24),
            nn.ReLU6(),
            nn.Conv2d(24, 40, 1),
        ),
        (1, 3, 17, 19),
    ),
    "residual of an image": (nn.Sequential(nn.Conv2d(3, 20, 1), Block(20)), (1, 3, 8, 9)),
    "pools": (
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.Conv2d(8, 4, 1), nn.AvgPool2d(2)),
        (1, 3, 12, 11),
    ),
    "sum over pixels": (
        nn.Sequential(nn.Conv2d(3, 20, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(20, 10), nn.Softmax(-1)),
        (1, 3, 8, 9),
    ),
    "flattened image": (
        nn.Sequential(
            nn.Conv2d(1, 6, 5), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 5 * 4, 30), nn.ReLU(), nn.Linear(30, 3)
        ),
        (1, 1, 9, 8),
    ),
    "product of a flattened image beside another": (Added(12, 30), (1, 1, 4, 3)),
    "sum over pixels beside a row": (Added(2, 2, pixels=True), (1, 2, 4, 3)),
    "minimum of an image, then a sum": (
        Computed(nn.Conv2d(3, 3, 1), lambda y, x: (y + 3).clamp(max=3.2) + x),
        (1, 3, 8, 9),
    ),
    "minimum of an image, then a factor": (
        Computed(nn.Conv2d(3, 8, 1), lambda y, x: (y + 3).clamp(max=3.2) * 2 - 6),
        (1, 3, 8, 9),
    ),
    "silu of an argument": (nn.Sequential(nn.SiLU(), nn.Conv2d(3, 8, 1)), (1, 3, 8, 9)),
    "gelu of an argument": (nn.Sequential(nn.GELU(), nn.Conv2d(3, 8, 1)), (1, 3, 8, 9)),
    "tanh of an argument": (nn.Sequential(nn.Tanh(), nn.Conv2d(3, 8, 1)), (1, 3, 8, 9)),
    "sigmoid of an argument": (nn.Sequential(nn.Sigmoid(), nn.Conv2d(3, 8, 1)), (1, 3, 8, 9)),
    "silu of an image": (nn.Sequential(nn.Conv2d(3, 20, 3), nn.SiLU(), nn.Conv2d(20, 5, 1)), (1, 3, 8, 9)),
}
MODULES = {
    **IMAGES,
    "one channel": (nn.Linear(1, 5), (3, 1)),
    "rows of a batch of 3": (nn.Linear(33, 65), (3, 7, 33)),
    "relu": (nn.Sequential(nn.Linear(321, 319), nn.ReLU(), nn.Linear(319, 1)), (5, 321)),
    "relu of an argument": (nn.ReLU(), (3, 17)),
    "tanh": (nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 20)), (2, 20)),
    "sigmoid": (nn.Sequential(nn.Linear(20, 20), nn.Sigmoid()), (1, 20)),
    "silu": (nn.Sequential(nn.Linear(20, 40), nn.SiLU(), nn.Linear(40, 7)), (9, 20)),
    "softmax over an odd length": (Computed(nn.Linear(17, 23), lambda y, x: F.softmax(y, -1)), (6, 17)),
    "residual of a relu": (Computed(nn.Sequential(nn.Linear(40, 40), nn.ReLU()), lambda y, x: x + y), (3, 40)),
    "difference": (Computed(nn.Linear(40, 40), lambda y, x: y - x), (3, 40)),
    "a batch of one behind the rows": (Computed(nn.Linear(16, 8), lambda y, x: y.transpose(0, 1)), (1, 9, 16)),
    "minimum, then a sum": (Computed(nn.Linear(8, 8), lambda y, x: (y + 3).clamp(max=3.2) + x), (5, 8)),
    "minimum, then tanh": (Computed(nn.Linear(8, 8), lambda y, x: torch.tanh((y + 1).clamp(max=1.1))), (5, 8)),
    "less a constant": (Computed(nn.Linear(40, 40), lambda y, x: y - 0.5), (3, 40)),
    "norm of an odd length": (nn.LayerNorm(33), (4, 33)),
    "gelu and norm": (nn.Sequential(nn.Linear(50, 70), nn.GELU(), nn.LayerNorm(70), nn.Linear(70, 3)), (9, 50)),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_module_is_exact_and_near_its_floats(name: str) -> None:
    torch.manual_seed(0)
    module, shape = MODULES[name]
    for each in (each for each in module.modules() if isinstance(each, nn.Linear | nn.Conv2d)):
        each.reset_parameters()
    for norm in (each for each in module.modules() if isinstance(each, nn.BatchNorm2d)):
        for values, least in (
            (norm.running_mean, -1.0),
            (norm.running_var, 0.5),
            (norm.weight, 0.5),
            (norm.bias, -1.0),
        ):
            nn.init.uniform_(cast(Tensor, values), least, least + 1.5)
    module.eval()
    model = quantized_model(*exported_graph(module, (torch.randn(shape),)), 0)
    assert model.quantized is not None and model.constants is not None
    program = compile_graph(model.function, TSP1, model.constants)
    assert not violations(program)
    # The sample that gave the scales: what is beyond it is cut off, which is no matter of rounding.
    floats = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    given = model.quantized.arguments[0].integers(floats)
    simulated = simulate(program, [given])
    assert simulated.cycles == program.cycles
    (expected,) = run(model.function, [given, *model.constants.values()])
    np.testing.assert_array_equal(simulated.results[0], expected, strict=True)
    with torch.no_grad():
        wanted = module(torch.from_numpy(floats)).numpy()
    got = model.quantized.results[0].floats(expected)
    assert np.abs(got - wanted).mean() < 0.06 * wanted.std() + 1e-6


@pytest.mark.parametrize(
    ("module", "given", "said"),
    [
        (nn.Embedding(10, 16), torch.tensor([1, 2, 3]), "is not quantized"),
        (nn.Conv2d(8, 8, 3), torch.randn(2, 8, 9, 9), "a batch of 2 images"),
        (nn.ConvTranspose2d(8, 8, 3), torch.randn(1, 8, 9, 9), "is not quantized"),
        (nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.ReLU()), torch.randn(1, 3, 5, 5), "Flattened is used"),
        (Computed(nn.Identity(), lambda y, x: y @ x), torch.randn(5, 5), "is not quantized"),
        (Computed(nn.Linear(4, 4), lambda y, x: torch.sin(y)), torch.randn(3, 4), "graph.sin"),
        (nn.Identity(), torch.randn(2, 20), "is returned, which no layer computes"),
    ],
)
def test_what_is_not_quantized_is_refused(module: nn.Module, given: Tensor, said: str) -> None:
    with pytest.raises(UnsupportedError, match=said):
        model = quantized_model(*exported_graph(module, (given,)), 0)
        assert model.constants is not None
        compile_graph(model.function, TSP1, model.constants)


def test_sizes_that_are_not_known_are_refused() -> None:
    text = exported_graph(nn.Linear(4, 4), (torch.randn(3, 4),))
    unknown = text[0].replace("tensor<3x4xf32>", 'tensor<?x4xf32, #graph.sizes<["s0", "4"]>>')
    with pytest.raises(UnsupportedError, match="the argument input has a size s0"):
        quantized_model(unknown, text[1], 0)
