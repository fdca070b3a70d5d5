"""Tile kernels → one PTX module, and how each of its kernels is launched."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Set
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType

from weft.backends.llvm.builder import Module
from weft.backends.nvidia.assign_layouts import assign_layouts
from weft.backends.nvidia.atomics import NO_BF16_ATOMICS
from weft.backends.nvidia.block import SHARED_SYMBOL
from weft.backends.nvidia.code import DeviceCode, Launch
from weft.backends.nvidia.codegen import KernelCodegen
from weft.backends.nvidia.dequantize import NO_FP8
from weft.backends.nvidia.dialect import BLOCKS, RESIDENT, WARPS, integer
from weft.backends.nvidia.early_start import asked_early, written_by
from weft.backends.nvidia.fold_sums import fold_sums
from weft.backends.nvidia.fold_views import fold_views
from weft.backends.nvidia.join_exponentials import join_exponentials
from weft.backends.nvidia.layouts import WARP
from weft.backends.nvidia.loads_ahead import stage_codes
from weft.backends.nvidia.messages import VPRINTF
from weft.backends.nvidia.order_memory import order_memory
from weft.backends.nvidia.overlap_products import overlap_products
from weft.backends.nvidia.pipeline_dots import pipeline_dots
from weft.backends.nvidia.pipeline_rows import pipeline_rows
from weft.backends.nvidia.pipeline_streams import pipeline_streams
from weft.backends.nvidia.pipeline_weights import pipeline_weights
from weft.backends.nvidia.programs import worth_one_by_one
from weft.backends.nvidia.raise_accesses import raise_accesses
from weft.backends.nvidia.relax_arithmetic import relax_arithmetic
from weft.backends.nvidia.shared_memory import allocate_shared
from weft.backends.nvidia.stage_operands import stage_operands
from weft.backends.nvidia.target import TRIPLE, NvidiaTarget, compile_ptx
from weft.backends.nvidia.use_tensor_cores import use_tensor_cores
from weft.errors import LoweringError
from weft.tile import dialect as tile

_SINCE = {NO_BF16_ATOMICS: 90, NO_FP8: 89}
"""The compute capabilities that have instructions."""


def annotate(kernel: tile.KernelOp, target: NvidiaTarget) -> tuple[tile.KernelOp, Launch]:
    """A copy of a kernel with roles, layouts, conversions, shared memory and barriers."""
    kernel = kernel.clone()
    fold_sums(kernel)
    relax_arithmetic(kernel)
    join_exponentials(kernel)
    for way in (_streamed, _with_roles, _without_conversions, _with_stages):
        with suppress(LoweringError):  # a conversion may need the memory that copies ahead of time would take
            if (found := way(kernel, target)) is not None:
                return found
    copy = kernel.clone()
    fold_views(copy)
    use_tensor_cores(copy)
    assign_layouts(copy, clusters=target.has_clusters)
    order_memory(copy)
    staged, blocks = stage_codes(copy, target), integer(copy, BLOCKS, 1)
    shared = allocate_shared(copy, target.shared_per_block - staged, staged)
    return copy, Launch(WARP * integer(copy, WARPS), shared, cluster=blocks, blocks_per_program=blocks)


def _streamed(kernel: tile.KernelOp, target: NvidiaTarget) -> tuple[tile.KernelOp, Launch] | None:
    """Rows that are brought ahead, whole or in blocks, and weights."""
    ways = (pipeline_rows, pipeline_streams, pipeline_weights)
    streamed = next((found for way in ways if (found := way(kernel, target)) is not None), None)
    if streamed is None:
        return None
    shared = allocate_shared(streamed.kernel, target.shared_per_block - streamed.shared, streamed.shared)
    blocks = streamed.cluster
    launch = Launch(streamed.threads, shared, cluster=blocks, blocks_per_program=blocks, persistent=True)
    return streamed.kernel, launch


def _with_roles(
    kernel: tile.KernelOp, target: NvidiaTarget, converts: bool = True
) -> tuple[tile.KernelOp, Launch] | None:
    """Products whose operands are brought ahead."""
    copy = kernel.clone()
    fold_views(copy)
    raise_accesses(copy)
    overlap_products(copy)
    pipelined = pipeline_dots(copy, target)
    if pipelined is None:
        return None
    assign_layouts(copy, converts=converts)
    order_memory(copy)
    shared = allocate_shared(copy, target.shared_per_block - pipelined.shared, pipelined.shared)
    persistent = not worth_one_by_one(kernel, target.multiprocessors, integer(copy, RESIDENT, 1))
    return copy, Launch(pipelined.threads, shared, persistent=persistent, maps=pipelined.maps)


def _without_conversions(kernel: tile.KernelOp, target: NvidiaTarget) -> tuple[tile.KernelOp, Launch] | None:
    """The same, with all memory accessed as the tensor cores hold it: there is no room to turn tiles."""
    return _with_roles(kernel, target, converts=False)


def _with_stages(kernel: tile.KernelOp, target: NvidiaTarget) -> tuple[tile.KernelOp, Launch] | None:
    """Products whose operands threads copy ahead."""
    copy = kernel.clone()
    fold_views(copy)
    stages = stage_operands(copy, target)
    if stages is None:
        return None
    assign_layouts(copy)
    order_memory(copy)
    shared = allocate_shared(copy, target.shared_per_block - stages, stages)
    return copy, Launch(WARP * integer(copy, WARPS), shared)


def emit_llvm(
    kernels: Mapping[str, tile.KernelOp],
    target: NvidiaTarget,
    sources: Mapping[str, Set[Hashable]] = MappingProxyType({}),
) -> tuple[str, dict[str, Launch]]:
    """Kernels as the text of one LLVM module. `sources` are what each comes from, for the error if it has no code."""
    module = Module(TRIPLE, frozenset(what for what, since in _SINCE.items() if target.capability < since))
    module.globals[SHARED_SYMBOL] = f"@{SHARED_SYMBOL} = external addrspace(3) global [0 x i8], align 1024"
    launches: dict[str, Launch] = {}
    for name, kernel in kernels.items():
        try:
            annotated, launch = annotate(kernel, target)
            programmatic = target.capability >= 90
            asked = asked_early(annotated, launch) if programmatic else ()
            launches[name] = replace(launch, programmatic=programmatic, asked=asked, written=written_by(kernel))
            KernelCodegen(module, annotated, launches[name]).emit()
        except LoweringError as error:
            known = frozenset(sources.get(name, ()))
            raise LoweringError(f"{name}: {error.message}", hint=error.hint, sources=known) from error
    missing = [name for name in module.declarations if not name.startswith("llvm.") and name != VPRINTF]
    if missing:
        raise LoweringError(f"a GPU has no library for {', '.join(missing)}")
    module.declarations["#1"] = "attributes #1 = { convergent nounwind }"
    return str(module), launches


def compile_kernels(kernels: Mapping[str, tile.KernelOp], target: NvidiaTarget) -> DeviceCode:
    """Kernels as PTX for a target."""
    text, launches = emit_llvm(kernels, target)
    return DeviceCode(target.arch, compile_ptx(text, target), launches)
