"""Kernels of Triton's language compiled for a GPU and run on the PTX machine, on NumPy arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import prod
from typing import Any, cast

import numpy as np
from ptx_machine import Memory, run_blocks

from tests.backends.nvidia.ptx_products import run_products
from tests.backends.nvidia.ptx_roles import Box, run_roles
from weft.backends.nvidia.code import TensorMap, argument_name
from weft.backends.nvidia.target import target_named
from weft.frontends.triton.builders.tile_builder import GRID
from weft.frontends.triton.errors import DeviceAssertError
from weft.frontends.triton.runtime.compiling import arguments_of, builder_of, name_of
from weft.frontends.triton.runtime.device_compiled import DeviceKernelCode, compile_device_kernel
from weft.frontends.triton.runtime.jit import JITFunction
from weft.ir.expr import evaluate
from weft.ir.types import DTYPES

_RESIDENT = 3
"""Clusters of a persistent kernel that the machine has room for: they walk the programs."""


def compile_like(kernel: JITFunction, args: Sequence[Any], keywords: dict[str, Any], arch: str) -> DeviceKernelCode:
    """The code for arguments like these, wherever they lie."""
    warps = keywords.get("num_warps") or 4
    described, groups = kernel.launcher.describe(args, keywords)
    arguments = arguments_of(described, groups)
    return compile_device_kernel(builder_of(kernel, described), arguments, name_of(kernel), target_named(arch), warps)


def emulate(kernel: JITFunction, *args: Any, grid: Sequence[int] = (1,), arch: str = "sm_90a", **keywords: Any) -> None:
    """Launch a kernel on the PTX machine."""
    code = compile_like(kernel, args, keywords, arch)
    _, words, values, _ = kernel.launcher._classify(*args, **keywords)
    memory, moved = Memory(), list[tuple[np.ndarray, int]]()
    addresses: dict[int, int] = {}
    for value in values:
        value = getattr(value, "base", value) if hasattr(value, "block_shape") else value
        if isinstance(value, np.ndarray) and value.nbytes:
            start = value.__array_interface__["data"][0]
            addresses[start] = memory.add(value)
            moved.append((value, addresses[start]))
    status = memory.add(np.zeros(1, np.int64))
    given = [addresses.get(w, w) if a.pointer else w for w, a in zip(words, code.arguments, strict=True)]
    x, y, z = (*grid, 1, 1)[:3]
    launch, words = code.code.launches[code.name], [*given, status, z, y, x]
    run, blocks = cast(Any, run_products if "wgmma" in code.code.ptx else run_blocks), prod((x, y, z)) // launch.cluster
    if launch.maps:
        known = {argument_name(number): word for number, word in enumerate(given)} | dict(
            zip(GRID, (z, y, x), strict=True)
        )
        boxes = [_box(each, given[each.argument], known) for each in launch.maps]
        run = partial(run_roles, boxes=boxes, cluster=launch.cluster)
        blocks = min(blocks, _RESIDENT) if launch.persistent else blocks
    run(code.code.ptx, code.name, launch.threads, launch.shared, memory, words, blocks)
    for array, address in moved:
        array[...] = memory.read(address, array)
    failed = int(memory.read(status, np.zeros(1, np.int64))[0])
    if failed:
        raise DeviceAssertError(code.checks[failed - 1][0])


def _box(described: TensorMap, address: int, known: Mapping[str, int]) -> Box:
    sizes, strides = (tuple(evaluate(n, known) for n in each) for each in (described.sizes, described.strides))
    return Box(address, sizes, strides, described.box, DTYPES[described.dtype].bytes)
