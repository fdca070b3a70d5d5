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
from weft.frontends.torch.capture.decompositions import decompositions
from weft.frontends.torch.importer.import_graph import import_graph
from weft.lower.steps import KernelStep
from weft.pipelines import compile_nvidia

_aten: Any = torch.ops.aten
LONG = (1, 32, 4096, 128)


def kernels(function: Callable[..., Any], *shapes: tuple[int, ...], mask: torch.dtype = torch.bool) -> list[str]:
    """The steps of a function of heads in bf16 and masks: the names of kernels without their numbers, or calls.

    What sets a counter of programs to 0 is left out.
    """
    with FakeTensorMode():
        dtypes = [torch.bfloat16 if len(shape) == 4 else mask for shape in shapes]
        inputs = [torch.empty(shape, device="cuda", dtype=dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
        traced = make_fx(function, decomposition_table=decompositions())(*inputs)
    imported = import_graph(traced, "main", Config(cache=False), capabilities=target_named("sm_90a").capabilities)
    steps = compile_nvidia(imported.function, Config(cache=False), target_named("sm_90a")).plan.steps
    return [
        step.function.rpartition("_")[0] if isinstance(step, KernelStep) else getattr(step, "target", "")
        for step in steps
        if not (isinstance(step, KernelStep) and step.function.endswith("_counter"))
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


def repeated(x: torch.Tensor, times: int) -> torch.Tensor:
    batch, heads, *rest = x.shape
    return x.unsqueeze(2).expand(batch, heads, times, *rest).reshape(batch, heads * times, *rest)


Change = Callable[[torch.Tensor], torch.Tensor]


def written_out(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, change: Change = torch.Tensor.contiguous
) -> torch.Tensor:
    """As models write it, with a soft cap; `change` is made of the weights, and changes nothing."""
    scores = query @ repeated(key, 4).transpose(2, 3) * 0.1
    scores = torch.tanh(scores / 50) * 50
    place = torch.arange(key.shape[2], device=query.device)
    scores = scores.masked_fill(place.unsqueeze(1) < place, -torch.inf)
    weights = torch.softmax(scores, -1, dtype=torch.float32)
    return change(weights.to(query.dtype)) @ repeated(value, 4)


@pytest.mark.parametrize("width", [128, 64])
def test_attention_that_is_written_out_is_one_kernel(width: int) -> None:
    (name,) = kernels(lambda *args: [written_out(*args)], (1, 32, 4096, width), *2 * [(1, 8, 4096, width)])
    assert name == "attention"


@pytest.mark.parametrize("change", [_aten.alias, _aten.clone, _aten.detach])
def test_weights_may_be_passed_on_as_they_are(change: Change) -> None:
    """A part that is the whole, or dropout without training, comes so."""
    (name,) = kernels(lambda *args: [written_out(*args, change)], (1, 32, 4096, 64), *2 * [(1, 8, 4096, 64)])
    assert name == "attention"


def test_weights_that_somebody_reads_are_made() -> None:
    def call(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> list[Any]:
        weights = torch.softmax(query @ key.transpose(2, 3), -1)
        return [weights, weights @ value]

    made = kernels(call, *3 * [(1, 4, 256, 64)])
    assert "aten::bmm" in made and not any("attention" in name for name in made)


def test_single_queries_with_a_mask_share_keys() -> None:
    """Torch has no library for these: it writes them out, in f32."""

    def call(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, lengths: torch.Tensor) -> list[Any]:
        mask = torch.arange(2048, device=query.device) < lengths
        attend = torch.nn.functional.scaled_dot_product_attention
        return [attend(query, key, value, attn_mask=mask.view(4, 1, 1, -1), enable_gqa=True)]

    made = kernels(call, (4, 32, 1, 128), *2 * [(4, 8, 2048, 128)], (4, 1), mask=torch.int64)
    assert len(made) == 2 and all("attention" in name for name in made)


def test_a_library_drops_weights_at_random() -> None:
    assert kernels(cudnn(0, dropout=0.5), LONG, LONG, LONG) == ["aten::_scaled_dot_product_cudnn_attention"]


def biased(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor) -> list[Any]:
    """Torch makes numbers of booleans, of which cuDNN takes none that is infinite."""
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(mask.logical_not(), -65504.0)
    return [_aten._scaled_dot_product_cudnn_attention(query, key, value, mask.expand(*LONG[:3], LONG[2]), False)[0]]


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16])
def test_a_mask_in_memory_is_looked_at_first(dtype: torch.dtype) -> None:
    look, find, attend = kernels(biased, LONG, LONG, LONG, (LONG[2], LONG[2]), mask=dtype)
    assert "sum" in look and "min" in find and attend == "attention"


def test_booleans_that_are_computed_are_part_of_the_kernel() -> None:
    def call(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> list[Any]:
        place = torch.arange(LONG[2], device=query.device)
        behind = place.unsqueeze(1) - place
        return biased(query, key, value, behind.ge(0) & behind.lt(1000))

    (name,) = kernels(call, LONG, LONG, LONG)
    assert name.endswith("attention")


def test_causal_attention_that_is_aligned_at_its_end_is_left_to_the_library() -> None:
    def call(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> list[Any]:
        return [_aten._scaled_dot_product_flash_attention(query, key, value, 0.0, True)[0]]

    shorter = (1, 8, 256, 64)
    assert kernels(call, shorter, shorter, shorter) == ["attention"]
    assert kernels(call, shorter, (1, 8, 512, 64), (1, 8, 512, 64)) == ["aten::_scaled_dot_product_flash_attention"]
