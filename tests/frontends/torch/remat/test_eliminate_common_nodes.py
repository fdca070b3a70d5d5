"""Nodes of one value become one, and those that only look alike stay two."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from weft.frontends.torch.remat.eliminate_common_nodes import eliminate_common_nodes

aten = torch.ops.aten


def counts(function: Callable[..., Any], *arguments: torch.Tensor) -> Counter[str]:
    """How often each operator is called after the pass; results are compared with those before it."""
    graph = make_fx(function, tracing_mode="fake")(*arguments)
    eliminate_common_nodes(graph.graph)
    graph.graph.lint()
    graph.recompile()
    torch.manual_seed(0)
    wanted = function(*arguments)
    torch.manual_seed(0)
    torch.testing.assert_close(graph(*arguments), wanted, equal_nan=True)
    return Counter(str(node.target) for node in graph.graph.nodes if node.op == "call_function")


def test_calls_of_the_same_arguments_are_one():
    found = counts(lambda x: (x.exp() * 2 + (x.exp() * 2).sin()).sum(), torch.randn(5))
    assert found["aten.exp.default"] == 1 and found["aten.mul.Tensor"] == 1


def test_parts_of_what_is_one_are_one():
    def values(x: torch.Tensor) -> torch.Tensor:
        return x.max(0).values.sin() * x.max(0).values.cos()

    found = counts(values, torch.randn(4, 3))
    assert found["aten.max.dim"] == 1


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x * 1).sin() + (x * 1.0).sin(),
        lambda x: torch.full_like(x, 0.0).atan2(-x.abs()) + torch.full_like(x, -0.0).atan2(-x.abs()),
        lambda x: aten.clamp.default(x, None, 1).sin() + aten.clamp.default(x, 1, None).sin(),
    ],
    ids=["integer and float", "zeros of two signs", "bounds"],
)
def test_arguments_that_compare_equal_may_differ(function: Callable[..., Any]):
    found = counts(function, torch.randn(7))
    assert max(found.values()) >= 2


def test_two_results_are_two_tensors():
    found = counts(lambda x: (x.exp(), x.exp()), torch.randn(3))
    assert found["aten.exp.default"] == 2


def test_random_numbers_are_drawn_as_often_as_before():
    found = counts(lambda x: torch.rand_like(x).sin() - torch.rand_like(x).sin(), torch.randn(6))
    assert found["aten.rand_like.default"] == 2


def test_what_is_read_after_a_write_is_read_again():
    def function(x: torch.Tensor) -> torch.Tensor:
        kept = x.clone()
        before = kept.exp().sum()
        kept.mul_(2)
        return before + kept.exp().sum()

    found = counts(function, torch.randn(4))
    assert found["aten.exp.default"] == 2


def test_sizes_that_are_only_known_later_have_symbols_of_their_own():
    def function(x: torch.Tensor) -> torch.Tensor:
        return aten.nonzero.default(x).sum() + aten.nonzero.default(x).prod()

    traced = torch.fx.symbolic_trace(function)
    eliminate_common_nodes(traced.graph)
    assert sum(node.target is aten.nonzero.default for node in traced.graph.nodes) == 2


def test_a_training_step_does_not_import_inductors_lowerings():
    script = """
import sys, torch
net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 1))
torch.compile(net, backend="weft")(torch.randn(4, 8)).sum().backward()
assert "torch._inductor.lowering" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)
