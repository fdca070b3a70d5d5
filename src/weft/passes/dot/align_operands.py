"""Copy what matmuls multiply to where TMA can read it: rows that begin at multiples of 16 bytes.

A matrix with an odd number of columns, or one that is cut out of such, costs a library most of its speed. A copy with
longer rows takes as long as reading and writing it; those of constants are made once (`hoist_constants`).

Rows that lie in short runs, as those of windows of an image do, make tiles of as few rows, of which there are many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd, prod
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.ir import Operation, OpResult, SSAValue
from xdsl.passes import ModulePass

from weft.ir.expr import Size, product
from weft.ir.types import bf16, f16, f32, tensor_of
from weft.ops.base import View
from weft.ops.elementwise.cast import Cast
from weft.ops.graph import FuncOp, GraphBuilder
from weft.ops.layouts import StridedLayout, contiguous, view_layout
from weft.ops.matmul.dot import Dot
from weft.ops.reduce import Sum
from weft.ops.shape import Permute, Reshape
from weft.passes.claim_libraries import FEW_ROWS, is_for_tensor_cores, worth_odd_rows
from weft.passes.dot.operand_runs import Runs, pieces, runs_of
from weft.passes.grouping.build_groups import OWN, strides_of

_ENGINE = 16
"""What rows begin at multiples of, in bytes."""
_MULTIPLIED, _COPIED, _START = 6e14, 1.5e12, 3e-6
"""Operations a second of matmuls, bytes a second that copies of such rows read and write, and the seconds that each of
them takes at least."""
_BY_LIBRARY = {2: 1.4e14, 4: 2.5e14, 8: 2.5e14}
"""Operations a second of a library's matmuls, by the bytes that rows begin at multiples of."""
_READ, _COPIED_BESIDE, _FIRST = 4e12, 2.2e12, 4e-6
"""Bytes a second of memory, what copies of matrices in one kernel reach of that, and the seconds they take at least."""
_SIDE, _DEPTH, _TURN, _PROGRAMS = 128, 64, 1.4e-6, 132
"""Where threads load rows as they are: the sides of tiles, what of K is multiplied at a time, the seconds that takes,
and how many tiles are multiplied beside each other."""
_SMALL_TURN = 0.4e-6
"""The seconds for each tile and part of K where tiles have few rows."""
_FEW, _SHALLOW = 32, 16
"""Rows or columns of a tile, and elements of K, of which so few at a time are too few."""
_WORTH = 0.75
"""What is left of the time where operands are copied: less of a gain is less than these figures know."""


@dataclass(frozen=True)
class AlignOperands(ModulePass):
    """%y = graph.dot %x, %w : 4095 deep     →     %p = graph.pad %x : 4096 columns
    %y = graph.dot (graph.slice %p : 4095 columns), %w

    What a kernel computes it writes to the longer rows, if nobody else reads it. A bias' gradient would: it is the sum
    of what is multiplied, and so it is made of the copy, whose further columns are zeros.

    Windows of 7 by 7 of an image are written one after the other where that takes less time than tiles of 7 rows:

    %w = graph.reshape (graph.permute %x) : 12544x384      →      %p = graph.pad %w, by nothing
    %y = graph.dot %w, %v                                         %y = graph.dot %p, %v

    Where a library is slow with such rows, the matmul is said to be faster as a kernel (`weft.own`), whether copies of
    what it multiplies pay or threads load rows as they are.
    """

    name: ClassVar[str] = "align_operands"

    everywhere: bool = False
    """Whether matmuls are multiplied by kernels, too, that a library would be left to."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if isinstance(function, FuncOp) and "prepares" not in function.attributes:
                _Aligning(function, self.everywhere).run()


class _Aligning:
    def __init__(self, function: FuncOp, everywhere: bool) -> None:
        self.function, self.everywhere = function, everywhere
        self.copies: dict[tuple[SSAValue, tuple[Size, ...], StridedLayout], SSAValue] = {}
        """Of rows by what memory they are of, and where: a matmul and that of its gradient read them turned."""
        self.gathered: dict[SSAValue, SSAValue] = {}
        """Copies of rows that lie in short runs."""
        given = strides_of(function, "arg_strides", len(function.block.args))
        pairs = zip(function.block.args, given, strict=True)
        self.strides: dict[SSAValue, tuple[Size, ...]] = {argument: each for argument, each in pairs if each}

    def run(self) -> None:
        for dot in list(self.function.block.ops):
            if not isinstance(dot, Dot) or tensor_of(dot.operands[0].type).dtype not in (bf16, f16):
                continue
            rows = tensor_of(dot.results[0].type).shape[-2]
            if not isinstance(rows, int) or rows <= FEW_ROWS:
                continue
            if is_for_tensor_cores(dot) or self.everywhere:
                for place in self._scattered(dot):
                    dot.operands[place] = self._gathered(dot, dot.operands[place])
            layouts = [self._layout(operand) for operand in dot.operands]
            apart = [
                (place, layout)
                for place, (operand, layout) in enumerate(zip(dot.operands, layouts, strict=True))
                if layout is not None and not _is_aligned(operand, layout)
            ]
            sides = tensor_of(dot.results[0].type).shape, tensor_of(dot.operands[0].type).shape[-1]
            if apart and worth_odd_rows(tensor_of(dot.results[0].type).dtype, *sides):
                dot.attributes[OWN] = UnitAttr()
            own = self.everywhere or OWN in dot.attributes
            if apart and (is_for_tensor_cores(dot) or (own and _copies_pay_for(dot, [p for p, _ in apart]))):
                for place, layout in apart:
                    dot.operands[place] = self._copied(dot, dot.operands[place], layout)

    def _scattered(self, dot: Dot) -> list[int]:
        """The operands that lie in runs so short that copies are made in less time than is lost in small tiles."""
        tensors = [tensor_of(value.type) for value in (*dot.operands, dot.results[0])]
        if not all(tensor.is_static and 0 not in tensor.shape for tensor in tensors):
            return []
        runs = [self._runs(operand) for operand in dot.operands]
        leasts = (_FEW, _SHALLOW), (_SHALLOW, _FEW)
        found = [
            place
            for place, (each, least) in enumerate(zip(runs, leasts, strict=True))
            if each is not None and any(map(_is_short, each[-2:], least))
        ]
        shape = [int(size) for size in tensors[2].shape]  # type: ignore[arg-type]
        *batch, m, n = shape
        (a, b), depth = runs, int(tensors[0].shape[-1])  # type: ignore[arg-type]
        rows = pieces(a[-2] if a else [(m, 1)], _SIDE)
        columns = pieces(b[-1] if b else [(n, 1)], _SIDE)
        turns = max(pieces(each, _DEPTH) for each in (a[-1] if a else [(depth, 1)], b[-2] if b else [(depth, 1)]))
        sizes = [product(tensors[place].shape) * tensors[place].dtype.bytes for place in found]
        copied = sum(size for size in sizes if isinstance(size, int))
        loaded = _START + prod(batch) * rows * columns * turns * _SMALL_TURN / _PROGRAMS
        return found if copied and _after_copies(shape, depth, copied) < _WORTH * loaded else []

    def _runs(self, value: SSAValue) -> Runs | None:
        """The runs of a matrix; a cast is made before the views that it is of."""
        root, views = _root(value)
        while isinstance(root, OpResult) and isinstance(root.op, Cast):
            root, before = _root(root.op.operands[0])
            views = [*views, *before]
        if not views:
            return None
        strides = self.strides.get(root)
        return runs_of(root, StridedLayout(strides) if strides else contiguous(tensor_of(root.type)), views)

    def _gathered(self, dot: Dot, value: SSAValue) -> SSAValue:
        """A copy of a matrix, row by row; one for all that read it, turned or not."""
        rank = tensor_of(value.type).rank
        swap = (*range(rank - 2), rank - 1, rank - 2)
        turned = isinstance(value, OpResult) and isinstance(value.op, Permute) and value.op.params["dims"] == swap
        rows = value.op.operands[0] if turned else value  # type: ignore[union-attr]
        b = GraphBuilder(dot.parent_block(), dot.location, before=dot)  # type: ignore[arg-type]
        if rows not in self.gathered:
            none = (0,) * rank
            self.gathered[rows] = b.pad(rows, low=none, high=none, value=0.0)
        return b.permute(self.gathered[rows], dims=swap) if turned else self.gathered[rows]

    def _layout(self, value: SSAValue) -> StridedLayout | None:
        """How a value lies, if it is what memory holds; what is computed for a matmul has no rows to be read."""
        value, views = _root(value)
        strides = self.strides.get(value)
        layout: StridedLayout | None = StridedLayout(strides) if strides else contiguous(tensor_of(value.type))
        for view in reversed(views):
            layout = None if layout is None else view_layout(view, layout)
        return layout

    def _copied(self, dot: Dot, value: SSAValue, layout: StridedLayout) -> SSAValue:
        block = dot.parent_block()
        assert block is not None
        b = GraphBuilder(block, dot.location, before=dot)  # type: ignore[arg-type]
        tensor, strides = tensor_of(value.type), layout.strides
        order = [*range(tensor.rank - 2), tensor.rank - 1, tensor.rank - 2]
        turned = strides[-1] != 1 and strides[-2] == 1
        shape, along = ([each[d] for d in order] if turned else list(each) for each in (tensor.shape, strides))
        root, lies = _root(value)[0], StridedLayout(tuple(along), layout.offset)
        key = root, tuple(shape), lies
        if key not in self.copies:
            whole = lies == contiguous(replace(tensor, shape=tuple(shape))) and _is_as_large(root, shape)
            if whole and isinstance(root, OpResult):  # beside the kernel that makes it
                after = GraphBuilder(block, dot.location, before=root.op.next_op)  # type: ignore[arg-type]
                self.copies[key] = self._rows_of(after, after.reshape(root, shape=tuple(shape)), root)
            else:
                self.copies[key] = self._rows_of(b, b.permute(value, dims=tuple(order)) if turned else value)
        return b.permute(self.copies[key], dims=tuple(order)) if turned else self.copies[key]

    def _rows_of(self, b: GraphBuilder, rows: SSAValue, root: OpResult | None = None) -> SSAValue:
        """A copy of a matrix with longer rows, as if it were none; what sums up columns of its `root` reads it, too."""
        tensor = b.tensor(rows)
        columns, none = tensor.shape[-1], (0,) * tensor.rank
        assert isinstance(columns, int)
        beyond = -columns % (_ENGINE // tensor.dtype.bytes)
        padded = b.pad(rows, low=none, high=(*none[1:], beyond), value=0.0)
        for total in [] if root is None else _sums_of_columns(root, tensor.shape):
            self._sum_copy(total, padded, columns)
        return b.slice(padded, starts=none, shape=tensor.shape, steps=(1,) * tensor.rank)

    def _sum_copy(self, total: Sum, padded: SSAValue, columns: int) -> None:
        """Let the sums of a matrix' columns be those of its copy, so that the kernel that writes it makes them."""
        b = GraphBuilder(total.parent_block(), total.location, before=total)  # type: ignore[arg-type]
        summed = tensor_of(total.operands[0].type).dtype
        wide = padded if b.tensor(padded).dtype == summed else b.cast(padded, dtype=summed)
        made = b.sum(wide, dims=total.params["dims"], keep=False)
        old = total.results[0]
        while isinstance(user := _only_user(old), Cast | Reshape):
            made = b.cast(made, dtype=tensor_of(user.results[0].type).dtype) if isinstance(user, Cast) else made
            old = user.results[0]
        cut = b.slice(made, starts=(0,), shape=(columns,), steps=(1,))
        old.replace_all_uses_with(b.reshape(cut, shape=tensor_of(old.type).shape))


def _is_as_large(value: SSAValue, shape: Sequence[Size]) -> bool:
    return product(tensor_of(value.type).shape) == product(tuple(shape))


def _sums_of_columns(root: SSAValue, shape: Sequence[Size]) -> list[Sum]:
    """What sums up the columns of a matrix, which may be another form of a value, or its elements wider ones."""
    found: list[Sum] = []
    for use in root.uses:
        user = use.operation
        if isinstance(user, Reshape) or (isinstance(user, Cast) and _widens(user)):
            found += _sums_of_columns(user.results[0], shape)
        elif isinstance(user, Sum) and user.params["dims"] == tuple(range(len(shape) - 1)):
            found += [user] if tensor_of(root.type).shape == tuple(shape) else []
    return found


def _widens(cast: Cast) -> bool:
    """Whether all values of a type that is multiplied stay as they are, and nothing but f32 is to be had of them."""
    return tensor_of(cast.operands[0].type).dtype in (bf16, f16) and tensor_of(cast.results[0].type).dtype == f32


def _only_user(value: SSAValue) -> Operation | None:
    users = [use.operation for use in value.uses]
    return users[0] if len(users) == 1 else None


def _root(value: SSAValue) -> tuple[SSAValue, list[View]]:
    """What memory holds, and the views that a value is of it, the last one first."""
    views: list[View] = []
    while isinstance(value, OpResult) and isinstance(value.op, View):
        views.append(value.op)
        value = value.op.operands[0]
    return value, views


def _is_aligned(value: SSAValue, layout: StridedLayout) -> bool:
    """Whether one of the last two dimensions runs through memory, and all others go in steps that the engine takes."""
    tensor = tensor_of(value.type)
    if not tensor.is_static:
        return True
    strides = layout.strides
    for inner in (tensor.rank - 1, tensor.rank - 2):
        others = [stride for d, stride in enumerate(strides) if d != inner and tensor.shape[d] != 1]
        if strides[inner] == 1 and _are_steps([*others, layout.offset], tensor.dtype.bytes):
            return True
    return False


def _are_steps(strides: Sequence[Size], width: int) -> bool:
    """Whether all strides, of elements so many bytes wide, are such as TMA takes."""
    return all(isinstance(stride, int) and stride * width % _ENGINE == 0 for stride in strides)


def _is_short(runs: Sequence[tuple[int, int]], least: int) -> bool:
    """Whether a side consists of several runs, of which not even the longest has so many elements."""
    return len(runs) > 1 and max(size for size, _ in runs) < least


def _copies_pay_for(dot: Dot, places: Sequence[int]) -> bool:
    """Whether a matmul of known sizes is done earlier after copies of some of its operands."""
    tensors = [tensor_of(value.type) for value in (*dot.operands, dot.results[0])]
    if not all(tensor.is_static for tensor in tensors):
        return False
    copied = [product(tensors[place].shape) * tensors[place].dtype.bytes for place in places]
    shape, depth = [size for size in tensors[2].shape if isinstance(size, int)], tensors[0].shape[-1]
    assert isinstance(depth, int)
    return copies_pay(shape, depth, sum(size for size in copied if isinstance(size, int)))


def copies_pay(shape: Sequence[int], depth: int, copied: int) -> bool:
    """Whether a matmul is done earlier after copies of so many bytes than if threads load rows as they are."""
    *batch, m, n = shape
    tiles = prod(batch) * -(-m // _SIDE) * -(-n // _SIDE)
    loaded = _START + tiles * -(-depth // _DEPTH) * _TURN / _PROGRAMS
    return _after_copies(shape, depth, copied) < _WORTH * loaded


def _after_copies(shape: Sequence[int], depth: int, copied: int) -> float:
    """The seconds that copies of so many bytes and a matmul of these take."""
    *batch, m, n = shape
    tiles = prod(batch) * -(-m // _SIDE) * -(-n // _SIDE)
    multiplied = 2 * tiles * _SIDE * _SIDE * depth / _MULTIPLIED
    moved = 2 * prod(batch) * (m * n + (m + n) * depth) / _READ
    return _START + _FIRST + 2 * copied / _COPIED_BESIDE + max(multiplied, moved)


def worth_aligning(shape: Sequence[int], depth: int, copied: int, steps: Sequence[int]) -> bool:
    """Whether a matmul, after copies of so many bytes, is done before a library is that does without them.

    `steps` are the bytes from row to row of what is copied.
    """
    operations = 2 * prod(shape) * depth
    within = gcd(_ENGINE, *steps)
    copying = 2 * copied / _COPIED + 2 * _START
    return copying + operations / _MULTIPLIED < operations / _BY_LIBRARY.get(within, _MULTIPLIED)
