"""Modules of torch that are no transformers run as integers: the bits of the graph, and near what the floats are."""

from __future__ import annotations

from collections.abc import Callable

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


MODULES = {
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
    "less a constant": (Computed(nn.Linear(40, 40), lambda y, x: y - 0.5), (3, 40)),
    "norm of an odd length": (nn.LayerNorm(33), (4, 33)),
    "gelu and norm": (nn.Sequential(nn.Linear(50, 70), nn.GELU(), nn.LayerNorm(70), nn.Linear(70, 3)), (9, 50)),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_module_is_exact_and_near_its_floats(name: str) -> None:
    torch.manual_seed(0)
    module, shape = MODULES[name]
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
        (nn.Conv2d(8, 8, 3, groups=8), torch.randn(1, 8, 9, 9), "is not quantized"),
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
