"""The emitter of a group's kernel: reductions over the columns of its domain, as the schedule says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product as every
from typing import Any, cast

from weft.ir.expr import Size, ceildiv, minimum, product, substitute, symbol
from weft.ir.types import DType, f32, f64, i32, i64, tensor_of
from weft.lower.emit.body import KernelEmitter, TileValue, register_dtype
from weft.lower.groups.combined import Combined, Paired
from weft.lower.groups.online_softmax import OnlinePair
from weft.lower.index_space.domain import Run, Variable
from weft.lower.index_space.evaluate import AddressRecorder, Source
from weft.lower.schedule.schedule import Schedule
from weft.ops.base import Reduction
from weft.ops.body import Value
from weft.tile import dialect as tile
from weft.tile.functions import COMBINERS, greatest

PART = "part"
"""The number of a program among those that share the columns of its rows."""
_SUMMED_IN_TURN = 32
_WORTH_A_SUM = 8
_MOST_UNROLLED = 16
"""Columns of a window that are laid out one after the other: of more, LLVM reads all before it uses the first."""


@dataclass
class GroupEmitter(KernelEmitter):
    """The emitter with the group's reductions."""

    schedule: Schedule = field(default_factory=lambda: Schedule("pointwise", "", 1))

    def reduce(self, op: Reduction, index: Sequence[Size], operands: Sequence[Source]) -> Value:
        each = Combined(self, op, index, operands)
        if self.schedule.mode == "rows":
            value = self._at_every_column(each.element(), [run.name for run in self.domain.column_runs])
            dtype = each.combiner.result_dtype(value.dtype)
            for run in reversed(self.domain.column_runs):
                value = self.reduce_axis(value, each.kind, self.axes[run.name].position, dtype)
            if not self.domain.column_runs and each.combiner.indexed:
                value = self._typed(self.constant(0, i64))
            return each.finished(value)
        if not self.domain.column_runs:
            return each.finished(self._typed(self.constant(0, i64)) if each.combiner.indexed else each.element())
        if self.schedule.mode == "taps":
            return each.finished(self._taps(op, index, operands))
        each.begin()
        if each.combiner.indexed:
            return each.finished(self._arg_reduce(each.combiner.function, each.element, each.start()))
        return each.finished(*self._combined([each]))

    def reduce_together(
        self,
        reductions: Mapping[Reduction, Sequence[Size]],
        also: Callable[[], None] | None = None,
        pairs: Sequence[OnlinePair] = (),
    ) -> None:
        """Carry out reductions that do not need each other, in the same loops, and in these what else is to be done.

        Of `pairs` the sum needs the maximum, but no pass of its own.
        """
        together: list[Combined] = []
        online = {op: pair for pair in pairs for op in (pair.largest, pair.total)}
        for op, index in reductions.items():
            if op in online:
                continue
            if COMBINERS[type(op).KIND].indexed:
                self.at(Source(op.results[0], tensor_of(op.results[0].type)), index)
                continue
            together.append(Combined.of(self, op, index))
            together[-1].begin()
        paired = [
            Paired(self, pair, *(Combined.of(self, op, reductions[op]) for op in (pair.largest, pair.total)))
            for pair in pairs
        ]
        if not together and not paired and also is None:
            return
        totals = self._combined(together, also, paired)
        for each, total in zip(together, totals, strict=True):
            each.know(total)

    def _combined(
        self,
        reductions: Sequence[Combined],
        also: Callable[[], None] | None = None,
        paired: Sequence[Paired] = (),
    ) -> list[TileValue]:
        """Reductions over all columns; those of pairs are known when it returns."""

        def combine(state: list[TileValue]) -> None:
            for place, each in enumerate(reductions):
                value = each.element()
                if self.schedule.holds:
                    value = self._at_every_column(value, [run.name for run in self.blocked])
                elif self.schedule.mode == "stream":
                    value = self._at_every_column(value, [self.schedule.vector])
                    value = self.reduce_axis(value, each.kind, self.axes[self.schedule.vector].position, value.dtype)
                state[place] = each.with_another(state[place], value)
            for place, pair in enumerate(paired):
                states = slice(len(reductions) + 2 * place, len(reductions) + 2 * place + 2)
                state[states] = pair.with_more(state[states])
            if also is not None:
                also()

        carried = [each.start() for each in reductions]
        carried += [each for pair in paired for each in pair.start()]
        if self.schedule.holds:
            with self.columns(carried) as state:
                combine(state)
            for place, pair in enumerate(paired):
                states = len(reductions) + 2 * place
                pair.finish(carried[states : states + 2])
            carried = [self._together(each.kind, held) for each, held in zip(reductions, carried, strict=False)]
        elif self.schedule.mode == "lanes" and any(each.kind == "sum" and each.dtype.is_float for each in reductions):
            self._in_blocks(self.domain.column_runs, reductions, carried, combine)
        else:
            with self.columns(carried) as state:
                combine(state)
        return carried

    def _in_blocks(
        self,
        runs: Sequence[Run],
        reductions: Sequence[Combined],
        carried: list[TileValue],
        combine: Callable[[list[TileValue]], None],
    ) -> None:
        """Combine columns one after the other, long runs in blocks of their own: errors grow with the longest sum."""
        if not runs:
            combine(carried)
            return
        run, rest = runs[0], runs[1:]

        def over(first: Size, stop: Size, size: Size, state: list[TileValue]) -> None:
            length = _block_of(size)
            if size == length:
                with self.loop(run.name, stop, 1, state, lower=first) as inner:
                    if _is_long(rest):
                        self._with_more(
                            reductions, inner, lambda part: self._in_blocks(rest, reductions, part, combine)
                        )
                    else:
                        self._in_blocks(rest, reductions, inner, combine)
                return
            block = f"{run.name}_by_{length}"
            with self.loop(block, stop, length, state, lower=first) as outer:
                end = minimum(symbol(block) + length, stop)
                self._with_more(reductions, outer, lambda part: over(symbol(block), end, length, part))

        over(0, run.size, run.size, carried)

    def _with_more(
        self, reductions: Sequence[Combined], state: list[TileValue], combine: Callable[[list[TileValue]], None]
    ) -> None:
        """Combine what has been with what is combined apart from it."""
        partial = [each.start() for each in reductions]
        combine(partial)
        pairs = zip(reductions, state, partial, strict=True)
        state[:] = [each.with_another(total, part) for each, total, part in pairs]

    def _taps(self, op: Reduction, index: Sequence[Size], operands: Sequence[Source]) -> TileValue:
        """Combine the columns of a window one after the other; those of a large one in loops over its lines."""
        rule: Any = type(op)
        function = COMBINERS[rule.KIND].function

        def line(total: TileValue | None) -> TileValue:
            for place in every(*(range(cast("int", variable.size)) for variable in unrolled)):
                at = {variable.name: position for variable, position in zip(unrolled, place, strict=True)}
                over = [substitute(position, at) for position in self.domain.column_index]
                value = self._typed(rule.element(self, index, over, *operands, **op.params))
                if rule.KIND == "prod" and value.dtype == f32:
                    value = self._typed(self.cast(value, f64))
                total = value if total is None else self._typed(self.math(function, total, value))
            assert total is not None
            return total

        def looped(variables: Sequence[Variable], carried: list[TileValue]) -> None:
            with self.loop(variables[0].name, variables[0].size, 1, carried) as state:
                if variables[1:]:
                    looped(variables[1:], state)
                else:
                    state[0] = line(state[0])

        unrolled = self.domain.columns
        while len(unrolled) > 1 and product(variable.size for variable in unrolled) > _MOST_UNROLLED:  # type: ignore[operator]
            unrolled = unrolled[1:]
        outer = self.domain.columns[: len(self.domain.columns) - len(unrolled)]
        if not outer:
            return line(None)
        probe = AddressRecorder(self.layouts, space=self.domain.bounds, columns=self.domain.column_index)
        dtype = rule.element(probe, index, self.domain.column_index, *operands, **op.params).dtype
        dtype = f64 if rule.KIND == "prod" and dtype == f32 else dtype
        shape = [self.schedule.outer_capacity, self.schedule.capacity][-self.rank :]
        identity = COMBINERS[rule.KIND].identity(dtype)
        type_ = tile.TileType.of(shape, register_dtype(dtype))
        carried = [
            TileValue(self.add(tile.ConstantOp.make(float(identity) if dtype.is_float else identity, type_)), dtype)
        ]
        looped(outer, carried)
        return carried[0]

    def _at_every_column(self, value: TileValue, runs: Sequence[str]) -> TileValue:
        """A tile that has the axes it is reduced along: an expanded tensor is the same at all places of one."""
        shape = list(tile.tile_type(value.ssa).sizes)
        for name in runs:
            shape[self.axes[name].position] = self.axes[name].capacity
        return self.repeated(value, shape)

    @property
    def blocked(self) -> list[Run]:
        """The column runs that are walked in blocks, which are axes of the tiles."""
        schedule = self.schedule
        if not schedule.holds:
            return [run for run in self.domain.column_runs if schedule.mode == "stream" and run.name == schedule.vector]
        return [run for run in self.domain.column_runs if schedule.capacity_of(run) is not None]

    def axis_of(self, run: Run) -> int:
        """The position of a run's axis in the tiles of a schedule with loops."""
        return self.rank - 1 if run.name == self.schedule.vector else 0

    def _together(self, kind: str, held: TileValue) -> TileValue:
        """Combine the elements of a tile that loops have carried along their blocks of columns."""
        for run in self.blocked:
            held = self.reduce_axis(held, kind, self.axis_of(run), held.dtype)
        return held

    def spread(self, value: Value) -> TileValue:
        """A scalar as a tile of what loops carry: one over the row axis, or one that holds a block of columns too."""
        source = self._typed(value)
        constant = source.ssa.owner
        if self.schedule.holds:
            assert isinstance(constant, tile.ConstantOp)
            shape = [self.schedule.outer_capacity, self.schedule.capacity][-self.rank :]
            type_ = tile.TileType.of(shape, tile.tile_type(source.ssa).dtype)
            held = tile.ConstantOp.create(attributes={"value": constant.value}, result_types=[type_])
            return TileValue(self.add(held), source.dtype)
        if self.schedule.mode != "lanes" or self.schedule.capacity == 1 or not isinstance(constant, tile.ConstantOp):
            return source
        type_ = tile.TileType.of([self.schedule.capacity], tile.tile_type(source.ssa).dtype)
        wide = tile.ConstantOp.create(attributes={"value": constant.value}, result_types=[type_])
        return TileValue(self.add(wide), source.dtype)

    def _arg_reduce(self, function: str, element: Any, initial: TileValue) -> TileValue:
        """The position of the first extremum, by comparing one column after the other; NaN beats all.

        Where tiles are held, what nothing beats is left at the last place, and all at the first if that is so for all.
        """
        held = self.schedule.holds and bool(self.blocked)
        dtype = self._position_dtype()
        last = greatest(dtype)
        carried = [initial, self.spread(self.constant(last if held else -1, dtype))]
        with self.columns(carried) as state:
            value = self._typed(element())
            if self.schedule.holds:
                value = self._at_every_column(value, [run.name for run in self.blocked])
            position: Size = 0
            for variable in self.domain.columns:
                position = position * variable.size + variable.expr
            better = self.math("gt" if function == "max" else "lt", value, state[0])
            if not held:
                better = self.math("or", better, self.math("lt", state[1], self.constant(0, dtype)))
            if value.dtype.is_float:
                fresh_nan = self.math("and", self.math("isnan", value), self.math("not", self.math("isnan", state[0])))
                better = self.math("or", better, fresh_nan)
            state[0] = self._typed(self.where(better, value, state[0]))
            state[1] = self._typed(self.where(better, self.position(position, dtype), state[1]))
        found, places = carried
        if not held:
            return self._typed(self.cast(places, i64))
        best = self._together(function, found)
        chosen = self.math("eq", found, best)
        if found.dtype.is_float:
            chosen = self.math("or", chosen, self.math("isnan", found))
        none = self.constant(last, dtype)
        first = self._together("min", self._typed(self.where(chosen, places, none)))
        first = self.where(self.math("eq", first, none), self.constant(0, dtype), first)
        return self._typed(self.cast(first, i64))

    def _position_dtype(self) -> DType:
        """The type of positions among all columns."""
        count = product(variable.size for variable in self.domain.columns)
        return i32 if isinstance(count, int) and count <= greatest(i32) else i64

    def columns(self, carried: list[TileValue]) -> Any:
        """Loops over all columns; in a stream the innermost goes by blocks, which are an axis of the tiles."""
        return _ColumnLoops(self, carried)


class _ColumnLoops:
    """Nested loops over the column runs that carry the same tiles through all levels."""

    def __init__(self, emit: GroupEmitter, carried: list[TileValue]) -> None:
        self.emit = emit
        self.levels: list[Any] = []
        self.carried = carried
        self.blocked = emit.blocked

    def __enter__(self) -> list[TileValue]:
        state = self.carried
        emit, schedule = self.emit, self.emit.schedule
        for run in emit.domain.column_runs:
            blocked = run in self.blocked
            capacity = (schedule.capacity_of(run) or 1) if blocked else 1
            if schedule.holds and blocked and run.size == capacity and schedule.split != run.name:
                emit.tile_axis(run.name, run.size, emit.axis_of(run), 0, capacity)
                continue
            name = f"{run.name}_start" if blocked else run.name
            lower, upper = _share(run, capacity, schedule)
            context = emit.loop(name, upper, capacity, state, lower=lower)
            self.levels.append(context)
            state = context.__enter__()
            if blocked:
                emit.tile_axis(run.name, run.size, emit.axis_of(run), symbol(name), capacity)
        return state

    def __exit__(self, *error: object) -> None:
        if error[0] is not None:
            return
        for run in self.blocked:
            del self.emit.axes[run.name]
        while self.levels:
            self.levels.pop().__exit__(None, None, None)


def _share(run: Run, capacity: int, schedule: Schedule) -> tuple[Size, Size]:
    """From where to where a program walks a run: all of it, or its part in whole blocks."""
    if schedule.split != run.name:
        return 0, run.size
    share = ceildiv(ceildiv(run.size, capacity), schedule.parts) * capacity
    first = symbol(PART) * share
    return first, minimum(first + share, run.size)


def _block_of(size: Size) -> int:
    """The columns of a block, of which few make a run or a larger block; all of few columns."""
    if not isinstance(size, int):
        return _SUMMED_IN_TURN**2
    if size <= _SUMMED_IN_TURN:
        return size
    length = _SUMMED_IN_TURN // 2
    while length * _SUMMED_IN_TURN < size:
        length *= _SUMMED_IN_TURN // 2
    return length


def _is_long(runs: Sequence[Run]) -> bool:
    """Whether there are so many columns in runs that a sum of their own costs little."""
    size = product(run.size for run in runs)
    return bool(runs) and not (isinstance(size, int) and size < _WORTH_A_SUM)
