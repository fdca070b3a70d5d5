"""Products whose operands the blocks of a cluster bring for each other, as PTX on a machine of the CPU."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from weft.backends.nvidia.code import Launch
from weft.backends.nvidia.target import target_named
from weft.ir.attributes import to_attribute
from weft.ir.types import Tensor, bf16
from weft.lower.machine import gpu_machine
from weft.passes.grouping.build_groups import SCHEDULE
from weft.pipelines import compile_kernels
from weft.testing.kernels import Trial, group_of

from ..ptx_machine import Memory
from ..ptx_roles import Box, run_roles

TARGET = target_named("sm_90a")


def compiled(
    body: Callable[..., object], shapes: Sequence[tuple[int, ...]], tile: Sequence[int], cluster: int = 1
) -> tuple[str, Launch, str]:
    """The name of a kernel with tiles of two or three sides, how it is launched, and its PTX."""
    group = group_of([Tensor(bf16, shape) for shape in shapes], body)
    group.attributes[SCHEDULE] = to_attribute((*tile, *((64,) if len(tile) == 2 else ()), cluster))
    (kernel,) = [call.kernel.op for call in Trial.of(group, "product", gpu_machine()).lowered.calls]
    name = kernel.sym_name.data
    code = compile_kernels({name: kernel}, TARGET)
    return name, code.launches[name], code.ptx


def run(
    body: Callable[..., object],
    inputs: list[np.ndarray],
    result: tuple[int, int],
    tile: Sequence[int],
    cluster: int,
    clusters: int,
) -> np.ndarray:
    """Compile a kernel for the GPU, and run it with so many clusters."""
    name, launch, ptx = compiled(body, [each.shape for each in inputs], tile, cluster)
    assert launch.cluster == cluster
    memory = Memory()
    out = np.full(result, np.nan, ml_dtypes.bfloat16)
    words = [memory.add(each) for each in (*inputs, out)]
    boxes = [Box(words[m.argument], tuple(map(int, m.sizes)), tuple(map(int, m.strides)), m.box) for m in launch.maps]
    run_roles(ptx, name, launch.threads, launch.shared, memory, words, clusters, boxes, cluster)
    return memory.read(words[-1], out)


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(prod(shape)).standard_normal(shape).astype(ml_dtypes.bfloat16)


def close(given: np.ndarray, wanted: np.ndarray) -> bool:
    return bool(np.linalg.norm(given.astype(np.float64) - wanted) < 4e-3 * np.linalg.norm(wanted))


def turned(b: Any, w: object) -> object:
    return b.permute(w, dims=(1, 0))


TILES = [((128, 256), 1, 1), ((128, 256), 2, 1), ((128, 64), 4, 1), ((192, 192), 2, 2), ((256, 128), 2, 1)]


@pytest.mark.parametrize(("tile", "cluster", "clusters"), TILES)
def test_products(tile: tuple[int, int], cluster: int, clusters: int) -> None:
    m, n, k = 4 * tile[0], 2 * tile[1], 320
    x, w = random(m, k), random(n, k)
    found = run(lambda b, x, w: b.dot(x, turned(b, w)), [x, w], (m, n), tile, cluster, clusters)
    assert close(found, x.astype(np.float64) @ w.astype(np.float64).T)


@pytest.mark.parametrize("cluster", [1, 2])
def test_columns_side_by_side_with_a_residual(cluster: int) -> None:
    x, w, r = random(512, 320), random(320, 256), random(512, 256)
    body = lambda b, x, w, r: b.add(b.dot(x, w), r)  # noqa: E731
    found = run(body, [x, w, r], (512, 256), (128, 256), cluster, 1)
    assert close(found, x.astype(np.float64) @ w.astype(np.float64) + r.astype(np.float64))


@pytest.mark.parametrize(("cluster", "depth"), [(1, 64), (2, 64), pytest.param(1, 128, marks=pytest.mark.slow)])
@pytest.mark.parametrize("along_k", [True, False])
def test_a_gate_and_what_it_opens(cluster: int, depth: int, along_k: bool) -> None:
    """Two products of the same rows are one instruction, unless their slots would have to alternate."""
    x, gate, up = random(512, 320), random(256, 320), random(256, 320)[::-1]
    body = lambda b, x, g, u: b.mul(b.silu(b.dot(x, turned(b, g))), b.dot(x, turned(b, u)))  # noqa: E731
    given = [x, gate, np.ascontiguousarray(up)]
    if not along_k:
        body = lambda b, x, g, u: b.mul(b.silu(b.dot(x, g)), b.dot(x, u))  # noqa: E731
        given = [x, *(np.ascontiguousarray(w.T) for w in (gate, up))]
    found = run(body, given, (512, 256), (128, 128, depth), cluster, 1)
    opened, wide = (x.astype(np.float64) @ w.astype(np.float64).T for w in (gate, up))
    assert close(found, opened / (1 + np.exp(-opened)) * wide)


@pytest.mark.parametrize(("rows", "instruction"), [(128, "m64n256k16"), (64, "m64n128k16")])
def test_one_instruction_for_both(rows: int, instruction: str) -> None:
    body = lambda b, x, g, u: b.mul(b.silu(b.dot(x, g)), b.dot(x, u))  # noqa: E731
    _, _, ptx = compiled(body, [(1024, 512), (512, 1024), (512, 1024)], (rows, 128))
    assert set(re.findall(r"m64n\d+k16", ptx)) == {instruction}


def test_clusters_need_an_even_number_of_tiles() -> None:
    _, launch, ptx = compiled(lambda b, x, w: b.dot(x, w), [(384, 512), (512, 768)], (128, 256), 2)
    assert launch.cluster == 1 and "multicast" not in ptx
