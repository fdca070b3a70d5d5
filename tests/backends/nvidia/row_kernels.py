"""Kernels and plans of functions of bfloat16 rows, as the compiler makes them for a GPU, run as PTX on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from weft.backends.nvidia.code import DeviceCode
from weft.backends.nvidia.target import target_named
from weft.config import Config
from weft.frontends.torch.capture.decompositions import decompositions
from weft.frontends.torch.importer.import_graph import import_graph
from weft.lower.machine import gpu_machine
from weft.lower.plan import Planned, build_plan
from weft.pipelines import compile_kernels, nvidia_passes
from weft.tile import dialect as tile

from .ptx_machine import Memory, run_blocks

BF16 = ml_dtypes.bfloat16


def row_kernel(function: Callable[..., Any], *shapes: tuple[int, ...]) -> tile.KernelOp:
    """The one kernel that a function becomes."""
    (kernel,) = planned(function, *shapes).kernels.values()
    return kernel


def row_code(kernel: tile.KernelOp, arch: str) -> DeviceCode:
    return compile_kernels({kernel.sym_name.data: kernel}, target_named(arch))


def run_rows(kernel: tile.KernelOp, code: DeviceCode, *arrays: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The result of a kernel, whose memory is filled with something else before."""
    name, memory, result = kernel.sym_name.data, Memory(), np.full(shape, 777, BF16)
    words = [memory.add(array.view(np.uint16)) for array in (*arrays, result)]
    launch = code.launches[name]
    programs = int(np.prod([size for size in kernel.grid.data if isinstance(size, int)]))
    run_blocks(code.ptx, name, launch.threads, launch.shared, memory, words, programs)
    return memory.read(words[-1], result.view(np.uint16)).view(BF16)


def planned(function: Callable[..., Any], *shapes: tuple[int, ...], dtype: torch.dtype = torch.bfloat16) -> Planned:
    """What a function becomes; its tensors need no memory."""
    with FakeTensorMode():
        inputs = [torch.empty(shape, dtype=dtype) for shape in shapes]

        def results(*args: Any) -> tuple[Any, ...]:
            made = function(*args)
            return made if isinstance(made, tuple) else (made,)

        graph = make_fx(results, decompositions("cuda"))(*inputs)
    program = import_graph(
        graph, "main", Config(cache=False), capabilities=target_named("sm_90a").capabilities
    ).function
    module = ModuleOp([program])
    for each in nvidia_passes(Config(cache=False), target_named("sm_90a").capabilities):
        each.apply(Context(), module)
    return build_plan(program, machine=gpu_machine())
