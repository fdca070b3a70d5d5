"""Attention with its tangent on a GPU: the tile kernel gives the right numbers, assembles and keeps its protocol."""

from __future__ import annotations

import numpy as np
import pytest

from weft.backends.nvidia.check.protocol import check
from weft.backends.nvidia.check.warp_protocol import protocol_of
from weft.backends.nvidia.target import target_named
from weft.ir.types import DType, Tensor, bf16, boolean, f16
from weft.lower.machine import gpu_machine
from weft.ops.base import REGISTRY
from weft.pipelines import annotate, compile_kernels
from weft.testing.kernels import Trial, group_of, run_interpreted

from ..ptxas import assemble, needs_ptxas

TARGET = target_named("sm_90a")
Shape = tuple[int, ...]
REFERENCE = REGISTRY["attention_with_tangent"].cls.reference


def with_tangent(
    query: Shape, key: Shape, *, causal: bool, moved: str = "qkv", dtype: DType = bf16, mask: DType | None = None
) -> Trial:
    factors = {"q": Tensor(dtype, query), "k": Tensor(dtype, key), "v": Tensor(dtype, key)}
    masks = [] if mask is None else [Tensor(mask, (query[-2], key[-2]))]
    operands = [*factors.values(), *(factors[letter] for letter in moved), *masks]

    def body(b, *given):  # type: ignore[no-untyped-def]
        return b.attention_with_tangent(*given, causal=causal, scale=query[-1] ** -0.5, moved=moved)

    return Trial.of(group_of(operands, body), "attention", gpu_machine())


@pytest.mark.parametrize(
    ("query", "key", "causal", "dtype", "moved", "mask"),
    [
        ((1, 2, 128, 64), (1, 2, 128, 64), False, bf16, "qkv", None),
        ((1, 1, 300, 64), (1, 1, 333, 64), True, bf16, "qkv", None),
        ((1, 2, 133, 128), (1, 2, 200, 128), True, f16, "qkv", None),
        ((1, 1, 100, 96), (1, 1, 80, 96), False, bf16, "q", None),
        ((1, 1, 65, 192), (1, 1, 100, 192), True, bf16, "qkv", None),
        ((1, 1, 70, 256), (1, 1, 66, 256), False, bf16, "kv", None),
        ((1, 1, 150, 64), (1, 1, 140, 64), False, bf16, "v", boolean),
        ((1, 1, 90, 64), (1, 1, 170, 64), False, bf16, "qk", bf16),
        ((1, 1, 1, 64), (1, 1, 170, 64), False, bf16, "qkv", None),
    ],
)
def test_the_tile_kernel_is_attention_and_its_tangent(
    query: Shape, key: Shape, causal: bool, dtype: DType, moved: str, mask: DType | None
) -> None:
    rng = np.random.default_rng(11)
    shapes = {"q": query, "k": key, "v": key}
    arrays = [rng.standard_normal(shapes[letter]).astype(dtype.numpy) for letter in ("q", "k", "v", *moved)]
    if mask is not None:
        numbers = rng.standard_normal((query[-2], key[-2]))
        arrays.append(numbers > 0 if mask == boolean else numbers.astype(dtype.numpy))
        arrays[-1][3] = False if mask == boolean else -np.inf  # a row without any key
    trial = with_tangent(query, key, causal=causal, moved=moved, dtype=dtype, mask=mask)
    found = run_interpreted(trial, arrays)
    wide = [a if a.dtype == np.bool_ else a.astype(np.float64) for a in arrays]
    expected = REFERENCE(*wide, causal=causal, scale=query[-1] ** -0.5, moved=moved)
    for one, other in zip(found, expected, strict=True):
        seen = np.isfinite(other)
        assert np.array_equal(np.isfinite(one.astype(np.float64)), seen)
        error = np.linalg.norm(one.astype(np.float64)[seen] - other[seen])
        assert error <= (5e-3 if dtype == bf16 else 1e-3) * np.linalg.norm(other[seen])


@needs_ptxas
@pytest.mark.parametrize(("width", "causal", "dtype"), [(64, False, bf16), (128, True, f16)])
def test_it_assembles(width: int, causal: bool, dtype: DType) -> None:
    shape = (4, 32, 4096, width)
    (call,) = with_tangent(shape, shape, causal=causal, dtype=dtype).lowered.calls
    code = compile_kernels({"attention": call.kernel.op}, TARGET)
    found = assemble(code.ptx, TARGET.arch)
    assert not found.error and not found.advice
    assert found.kernels["attention"].spilled <= (32 if causal else 0)  # outside of the loops


@pytest.mark.parametrize("causal", [False, True])
def test_its_warps_keep_their_protocol(causal: bool) -> None:
    shape = (1, 2, 700, 128)
    (call,) = with_tangent(shape, shape, causal=causal).lowered.calls
    kernel, launch = annotate(call.kernel.op, TARGET)
    assert launch.persistent
    for block in range(3):
        check(protocol_of(kernel, block=block, blocks=3), runs=5)
