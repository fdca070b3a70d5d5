"""The passes over one kernel for an NVIDIA GPU, in their order, and what each choice among them is between."""

from __future__ import annotations

from weft.backends.nvidia.emit.dot.hold_lhs_row import HoldLhsRow
from weft.backends.nvidia.ir.kernel_passes import (
    Alternative,
    FirstThatMatches,
    KernelPass,
    has_dots,
    knows_its_programs,
    multiplies_from_shared,
    reads_whole_tiles,
)
from weft.backends.nvidia.layout.allocate_shared import AllocateShared
from weft.backends.nvidia.layout.assign_layouts import AssignLayouts
from weft.backends.nvidia.layout.insert_barriers import InsertBarriers
from weft.backends.nvidia.layout.limit_registers import LimitRegisters
from weft.backends.nvidia.layout.mark_unaligned import MarkUnaligned
from weft.backends.nvidia.layout.use_tensor_cores import UseTensorCores
from weft.backends.nvidia.pipeline.hoist_dots import HoistDots
from weft.backends.nvidia.pipeline.mark_dynamic import MarkDynamic
from weft.backends.nvidia.pipeline.overlap_dots import PairBlocks, PingPong
from weft.backends.nvidia.pipeline.overlap_epilogue import OverlapEpilogue
from weft.backends.nvidia.pipeline.pipeline_cp_async import PipelineCpAsync
from weft.backends.nvidia.pipeline.pipeline_dots import PipelineDots
from weft.backends.nvidia.pipeline.pipeline_persistent_rows import PipelinePersistentRows
from weft.backends.nvidia.pipeline.pipeline_rows import PipelineRows
from weft.backends.nvidia.pipeline.pipeline_streams import HoldStreams, PipelineStreams
from weft.backends.nvidia.pipeline.pipeline_weights import (
    WARPS_OF_WEIGHTS,
    FindWeights,
    PipelineWeights,
    takes_weights_apart,
)
from weft.backends.nvidia.pipeline.prefetch_loads import PrefetchLoads
from weft.backends.nvidia.pipeline.software_pipeline_dots import SoftwarePipelineDots
from weft.backends.nvidia.pipeline.stage_operands import StageOperands
from weft.backends.nvidia.pipeline.stage_stores import StageStores
from weft.backends.nvidia.transforms.fold_sums import FoldSums
from weft.backends.nvidia.transforms.fold_tanh import FoldTanh
from weft.backends.nvidia.transforms.fold_views import FoldViews
from weft.backends.nvidia.transforms.fuse_moments import FuseMoments
from weft.backends.nvidia.transforms.fuse_online_softmax import FuseOnlineSoftmax
from weft.backends.nvidia.transforms.narrow_operands import NarrowOperands
from weft.backends.nvidia.transforms.raise_pointers import RaisePointers
from weft.backends.nvidia.transforms.read_before_reductions import ReadBeforeReductions
from weft.backends.nvidia.transforms.relax_arithmetic import RelaxArithmetic
from weft.backends.nvidia.transforms.straighten_loops import StraightenLoops


def nvidia_kernel_passes() -> tuple[KernelPass, ...]:
    """From a tile kernel, of a graph or in Triton's language, to one with roles, layouts, shared memory and barriers.

    What the alternatives say of a kernel, and why each was or was not taken, is in `weft explain`.
    """
    return (
        StraightenLoops(),
        FoldSums(),
        FoldTanh(),
        RelaxArithmetic(),
        FuseOnlineSoftmax(),
        FuseMoments(),
        MarkUnaligned(),
        FirstThatMatches(
            "choose_copies",
            (
                Alternative(
                    "TMA brings rows of programs that stay",
                    (PipelinePersistentRows(), AllocateShared()),
                    when=(reads_whole_tiles, knows_its_programs),
                ),
                Alternative(
                    "TMA brings rows", (PipelineRows(), AllocateShared()), when=(reads_whole_tiles, knows_its_programs)
                ),
                Alternative(
                    "TMA brings rows once for several loops",
                    (HoldStreams(), AllocateShared()),
                    when=(reads_whole_tiles, knows_its_programs),
                ),
                Alternative(
                    "TMA brings blocks of rows",
                    (PipelineStreams(), AllocateShared()),
                    when=(reads_whole_tiles, knows_its_programs),
                ),
                Alternative(
                    "TMA brings weights",
                    (
                        FoldViews(),
                        UseTensorCores(warps=WARPS_OF_WEIGHTS),
                        FindWeights(),
                        AssignLayouts(),
                        PipelineWeights(),
                        AllocateShared(),
                    ),
                    when=(has_dots, reads_whole_tiles, knows_its_programs, takes_weights_apart),
                ),
                Alternative(
                    "TMA brings operands of wgmma",
                    (
                        FoldViews(),
                        NarrowOperands(),
                        RaisePointers(),
                        HoistDots(),
                        FirstThatMatches(
                            "choose_overlap",
                            (
                                Alternative("two blocks beside each other", (PairBlocks(),)),
                                Alternative("a dot an iteration later", (SoftwarePipelineDots(),)),
                                Alternative("each dot where it stands", ()),
                            ),
                        ),
                        FirstThatMatches(
                            "choose_room",
                            (
                                Alternative(
                                    "the next program's held tiles, too", _multiplied(PipelineDots(), AssignLayouts())
                                ),
                                Alternative(
                                    "this program's alone", _multiplied(PipelineDots(ahead=False), AssignLayouts())
                                ),
                                Alternative(
                                    "and no room to convert layouts",
                                    _multiplied(PipelineDots(ahead=False), AssignLayouts(converts=False)),
                                ),
                                Alternative(
                                    "a stage of each of several rings, and none for stores",
                                    (PipelineDots(single=True), OverlapEpilogue(), MarkDynamic(), *_laid_out()),
                                ),
                            ),
                        ),
                    ),
                    when=(multiplies_from_shared, has_dots),
                ),
                Alternative(
                    "threads copy operands of wgmma (cp.async)",
                    (FoldViews(), PipelineCpAsync(), AssignLayouts(), InsertBarriers(), AllocateShared()),
                    when=(multiplies_from_shared, has_dots, reads_whole_tiles),
                ),
                Alternative(
                    "threads stage operands of wgmma in shared memory",
                    (
                        FoldViews(),
                        StageOperands(),
                        AssignLayouts(),
                        PrefetchLoads(),
                        InsertBarriers(),
                        AllocateShared(),
                    ),
                    when=(multiplies_from_shared, has_dots, reads_whole_tiles),
                ),
                Alternative(
                    "threads load what they need",
                    (
                        FoldViews(),
                        UseTensorCores(),
                        AssignLayouts(clusters=True),
                        ReadBeforeReductions(),
                        LimitRegisters(),
                        InsertBarriers(),
                        HoldLhsRow(),
                        AllocateShared(),
                    ),
                    when=(reads_whole_tiles,),
                ),
            ),
        ),
    )


def _multiplied(pipeline: PipelineDots, layouts: AssignLayouts) -> tuple[KernelPass, ...]:
    return (StageStores(), pipeline, PingPong(), OverlapEpilogue(), MarkDynamic(), *_laid_out(layouts))


def _laid_out(layouts: AssignLayouts | None = None) -> tuple[KernelPass, ...]:
    return (layouts or AssignLayouts(), InsertBarriers(), AllocateShared())
