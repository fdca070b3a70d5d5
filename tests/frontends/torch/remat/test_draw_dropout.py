"""Attention with dropout in a joint graph: both calls of a library become Weft's, or none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import fx
from torch._functorch.aot_autograd import aot_function
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._subclasses import FakeTensorMode

from weft.backends.nvidia.target import target_named
from weft.config import Config
from weft.frontends.torch.capture.decompositions import decompositions
from weft.frontends.torch.capture.random_numbers import draw_seeds_once
from weft.frontends.torch.importer.import_graph import import_graph
from weft.frontends.torch.remat.draw_dropout import draw_dropout_of_attention
from weft.lower.steps import CallStep
from weft.pipelines import compile_nvidia

ATEN: Any = torch.ops.aten
OWN = {"weft.attention_with_dropout.default", "weft.dropout_attention_gradients.default"}


def attended(library: str, q: Any, k: Any, v: Any, dropout: float, causal: bool, bias: Any = None) -> torch.Tensor:
    if library == "flash":
        return ATEN._scaled_dot_product_flash_attention(q, k, v, dropout, causal)[0]
    return ATEN._scaled_dot_product_cudnn_attention(q, k, v, bias, True, dropout, causal)[0]


def graphs(
    library: str = "cudnn",
    dropout: float = 0.1,
    length: int = 256,
    width: int = 64,
    shared: int = 4,
    dtype: torch.dtype = torch.bfloat16,
    bias: bool = False,
    takes: bool = True,
    keys: int = 0,
    compiled: Callable[[fx.GraphModule], None] | None = None,
) -> list[str]:
    """The targets of a joint graph of attention between projections; its parts are `compiled`."""
    found: list[str] = []

    def partition(joint: fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        draw_dropout_of_attention(joint, lambda device: takes)
        found.extend(str(node.target) for node in joint.graph.nodes if "attention" in str(node.target))
        draw_seeds_once(joint)
        return min_cut_rematerialization_partition(joint, *args, **kwargs)

    def compile_part(graph: fx.GraphModule, _: Any) -> Any:
        if compiled is not None:
            compiled(graph)
        return make_boxed_func(graph.forward)

    def attention(x: torch.Tensor, of_q: torch.Tensor, of_k: torch.Tensor, of_v: torch.Tensor) -> torch.Tensor:
        pairs = ((x[:, :length], of_q), (x, of_k), (x, of_v))
        q, k, v = ((rows @ each).view(2, rows.shape[1], -1, width).transpose(1, 2) for rows, each in pairs)
        mask = x.new_zeros(2, 4, length, length) if bias else None
        return attended(library, q, k, v, dropout, True, mask).transpose(1, 2).reshape(2, length, -1).sum()

    with FakeTensorMode():
        made = [torch.empty(512, heads * width, dtype=dtype, requires_grad=True) for heads in (4, shared, shared)]
        run = aot_function(
            attention,
            fw_compiler=compile_part,
            bw_compiler=compile_part,
            partition_fn=partition,
            decompositions=decompositions("cuda"),
        )
        run(torch.empty(2, keys or length, 512, dtype=dtype), *made).backward()
    return found


@pytest.mark.parametrize("library", ["flash", "cudnn"])
@pytest.mark.parametrize("shared", [4, 2])
def test_attention_with_dropout_is_kernels_forward_and_backward(library: str, shared: int) -> None:
    calls: list[str] = []

    def compiled(graph: fx.GraphModule) -> None:
        target = target_named("sm_90a")
        imported = import_graph(graph, "main", Config(cache=False), capabilities=target.capabilities)
        plan = compile_nvidia(imported.function, Config(cache=False), target).plan
        calls.extend(step.target for step in plan.steps if isinstance(step, CallStep))

    assert set(graphs(library, shared=shared, compiled=compiled)) == OWN
    assert set(calls) <= {"weft::seeds", "aten::mm", "aten::bmm"}


@pytest.mark.parametrize(
    "options",
    [
        {"dropout": 0.0},
        {"dropout": 0.999},
        {"length": 128},
        {"width": 72},
        {"dtype": torch.float32},
        {"bias": True},
        {"takes": False},
        {"library": "flash", "keys": 512},  # the last query sees the last key
    ],
    ids=str,
)
def test_a_library_keeps_the_rest(options: dict[str, Any]) -> None:
    assert OWN.isdisjoint(graphs(**options))


def test_more_keys_than_queries_are_kernels_where_the_first_query_sees_the_first_key() -> None:
    assert set(graphs(keys=512)) == OWN


def test_short_sequences_are_kernels_where_results_must_not_differ() -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        assert set(graphs(length=100)) == OWN
    finally:
        torch.use_deterministic_algorithms(False)


def test_what_is_drawn_is_what_both_mean() -> None:
    """The operators as torch runs them, against its own derivative."""
    torch.manual_seed(3)
    q, k, v, grad = (torch.randn(2, count, 20, 8) for count in (4, 2, 2, 4))
    seed = torch.tensor([99])
    options = 0.25, True, 0.5
    out, lse = torch.ops.weft.attention_with_dropout(q, k, v, seed, *options)
    assert torch.equal(out, torch.ops.weft.attention_with_dropout(q, k, v, seed, *options)[0])
    on_q, on_k, on_v = torch.ops.weft.dropout_attention_gradients(grad, q, k, v, out, lse, seed, *options)
    # The result is linear in the values; along the others, by differences in float64.
    assert (out * grad).sum().item() == pytest.approx((v * on_v).sum().item(), rel=1e-4)
    for place, gradient in enumerate((on_q, on_k)):
        along = torch.randn_like(gradient)
        moved = [[x + sign * 1e-2 * along if n == place else x for n, x in enumerate((q, k, v))] for sign in (1, -1)]
        ahead, behind = (torch.ops.weft.attention_with_dropout(*each, seed, *options)[0] for each in moved)
        slope = ((ahead - behind) * grad).sum().item() / 2e-2
        assert slope == pytest.approx((gradient * along).sum().item(), rel=2e-2, abs=2e-2)
