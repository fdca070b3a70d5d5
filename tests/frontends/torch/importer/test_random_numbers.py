"""Dropout of many elements on a GPU makes its own numbers, from a seed that torch draws in every call."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch._higher_order_ops import scan
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

from tests.frontends.torch.transforms.second_derivatives import needs_second_derivatives
from weft.backends.nvidia.target import target_named
from weft.config import Config
from weft.frontends.torch import backend
from weft.frontends.torch.capture import random_numbers
from weft.frontends.torch.capture.decompositions import decompositions
from weft.frontends.torch.capture.random_numbers import draw_seeds_once, dropout_by_counter
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
    draw_seeds_once(graph)
    imported = import_graph(graph, "dropout", Config(), capabilities=target_named("sm_80").capabilities)
    steps = compile_nvidia(imported.function, Config(), target_named("sm_90a")).plan.steps
    assert [step.target for step in steps if isinstance(step, CallStep)] == ["weft::seeds"]
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


def dropouts(x: torch.Tensor) -> list[torch.Tensor]:
    return [torch.native_dropout(x * scale, 0.5, True)[0] for scale in (1.0, 2.0, 3.0)]


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let graphs of the processor's be taken apart as a GPU's are, and dropout of any size make its own numbers."""
    monkeypatch.setattr(backend, "kind_of", lambda _: "cuda")
    monkeypatch.setattr(random_numbers, "_MANY", 1)
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def test_a_graph_draws_its_seeds_at_once(as_on_a_gpu: None) -> None:
    graph = make_fx(lambda x: tuple(dropouts(x)), decompositions("cuda"))(torch.ones(64, 33))
    draw_seeds_once(graph)
    drawn = [
        node for node in graph.graph.nodes if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
    ]
    assert [node.target for node in drawn] == [torch.ops.weft.seeds.default]
    torch.manual_seed(0)
    found = graph(torch.ones(64, 33))
    torch.manual_seed(0)
    seeds = random_numbers.drawn_seeds(3, torch.device("cpu"))
    assert len({int(seed) for seed in seeds}) == 3
    assert all(seed.data_ptr() % 16 == seeds[0].data_ptr() % 16 for seed in seeds)
    for scale, result, seed in zip((1.0, 2.0, 3.0), found, seeds, strict=True):
        assert torch.equal(result, torch.where(torch.ops.weft.uniform(seed, [64, 33]) < 0.5, 2 * scale, 0.0))


def test_branches_and_loops_draw_their_seeds(as_on_a_gpu: None) -> None:
    def function(chosen: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        once = torch.cond(chosen, lambda x: torch.stack(dropouts(x)), lambda x: torch.stack([x, x, x]), (x,))
        zero = torch.zeros_like(x[0])
        turns = scan(lambda kept, row: (kept + 1, torch.native_dropout(row, 0.5, True)[0]), zero, x)[1]
        return once, turns

    compiled = torch.compile(function, backend="weft", options={"cache": False, "fallback": "error"})
    x = torch.ones(5, 400)
    torch.manual_seed(4)
    once, turns = compiled(torch.tensor(True), x)
    torch.manual_seed(4)
    seeds = random_numbers.drawn_seeds(3, torch.device("cpu"))
    for scale, result, seed in zip((1.0, 2.0, 3.0), once, seeds, strict=True):
        assert torch.equal(result, torch.where(torch.ops.weft.uniform(seed, [5, 400]) < 0.5, 2 * scale, 0.0))
    for result in turns:
        (seed,) = random_numbers.drawn_seeds(1, torch.device("cpu"))
        assert torch.equal(result, torch.where(torch.ops.weft.uniform(seed, [400]) < 0.5, 2.0, 0.0))


@pytest.mark.parametrize("cached", [False, True])
def test_the_backward_makes_the_same_masks_of_seeds(
    as_on_a_gpu: None, cached: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    kept: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    def step(seed: int) -> tuple[list[torch.Tensor], torch.Tensor]:
        torch.manual_seed(seed)
        x = torch.ones(64, 33, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            results = compiled(x)
        (gradient,) = torch.autograd.grad(torch.stack(results).sum(), [x])
        return [result.detach() for result in results], gradient

    compiled = torch.compile(dropouts, backend="weft", options={"cache": cached, "fallback": "error"})
    results, gradient = step(3)
    assert kept and not [tensor for tensor in kept if tensor.numel() > 1], "seeds, and no masks"
    assert torch.equal(gradient, torch.stack(results).sum(0))  # each is 0 or its scale twice, and so is its derivative
    masks = [result != 0 for result in results]
    assert all(0.4 < mask.double().mean().item() < 0.6 for mask in masks)
    assert not torch.equal(masks[0], masks[1]) and not torch.equal(masks[1], masks[2])
    again, same = step(3)
    assert all(map(torch.equal, results, again)) and torch.equal(gradient, same)
    assert not torch.equal(step(4)[0][0], results[0])
    torch.manual_seed(3)
    first, second = compiled(torch.ones(64, 33))[0], compiled(torch.ones(64, 33))[0]
    assert torch.equal(first, results[0]) and not torch.equal(second, first), "numbers go on from call to call"


@needs_second_derivatives
def test_second_derivatives_have_the_same_masks(as_on_a_gpu: None) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        first = torch.native_dropout(x, 0.5, True)[0]
        return torch.native_dropout(first, 0.25, True)[0] ** 3

    torch.manual_seed(5)
    x = torch.rand(40, 33, dtype=torch.float64).add_(1).requires_grad_()
    y = torch.compile(function, backend="weft", options={"cache": False})(x)
    (gradient,) = torch.autograd.grad(y.sum(), [x], create_graph=True)
    (second,) = torch.autograd.grad(gradient.sum(), [x])
    scale = y.detach() / x.detach() ** 3
    assert 0.3 < (scale != 0).double().mean().item() < 0.45
    torch.testing.assert_close(gradient, 3 * scale * x**2)
    torch.testing.assert_close(second, 6 * scale * x)


def test_what_a_checkpoint_computes_again_has_the_same_masks(as_on_a_gpu: None) -> None:
    def region(x: torch.Tensor) -> torch.Tensor:
        return torch.native_dropout(x.exp(), 0.5, True)[0] * torch.native_dropout(x, 0.25, True)[0]

    def function(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(region, x, use_reentrant=False)  # pyright: ignore[reportReturnType]  torch has no type for it

    torch.manual_seed(6)
    x = torch.rand(40, 33).add_(1).requires_grad_()
    y = torch.compile(function, backend="weft", options={"cache": False})(x)
    (gradient,) = torch.autograd.grad(y.sum(), [x])
    scale = y.detach() / (x.detach().exp() * x.detach())
    assert 0.3 < (scale != 0).double().mean().item() < 0.45
    torch.testing.assert_close(gradient, scale * x.detach().exp() * (1 + x.detach()))
