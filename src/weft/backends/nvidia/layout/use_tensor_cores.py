"""Let the tensor cores make dots whose operands threads read into their own registers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from xdsl.dialects.builtin import IntegerAttr, StringAttr, UnitAttr, i64
from xdsl.ir import Block, Operation, OpResult, SSAValue

from weft.backends.nvidia.ir.alignment import pointer_dtype
from weft.backends.nvidia.ir.dialect import RESIDENT, WARPS, integer, set_integer, set_layouts
from weft.backends.nvidia.ir.kernel_passes import KernelPass, Match, Refused
from weft.backends.nvidia.ir.layouts import Layout
from weft.backends.nvidia.ir.mma import (
    AHEAD,
    COLUMNS,
    DEPTH,
    PACKED,
    RAW,
    ROWS,
    SPREAD,
    Fragments,
    MmaOp,
    PackOp,
    SqueezeOp,
    Warps,
)
from weft.backends.nvidia.matmul_unit import MMA, MatmulUnit
from weft.backends.nvidia.target import NvidiaTarget
from weft.errors import LoweringError
from weft.ir.attributes import from_attribute, to_attribute
from weft.ir.expr import product
from weft.ir.types import DType, f32
from weft.lower.dot.skinny_gemm import READ
from weft.ops.matmul.quantized import FORMS
from weft.tile import collective_ops
from weft.tile import dialect as tile

_MOST_WARPS, _WARPS, _MOST_COLUMNS = 16, 4, 32
_APART_WARPS = 8
"""Warps that share the K of one row at least, where it is long enough."""
_VECTOR, _OF_4_BITS = 8, 32
"""Neighbours of 16 and of 4 bits that an access of memory brings."""
_ROOM, _LESS_ROOM, _FEW_PARTS = 28, 20, 4
"""Warps that a multiprocessor should have room for, and less where lanes hold more than so many parts of the rows."""


@dataclass(frozen=True)
class UseTensorCores(KernelPass):
    """Let the tensor cores make dots whose operands threads read into their own registers.

    %c = tile.for %k (%acc) {                              %p = tile.for %k (%acc3) {
      %a = tile.load %x[%k] : 4x512                          %a = tile.load %x[%k] {nvidia.packed}
      %b = tile.load %w[%k, %n] : 512x16              →      %b = tile.load %w[%k, %n] {nvidia.packed, nvidia.ahead}
      tile.yield tile.dot %a, %b, %acc }                     tile.yield nvidia.mma %a, %b, %acc3 }       : 8x4x16
    tile.store %y[%n], gelu(%c)                            %c = nvidia.squeeze (tile.reduce sum %p axis 0)
                                                           tile.store %y[%n], gelu(%c)

    These are the dots that `pipeline_dots` leaves: of few rows, of small tiles, of operands that are computed, and
    all of them on GPUs that have no TMA. Where a dot has few rows, all warps share its K, and weights are
    read an iteration ahead: then the memory is always busy.
    """

    name: ClassVar[str] = "use_tensor_cores"

    warps: int = 0
    """Those of a block; 0 for those that the kernel has, or as many as dots want."""

    def matches(self, kernel: tile.KernelOp, target: NvidiaTarget) -> Match:
        unit = target.matmul_unit("registers")
        if unit is None:
            return Refused(f"{target.arch} has nothing that multiplies from registers")
        return True if _narrow_products(kernel, unit) else Refused("it has no dot of 16-bit operands")

    def apply(self, kernel: tile.KernelOp, target: NvidiaTarget) -> None:
        unit = target.matmul_unit("registers")
        assert unit is not None
        dots = _narrow_products(kernel, unit)
        warps = self.warps or integer(kernel, WARPS)
        if all(map(_is_narrow, dots)) and (loop := _summing(dots)) is not False:
            count = _share_depth(dots, loop, warps)
            if not warps:
                set_integer(kernel, RESIDENT, _resident(kernel, count, target.multiprocessors))
            warps = count
        else:
            warps = warps or _WARPS
            for dot in dots:
                _replace(dot, warps)
        set_integer(kernel, WARPS, warps)


def _narrow_products(kernel: tile.KernelOp, unit: MatmulUnit) -> list[tile.DotOp]:
    return [op for op in kernel.walk() if isinstance(op, tile.DotOp) and narrow_type(op, unit) is not None]


def _is_narrow(dot: tile.DotOp) -> bool:
    """Whether a dot is so small that every warp can hold all of it."""
    m, n, _ = _sides(dot)
    return m <= ROWS and n <= _MOST_COLUMNS


def narrow_type(dot: tile.DotOp, unit: MatmulUnit) -> DType | None:
    """The type that a unit multiplies in which both operands of a dot can be held as they are."""
    dtype, other = _narrow(dot.a), _narrow(dot.b)
    if dtype is None or dtype != other or not unit.multiplies(dtype) or len(tile.tile_type(dot.b).sizes) != 2:
        return None
    summed = tile.tile_type(dot.out).dtype == unit.sums(dtype)
    return dtype if summed and unit.takes_depth(dtype, _sides(dot)[2]) else None


def _narrow(value: SSAValue) -> DType | None:
    """The type in which a value can be held as it is."""
    if not isinstance(value, OpResult):
        return None
    found: DType | None = None
    match value.op:
        case tile.LoadOp() | tile.GatherOp() as op:
            found = pointer_dtype(op)
        case collective_ops.ViewOp() as op:
            found = _narrow(op.value)
        case tile.DequantizeOp() as op:
            dtype = from_attribute(op.dtype)
            found = dtype if isinstance(dtype, DType) else None
        case tile.MapOp() as op if op.function.data == "cast":
            target = from_attribute(op.attributes["target"])
            found = target if isinstance(target, DType) else None
        case _:
            pass
    return found


def _sides(dot: tile.DotOp) -> tuple[int, int, int]:
    (m, n), k = tile.tile_type(dot.out).sizes, tile.tile_type(dot.a).sizes[1]
    return m, n, k


# -- few rows --------------------------------------------------------------------------------------------------------


def _summing(dots: Sequence[tile.DotOp]) -> tile.ForOp | bool | None:
    """The loop that does nothing with dots but sum them up, from zero on; None for one that stands alone.

    False where it is something else: then all of the sum must be there in every iteration.
    """
    parent = dots[0].parent_op()
    if dots[0].accumulator is None:
        return None if isinstance(parent, tile.KernelOp) and len(dots) == 1 else False
    if not isinstance(parent, tile.ForOp) or not isinstance(parent.parent_op(), tile.KernelOp):
        return False
    last = parent.block.last_op
    same = len({(dot.a, *_sides(dot)) for dot in dots}) == 1 and all(dot.parent_op() is parent for dot in dots)
    others = any(isinstance(op, tile.DotOp) and op not in dots for op in parent.walk())
    if last is None or len(parent.results) != len(dots) or not same or others:
        return False

    def is_sum(number: int, dot: tile.DotOp) -> bool:
        first, carried = parent.initial[number].owner, parent.block.args[1 + number]
        zero = isinstance(first, tile.ConstantOp) and from_attribute(first.value) == 0
        alone = carried.has_one_use() and dot.out.has_one_use() and last.operands[number] is dot.out
        return zero and alone and dot.accumulator is carried

    return parent if all(is_sum(number, dot) for number, dot in enumerate(dots)) else False


def _share_depth(dots: Sequence[tile.DotOp], loop: tile.ForOp | bool | None, warps: int) -> int:
    """Let warps share K, and sum up what they have when all is multiplied; returns how many they are."""
    m, n, k = _sides(dots[0])
    along = 1
    widest = _widest(dots[0])
    least = DEPTH if warps else max(widest * 4, READ[128 // widest] // n)
    if m == 1 and widest == _OF_4_BITS and k >= _APART_WARPS * widest * 4:
        least = min(least, k // _APART_WARPS)
    while along < (warps or _MOST_WARPS) and k % (along * 2 * least) == 0:
        along *= 2
    shared = _spread(m, n, along, max(warps // along, 1))
    fragments = Fragments(m, n, k, shared, widest)
    fragments = replace(fragments, apart=_is_apart(dots[0], fragments))
    outer = loop if isinstance(loop, tile.ForOp) else None
    before: Operation = outer or dots[0]
    block = before.parent_block()
    assert block is not None
    if outer is not None:
        turns = _summed_by_warps(outer, fragments, len(dots))
        totals, old = list(turns.results), list(outer.results)
    else:
        (dot,) = dots
        totals, old = [_multiply(dot, fragments, None).out], [dot.out]
    for total, sum_ in zip(totals, old, strict=True):
        following: list[Operation] = []
        if along > 1 or fragments.apart:
            attributes = {"kind": StringAttr("sum"), "axis": IntegerAttr(0, i64)}
            type_ = tile.TileType.of((1, m, n), f32)
            following.append(tile.ReduceOp.create(operands=[total], attributes=attributes, result_types=[type_]))
            following.append(SqueezeOp.make(following[0].results[0]))
            block.insert_ops_before(following, before)
        sum_.replace_all_uses_with(following[-1].results[0] if following else total)
    _drop([before] if outer is not None else _with_operands(dots[0]))
    return shared.count


def _is_apart(dot: tile.DotOp, fragments: Fragments) -> bool:
    """Whether lanes can sum up what they hold along K: of one row of memory, and whole words of codes."""
    along = _is_along(dot.a.owner, 1, dot.parent_block())
    whole = fragments.vector == fragments.widest
    return isinstance(dot.b.owner, tile.DequantizeOp) and fragments.m == 1 and along and whole


def _summed_by_warps(outer: tile.ForOp, fragments: Fragments, count: int) -> tile.ForOp:
    """Put a loop before a loop that sums up dots: it sums up what each warp has of them."""
    block = outer.parent_block()
    assert block is not None
    type_ = tile.TileType.of(fragments.product().shape, f32)
    zeros = [tile.ConstantOp.make(0.0, type_) for _ in range(count)]
    turns = tile.ForOp.make(outer.bounds, list(outer.indices), [zero.out for zero in zeros])
    mapping: dict[SSAValue, SSAValue] = dict(zip(outer.block.args, turns.block.args, strict=True))
    for op in outer.block.ops:
        turns.block.add_op(op.clone(mapping))
    block.insert_ops_before([*zeros, turns], outer)
    _ask_before(turns)
    left: SSAValue | None = None
    for number, inner in enumerate([op for op in turns.block.ops if isinstance(op, tile.DotOp)]):
        # The copies still say that the dot has two axes.
        ahead = _turns(turns) > (0 if fragments.apart else 1)  # a single iteration is asked for early, too
        made = _multiply(inner, fragments, turns.block.args[1 + number], ahead=ahead, left=left)
        left = made.a
        inner.out.replace_all_uses_with(made.out)
        _drop(_with_operands(inner))
    return turns


def _ask_before(loop: tile.ForOp) -> None:
    """Ask for what is read behind a loop, such as a residual, before it: then nobody waits for it."""
    block = loop.parent
    assert block is not None
    following = list(block.ops)[list(block.ops).index(loop) + 1 :]
    for op in following:
        if isinstance(op, tile.StoreOp | tile.ScatterOp):
            return
        if isinstance(op, tile.LoadOp) and not any(value.owner in following for value in op.operands):
            op.detach()
            block.insert_op_before(op, loop)


def _resident(kernel: tile.KernelOp, warps: int, multiprocessors: int) -> int:
    """How many blocks of so many warps a multiprocessor should have room for."""
    products = [op for op in kernel.walk() if isinstance(op, MmaOp)]
    fragments = products[0].fragments
    if fragments.apart and warps == _APART_WARPS and fragments.widest == _OF_4_BITS:
        # No more than there are for it: those of the next kernel would come to some of them, and not to others.
        held = fragments.chunks * fragments.tiles_n * len(products)
        programs, most = product(list(kernel.grid.data)), 4 if held == 2 else 3
        return most if not isinstance(programs, int) else min(most, max(2, -(-programs // multiprocessors)))
    parts = fragments.halves * fragments.chunks * fragments.vector // _VECTOR
    few = parts <= (_FEW_PARTS if fragments.widest == _VECTOR else 2 * _FEW_PARTS) and not fragments.apart
    return max(1, (_ROOM if few else _LESS_ROOM) // warps)


def _turns(loop: tile.ForOp) -> int:
    """How often a loop turns, if that is known."""
    lower, upper, step = loop.bounds.data
    known = isinstance(lower, int) and isinstance(upper, int) and isinstance(step, int)
    return -(-(upper - lower) // step) if known else 0  # pyright: ignore[reportReturnType, reportOperatorIssue]


# -- any tile --------------------------------------------------------------------------------------------------------


def _spread(m: int, n: int, along: int, left: int) -> Warps:
    """Share M and N between so many warps; the others do the same again."""
    rows = min(left, _power_below(-(-m // ROWS)))
    columns = min(left // rows, _power_below(-(-n // COLUMNS)))
    return Warps(rows, columns, along, left // (rows * columns))


def _power_below(number: int) -> int:
    return 1 << max(0, number.bit_length() - 1)


def _widest(dot: tile.DotOp) -> int:
    """How many neighbours of the right operand an access brings."""
    made = dot.b.owner
    return _VECTOR * 16 // FORMS[made.form.data].bits if isinstance(made, tile.DequantizeOp) else _VECTOR


def _replace(dot: tile.DotOp, warps: int) -> None:
    m, n, k = _sides(dot)
    made = _multiply(dot, Fragments(m, n, k, _spread(m, n, 1, warps)), dot.accumulator)
    dot.out.replace_all_uses_with(made.out)
    _drop(_with_operands(dot))


def _multiply(
    dot: tile.DotOp,
    fragments: Fragments,
    total: SSAValue | None,
    *,
    ahead: bool = False,
    left: SSAValue | None = None,
) -> MmaOp:
    """Put the dot of packed operands before a dot; `left` is its first one, where that is there already."""
    block = dot.parent_block()
    assert block is not None
    dtype = narrow_type(dot, MMA)
    assert dtype is not None
    a = left or _operand(dot, dot.a, 1, fragments.left(), dtype, ahead=False, spread=fragments.apart)
    codes = dot.b.owner
    if isinstance(codes, tile.DequantizeOp):
        b = _decoded(dot, codes, fragments, ahead=ahead)
    else:
        b = _operand(dot, dot.b, 0, fragments.right(), dtype, ahead=ahead)
    operands = [a, b] if total is None else [a, b, total]
    layout = fragments.product()
    made = MmaOp.create(operands=operands, result_types=[tile.TileType.of(layout.shape, f32)])
    warps = fragments.warps
    made.attributes |= {
        "dtype": StringAttr(dtype.name),
        "warps": to_attribute((warps.m, warps.n, warps.k, warps.same)),
        "widest": IntegerAttr(fragments.widest, i64),
    }
    if fragments.apart:
        made.attributes["apart"] = UnitAttr()
    set_layouts(made, [layout])
    block.insert_op_before(made, dot)
    return made


def _operand(
    dot: tile.DotOp,
    value: SSAValue,
    axis: int,
    layout: Layout,
    dtype: DType,
    *,
    ahead: bool,
    spread: bool = False,
) -> SSAValue:
    """An operand packed: as memory has it, where it runs along K, or else from what threads have."""
    assert isinstance(value, OpResult)
    block = dot.parent_block()
    assert block is not None
    if _is_along(value.op, axis, block):
        made: Operation = value.op.clone()
        marks = {PACKED: True, AHEAD: ahead, SPREAD: spread}
        made.attributes |= {name: UnitAttr() for name, given in marks.items() if given}
    else:
        attributes = {"dtype": StringAttr(dtype.name)}
        made = PackOp.create(operands=[value], attributes=attributes, result_types=[value.type])
    set_layouts(made, [layout])
    block.insert_op_before(made, dot)
    return made.results[0]


def _is_along(op: Operation | Block, axis: int, block: Block | None) -> bool:
    """Whether a dot's block loads an operand that lies along an axis."""
    return isinstance(op, tile.LoadOp) and op.strides.data[axis] == 1 and op.parent is block


def _decoded(dot: tile.DotOp, op: tile.DequantizeOp, fragments: Fragments, *, ahead: bool) -> SSAValue:
    """An operand out of codes, which are read as memory has them."""
    block = dot.parent_block()
    assert block is not None
    group = op.group.value.data
    made = op.clone()
    codes, *factors = range(len(op.operands))
    layouts = {codes: fragments.codes(FORMS[op.form.data].together)} | dict.fromkeys(factors, fragments.grouped(group))
    for number, layout in layouts.items():
        load = op.operands[number].owner
        if not isinstance(load, tile.LoadOp):
            raise LoweringError(f"{op.name} reads what is computed")
        copy = load.clone()
        copy.attributes[PACKED if number == codes else RAW] = UnitAttr()
        if ahead:
            copy.attributes[AHEAD] = UnitAttr()
        set_layouts(copy, [layout])
        block.insert_op_before(copy, dot)
        made.operands[number] = copy.out
    set_layouts(made, [fragments.right()])
    block.insert_op_before(made, dot)
    return made.out


def _with_operands(dot: tile.DotOp) -> list[Operation | Block]:
    """A dot, what its operands are made by, and what these read."""
    makers = [operand.owner for operand in (dot.a, dot.b)]
    return [dot, *makers, *(o.owner for op in makers if isinstance(op, tile.DequantizeOp) for o in op.operands)]


def _drop(ops: Sequence[Operation | Block]) -> None:
    """Erase ops whose results nobody reads any more."""
    for op in dict.fromkeys(ops):
        if isinstance(op, Operation) and not any(result.uses for result in op.results):
            op.detach()
            op.erase()
