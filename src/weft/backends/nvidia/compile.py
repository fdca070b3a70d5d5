"""Tile kernels → PTX, a module each, and how each is launched."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Hashable, Mapping, Set
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import TypeAlias

from weft.backends.llvm.builder import Module
from weft.backends.llvm.debug_lines import DebugLines, keep_lines
from weft.backends.nvidia.alignment import mark_shifted
from weft.backends.nvidia.anchors import blocks_beside
from weft.backends.nvidia.assign_layouts import assign_layouts
from weft.backends.nvidia.atomics import NO_BF16_ATOMICS
from weft.backends.nvidia.block import SHARED_SYMBOL
from weft.backends.nvidia.code import AwaitedModules, DeviceCode, Launch
from weft.backends.nvidia.codegen import KernelCodegen
from weft.backends.nvidia.dequantize import NO_FP8
from weft.backends.nvidia.dialect import APART, BLOCKS, RESIDENT, SHARED, WARPS, integer, set_integer
from weft.backends.nvidia.early_start import asked_early, written_by
from weft.backends.nvidia.fold_sums import fold_sums
from weft.backends.nvidia.fold_tanh import fold_tanh
from weft.backends.nvidia.fold_views import fold_views
from weft.backends.nvidia.held_row import hold_row
from weft.backends.nvidia.join_exponentials import join_exponentials
from weft.backends.nvidia.join_moments import join_moments
from weft.backends.nvidia.layouts import WARP
from weft.backends.nvidia.messages import VPRINTF
from weft.backends.nvidia.mma import AHEAD
from weft.backends.nvidia.narrow_operands import narrow_operands
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
from weft.backends.nvidia.straighten_loops import straighten_loops
from weft.backends.nvidia.target import TRIPLE, NvidiaTarget, compile_ptx
from weft.backends.nvidia.use_tensor_cores import use_tensor_cores
from weft.errors import LoweringError
from weft.forks import BACKGROUND, COMPILING
from weft.ir.locations import inherit_locations
from weft.tile import dialect as tile

Loads: TypeAlias = Callable[[str, str, Launch], None]
"""Takes a kernel's name, its PTX, and how it is launched."""

_SWITCH_SECONDS = 2e-4
"""How long the thread that writes kernels keeps the others waiting for Python's lock, which they need for moments
between one call of LLVM's or the driver's and the next."""

_SINCE = {NO_BF16_ATOMICS: 90, NO_FP8: 89}
"""The compute capabilities that have instructions."""


def annotate(kernel: tile.KernelOp, target: NvidiaTarget) -> tuple[tile.KernelOp, Launch]:
    """A copy of a kernel with roles, layouts, conversions, shared memory and barriers."""
    kernel = kernel.clone()
    if (apart := integer(kernel, APART)) > 0:  # its parts have all that
        return kernel, Launch(WARP * apart, integer(kernel, SHARED))
    straighten_loops(kernel)
    fold_sums(kernel)
    fold_tanh(kernel)
    relax_arithmetic(kernel)
    join_exponentials(kernel)
    join_moments(kernel)
    mark_shifted(kernel)
    in_pieces = any(isinstance(op, tile.LoadOp) and op.pieces > 1 for op in kernel.walk())
    with_roles = (_with_roles, _holding_one, _without_conversions)
    of_products = (*with_roles, _with_stages) if has_product(kernel) else ()
    for way in with_roles if in_pieces else (_streamed, *of_products):
        with suppress(LoweringError):  # a conversion may need the memory that copies ahead of time would take
            if (found := way(kernel, target)) is not None:
                return found
    if in_pieces:
        raise LoweringError("only the copy engine reads tiles in pieces")
    copy = kernel.clone()
    fold_views(copy)
    use_tensor_cores(copy, target.multiprocessors)
    assign_layouts(copy, clusters=target.has_clusters)
    if (resident := blocks_beside(copy)) > 1:
        set_integer(copy, RESIDENT, resident)
    order_memory(copy)
    held, blocks = hold_row(copy, 0), integer(copy, BLOCKS, 1)
    shared = allocate_shared(copy, target.shared_per_block - held, held)
    return copy, Launch(WARP * integer(copy, WARPS), shared, cluster=blocks, blocks_per_program=blocks)


def _streamed(kernel: tile.KernelOp, target: NvidiaTarget) -> tuple[tile.KernelOp, Launch] | None:
    """Rows that are brought ahead, whole or in blocks, and weights."""
    if kernel.limit is not None:
        return None
    ways = (pipeline_rows, pipeline_streams, pipeline_weights)
    streamed = next((found for way in ways if (found := way(kernel, target)) is not None), None)
    if streamed is None:
        return None
    shared = allocate_shared(streamed.kernel, target.shared_per_block - streamed.shared, streamed.shared)
    blocks = streamed.cluster
    launch = Launch(streamed.threads, shared, blocks, blocks, streamed.persistent)
    return streamed.kernel, launch


def _with_roles(
    kernel: tile.KernelOp, target: NvidiaTarget, *, converts: bool = True, ahead: bool = True
) -> tuple[tile.KernelOp, Launch] | None:
    """Products whose operands are brought ahead."""
    copy = kernel.clone()
    fold_views(copy)
    narrow_operands(copy)
    raise_accesses(copy)
    overlap_products(copy)
    pipelined = pipeline_dots(copy, target, ahead=ahead)
    if pipelined is None:
        return None
    assign_layouts(copy, converts=converts)
    order_memory(copy)
    shared = allocate_shared(copy, target.shared_per_block - pipelined.shared, pipelined.shared)
    persistent = not worth_one_by_one(kernel, target.multiprocessors, integer(copy, RESIDENT, 1))
    cluster, maps = pipelined.cluster, pipelined.maps
    return copy, Launch(pipelined.threads, shared, cluster, persistent=persistent, maps=maps)


def _holding_one(kernel: tile.KernelOp, target: NvidiaTarget) -> tuple[tile.KernelOp, Launch] | None:
    """The same, with more room to turn tiles: what the next program holds does not come ahead."""
    return _with_roles(kernel, target, ahead=False)


def _without_conversions(kernel: tile.KernelOp, target: NvidiaTarget) -> tuple[tile.KernelOp, Launch] | None:
    """The same, with all memory accessed as the tensor cores hold it: there is no room to turn tiles."""
    return _with_roles(kernel, target, converts=False, ahead=False)


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


def _widens_ahead(kernel: tile.KernelOp) -> bool:
    """Whether threads widen codes that they have asked for turns before: wider operands lost by half of the memory."""
    ops = list(kernel.walk())
    return any(AHEAD in op.attributes for op in ops) and any(isinstance(op, tile.DequantizeOp) for op in ops)


def emit_llvm(kernel: tile.KernelOp, target: NvidiaTarget, *, debug_lines: bool = False) -> tuple[str, Launch]:
    """A kernel as the text of an LLVM module, and how it is launched.

    With `debug_lines` the module says which line of the user's program each instruction comes from.
    """
    module = Module(TRIPLE, frozenset(what for what, since in _SINCE.items() if target.capability < since))
    module.globals[SHARED_SYMBOL] = f"@{SHARED_SYMBOL} = external addrspace(3) global [0 x i8], align 1024"
    annotated, launch = annotate(kernel, target)
    if debug_lines:
        module.debug = DebugLines("DebugDirectivesOnly")
        inherit_locations(annotated)
    programmatic = target.capability >= 90
    asked = asked_early(annotated, launch) if programmatic else ()
    written, ahead = written_by(kernel), _widens_ahead(annotated)
    launch = replace(launch, programmatic=programmatic, asked=asked, written=written, ahead=ahead)
    KernelCodegen(module, annotated, launch).emit()
    missing = [each for each in module.declarations if not each.startswith("llvm.") and each != VPRINTF]
    if missing:
        raise LoweringError(f"a GPU has no library for {', '.join(missing)}")
    module.declarations["#1"] = "attributes #1 = { convergent nounwind }"
    return str(module), launch


class KernelCompiler:
    """Makes PTX of kernels: this thread writes one after the other as LLVM IR, others compile what it has written.

        with KernelCompiler(target) as compiler:
            compiler.add(kernels)
            code = compiler.code()

    With `loads`, they go on to that, for each kernel, as soon as there is PTX of it, and need not be done at the end of
    the `with`. A fork waits for them.
    """

    def __init__(self, target: NvidiaTarget, loads: Loads | None = None, *, debug_lines: bool = False) -> None:
        self.target, self._loads, self._debug_lines = target, loads, debug_lines
        self.texts: dict[str, str] = {}
        """The LLVM IR of each kernel."""
        self._launches: dict[str, Launch] = {}
        self._made: dict[str, Future[str]] = {}
        self._takes_long = False
        self._work: list[Future[None]] = []
        self._pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)), thread_name_prefix="weft-compile")

    def __enter__(self) -> KernelCompiler:
        COMPILING.acquire()
        if self._debug_lines:
            keep_lines()
        BACKGROUND.add(self)
        self._interval = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_SECONDS)
        return self

    def __exit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        failed = kind is not None
        self._pool.shutdown(wait=failed or self._loads is None, cancel_futures=failed)
        sys.setswitchinterval(self._interval)
        COMPILING.release()

    def wait(self) -> None:
        """Return when all threads are done."""
        wait([each for each in self._work if not each.cancelled()])

    def add(
        self, kernels: Mapping[str, tile.KernelOp], sources: Mapping[str, Set[Hashable]] = MappingProxyType({})
    ) -> None:
        """Compile kernels. `sources` are what each comes from, for the error if it has no code."""
        self._made.update({name: Future() for name in kernels})
        slow = {name for name, kernel in kernels.items() if has_product(kernel)}
        self._takes_long = self._takes_long or bool(slow)
        for name in sorted(kernels, key=lambda each: each not in slow):
            try:
                self.texts[name], self._launches[name] = self._emitted(kernels[name])
            except LoweringError as error:
                known = frozenset(sources.get(name, ()))
                raise LoweringError(f"{name}: {error.message}", hint=error.hint, sources=known) from error
            self._work.append(self._pool.submit(self._make, name))

    def code(self) -> DeviceCode:
        """The kernels that were added, in their order.

        Where there are products among them, which take long, and their loading is taken care of, nobody waits here.
        """
        launches = {name: self._launches[name] for name in self._made}
        awaited = AwaitedModules(self._made, self._loads)
        modules = awaited if self._takes_long and self._loads is not None else dict(awaited)
        return DeviceCode(self.target.arch, modules, launches)

    def _emitted(self, kernel: tile.KernelOp) -> tuple[str, Launch]:
        return emit_llvm(kernel, self.target, debug_lines=self._debug_lines)

    def _make(self, name: str) -> None:
        made = self._made[name]
        try:
            made.set_result(compile_ptx(self.texts[name], self.target))
        except Exception as error:
            made.set_exception(error)
            return
        if self._loads is not None:
            self._loads(name, made.result(), self._launches[name])


def has_product(kernel: tile.KernelOp) -> bool:
    """Whether a kernel has a product of tiles: such take longest to compile, and come first."""
    return any(isinstance(op, tile.DotOp) for op in kernel.walk())


def compile_kernels(
    kernels: Mapping[str, tile.KernelOp], target: NvidiaTarget, *, debug_lines: bool = False
) -> DeviceCode:
    """Kernels as PTX for a target."""
    with KernelCompiler(target, debug_lines=debug_lines) as compiler:
        compiler.add(kernels)
        return compiler.code()
