"""The passes by name: what `weft opt -p` takes. A new pass adds its class here.

A pipeline is written as xDSL writes it, names with options in braces: `simplify,claim_libraries{enabled=false}`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, fields, replace

from xdsl.passes import ModulePass
from xdsl.utils.arg_spec import parse_pipeline
from xdsl.utils.exceptions import ArgSpecParseError

from weft.diagnostics import nearest
from weft.errors import ParseError
from weft.passes.attention.find_block_masks import FindBlockMasks
from weft.passes.attention.lay_out_gradients import LayOutGradients
from weft.passes.attention.pack_gqa import PackGqa
from weft.passes.attention.read_pages import ReadPages
from weft.passes.attention.recognize_attention import RecognizeAttention
from weft.passes.choose_layouts import ChooseLayouts
from weft.passes.claim_libraries import ClaimLibraries
from weft.passes.convolution.convolve_by_matmul import ConvolveByMatmul
from weft.passes.convolution.convolve_trained import ConvolveTrained
from weft.passes.convolution.fold_batch_norm import FoldBatchNorm
from weft.passes.convolution.lay_out_convolutions import LayOutConvolutions
from weft.passes.differentiate import Vjp
from weft.passes.dot.align_operands import AlignOperands
from weft.passes.dot.hoist_reshapes import HoistReshapes
from weft.passes.dot.pack_loop_weights import PackLoopWeights
from weft.passes.dot.read_gathered_weights import ReadGatheredWeights
from weft.passes.dot.scale_after_dots import ScaleAfterDots
from weft.passes.dot.sink_reshapes import SinkReshapes
from weft.passes.dot.split_dots import SplitDots
from weft.passes.dot.sum_small_dots import SumSmallDots
from weft.passes.dot.tile_grouped_gemm import TileGroupedGemm
from weft.passes.grouping.group_into_kernels import GroupIntoKernels
from weft.passes.grouping.inline_small import InlineSmall
from weft.passes.grouping.store_states_twice import StoreStatesTwice
from weft.passes.grouping.widen_beside_sums import WidenBesideSums
from weft.passes.grouping.widen_in_windows import WidenInWindows
from weft.passes.hoist_constants import HoistConstants
from weft.passes.outline_regions import OutlineRegions
from weft.passes.place_launches import PlaceLaunches
from weft.passes.quantize.fuse_dequantization import FuseDequantization
from weft.passes.quantize.inline_dequantization import InlineDequantization
from weft.passes.quantize.multiply_codes import MultiplyCodes
from weft.passes.quantize.quantize_weight_only import QuantizeWeightOnly
from weft.passes.quantize.quantize_weights import QuantizeWeights
from weft.passes.quantize.recognize_dequantization import RecognizeDequantization
from weft.passes.sharding.combine_collectives import CombineCollectives
from weft.passes.sharding.dispatch_experts import DispatchExperts
from weft.passes.sharding.partition import Partition
from weft.passes.sharding.propagate_shardings import PropagateShardings
from weft.passes.sharding.schedule_collectives import ScheduleCollectives
from weft.passes.sharding.specialize_rank import SpecializeRank
from weft.passes.simplify.compare_indices import CompareIndices
from weft.passes.simplify.eliminate_common import EliminateCommon
from weft.passes.simplify.eliminate_dead import EliminateDead
from weft.passes.simplify.fold_constants import FoldConstants
from weft.passes.simplify.order_by_comparing import OrderByComparing
from weft.passes.simplify.simplify import Simplify
from weft.passes.simplify.sink_casts import SinkCasts
from weft.passes.split_extrema import SplitExtrema
from weft.passes.transform.autocast import Autocast
from weft.passes.transform.checkpoint import Checkpoint
from weft.passes.transform.inline_custom import InlineCustom
from weft.passes.transform.jvp import Jvp
from weft.passes.transform.quantize import Quantize
from weft.passes.transform.vmap import Vmap
from weft.passes.update_in_place import UpdateInPlace

PASSES: dict[str, type[ModulePass]] = {
    each.name: each
    for each in (
        OutlineRegions,
        OrderByComparing,
        FoldConstants,
        Simplify,
        EliminateCommon,
        RecognizeAttention,
        FindBlockMasks,
        PackGqa,
        MultiplyCodes,
        FoldBatchNorm,
        ConvolveByMatmul,
        ConvolveTrained,
        CompareIndices,
        SplitDots,
        LayOutConvolutions,
        LayOutGradients,
        SinkReshapes,
        SplitExtrema,
        HoistReshapes,
        QuantizeWeights,
        RecognizeDequantization,
        QuantizeWeightOnly,
        TileGroupedGemm,
        SumSmallDots,
        ReadGatheredWeights,
        PackLoopWeights,
        FuseDequantization,
        ReadPages,
        ScaleAfterDots,
        AlignOperands,
        HoistConstants,
        EliminateDead,
        ClaimLibraries,
        SinkCasts,
        InlineDequantization,
        InlineSmall,
        WidenInWindows,
        WidenBesideSums,
        GroupIntoKernels,
        StoreStatesTwice,
        ChooseLayouts,
        UpdateInPlace,
        PlaceLaunches,
        PropagateShardings,
        Partition,
        CombineCollectives,
        DispatchExperts,
        ScheduleCollectives,
        SpecializeRank,
        Vjp,
        Jvp,
        Vmap,
        Checkpoint,
        Autocast,
        Quantize,
        InlineCustom,
    )
}

_FORMERLY = {
    "code_weights": "quantize_weight_only",
    "read_codes": "fuse_dequantization",
    "recognize_codes": "recognize_dequantization",
    "find_seen_keys": "find_block_masks",
    "share_keys": "pack_gqa",
    "compare_places": "compare_indices",
    "read_chosen": "read_gathered_weights",
    "tile_groups": "tile_grouped_gemm",
    "split_products": "split_dots",
    "sum_small_products": "sum_small_dots",
    "scale_after_products": "scale_after_dots",
    "convolve_by_products": "convolve_by_matmul",
}
"""What passes were called before, which texts that people keep may still say."""


def _check_options(kind: type[ModulePass], name: str, given: Sequence[str]) -> None:
    """Raise where options are given that a pass has not, or those that it needs are not."""
    known = [each for each in fields(kind) if each.name != "name"]  # pyright: ignore[reportArgumentType]
    names = [each.name for each in known]
    hint = f"it has {', '.join(names)}" if names else "it has none"
    if bad := next((each for each in given if each not in names), None):
        raise ParseError(f"{name} has no option {bad}{nearest(bad, names)}", hint=hint)
    for each in known:
        if each.default is MISSING and each.default_factory is MISSING and each.name not in given:
            raise ParseError(f"{name} needs the option {each.name}", hint=f"write {name}{{{each.name}=...}}")


def read_pipeline(text: str, pipelines: dict[str, list[ModulePass]]) -> list[ModulePass]:
    """The passes that a text names; the name of one of the `pipelines` stands for all of its passes."""
    passes: list[ModulePass] = []
    try:
        specs = list(parse_pipeline(text)) if text else []
    except ArgSpecParseError as error:
        raise ParseError(f"not a list of passes: {text}", hint="write name,name{option=value other=value}") from error
    for spec in specs:
        if spec.name in pipelines and not spec.parameters:
            passes.extend(pipelines[spec.name])
            continue
        name = _FORMERLY.get(spec.name, spec.name)
        if name not in PASSES:
            known = [*pipelines, *PASSES]
            close = nearest(spec.name, known)
            raise ParseError(
                f"no pass is called {spec.name}{close}", hint=None if close else f"there are {', '.join(known)}"
            )
        _check_options(PASSES[name], spec.name, list(spec.parameters))
        try:
            passes.append(PASSES[name].from_spec(replace(spec, name=name)))
        except ValueError as error:
            raise ParseError(f"{spec.name}: {error}") from error
    return passes
