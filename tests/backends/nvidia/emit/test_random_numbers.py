"""Random numbers as code for a GPU: what neighbours share is computed once, and all is what the reference draws."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from xdsl.ir import SSAValue

from weft.backends.nvidia.target import target_named
from weft.ir.types import Tensor, bf16, f32, i64
from weft.lower.machine import gpu_machine
from weft.ops.graph import GraphBuilder
from weft.ops.random import Uniform
from weft.pipelines import compile_kernels
from weft.testing.kernels import Trial, group_of

from ..ptx_machine import Memory, run_blocks

SHAPE = (5, 264)


def dropped(b: GraphBuilder, seed: SSAValue, x: SSAValue) -> SSAValue:
    kept = b.lt(b.uniform(seed, shape=SHAPE), b.full(value=0.75, shape=(), dtype=f32))
    return b.where(kept, x, b.full(value=0.0, shape=(), dtype=bf16))


def test_code_draws_what_the_reference_draws() -> None:
    trial = Trial.of(group_of([Tensor(i64, (1,)), Tensor(bf16, SHAPE)], dropped), "dropped", gpu_machine())
    ((call,),) = [trial.lowered.calls]
    kernel = call.kernel.op
    name = kernel.sym_name.data
    code = compile_kernels({name: kernel}, target_named("sm_90a"))
    launch, seed = code.launches[name], np.array([-123456789012345678])
    x, result = np.ones(SHAPE, ml_dtypes.bfloat16), np.zeros(SHAPE, ml_dtypes.bfloat16)
    memory = Memory()
    words = [memory.add(array) for array in (seed, x.view(np.uint16), result.view(np.uint16))]
    programs = int(np.prod([size for size in kernel.grid.data if isinstance(size, int)]))
    run_blocks(code.ptx, name, launch.threads, launch.shared, memory, words, programs)
    found = memory.read(words[2], result.view(np.uint16)).view(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(found.astype(bool), Uniform.reference(seed, SHAPE) < 0.75)
    # Ten rounds of two products for every four neighbours, and not for each.
    elements = SHAPE[0] * SHAPE[1] // (programs * launch.threads)
    assert code.ptx.count("mul.wide.u32") <= 20 * max(1, -(-elements // 4)) + 8
