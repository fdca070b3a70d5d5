"""Attention on a GPU as torch calls it, without one: which calls are kernels of Weft's, and which are a library's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from weft.backends.nvidia.target import target_named
from weft.config import Config
from weft.frontends.torch.decompositions import decompositions
from weft.frontends.torch.importer import import_graph
from weft.lower.steps import KernelStep
from weft.pipelines import compile_nvidia

_aten: Any = torch.ops.aten
LONG = (1, 32, 4096, 128)


def kernels(function: Callable[..., Any], *shapes: tuple[int, ...], mask: torch.dtype = torch.bool) -> list[str]:
    """The steps of a function of heads in bf16 and masks: the names of kernels without their numbers, or calls."""
    with FakeTensorMode():
        dtypes = [torch.bfloat16 if len(shape) == 4 else mask for shape in shapes]
        inputs = [torch.empty(shape, device="cuda", dtype=dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
        traced = make_fx(function, decomposition_table=decompositions())(*inputs)
    imported = import_graph(traced, "main", Config(cache=False), device="cuda", tensor_cores=True)
    steps = compile_nvidia(imported.function, Config(cache=False), target_named("sm_90a")).plan.steps
    return [
        step.function.rpartition("_")[0] if isinstance(step, KernelStep) else getattr(step, "target", "")
        for step in steps
    ]


def cudnn(*results: int, causal: bool = True, dropout: float = 0.0) -> Callable[..., Any]:
    def call(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> list[Any]:
        made = _aten._scaled_dot_product_cudnn_attention(query, key, value, None, True, dropout, causal)
        return [made[number] for number in results]

    return call


def test_attention_whose_result_alone_is_read_is_one_kernel() -> None:
    assert kernels(cudnn(0), LONG, LONG, LONG) == ["attention"]


def test_attention_that_is_trained_keeps_its_sums() -> None:
    made = kernels(cudnn(0, 1, 6, 7), LONG, LONG, LONG)
    assert made[0] == "attention_with_lse"
    assert not any("scaled_dot_product" in name for name in made)


def test_a_library_drops_weights_at_random() -> None:
    assert kernels(cudnn(0, dropout=0.5), LONG, LONG, LONG) == ["aten::_scaled_dot_product_cudnn_attention"]


def biased(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor) -> list[Any]:
    """Torch makes numbers of booleans, of which cuDNN takes none that is infinite."""
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(mask.logical_not(), -65504.0)
    return [_aten._scaled_dot_product_cudnn_attention(query, key, value, mask.expand(*LONG[:3], LONG[2]), False)[0]]


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16])
def test_a_mask_in_memory_is_looked_at_first(dtype: torch.dtype) -> None:
    look, find, count, attend = kernels(biased, LONG, LONG, LONG, (LONG[2], LONG[2]), mask=dtype)
    assert "sum" in look and "min" in find and attend == "attention"
    assert count.startswith("attention_")  # sets what counts programs to 0


def test_booleans_that_are_computed_are_part_of_the_kernel() -> None:
    def call(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> list[Any]:
        place = torch.arange(LONG[2], device=query.device)
        behind = place.unsqueeze(1) - place
        return biased(query, key, value, behind.ge(0) & behind.lt(1000))

    count, name = kernels(call, LONG, LONG, LONG)
    assert name.endswith("attention") and count.startswith(f"{name}_")
