"""Modules stay modules when they are compiled: state, copies, adapters, hooks, exported programs, repeated layers."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import weft
from weft.errors import WeftError
from weft.runtime.record import CompilationRecord

T = torch.Tensor


class Block(nn.Module):
    """A small transformer layer."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: T) -> T:
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp(x)


class Model(nn.Module):
    """Embedding, layers and a head."""

    def __init__(self, layers: int = 12) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 16)
        self.layers = nn.ModuleList(Block() for _ in range(layers))
        self.head = nn.Linear(16, 40)

    def forward(self, tokens: T) -> T:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


@pytest.fixture
def tokens() -> T:
    return torch.randint(0, 40, (2, 7))


def made(build: Callable[[], nn.Module]) -> tuple[nn.Module, nn.Module]:
    """A module, and a twin with the same weights that stays eager."""
    torch.manual_seed(0)
    module = build()
    return module, copy.deepcopy(module)


def test_twelve_layers_are_compiled_once(tokens: T, records: list[CompilationRecord]) -> None:
    model, twin = made(Model)
    compiled = weft.compile(model)
    assert compiled is model
    with torch.no_grad():
        torch.testing.assert_close(compiled(tokens), twin(tokens))
    regional = [(record.nodes, record.name) for record in records]
    records.clear()
    torch.compiler.reset()
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(twin, backend="weft")(tokens), twin(tokens))
    (whole,) = records
    assert len(regional) == 1
    assert regional[0][0] * 6 < whole.nodes


def test_twelve_layers_train(tokens: T, records: list[CompilationRecord]) -> None:
    model, twin = made(Model)
    weft.compile(model)
    for each in (model, twin):
        F.cross_entropy(each(tokens).flatten(0, 1), tokens.flatten()).backward()
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
    assert sorted(record.name for record in records) == ["backward", "forward"]


def test_layers_with_other_numbers_are_not_confused(tokens: T) -> None:
    class Scaled(nn.Module):
        def __init__(self, scale: float) -> None:
            super().__init__()
            self.scale, self.a, self.b = scale, nn.Linear(16, 16), nn.Linear(16, 16)

        def forward(self, x: T) -> T:
            return self.b(torch.tanh(self.a(x) * self.scale))

    model, twin = made(lambda: nn.Sequential(nn.Embedding(40, 16), nn.Sequential(*(Scaled(n / 2) for n in range(5)))))
    weft.compile(model)
    torch.testing.assert_close(model(tokens), twin(tokens))


def test_blocks_of_torchs_own_classes_are_compiled_once(records: list[CompilationRecord]) -> None:
    def block() -> nn.Module:
        return nn.Sequential(nn.Linear(16, 16), nn.ReLU())

    x = torch.randn(3, 16)
    model, twin = made(lambda: nn.Sequential(nn.Sequential(*(block() for _ in range(4))), nn.Linear(16, 2)))
    with torch.no_grad():
        torch.testing.assert_close(weft.compile(model)(x), twin(x))
    assert len(records) == 1
    torch.testing.assert_close(copy.deepcopy(model)(x), twin(x))


def test_a_module_of_torchs_own_class_is_compiled(records: list[CompilationRecord]) -> None:
    x = torch.randn(3, 16)
    model, twin = made(lambda: nn.Sequential(nn.Linear(16, 16), nn.ReLU()))
    with torch.no_grad():
        torch.testing.assert_close(weft.compile(model)(x), twin(x))
    assert len(records) == 1


def test_regions_can_be_turned_off(tokens: T, records: list[CompilationRecord]) -> None:
    model, twin = made(lambda: Model(3))
    weft.compile(model, regions=False)
    with torch.no_grad():
        torch.testing.assert_close(model(tokens), twin(tokens))
    assert len(records) == 1


def test_lengths_change_in_a_model_of_layers(records: list[CompilationRecord]) -> None:
    model, twin = made(Model)
    weft.compile(model)
    with torch.no_grad():
        for n in range(2, 14):
            tokens = torch.randint(0, 40, (1 + n % 3, n))
            torch.testing.assert_close(model(tokens), twin(tokens))
    assert len(records) <= 4  # a batch of one is a case of its own, once fixed and once for all lengths


@pytest.mark.parametrize("wrap", [weft.compile, lambda m: torch.compile(m, backend="weft")], ids=["weft", "torch"])
def test_state_is_kept_and_loaded(wrap: Callable[[nn.Module], Any], tokens: T) -> None:
    model, twin = made(lambda: Model(3))
    compiled = wrap(model)
    with torch.no_grad():
        torch.testing.assert_close(compiled(tokens), twin(tokens))
        torch.manual_seed(5)
        other = Model(3)
        model.load_state_dict(other.state_dict())
        torch.testing.assert_close(compiled(tokens), other(tokens))
        for p in model.parameters():
            p.mul_(0.5)
        for p in other.parameters():
            p.mul_(0.5)
        torch.testing.assert_close(compiled(tokens), other(tokens))
        model.head.weight = nn.Parameter(torch.zeros(40, 16))
        other.head.weight = nn.Parameter(torch.zeros(40, 16))
        torch.testing.assert_close(compiled(tokens), other(tokens))
        model.load_state_dict(twin.state_dict(), assign=True)
        torch.testing.assert_close(compiled(tokens), twin(tokens))


def test_a_compiled_module_is_of_its_class(tokens: T) -> None:
    model, twin = made(lambda: Model(3))
    weft.compile(model)
    model(tokens)
    assert isinstance(model, Model) and list(model.state_dict()) == list(twin.state_dict())
    assert model.to(torch.float64) is model
    torch.testing.assert_close(model(tokens), twin.double()(tokens))
    assert model.eval() is model and not model.layers[0].training


@pytest.mark.parametrize("called", [False, True], ids=["before a call", "after a call"])
def test_copies_and_pickles(called: bool, tokens: T) -> None:
    model, twin = made(lambda: Model(3))
    weft.compile(model)
    if called:
        model(tokens)
    copied = copy.deepcopy(model)
    with torch.no_grad():
        copied.head.bias.add_(1)
    torch.testing.assert_close(copied(tokens), twin(tokens) + 1)
    torch.testing.assert_close(model(tokens), twin(tokens))
    loaded = pickle.loads(pickle.dumps(model))
    torch.testing.assert_close(loaded(tokens), twin(tokens))
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    torch.testing.assert_close(torch.load(file, weights_only=False)(tokens), twin(tokens))


class LoRA(nn.Module):
    """A frozen linear map with a trained correction of low rank."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / 8)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: T) -> T:
        return self.base(x) + (x @ self.down.t()) @ self.up.t() * 2

    def merge(self) -> None:
        with torch.no_grad():
            self.base.weight += self.up @ self.down * 2
            self.up.zero_()


def with_adapters(model: Model) -> Model:
    for layer in model.layers:
        layer.qkv, layer.out = LoRA(layer.qkv), LoRA(layer.out)  # type: ignore[assignment]
    return model


@pytest.mark.parametrize("wrap", [weft.compile, lambda m: torch.compile(m, backend="weft")], ids=["weft", "torch"])
def test_adapters_train_and_merge(wrap: Callable[[nn.Module], Any], tokens: T) -> None:
    model, twin = made(lambda: with_adapters(Model(3)))
    compiled = wrap(model)
    optimizers = [torch.optim.SGD([p for p in m.parameters() if p.requires_grad], lr=0.5) for m in (model, twin)]
    for _ in range(3):
        for each, optimizer in zip((compiled, twin), optimizers, strict=True):
            optimizer.zero_grad()
            F.cross_entropy(each(tokens).flatten(0, 1), tokens.flatten()).backward()
            optimizer.step()
    assert model.layers[0].qkv.base.weight.grad is None
    torch.testing.assert_close(compiled(tokens), twin(tokens), rtol=1e-4, atol=1e-5)
    before = compiled(tokens)
    for module in model.modules():
        if isinstance(module, LoRA):
            module.merge()
    torch.testing.assert_close(compiled(tokens), before, rtol=1e-4, atol=1e-5)


def test_an_adapter_that_is_added_later_is_seen(tokens: T) -> None:
    model, twin = made(lambda: Model(3))
    weft.compile(model)
    model(tokens)
    for each in (model, twin):
        torch.manual_seed(1)
        with_adapters(each)
        for module in each.modules():
            if isinstance(module, LoRA):
                nn.init.normal_(module.up)
    torch.testing.assert_close(model(tokens), twin(tokens), rtol=1e-4, atol=1e-4)


def test_hooks_of_layers_run(tokens: T) -> None:
    model, twin = made(lambda: Model(3))
    weft.compile(model)
    seen: list[int] = []
    for each in (model, twin):
        each.layers[1].register_forward_hook(lambda module, args, output: output * 2)
        each.layers[2].register_forward_pre_hook(lambda module, args: seen.append(1))
    torch.testing.assert_close(model(tokens), twin(tokens))
    assert len(seen) == 2


def test_buffers_that_are_updated() -> None:
    class Running(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(3))
            self.register_buffer("count", torch.zeros((), dtype=torch.int64))

        def forward(self, x: T) -> T:
            self.total.add_(x.sum(0))
            self.count += 1
            return x - self.total / self.count

    model, twin = made(Running)
    run = weft.compile(model)
    for _ in range(3):
        x = torch.randn(4, 3)
        torch.testing.assert_close(run(x), twin(x))
    torch.testing.assert_close(model.state_dict(), twin.state_dict())


def test_exported_programs_compile(tokens: T, records: list[CompilationRecord]) -> None:
    model, twin = made(lambda: Model(2).eval())
    batch, length = torch.export.Dim("batch", min=2, max=64), torch.export.Dim("length", min=2, max=64)
    program = torch.export.export(model, (tokens,), dynamic_shapes={"tokens": {0: batch, 1: length}})
    run = weft.compile(program.module())
    with torch.no_grad():
        for shape in [(2, 7), (3, 9), (5, 2)]:
            tokens = torch.randint(0, 40, shape)
            torch.testing.assert_close(run(tokens), twin(tokens))
    assert len(records) <= 2


def test_functions_and_methods_compile() -> None:
    @weft.compile
    def scaled(x: T, *, by: float = 2.0) -> T:
        return x * by

    x = torch.randn(3)
    assert torch.equal(scaled(x), x * 2) and torch.equal(scaled(x, by=3.0), x * 3)
    assert scaled.__name__ == "scaled"

    class Holder:
        factor = 3.0

        @weft.compile
        def times(self, x: T) -> T:
            return x * self.factor

    holder = Holder()
    assert torch.equal(holder.times(x), x * 3)
    holder.factor = 4.0
    assert torch.equal(holder.times(x), x * 4)


def test_an_exported_program_is_compiled_as_the_module_that_it_makes() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    rows = torch.export.Dim("rows")
    program = torch.export.export(model, (torch.randn(3, 4),), dynamic_shapes=({0: rows},))
    run = weft.compile(program, fallback="error")
    for count in (3, 5):
        x = torch.randn(count, 4)
        torch.testing.assert_close(run(x), model(x))


def test_wrong_uses_of_compile_are_named() -> None:
    with pytest.raises(WeftError, match="takes a module or a function"):
        weft.compile(3)  # type: ignore[call-overload]
    with pytest.raises(WeftError, match="unknown option fast"):
        weft.compile(nn.Linear(2, 2), fast=True)
    with pytest.raises(Exception, match="unknown option fast"):
        torch.compile(lambda x: x + 1, backend="weft", options={"fast": True})(torch.ones(2))


def test_arguments_of_every_kind() -> None:
    def function(x: T, pair: tuple[T, dict[str, T]], *rest: T, flag: bool = True, name: str = "a", **more: Any) -> Any:
        y = x + pair[0] + pair[1]["b"] + sum(rest)
        return {"y": y * 2 if flag else y, "name": len(name), "more": [more["z"] + 1, None], "n": x.shape[0]}

    a, b, c = (torch.randn(3) for _ in range(3))
    run = torch.compile(function, backend="weft")
    for flag in (True, False):
        torch.testing.assert_close(
            run(a, (b, {"b": c}), a, b, flag=flag, name="q", z=c),
            function(a, (b, {"b": c}), a, b, flag=flag, name="q", z=c),
        )


def test_the_decorator_and_options_in_a_dictionary() -> None:
    @weft.compile(options={"cache": False}, strict=True)
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    x = torch.randn(3)
    torch.testing.assert_close(double(x), x * 2)
    with pytest.raises(weft.WeftError, match=r"(?s)unknown option modes.*fullgraph"):
        weft.compile(lambda x: x, modes="max-autotune")
    with pytest.raises(weft.WeftError, match="no mode is called 'fast'"):
        weft.compile(lambda x: x, mode="fast")
