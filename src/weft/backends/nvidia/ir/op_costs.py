"""What ops cost, as far as decisions turn on it: who can do one alone, and what is made again rather than moved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from xdsl.ir import Operation

from weft.backends.nvidia.ir import cp_async, local_memory, rings, row_streams, tma_store
from weft.backends.nvidia.ir.dialect import BarrierOp, ConvertOp
from weft.backends.nvidia.ir.fused_reductions import MomentsOp, OnlineSoftmaxOp
from weft.backends.nvidia.ir.horizontal_select import HorizontalSelectOp
from weft.backends.nvidia.ir.mma import MmaOp, PackOp, SqueezeOp
from weft.backends.nvidia.ir.op_interfaces import OpInterface
from weft.backends.nvidia.ir.scratch import ScratchOp
from weft.backends.nvidia.ir.warp_specialization import (
    AffineApplyOp,
    BlockNumberOp,
    PingPongBarrierOp,
    WarpSpecializeOp,
)
from weft.backends.nvidia.ir.wgmma import WgmmaOp, WgmmaWaitOp
from weft.tile import collective_ops, control_flow, pointer_ops
from weft.tile import dialect as tile


@dataclass(frozen=True)
class Cost:
    """What an op costs."""

    alone: Literal["thread", "warp"] | None = None
    """Who does it alone: each thread its elements, so that a kernel of such ops takes any number of warps (horizontal
    fusion), or each warp a program (small-kernel fusion). None where more threads need each other."""
    made_again: bool = False
    """Whether its result is made again in each layout that it is wanted in, rather than moved."""
    compiles_slowly: bool = False
    """Whether code with it takes LLVM and the driver so long that it comes first, and nobody waits for it."""


COSTS: OpInterface[Cost] = OpInterface("cost")

COSTS.put(Cost(alone="thread", made_again=True), tile.ConstantOp, tile.PositionOp, tile.MapOp)
COSTS.put(Cost(made_again=True), collective_ops.ViewOp)
COSTS.put(
    Cost(alone="thread"),
    tile.ProgramOp,
    tile.NumberOp,
    tile.LoadOp,
    tile.StoreOp,
    tile.GatherOp,
    tile.ScatterOp,
    tile.ReturnOp,
)
COSTS.put(Cost(alone="warp"), tile.ReduceOp, tile.ForOp, tile.YieldOp, HorizontalSelectOp, AffineApplyOp)
COSTS.put(Cost(compiles_slowly=True), tile.DotOp, MmaOp, WgmmaOp)
COSTS.put(
    Cost(),
    tile.AddExponentialsOp,
    tile.DequantizeOp,
    MomentsOp,
    OnlineSoftmaxOp,
    collective_ops.TakeOp,
    collective_ops.FoldOp,
    collective_ops.ScanOp,
    collective_ops.OrderOp,
    collective_ops.HistogramOp,
    pointer_ops.IndexOp,
    pointer_ops.PointerOp,
    pointer_ops.AddressOp,
    pointer_ops.AtomicOp,
    control_flow.IfOp,
    control_flow.WhileOp,
    control_flow.CheckOp,
    control_flow.PrintOp,
    ConvertOp,
    BarrierOp,
    PackOp,
    SqueezeOp,
    WgmmaWaitOp,
    *tma_store.OPS,
    *rings.OPS,
    *row_streams.OPS,
    *cp_async.OPS,
    *local_memory.OPS,
    WarpSpecializeOp,
    BlockNumberOp,
    PingPongBarrierOp,
    ScratchOp,
)
COSTS.never_for("rows are sorted by torch", tile.SortOp)


def cost_of(op: Operation) -> Cost:
    """What an op costs; nothing is said of an op that no kernel for a GPU holds."""
    return COSTS.rules.get(type(op), Cost())
