"""The ops of the tile dialect that only kernels need which people write."""

from __future__ import annotations

from xdsl.irdl import IRDLOperation

from weft.tile.collective_ops import FoldOp, HistogramOp, OrderOp, ScanOp, TakeOp, ViewOp
from weft.tile.control_flow import CheckOp, IfOp, PrintOp, WhileOp
from weft.tile.pointer_ops import AddressOp, AtomicOp, IndexOp, PointerOp

KERNEL_OPS: list[type[IRDLOperation]] = [
    IndexOp,
    PointerOp,
    AddressOp,
    ViewOp,
    TakeOp,
    FoldOp,
    ScanOp,
    OrderOp,
    HistogramOp,
    AtomicOp,
    IfOp,
    WhileOp,
    PrintOp,
    CheckOp,
]
