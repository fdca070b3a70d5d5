"""Tables that a GPU's graph makes in the processor's memory leave one device for the whole graph, and its numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from weft.errors import UnsupportedError
from weft.frontends.torch.capture import processor_tables
from weft.frontends.torch.capture.decompositions import decompositions
from weft.frontends.torch.capture.processor_tables import make_tables
from weft.frontends.torch.importer.graph_device import graph_device


def buckets(length: int) -> torch.Tensor:
    """Of relative positions, as MPNet and T5 have them: logarithms decide, rounded as the processor rounds them."""
    places = torch.arange(length)
    apart = (places[None] - places[:, None]).abs()
    large = 8 + (torch.log(apart.float() / 8) / math.log(16) * 8).to(torch.int64)
    return torch.where(apart < 8, apart, large.clamp(max=15))


def biased(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return x + torch.embedding(table, buckets(x.shape[0]).to(x.device)).squeeze(-1)


def masked(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    places = torch.arange(x.shape[0])
    return x.masked_fill((places[None] > places[:, None]).to(x.device), 0.0) + table.sum()


def looked_up(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Places in the processor's memory, where a GPU's tensor is indexed by them, twice."""
    places = buckets(x.shape[0])
    index = torch.ops.aten.index.Tensor
    return x + index(table, [places]).squeeze(-1) * index(table * 2, [places]).squeeze(-1)


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """What is copied to the GPU, which is not there."""
    made: list[torch.Tensor] = []

    def copied(value: torch.Tensor, device: torch.device) -> torch.Tensor:
        assert device.type == "cuda"
        made.append(value)
        return torch.empty_like(value, device="meta")

    monkeypatch.setattr(processor_tables, "_copied", copied)
    return made


def traced(function: Callable[..., Any], length: Any, dynamic: bool = False) -> torch.fx.GraphModule:
    environment, source = ShapeEnv(), ConstantSource("n")
    if dynamic:
        symbol = environment.create_symbol(length, source, dynamic_dim=DimDynamic.DYNAMIC)
        length = environment.create_symintnode(symbol, hint=length, source=source)
    with FakeTensorMode(shape_env=environment):
        x, table = torch.empty(length, length, device="cuda"), torch.empty(16, 1, device="cuda")
        return make_fx(lambda *given: (function(*given),), decompositions("cuda"))(x, table)


@pytest.mark.parametrize("length", [20, 130])
@pytest.mark.parametrize("function", [biased, masked, looked_up])
def test_tables_are_made_once(function: Callable[..., Any], length: int, tables: list[torch.Tensor]) -> None:
    module = traced(function, length)
    with pytest.raises(UnsupportedError, match="several devices"):
        graph_device(module)
    make_tables(module)
    module.graph.lint()
    assert graph_device(module).type == "cuda"
    assert not any(node.meta["val"].device.type == "cpu" for node in module.graph.nodes if "val" in node.meta)
    (made,) = tables
    places = torch.arange(length)
    assert torch.equal(made, buckets(length) if function is not masked else places[None] > places[:, None])


def test_integers_of_symbolic_sizes_are_made_on_the_gpu(tables: list[torch.Tensor]) -> None:
    module = traced(masked, 20, dynamic=True)
    make_tables(module)
    module.graph.lint()
    assert graph_device(module).type == "cuda" and not tables
    x, table = torch.randn(9, 9), torch.randn(16, 1)
    for node in module.graph.nodes:
        if "device" in node.kwargs:
            node.kwargs = {**node.kwargs, "device": torch.device("cpu")}
    module.recompile()
    (found,) = module(x, table)
    assert torch.equal(found, masked(x, table))


def test_logarithms_of_symbolic_sizes_stay_the_processors(tables: list[torch.Tensor]) -> None:
    module = traced(biased, 20, dynamic=True)
    before = str(module.graph)
    make_tables(module)
    assert str(module.graph) == before and not tables


def test_what_is_given_or_drawn_is_no_table(tables: list[torch.Tensor]) -> None:
    def given(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + (y * 2).to(x.device) + torch.rand(4, 4).to(x.device)

    with FakeTensorMode():
        module = make_fx(given)(torch.empty(4, 4, device="cuda"), torch.empty(4, 4))
    before = str(module.graph)
    make_tables(module)
    assert str(module.graph) == before and not tables


def test_lengths_that_a_call_wants_from_the_processor_stay_there(tables: list[torch.Tensor]) -> None:
    library = torch.library.Library("table_tests", "DEF")
    library.define("padded(Tensor x, Tensor lengths) -> Tensor")
    torch.library.register_fake("table_tests::padded", lambda x, lengths: torch.empty_like(x), lib=library)
    with FakeTensorMode():
        call = torch.ops.table_tests.padded
        module = make_fx(lambda x: (call(x, torch.arange(4) + 1),))(torch.empty(4, 4, device="cuda"))
    before = str(module.graph)
    make_tables(module)
    assert str(module.graph) == before and not tables
