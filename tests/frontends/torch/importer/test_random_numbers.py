"""Dropout of many elements on a GPU makes its own numbers, from a seed that torch draws in every call."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from weft.backends.nvidia.target import target_named
from weft.config import Config
from weft.frontends.torch.capture.decompositions import decompositions
from weft.frontends.torch.capture.random_numbers import dropout_by_counter
from weft.frontends.torch.importer.import_graph import import_graph
from weft.lower.steps import CallStep, KernelStep
from weft.ops.random import Uniform
from weft.pipelines import compile_nvidia


def test_many_elements_take_one_seed_and_one_kernel() -> None:
    def residual(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return y + torch.native_dropout(x, 0.1, True)[0]

    with FakeTensorMode():
        inputs = [torch.empty((1024, 1024), dtype=torch.bfloat16, device="cuda") for _ in range(2)]
        graph = make_fx(lambda *args: (residual(*args),), decompositions("cuda"))(*inputs)
    imported = import_graph(graph, "dropout", Config(), capabilities=target_named("sm_80").capabilities)
    steps = compile_nvidia(imported.function, Config(), target_named("sm_90a")).plan.steps
    assert [step.target for step in steps if isinstance(step, CallStep)] == ["aten::randint.low"]
    assert sum(isinstance(step, KernelStep) for step in steps) == 1


def test_few_elements_are_drawn_as_eager_draws_them() -> None:
    assert dropout_by_counter(torch.ones(100), 0.5, True) is NotImplemented


def test_what_is_kept_is_scaled() -> None:
    torch.manual_seed(0)
    x = torch.full((1 << 20,), 3.0, dtype=torch.bfloat16)
    value, mask = dropout_by_counter(x, 0.25, True)
    assert value.dtype == x.dtype and abs(mask.double().mean().item() - 0.75) < 0.005
    assert torch.equal(value, torch.where(mask, 4.0, 0.0).to(x.dtype))


def test_the_operator_gives_what_kernels_make() -> None:
    seed = torch.tensor([5])
    found = torch.ops.weft.uniform(seed, [3, 7])
    assert torch.equal(found, torch.from_numpy(Uniform.reference(seed.numpy(), (3, 7))))
