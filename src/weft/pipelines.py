"""The whole compiler on one page: the passes of each target, and what runs them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from weft.backends.cpu.compile import emit_kernels
from weft.backends.cpu.microkernel import cpu_machine, panel_form
from weft.backends.cpu.target import CpuTarget, compile_object, target_for
from weft.backends.nvidia.chain_kernels import chain_kernels
from weft.backends.nvidia.code import DeviceCode
from weft.backends.nvidia.compile import KernelCompiler, Loads
from weft.backends.nvidia.early_start import mark_fixed
from weft.backends.nvidia.join_kernels import join_kernels
from weft.backends.nvidia.share_kernels import share_kernels
from weft.backends.nvidia.target import NvidiaTarget
from weft.config import CODES, Config
from weft.ir.locations import inherit_locations
from weft.lower.machine import gpu_machine
from weft.lower.plan import build_plan
from weft.lower.steps import Plan
from weft.ops.graph import FuncOp
from weft.passes.align_operands import AlignOperands
from weft.passes.choose_layouts import ChooseLayouts
from weft.passes.claim_libraries import ClaimLibraries
from weft.passes.code_weights import CodeWeights
from weft.passes.compare_places import ComparePlaces
from weft.passes.convolve_by_products import ConvolveByProducts
from weft.passes.convolve_trained import ConvolveTrained
from weft.passes.eliminate_common import EliminateCommon
from weft.passes.eliminate_dead import EliminateDead
from weft.passes.find_repeated_blocks import repeated_blocks
from weft.passes.find_seen_keys import FindSeenKeys
from weft.passes.fold_batch_norm import FoldBatchNorm
from weft.passes.fold_constants import FoldConstants
from weft.passes.group_into_kernels import GroupIntoKernels
from weft.passes.hoist_constants import HoistConstants
from weft.passes.inline_small import InlineSmall
from weft.passes.lay_out_convolutions import LayOutConvolutions
from weft.passes.order_by_comparing import OrderByComparing
from weft.passes.place_launches import PlaceLaunches
from weft.passes.quantize_weights import QuantizeWeights
from weft.passes.read_chosen import ReadChosen
from weft.passes.read_codes import ReadCodes
from weft.passes.read_pages import ReadPages
from weft.passes.recognize_attention import RecognizeAttention
from weft.passes.recognize_codes import RecognizeCodes
from weft.passes.scale_after_products import ScaleAfterProducts
from weft.passes.share_keys import ShareKeys
from weft.passes.simplify import Simplify
from weft.passes.sink_reshapes import SinkReshapes
from weft.passes.split_products import SplitProducts
from weft.passes.sum_small_products import SumSmallProducts
from weft.passes.tile_groups import TileGroups
from weft.passes.update_in_place import UpdateInPlace
from weft.runtime.blas import blas_symbols
from weft.runtime.cache import DiskCache
from weft.runtime.record import CompilationRecord, compilation, wants_blocks
from weft.runtime.tune import Tuner
from weft.runtime.tune_device import DeviceTimer, DeviceTuner


def cpu_passes(config: Config, *, blas: bool = True, matrix_tiles: bool = False) -> list[ModulePass]:
    """From an imported function to groups that are kernels; `blas` says that there is a library for products, and
    `matrix_tiles` that the framework has one for bf16."""
    return [
        FoldConstants(),
        Simplify(),
        EliminateCommon(),
        RecognizeAttention(),
        FoldBatchNorm(),
        ConvolveByProducts(),
        ConvolveTrained(),
        ComparePlaces(),
        SinkReshapes(),
        *([QuantizeWeights(dynamic=config.quantize == "int8_dynamic")] if config.quantize.startswith("int8_") else []),
        HoistConstants(),
        EliminateDead(),
        ClaimLibraries(enabled=not config.strict, blas=blas, matrix_tiles=matrix_tiles),
        GroupIntoKernels(),
        ChooseLayouts(),
        UpdateInPlace(),
        PlaceLaunches(),
    ]


def nvidia_passes(config: Config, *, tensor_cores: bool = False) -> list[ModulePass]:
    """From an imported function to groups that are kernels of a GPU."""
    return [
        OrderByComparing(),
        FoldConstants(),
        Simplify(),
        EliminateCommon(),
        *([EliminateDead(), RecognizeAttention(narrow=True), FindSeenKeys(), Simplify()] if tensor_cores else []),
        ShareKeys(),
        EliminateDead(),
        FoldBatchNorm(),
        ConvolveTrained(pointwise=True),
        ComparePlaces(),
        RecognizeCodes(),
        *([TileGroups(), EliminateCommon()] if tensor_cores else []),
        *([SplitProducts(few_rows=config.quantize not in CODES)] if tensor_cores else []),
        LayOutConvolutions(),
        SinkReshapes(whole=True),
        *([CodeWeights(config.quantize, streamed=tensor_cores)] if config.quantize in CODES else []),
        *([SplitProducts(), SinkReshapes(whole=True)] if tensor_cores and config.quantize in CODES else []),
        *(
            [SumSmallProducts(), ReadChosen(), ReadPages(), ReadCodes(), ScaleAfterProducts(), AlignOperands()]
            if tensor_cores
            else []
        ),
        HoistConstants(),
        EliminateDead(),
        ClaimLibraries(enabled=not config.strict, all_floats=True, tensor_cores=tensor_cores),
        InlineSmall(),
        GroupIntoKernels(products=2 if tensor_cores else 1, updates=True),
        ChooseLayouts(),
        UpdateInPlace(),
    ]


Code = TypeVar("Code", bytes, DeviceCode, covariant=True)


@dataclass(frozen=True)
class Compiled(Generic[Code]):
    """A plan with its object or device code, and the function that prepares its constants, whose text the plan has
    too."""

    plan: Plan
    code: Code
    report: CompilationRecord
    prepare: FuncOp | None = None


def _module_of(function: FuncOp) -> ModuleOp:
    parent = function.parent_op()
    return parent if isinstance(parent, ModuleOp) else ModuleOp([function])


def run_passes(
    module: ModuleOp, passes: Sequence[ModulePass], report: CompilationRecord, *, verify: bool = False
) -> None:
    """Apply passes in order, verifying around each where asked. What they made comes from where it was put."""
    context = Context()
    start = time.perf_counter()
    if verify:
        module.verify()
    for each in passes:
        each.apply(context, module)
        if verify:
            module.verify()
        start = report.measure(each.name, start)
    inherit_locations(module)


def compile_cpu(
    function: FuncOp, config: Config, target: CpuTarget | None = None, *, framework: bool = False
) -> Compiled[bytes]:
    """Compile a function for a processor: passes, plan, LLVM, object code.

    A `framework` that runs the program carries out products, too, where its library is quicker.
    """
    target = target or target_for(config.cpu)
    module = _module_of(function)
    with compilation(function.sym_name.data) as report:
        report.imported(function)
        passes = cpu_passes(config, blas=bool(blas_symbols()), matrix_tiles=framework and target.has_matrix_tiles)
        run_passes(module, passes, report, verify=config.verify)
        if config.tune:
            start = time.perf_counter()
            Tuner(target, cache=DiskCache() if config.cache else None).tune(function)
            report.measure("tune", start)
        report.program("grouped", function)
        report.blocks = list(map(str, repeated_blocks(function))) if wants_blocks() else []
        start = time.perf_counter()
        planned = build_plan(function, partial(panel_form, target), cpu_machine(target))
        start = report.measure("lower_to_tile", start)
        report.planned(planned.plan, planned.schedules)
        report.made_of_tiles(planned.kernels)
        text = emit_kernels(planned.kernels, target, debug_lines=config.debug_lines)
        start = report.measure("emit_llvm", start)
        report.program("llvm", text)
        code = compile_object(text, target)
        report.measure("llvm", start)
    return Compiled(planned.plan, code, report, planned.prepare)


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
    module = _module_of(function)
    machine = gpu_machine(target.multiprocessors, clusters=target.has_clusters)
    with compilation(function.sym_name.data) as report:
        report.imported(function)
        run_passes(module, nvidia_passes(config, tensor_cores=target.has_wgmma), report, verify=config.verify)
        if config.tune and timer is not None and target.has_wgmma:
            start = time.perf_counter()
            DeviceTuner(target, machine, timer, cache=DiskCache() if config.cache else None).tune(function)
            report.measure("tune", start)
        report.program("grouped", function)
        report.blocks = list(map(str, repeated_blocks(function))) if wants_blocks() else []
        start = time.perf_counter()
        planned = build_plan(function, machine=machine)
        join_kernels(planned)
        chain_kernels(planned, target)
        report.program("tile", planned.kernels.values())
        mark_fixed(planned.plan, planned.kernels)
        share_kernels(planned)
        report.planned(planned.plan, planned.schedules)
        start = report.measure("lower_to_tile", start)
        with KernelCompiler(target, loads, debug_lines=config.debug_lines) as compiler:
            compiler.add(planned.kernels, planned.sources)
            start = report.measure("emit_llvm", start)
            report.program("llvm", "\n".join(compiler.texts.values()))
            code = compiler.code()
        report.measure("llvm", start)
        report.made_for_device(code, planned.kernels)
    return Compiled(planned.plan, code, report, planned.prepare)
