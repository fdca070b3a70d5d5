"""The nvidia dialect as a whole: its ops, types and attributes, and what annotations mean on the ops of `tile`.

A kernel for a GPU is a `tile.kernel` whose ops carry annotations, `nvidia.…` attributes. All of them stand in
`ANNOTATIONS`, with what they may be and which ops they stand on; `verify_kernels` checks a module against it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from xdsl.dialects.builtin import ArrayAttr, IntegerAttr, ModuleOp, UnitAttr
from xdsl.ir import Attribute, Dialect, Operation

from weft.backends.nvidia.ir import (
    cp_async,
    dialect,
    horizontal_select,
    local_memory,
    mma,
    programmatic_launch,
    rings,
    row_streams,
    scratch,
    tma_store,
    warp_specialization,
    wgmma,
)
from weft.backends.nvidia.ir.alignment import UNALIGNED
from weft.backends.nvidia.ir.dialect import LaunchAttr, LayoutAttr
from weft.backends.nvidia.ir.dynamic_tile_scheduler import DYNAMIC
from weft.backends.nvidia.ir.fused_reductions import MomentsOp, OnlineSoftmaxOp
from weft.backends.nvidia.ir.rings import RingType, SlotType
from weft.backends.nvidia.ir.row_streams import WEIGHTS, PieceType
from weft.errors import ParseError
from weft.tile import dialect as tile
from weft.tile import pointer_ops
from weft.tile.text import kernels_of, parse_program, place_of

OPS: list[type[Operation]] = [
    *dialect.OPS,
    *warp_specialization.OPS,
    *rings.OPS,
    *wgmma.OPS,
    *tma_store.OPS,
    *row_streams.OPS,
    *cp_async.OPS,
    *local_memory.OPS,
    *mma.OPS,
    OnlineSoftmaxOp,
    MomentsOp,
    scratch.ScratchOp,
    horizontal_select.HorizontalSelectOp,
]
Nvidia = Dialect("nvidia", OPS, [LayoutAttr, LaunchAttr, SlotType, RingType, PieceType])


@dataclass(frozen=True)
class Annotation:
    """An attribute that ops of any dialect carry in kernels for a GPU."""

    meaning: str
    kind: type[Attribute]
    on: tuple[type[Operation], ...] = ()
    """The ops that it stands on; none for any."""


_ACCESSES = (tile.LoadOp, tile.StoreOp)
_COMPUTED = (tile.GatherOp, tile.ScatterOp, pointer_ops.AtomicOp, cp_async.CpAsyncOp)
_REDUCTIONS = (tile.ReduceOp, OnlineSoftmaxOp, MomentsOp)
_STAGED = (tile.StoreOp, tma_store.TmaStoreOp)

ANNOTATIONS: dict[str, Annotation] = {
    dialect.LAYOUTS: Annotation("where the elements of each result are, or of what is written", ArrayAttr),
    dialect.ARGUMENTS: Annotation("the same for the tiles that a block of the op takes", ArrayAttr),
    dialect.SHARED: Annotation("where the shared memory begins that an op uses", IntegerAttr),
    dialect.WARPS: Annotation("how many warps a block has that compute", IntegerAttr, (tile.KernelOp,)),
    dialect.BLOCKS: Annotation("how many blocks of a cluster share a program", IntegerAttr, (tile.KernelOp,)),
    dialect.APART: Annotation(
        "how many warps a block has that each do programs of their own", IntegerAttr, (tile.KernelOp,)
    ),
    dialect.RESIDENT: Annotation(
        "how many blocks a multiprocessor should have registers for", IntegerAttr, (tile.KernelOp,)
    ),
    dialect.CONSUMERS: Annotation(
        "how many warp groups multiply, if not what tiles say", IntegerAttr, (tile.KernelOp,)
    ),
    dialect.MAX_REGISTERS: Annotation("how many registers a thread may have", IntegerAttr, (tile.KernelOp,)),
    dialect.LAUNCH: Annotation("how a kernel is launched", LaunchAttr, (tile.KernelOp,)),
    programmatic_launch.FIXED: Annotation("the arguments whose memory no step writes", ArrayAttr, (tile.KernelOp,)),
    programmatic_launch.FOLLOWS: Annotation("it is never the first kernel of a program", UnitAttr, (tile.KernelOp,)),
    DYNAMIC: Annotation("each block draws the next number", UnitAttr, (tile.ForOp,)),
    dialect.VECTOR: Annotation("how many neighbours of a thread are moved at once", IntegerAttr, _COMPUTED),
    UNALIGNED: Annotation("rows begin anywhere, and are moved 16 bytes at a time", UnitAttr, _ACCESSES),
    row_streams.CROSSES: Annotation("the blocks of a cluster send each other what they have", IntegerAttr, _REDUCTIONS),
    mma.PACKED: Annotation("registers hold 4 bytes of neighbours each", UnitAttr, (tile.LoadOp, row_streams.ReadOp)),
    mma.AHEAD: Annotation(
        "made a turn of its loop before its tile is used", UnitAttr, (tile.LoadOp, row_streams.ReadOp)
    ),
    mma.RAW: Annotation("registers hold elements as memory does", UnitAttr, (tile.LoadOp, row_streams.ReadOp)),
    mma.SPREAD: Annotation("of lanes that hold the same, one reads it", UnitAttr, (tile.LoadOp,)),
    mma.HELD: Annotation("where in shared memory the block has all of the row", IntegerAttr, (tile.LoadOp,)),
    mma.AGAIN: Annotation("the block reads the same again", UnitAttr, (tile.LoadOp,)),
    WEIGHTS: Annotation("weights that TMA is to bring", UnitAttr, (tile.LoadOp,)),
    tma_store.MAP: Annotation("the tensor map by which TMA writes", IntegerAttr, _STAGED),
    tma_store.COORDINATES: Annotation("where in the tensor the tile begins", tile.Sizes, _STAGED),
    tma_store.LIMIT: Annotation("the row that a tile ends before", tile.Sizes, _STAGED),
    tma_store.LINES: Annotation("the matrix that warps write line by line", tile.Sizes, _STAGED),
    tma_store.POINTER: Annotation("which argument its memory is", IntegerAttr, _STAGED),
}
"""The attributes `nvidia.…` of ops, and what each means."""


def parse_kernels(text: str, name: str = "<text>") -> ModuleOp:
    """Read a module of graph functions, of tile kernels and of kernels for a GPU, and check it."""
    module = parse_program(text, name, [Nvidia])
    verify_kernels(module)
    return module


def verify_kernels(module: ModuleOp) -> None:
    """Check what the ops of kernels are annotated with: known names and types, and a layout for each tile."""
    for op in [op for kernel in kernels_of(module) for op in kernel.walk()]:
        wrong = _wrong(op)
        if wrong is not None:
            raise ParseError(f"the program is not valid: {wrong}", location=place_of(op))


def _wrong(op: Operation) -> str | None:
    for name, attribute in op.attributes.items():
        known = ANNOTATIONS.get(name)
        if known is None and name.startswith("nvidia."):
            return f"{op.name} is annotated with {name}, which has no meaning"
        if known is not None and not isinstance(attribute, known.kind):
            return f"{name} of {op.name} is no {known.kind.name}: {attribute}"
        if known is not None and known.on and not isinstance(op, known.on):
            return f"{name} stands on {' or '.join(each.name for each in known.on)}, not on {op.name}"
    return _wrong_layouts(op)


def _wrong_layouts(op: Operation) -> str | None:
    """Of an op with layouts, each result has one, of the shape of its tile."""
    attribute = op.attributes.get(dialect.LAYOUTS)
    if attribute is None:
        return None
    if not all(isinstance(each, LayoutAttr) for each in cast("ArrayAttr[Attribute]", attribute)):
        return f"{dialect.LAYOUTS} of {op.name} are no layouts: {attribute}"
    layouts = dialect.layouts_of(op)
    if op.results and len(layouts) != len(op.results):
        return f"{op.name} has {len(op.results)} results, and {len(layouts)} layouts"
    for result, layout in zip(op.results, layouts, strict=False):
        if isinstance(result.type, tile.TileType) and result.type.sizes != layout.shape:
            return f"a tile of {result.type.sizes} that {op.name} makes has a layout of {layout.shape}"
    return None
