"""Integer tiles as affine functions of their positions: what pointer arithmetic and masks say, in one form.

    offsets = (pid * 128 + arange(128))[:, None] * stride + arange(64)[None, :]
    →  start s0*128*s1, steps (s1, 1)      where s0 stands for pid, s1 for stride

Scalars that are not sums and products of others (quotients, what was read) are symbols. Arithmetic of 32 bits is taken
to be exact: what overflows points nowhere. `x % n` and `where(x < n, x, 0)` along an axis are `x` up to n, and some
other place from there on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from xdsl.ir import OpResult, SSAValue

from weft.ir.attributes import from_attribute
from weft.ir.expr import Size, split_multiple, substitute, symbol
from weft.tile import collective_ops, pointer_ops
from weft.tile import dialect as tile
from weft.tile.view_axes import axes_of


@dataclass(frozen=True)
class Wrap:
    """Along an axis elements follow each other as long as their number is below the limit, and then lie elsewhere."""

    limit: Size


@dataclass(frozen=True)
class Affine:
    """`start + sum(steps[a] * i_a)`, but for the end of axes that wrap around."""

    start: Size
    steps: tuple[Size, ...]
    wraps: Mapping[int, Wrap] = field(default_factory=dict[int, Wrap])

    @property
    def is_uniform(self) -> bool:
        return all(step == 0 for step in self.steps)

    def scaled(self, factor: Size) -> Affine:
        return Affine(self.start * factor, tuple(step * factor for step in self.steps), self.wraps)

    def plus(self, other: Affine) -> Affine | None:
        """The sum; None where both walk along an axis that wraps."""
        for axis in {*self.wraps, *other.wraps}:
            if self.steps[axis] != 0 and other.steps[axis] != 0:
                return None
        steps = tuple(a + b for a, b in zip(self.steps, other.steps, strict=True))
        return Affine(self.start + other.start, steps, {**self.wraps, **other.wraps})


@dataclass(frozen=True)
class Condition:
    """Holds where `number` is at least 0."""

    number: Affine


class Affines:
    """The affine forms of a kernel's integers."""

    def __init__(self) -> None:
        self.symbols: dict[str, SSAValue] = {}
        """What each symbol stands for: an index, or a scalar."""
        self._names: dict[object, str] = {}
        self._found: dict[SSAValue, Affine | None] = {}

    def of(self, value: SSAValue) -> Affine | None:
        """The form of a tile; None if it has none."""
        if value not in self._found:
            found = self._of(value)
            shape = tile.tile_type(value).sizes
            self._found[value] = Affine(self._symbol(value), ()) if found is None and not shape else found
        return self._found[value]

    def conditions(self, mask: SSAValue) -> list[Condition] | None:
        """What must hold for an element of a mask to be true; None where that is not affine."""
        op = mask.op if isinstance(mask, OpResult) else None
        match op:
            case tile.ConstantOp() if from_attribute(op.value) is True:
                return []
            case tile.MapOp() if op.function.data == "and":
                parts = [self.conditions(arg) for arg in op.args]
                if any(part is None for part in parts):
                    return None
                return [condition for part in parts for condition in part or ()]
            case tile.MapOp() if op.function.data in ("lt", "le", "gt", "ge"):
                return self._compared(op)
            case collective_ops.ViewOp():
                inner = self.conditions(op.value)
                if inner is None:
                    return None
                viewed = [_viewed(op, condition.number) for condition in inner]
                return [Condition(v) for v in viewed if v is not None] if None not in viewed else None
            case _:
                return None

    def index(self, value: SSAValue) -> Size:
        """An index: what an integer is, or a symbol."""
        if isinstance(value, OpResult) and isinstance(value.op, pointer_ops.IndexOp):
            found = self.of(value.op.value)
            assert found is not None
            return found.start
        return self._symbol(value)

    def _symbol(self, value: SSAValue) -> Size:
        """A symbol for a scalar; it stands for the first of those of a block that are computed in the same way."""
        key: object = value
        if isinstance(value, OpResult) and isinstance(value.op, tile.MapOp):
            args = [self.of(arg) if tile.tile_type(arg).dtype.is_integer else None for arg in value.op.args]
            if None not in args:
                starts = (arg.start for arg in args if arg is not None)
                key = (value.op.function.data, value.type, value.op.parent, *starts)
        name = self._names.setdefault(key, f"s{len(self._names)}")
        known = self.symbols.setdefault(name, value)
        if isinstance(value, OpResult) and isinstance(known, OpResult) and value.op.is_before_in_block(known.op):
            self.symbols[name] = value
        return symbol(name)

    def _of(self, value: SSAValue) -> Affine | None:
        if not isinstance(value, OpResult):
            return None
        op, rank = value.op, len(tile.tile_type(value).sizes)
        match op:
            case tile.ConstantOp():
                number = from_attribute(op.value)
                return Affine(number, (0,) * rank) if isinstance(number, int) and not isinstance(number, bool) else None
            case tile.PositionOp():
                known = {f"d{i}": self.index(operand) for i, operand in enumerate(op.indices)}
                offset, *steps = (substitute(size, known) for size in (*op.offset.data, *op.strides.data))
                return Affine(offset, tuple(steps))
            case collective_ops.ViewOp():
                inner = self.of(op.value)
                return None if inner is None else _viewed(op, inner)
            case tile.MapOp() if tile.tile_type(value).dtype.is_integer:
                return self._map(op)
            case _:
                return None

    def _map(self, op: tile.MapOp) -> Affine | None:
        if op.function.data == "select":
            return self._chosen(op)
        args = [self.of(arg) if tile.tile_type(arg).dtype.is_integer else None for arg in op.args]
        shape = tile.tile_type(op.out).sizes
        if any(arg is None for arg in args) or any(tile.tile_type(arg).sizes != shape for arg in op.args):
            return None
        match op.function.data, [arg for arg in args if arg is not None]:
            case "cast", [x]:
                return x
            case "add", [x, y]:
                return x.plus(y)
            case "sub", [x, y]:
                return x.plus(y.scaled(-1))
            case "mul", [x, y] if y.is_uniform and not y.wraps:
                return x.scaled(y.start)
            case "mul", [x, y] if x.is_uniform and not x.wraps:
                return y.scaled(x.start)
            case "shl", [x, y] if y.is_uniform and isinstance(y.start, int) and 0 <= y.start < 31:
                return x.scaled(1 << y.start)
            case "floordiv" | "truncdiv", [x, y] if x.is_uniform and y.is_uniform and isinstance(y.start, int):
                quotient, rest = split_multiple(x.start, y.start) if y.start else (0, 1)
                return replace(x, start=quotient) if rest == 0 and not x.wraps else None
            case "fmod" | "remainder", [x, y] if y.is_uniform and not x.is_uniform and not x.wraps:
                walked = [axis for axis, step in enumerate(x.steps) if step != 0]
                if len(walked) == 1 and x.steps[walked[0]] == 1:
                    return replace(x, wraps={walked[0]: Wrap(y.start - x.start)})
                return None
            case _:
                return None

    def _chosen(self, op: tile.MapOp) -> Affine | None:
        """`where(x < n, x, somewhere)`."""
        condition, inside, outside = op.args
        x, y, conditions = self.of(inside), self.of(outside), self.conditions(condition)
        if x is None or y is None or x.wraps or not y.is_uniform or conditions is None or len(conditions) != 1:
            return None
        number = conditions[0].number
        walked = [axis for axis, step in enumerate(x.steps) if step != 0]
        if len(walked) != 1 or x.steps[walked[0]] != 1:
            return None
        (axis,) = walked
        if number.steps[axis] != -1 or any(step != 0 for a, step in enumerate(number.steps) if a != axis):
            return None
        return replace(x, wraps={axis: Wrap(number.start + 1)})

    def _compared(self, op: tile.MapOp) -> list[Condition] | None:
        x, y = (self.of(arg) if tile.tile_type(arg).dtype.is_integer else None for arg in op.args)
        if x is None or y is None or x.wraps or y.wraps:
            return None
        less = op.function.data in ("lt", "le")
        difference = (y if less else x).plus((x if less else y).scaled(-1))
        if difference is None:
            return None
        strict = op.function.data in ("lt", "gt")
        return [Condition(replace(difference, start=difference.start - 1) if strict else difference)]


def _viewed(op: collective_ops.ViewOp, source: Affine) -> Affine | None:
    """A view of a tile: its axes walk along those of its operand, stand still, or repeat."""
    axes, rank = axes_of(op), len(tile.tile_type(op.out).sizes)
    if axes is None:
        return None
    start, wraps = source.start, dict[int, Wrap]()
    steps: list[Size] = [0] * rank
    for axis, (walked, fixed) in enumerate(zip(axes.walked, axes.fixed, strict=True)):
        if walked is None:
            start = start + source.steps[axis] * fixed
        else:
            steps[walked] = source.steps[axis]
        if axis in source.wraps:
            if walked is None:
                return None
            wraps[walked] = source.wraps[axis]
    return Affine(start, tuple(steps), wraps)
