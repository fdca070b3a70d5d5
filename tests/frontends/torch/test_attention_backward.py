"""The backward of attention on a GPU, without one: what is Weft's own, and what stays with a library."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from weft.backends.nvidia.target import target_named
from weft.config import Config
from weft.errors import UnsupportedError
from weft.frontends.torch.importer import import_graph
from weft.lower.steps import CallStep, KernelStep
from weft.pipelines import compile_nvidia

ATEN: Any = torch.ops.aten


def steps(
    library: str = "flash",
    width: int = 64,
    heads: int = 2,
    shared: int = 2,
    length: int = 512,
    dropout: float = 0.0,
    causal: bool = True,
    strict: bool = False,
    mask: bool = False,
) -> list[str]:
    """What a backward of [batch, heads, length, width] becomes, whose heads lie side by side in memory."""
    with FakeTensorMode():

        def tensor(count: int) -> torch.Tensor:
            return torch.empty(2, length, count, width, dtype=torch.bfloat16, device="cuda").transpose(1, 2)

        query, key, value, grad, out = (tensor(count) for count in (heads, shared, shared, heads, heads))
        kept = torch.empty(2, heads, length, device="cuda")
        seed = torch.empty((), dtype=torch.int64, device="cuda")
        bias = torch.empty(2, heads, length, length, dtype=torch.bfloat16, device="cuda") if mask else None

        def backward(*tensors: Any) -> Any:
            *first, seed, bias = tensors
            if library == "flash":
                call = ATEN._scaled_dot_product_flash_attention_backward
                return call(*first, None, None, length, length, dropout, causal, seed, seed)
            call = ATEN._scaled_dot_product_cudnn_attention_backward
            return call(*first, seed, seed, bias, None, None, length, length, dropout, causal, scale=0.5)

        graph = make_fx(backward, tracing_mode="fake")(grad, query, key, value, out, kept, seed, bias)
    config = Config(cache=False, strict=strict)
    program = import_graph(graph, "main", config, device="cuda", tensor_cores=True)
    made = compile_nvidia(program.function, config, target_named("sm_90a")).plan.steps
    return [
        s.function.split("_")[0] if isinstance(s, KernelStep) else s.target
        for s in made
        if isinstance(s, KernelStep | CallStep)
    ]


@pytest.mark.parametrize(("heads", "shared"), [(2, 2), (4, 2)])
def test_gradients_are_kernels_of_keys_and_of_queries_after_those_of_rows(heads: int, shared: int) -> None:
    assert steps(heads=heads, shared=shared) == ["cast", "attention", "attention", "attention"]


@pytest.mark.parametrize(
    "options",
    [{"dropout": 0.1}, {"width": 72}, {"width": 192}, {"length": 256}],
    ids=lambda options: next(iter(options)),
)
def test_a_library_keeps_what_it_does_better(options: dict[str, Any]) -> None:
    assert steps(**options) == ["aten::_scaled_dot_product_flash_attention_backward"]


def test_where_asked_for_the_fastest_library_gives_way_too() -> None:
    library = "aten::_scaled_dot_product_cudnn_attention_backward"
    assert steps(library="cudnn") == [library]
    assert steps(library="cudnn", strict=True) == ["cast", "attention", "attention", "attention"]
    with pytest.raises(UnsupportedError, match="with a mask"):
        steps(library="cudnn", strict=True, mask=True)
