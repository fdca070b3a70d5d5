"""Attention in f32, where threads multiply and not tensor cores: their registers hold what they need of a tile."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from weft.backends.nvidia.target import target_named
from weft.ir.types import Tensor, f32
from weft.lower.machine import gpu_machine
from weft.ops.base import REGISTRY
from weft.pipelines import compile_kernels
from weft.testing.kernels import Trial, group_of, run_interpreted

from ..ptxas import assemble, needs_ptxas
from .test_attention_gradients import SHAPES, Shape, drawn, errors, gradients


def attention(width: int, length: int = 512) -> Trial:
    operands = [Tensor(f32, (1, 8, length, width))] * 3
    group = group_of(operands, lambda b, *o: b.attention(*o, causal=True, scale=width**-0.5))
    return Trial.of(group, "attention", gpu_machine())


def gradients_of_heads(width: int) -> Trial:
    return gradients((1, 8, 1, 512, width), (1, 8, 512, width), causal=True, dtype=f32)


@needs_ptxas
@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("make", [attention, gradients_of_heads])
def test_nothing_is_spilled(make: Callable[[int], Trial], width: int) -> None:
    kernels = {call.kernel.op.sym_name.data: call.kernel.op for call in make(width).lowered.calls}
    code = compile_kernels(kernels, target_named("sm_90a"))
    used = assemble(code.ptx, "sm_90a").kernels
    assert {name: each.spilled for name, each in used.items()} == dict.fromkeys(kernels, 0)


@pytest.mark.parametrize("width", [64, 128, 192, 256])
def test_their_tiles_give_attention(width: int) -> None:
    q, k, v = np.random.default_rng(width).standard_normal((3, 1, 8, 75, width)).astype(np.float32)
    (found,) = run_interpreted(attention(width, 75), [q, k, v])
    exact = REGISTRY["attention"].cls.reference(*(x.astype(float) for x in (q, k, v)), causal=True, scale=width**-0.5)
    assert np.linalg.norm(found - exact) < 1e-5 * np.linalg.norm(exact)


@pytest.mark.parametrize(("query", "key", "causal"), SHAPES[1:6])
def test_their_tiles_give_the_gradients(query: Shape, key: Shape, causal: bool) -> None:
    arrays = drawn(query, key, f32)
    found = run_interpreted(gradients(query, key, causal=causal, dtype=f32), arrays)
    assert max(errors(found, arrays, causal)) < 1e-5
