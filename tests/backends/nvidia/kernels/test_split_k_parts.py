"""Parts of K that TMA brings, as PTX on a machine of the CPU: the last part ends anywhere."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.seeds import generator
from weft.backends.nvidia.check.protocol import check
from weft.backends.nvidia.check.warp_protocol import protocol_of
from weft.backends.nvidia.target import target_named
from weft.ir.types import Tensor, bf16
from weft.lower.machine import gpu_machine
from weft.lower.schedule.dot_model import Matmuls, split_of
from weft.pipelines import annotate, compile_kernels
from weft.testing.kernels import Trial, group_of

from ..ptx_machine import Memory
from ..ptx_roles import Box, run_roles
from ..ptxas import assemble, needs_ptxas

TARGET = target_named("sm_90a")


def turned(b: Any, x: Any, w: Any) -> Any:
    return b.dot(x, b.permute(w, dims=(1, 0)))


def parts_of(m: int, n: int, k: int, body: Any = turned) -> Trial:
    shapes = [(m, k), (n, k)] if body is turned else [(m, k), (k, n)]
    return Trial.of(group_of([Tensor(bf16, shape) for shape in shapes], body), "product", gpu_machine())


@pytest.mark.parametrize(("m", "n", "k"), [(72, 40, 1304), (100, 72, 1864)])
def test_tma_brings_parts_of_which_the_last_is_short(m: int, n: int, k: int) -> None:
    found, draw = parts_of(m, n, k), generator()
    kernel, (scratch,) = found.lowered.calls[0].kernel.op, found.lowered.scratch
    x, w = (draw.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in ((m, k), (n, k)))
    name = kernel.sym_name.data
    code = compile_kernels({name: kernel}, TARGET)
    launch, memory = code.launches[name], Memory()
    out = np.full([int(size) for size in scratch.shape], np.nan, np.float32)
    words = [memory.add(each) for each in (x, w, out)]
    boxes = [Box(words[m.argument], tuple(map(int, m.sizes)), tuple(map(int, m.strides)), m.box) for m in launch.maps]
    run_roles(code.ptx, name, launch.threads, launch.shared, memory, words, 2, boxes)
    sums = memory.read(words[-1], out)
    split = split_of(Matmuls(m, n, k), gpu_machine())
    assert split is not None and split.count == len(sums) and k % split.depth
    for part, found_sums in enumerate(sums):
        columns = slice(part * split.depth, min(k, (part + 1) * split.depth))
        exact = x[:, columns].astype(float) @ w[:, columns].astype(float).T
        np.testing.assert_allclose(found_sums, exact, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("m", "n", "k"), [(300, 200, 8000), (550, 56, 4816)])
def test_programs_of_parts_wait_for_what_others_bring(m: int, n: int, k: int) -> None:
    kernel, _ = annotate(parts_of(m, n, k).lowered.calls[0].kernel.op, TARGET)
    for block in (0, 39):
        check(protocol_of(kernel, block=block, blocks=40), runs=2)


@needs_ptxas
@pytest.mark.parametrize(("m", "n", "k"), [(460, 185, 8468), (550, 55, 4812), (161, 1384, 12096), (768, 768, 16384)])
def test_parts_assemble_without_spills(m: int, n: int, k: int) -> None:
    found = parts_of(m, n, k, lambda b, x, w: b.dot(x, w))
    assert len(found.lowered.calls) == 2
    kernels = {call.kernel.op.sym_name.data: call.kernel.op for call in found.lowered.calls}
    made = assemble(compile_kernels(kernels, TARGET).ptx, TARGET.arch)
    assert not made.error and not any(each.spilled for each in made.kernels.values())
