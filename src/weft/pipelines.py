"""The whole compiler on one page: the passes of each target, and what runs them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from weft.backends.cpu.target import CpuTarget, target_for
from weft.backends.target import argument_names
from weft.capabilities import PROCESSOR, Capabilities
from weft.config import CODES, Config
from weft.ir.locations import inherit_locations
from weft.lower.machine import machine_of
from weft.lower.plan import build_plan
from weft.lower.steps import Plan
from weft.ops.graph import FuncOp, module_of
from weft.passes.attention.recognize_attention import RecognizeAttention
from weft.passes.choose_layouts import ChooseLayouts
from weft.passes.claim_libraries import ClaimLibraries
from weft.passes.convolution.convolve_by_matmul import ConvolveByMatmul
from weft.passes.convolution.convolve_trained import ConvolveTrained
from weft.passes.convolution.fold_batch_norm import FoldBatchNorm
from weft.passes.dot.pack_loop_weights import PackLoopWeights
from weft.passes.dot.sink_reshapes import SinkReshapes
from weft.passes.find_repeated_blocks import repeated_blocks
from weft.passes.grouping.group_into_kernels import GroupIntoKernels
from weft.passes.grouping.store_states_twice import StoreStatesTwice
from weft.passes.grouping.widen_in_windows import WidenInWindows
from weft.passes.hoist_constants import HoistConstants
from weft.passes.outline_regions import OutlineRegions
from weft.passes.place_launches import PlaceLaunches
from weft.passes.quantize.inline_dequantization import InlineDequantization
from weft.passes.simplify.compare_indices import CompareIndices
from weft.passes.simplify.eliminate_common import EliminateCommon
from weft.passes.simplify.eliminate_dead import EliminateDead
from weft.passes.simplify.fold_constants import FoldConstants
from weft.passes.simplify.simplify import Simplify
from weft.passes.simplify.sink_casts import SinkCasts
from weft.passes.split_extrema import SplitExtrema
from weft.passes.update_in_place import UpdateInPlace
from weft.runtime.blas import blas_symbols
from weft.runtime.cache import DiskCache
from weft.runtime.compiled import Compiled
from weft.runtime.record import CompilationRecord, compilation, wants_blocks
from weft.tile.dialect import KernelOp

# What one target has, passes of programs on many ranks, and what measures are imported where they are named: a first
# start waits for all that is imported here.

if TYPE_CHECKING:  # imported by what compiles for a GPU: some 140 modules that no processor needs
    from weft.backends.nvidia.code import DeviceCode, Launch
    from weft.backends.nvidia.compile import KernelHistory, Loads
    from weft.backends.nvidia.target import NvidiaTarget
    from weft.runtime.tune_device import DeviceTimer


def cpu_passes(
    config: Config,
    *,
    blas: bool = True,
    matrix_tiles: bool = False,
    own_tiles: bool = False,
    byte_products: bool = True,
    wide_vectors: bool = False,
    many_packed_rows: bool = False,
) -> list[ModulePass]:
    """From an imported function to groups that are kernels; `blas` says that there is a library for products,
    `matrix_tiles` that the framework has one for bf16, `own_tiles` that the processor multiplies bf16 in matrix tiles,
    `byte_products` that it sums up products of bytes, `wide_vectors` that its vectors are of 512 bits,
    `many_packed_rows` that kernels multiply many rows by packed weights as fast as a library."""
    from weft.passes.quantize.multiply_codes import MultiplyCodes
    from weft.passes.quantize.quantize_weights import QuantizeWeights

    return [
        OutlineRegions(),
        FoldConstants(),
        Simplify(),
        EliminateCommon(),
        RecognizeAttention(),
        *([MultiplyCodes()] if byte_products else []),
        FoldBatchNorm(),
        ConvolveByMatmul(wide=wide_vectors),
        ConvolveTrained(),
        CompareIndices(),
        SinkReshapes(),
        SplitExtrema(),
        *([QuantizeWeights(dynamic=config.quantize == "int8_dynamic")] if config.quantize.startswith("int8_") else []),
        HoistConstants(),
        PackLoopWeights(matrix_tiles=own_tiles),
        EliminateDead(),
        ClaimLibraries(
            enabled=not config.strict, blas=blas, matrix_tiles=matrix_tiles, many_packed_rows=many_packed_rows
        ),
        SinkCasts(),
        InlineDequantization(),
        WidenInWindows(),
        GroupIntoKernels(),
        StoreStatesTwice(),
        ChooseLayouts(),
        UpdateInPlace(),
        PlaceLaunches(),
    ]


def cpu_passes_for(config: Config, target: CpuTarget, *, framework: bool = False) -> list[ModulePass]:
    """`cpu_passes` with the libraries that there are: this process's BLAS, and that of a `framework`."""
    return cpu_passes(
        config,
        blas=bool(blas_symbols()),
        matrix_tiles=framework and target.capabilities.library_matrix_tiles,
        own_tiles=target.has_matrix_tiles,
        byte_products=target.packs_bytes,
        wide_vectors=target.vector_bits == 512,
        many_packed_rows=target.is_x86 and target.vector_bits == 256,
    )


def dispatch_passes() -> list[ModulePass]:
    """What is done to a program with a mesh and hints before it is differentiated: gradients go the same ways."""
    from weft.passes.sharding.dispatch_experts import DispatchExperts

    return [Simplify(), EliminateCommon(), DispatchExperts(), EliminateDead()]


def partition_passes() -> list[ModulePass]:
    """From a program with a mesh and hints to the one that each rank runs, collectives where they are needed."""
    from weft.passes.sharding.partition import Partition
    from weft.passes.sharding.propagate_shardings import PropagateShardings

    return [Simplify(), EliminateCommon(), PropagateShardings(), Partition(), EliminateCommon(), EliminateDead()]


def sharding_passes() -> list[ModulePass]:
    """From a program with a mesh and hints to the one that each rank runs, collectives combined and scheduled."""
    from weft.passes.sharding.combine_collectives import CombineCollectives
    from weft.passes.sharding.schedule_collectives import ScheduleCollectives

    return [*partition_passes(), CombineCollectives(), ScheduleCollectives()]


def arrange_collectives(function: FuncOp) -> None:
    """Combine and schedule the collectives of a rank's program."""
    from weft.passes.sharding.combine_collectives import CombineCollectives
    from weft.passes.sharding.schedule_collectives import ScheduleCollectives

    module = module_of(function)
    for each in (CombineCollectives(), ScheduleCollectives()):
        each.apply(Context(), module)


def nvidia_passes(config: Config, capabilities: Capabilities = PROCESSOR) -> list[ModulePass]:
    """From an imported function to groups that are kernels of thread blocks."""
    from weft.passes.attention.find_block_masks import FindBlockMasks
    from weft.passes.attention.lay_out_gradients import LayOutGradients
    from weft.passes.attention.pack_gqa import PackGqa
    from weft.passes.attention.read_pages import ReadPages
    from weft.passes.convolution.lay_out_convolutions import LayOutConvolutions
    from weft.passes.dot.align_operands import AlignOperands
    from weft.passes.dot.hoist_reshapes import HoistReshapes
    from weft.passes.dot.read_gathered_weights import ReadGatheredWeights
    from weft.passes.dot.scale_after_dots import ScaleAfterDots
    from weft.passes.dot.split_dots import SplitDots
    from weft.passes.dot.sum_small_dots import SumSmallDots
    from weft.passes.dot.tile_grouped_gemm import TileGroupedGemm
    from weft.passes.grouping.inline_small import InlineSmall
    from weft.passes.grouping.widen_beside_sums import WidenBesideSums
    from weft.passes.quantize.fuse_dequantization import FuseDequantization
    from weft.passes.quantize.quantize_weight_only import QuantizeWeightOnly
    from weft.passes.quantize.recognize_dequantization import RecognizeDequantization
    from weft.passes.simplify.order_by_comparing import OrderByComparing

    fast = capabilities.fast_matmuls
    return [
        OutlineRegions(),
        OrderByComparing(),
        FoldConstants(),
        Simplify(),
        EliminateCommon(),
        *([EliminateDead(), RecognizeAttention(narrow=True), FindBlockMasks(), Simplify()] if fast else []),
        PackGqa(),
        EliminateDead(),
        FoldBatchNorm(),
        ConvolveTrained(pointwise=True),
        CompareIndices(),
        RecognizeDequantization(),
        *([TileGroupedGemm(), EliminateCommon()] if fast else []),
        *([SplitDots(few_rows=config.quantize not in CODES)] if fast else []),
        LayOutConvolutions(),
        SinkReshapes(whole=True),
        HoistReshapes(),
        *([QuantizeWeightOnly(config.quantize, streamed=fast)] if config.quantize in CODES else []),
        *([SplitDots(), SinkReshapes(whole=True)] if fast and config.quantize in CODES else []),
        *(
            [
                SumSmallDots(),
                ReadGatheredWeights(),
                ReadPages(),
                FuseDequantization(),
                ScaleAfterDots(),
                AlignOperands(everywhere=config.strict),
            ]
            if fast
            else []
        ),
        HoistConstants(),
        EliminateDead(),
        ClaimLibraries(enabled=not config.strict, all_floats=True, fast_matmuls=fast),
        SinkCasts(),
        InlineSmall(),
        WidenInWindows(),
        LayOutGradients(),
        WidenBesideSums(),
        GroupIntoKernels(products=2 if fast else 1, updates=True, column_sums=True),
        ChooseLayouts(),
        UpdateInPlace(),
    ]


def annotate(kernel: KernelOp, target: NvidiaTarget) -> tuple[KernelOp, Launch]:
    """A kernel as it is made code of for a GPU, and how it is launched."""
    from weft.backends.nvidia.compile import annotate as annotate_by
    from weft.backends.nvidia.kernel_pipeline import nvidia_kernel_passes

    return annotate_by(kernel, target, nvidia_kernel_passes())


def compile_kernels(
    kernels: Mapping[str, KernelOp],
    target: NvidiaTarget,
    history: KernelHistory | None = None,
    loads: Loads | None = None,
    *,
    debug_lines: bool = False,
) -> DeviceCode:
    """Kernels as PTX for a GPU; `history` takes what came of each pass over each of them.

    With `loads` it is not waited for what takes long: that goes on in other threads, which load it as well.
    """
    from weft.backends.nvidia.compile import KernelCompiler
    from weft.backends.nvidia.kernel_pipeline import nvidia_kernel_passes

    passes = nvidia_kernel_passes()
    with KernelCompiler(target, passes, loads, debug_lines=debug_lines, history=history) as compiler:
        compiler.add(kernels)
        return compiler.code()


def run_passes(
    module: ModuleOp, passes: Sequence[ModulePass], report: CompilationRecord, *, verify: bool = False
) -> None:
    """Apply passes in order, verifying around each where asked. What they made comes from where it was put."""
    context = Context()
    start = time.perf_counter()
    if verify:
        module.verify()
    for position, each in enumerate(passes, 1):
        each.apply(context, module)
        if verify:
            module.verify()
        start = report.measure(each.name, start)
        report.after_pass(position, each.name, module.ops)
    inherit_locations(module)


def compile_cpu(
    function: FuncOp, config: Config, target: CpuTarget | None = None, *, framework: bool = False
) -> Compiled[bytes]:
    """Compile a function for a processor: passes, plan, LLVM, object code.

    A `framework` that runs the program carries out products, too, where its library is quicker.
    """
    from weft.backends.cpu.microkernel import cpu_machine, panel_form
    from weft.backends.cpu.object_compiler import ObjectCompiler

    target = target or target_for(config.cpu)
    module = module_of(function)
    with compilation(function.sym_name.data) as report:
        report.imported(function)
        run_passes(module, cpu_passes_for(config, target, framework=framework), report, verify=config.verify)
        if config.tune:
            from weft.runtime.tune import Tuner

            start = time.perf_counter()
            Tuner(target, cache=DiskCache() if config.cache else None).tune(function)
            report.measure("tune", start)
        report.program("grouped", function)
        report.blocks = list(map(str, repeated_blocks(function))) if wants_blocks() else []
        start = time.perf_counter()
        with ObjectCompiler(target, debug_lines=config.debug_lines) as compiler:
            planned = build_plan(function, partial(panel_form, target), cpu_machine(target), compiler.add)
            emitted = compiler.seconds
            start = report.measure("lower_to_tile", start + emitted)
            report.planned(planned.plan, planned.schedules)
            report.made_of_tiles(planned.kernels)
            text, code = compiler.code()
        report.program("llvm", text)
        report.measure("llvm", start - emitted)
    return Compiled(planned.plan, code, report, planned.prepare, argument_names(function))


def plan_cpu(function: FuncOp, config: Config, target: CpuTarget, *, framework: bool = False) -> Plan:
    """The plan that `compile_cpu` would make of a function without measuring, and no code: what memory it takes."""
    from weft.backends.cpu.microkernel import cpu_machine, panel_form

    report = CompilationRecord(function.sym_name.data)  # of no compilation: nobody sees it
    passes = cpu_passes_for(config, target, framework=framework)
    run_passes(module_of(function), passes, report, verify=config.verify)
    return build_plan(function, partial(panel_form, target), cpu_machine(target)).plan


def compile_nvidia(
    function: FuncOp,
    config: Config,
    target: NvidiaTarget,
    timer: DeviceTimer | None = None,
    loads: Loads | None = None,
) -> Compiled[DeviceCode]:
    """Compile a function for a GPU: passes, plan, LLVM, PTX. Where schedules are measured, `timer` does it.

    `loads` gets each kernel as soon as it is PTX, while others still are not (`KernelCompiler`).
    """
    from weft.backends.nvidia.compile import KernelCompiler, KernelHistory
    from weft.backends.nvidia.ir.programmatic_launch import mark_fixed
    from weft.backends.nvidia.plan.deduplicate_kernels import deduplicate_kernels
    from weft.backends.nvidia.plan.fuse_horizontally import fuse_horizontally
    from weft.backends.nvidia.plan.fuse_small_kernels import fuse_small_kernels
    from weft.backends.nvidia.standard_passes import StandardPasses

    module = module_of(function)
    capabilities = target.capabilities
    machine = machine_of(capabilities, target.multiprocessors)
    kernel_passes = StandardPasses()
    with compilation(function.sym_name.data) as report:
        report.imported(function)
        run_passes(module, nvidia_passes(config, capabilities), report, verify=config.verify)
        if config.tune and timer is not None and capabilities.fast_matmuls:
            from weft.runtime.tune_device import DeviceTuner

            start = time.perf_counter()
            cache = DiskCache() if config.cache else None
            DeviceTuner(target, machine, timer, kernel_passes, cache=cache).tune(function)
            report.measure("tune", start)
        report.program("grouped", function)
        report.blocks = list(map(str, repeated_blocks(function))) if wants_blocks() else []
        start = time.perf_counter()
        planned = build_plan(function, machine=machine)
        fuse_horizontally(planned)
        fuse_small_kernels(planned, target, kernel_passes)
        report.program("tile", planned.kernels.values())
        mark_fixed(planned.plan, planned.kernels)
        deduplicate_kernels(planned)
        report.planned(planned.plan, planned.schedules)
        start = report.measure("lower_to_tile", start)
        history = KernelHistory(keeps_kernels=report.wants_programs, keeps_passes=report.wants_passes)
        settings: dict[str, bool] = {"debug_lines": config.debug_lines, "beside": config.workers}
        with KernelCompiler(target, kernel_passes, loads, history=history, **settings) as compiler:
            compiler.add(planned.kernels, planned.sources)
            start = report.measure("emit_llvm", start)
            for name, texts in history.after_passes.items():
                report.programs.update({f"nvidia-{name}-{made}": text for made, text in texts.items()})
            report.program("nvidia", history.annotated.values())
            report.program("llvm", "\n".join(compiler.texts.values()))
            code = compiler.code()
        report.measure("llvm", start)
        report.made_for_device(code, planned.kernels, history.notes)
    return Compiled(planned.plan, code, report, planned.prepare, argument_names(function))
