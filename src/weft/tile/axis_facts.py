"""What is known of a tile's numbers along its axes: how many follow one another, are equal, and by what they divide.

One analysis for all targets: facts go from op to op by the rules of `tile.facts`, around loops until they hold.

Numbers that kernels are launched with may be known to be multiples (attribute `divisors` of the kernel: one for each
argument), and authors tell more (attributes `multiple_of`, `max_contiguous` and `max_constancy` of an op).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

from xdsl.ir import Block, Operation, SSAValue

from weft.ir.attributes import from_attribute
from weft.ir.expr import Atom, Size
from weft.tile import collective_ops, control_flow, pointer_ops
from weft.tile import dialect as tile
from weft.tile.facts import (
    MOST,
    Facts,
    cast_facts,
    compared_constancy,
    least,
    longest_run,
    power_of,
    product_facts,
    quotient_facts,
    rest_facts,
    starting,
    sum_facts,
)
from weft.tile.view_axes import axes_of

DIVISORS = "divisors"
ALIGNED = "aligned"
"""On an access: its author knows that each run of places begins at a multiple of so many bytes."""
HINTS = ("multiple_of", "max_contiguous", "max_constancy")


class AxisFacts:
    """The facts of all integers and conditions of a kernel."""

    def __init__(self, kernel: tile.KernelOp, aligned: int = 1) -> None:
        """`aligned` is what memory begins at multiples of where nothing is said of it."""
        self._facts: dict[SSAValue, Facts] = {}
        self._divisors: dict[SSAValue, int] = {}
        self._naturals: set[SSAValue] = set()
        arguments = kernel.block.args
        divisors = (
            cast("tuple[int, ...]", from_attribute(kernel.attributes[DIVISORS]))
            if DIVISORS in kernel.attributes
            else ()
        )
        if DIVISORS not in kernel.attributes:
            pointers = (argument for argument in arguments if isinstance(argument.type, tile.PointerType))
            self._divisors.update(dict.fromkeys(pointers, aligned))
        for argument, divisor in zip(arguments, divisors, strict=False):
            if isinstance(argument.type, tile.TileType):
                self._facts[argument] = Facts((1,), (power_of(divisor),), (1,))
            else:
                self._divisors[argument] = power_of(divisor)
        self._naturals |= {a for a in arguments if not isinstance(a.type, tile.TileType | tile.PointerType)}
        self._block(kernel.block)

    def of(self, value: SSAValue) -> Facts:
        return self._facts.get(value) or Facts.unknown(len(tile.tile_type(value).sizes))

    def divisor(self, value: SSAValue) -> int:
        """What an index, or the address in a pointer, is a multiple of."""
        return self._divisors.get(value, 1)

    # -- blocks ------------------------------------------------------------------------------------------------------

    def _block(self, block: Block) -> None:
        for op in block.ops:
            self._visit(op)

    def _visit(self, op: Operation) -> None:
        match op:
            case tile.ForOp():
                lower, _, step = (self._divisor_of(size, op.indices) for size in op.bounds.data)
                self._divisors[op.block.args[0]] = min(lower, step)
                if self._is_natural(op.bounds.data[0], op.indices):
                    self._naturals.add(op.block.args[0])
                self._turns(op.initial, op.block.args[1:], [op.block], op.results)
            case control_flow.WhileOp():
                self._turns(op.initial, op.body.block.args, [op.condition.block, op.body.block], op.results)
            case control_flow.IfOp():
                for block in (op.then.block, op.otherwise.block):
                    self._block(block)
                yielded = [_yielded(block) for block in (op.then.block, op.otherwise.block)]
                for result, yes, no in zip(op.results, *yielded, strict=True):
                    self._facts[result] = self.of(yes).met(self.of(no))
            case pointer_ops.PointerOp():
                self._divisors[op.out] = self.of(op.value).divisor
            case pointer_ops.IndexOp():
                self._divisors[op.out] = self.of(op.value).divisor
                if self.of(op.value).natural:
                    self._naturals.add(op.out)
            case tile.ProgramOp():
                self._naturals.add(op.out)
            case _ if op.regions:  # a target's, around what runs
                for block in (block for region in op.regions for block in region.blocks):
                    self._block(block)
            case _:
                found = self._found(op)
                if found is not None:
                    self._facts[op.results[0]] = _hinted(op, found)

    def _turns(
        self,
        initial: Sequence[SSAValue],
        arguments: Sequence[SSAValue],
        blocks: Sequence[Block],
        results: Sequence[SSAValue],
    ) -> None:
        """A loop: what holds at its start and after each iteration."""
        carried = [self.of(value) for value in initial]
        while True:
            for block in blocks:
                first = len(block.args) - len(carried)
                self._facts.update(zip(block.args[first:], carried, strict=True))
                self._block(block)
            ends = [self.of(value) for value in _yielded(blocks[-1])]
            joined = [a.met(b) for a, b in zip(carried, ends, strict=True)]
            if joined == carried:
                break
            carried = joined
        self._facts.update(zip(results, carried, strict=True))

    # -- ops ---------------------------------------------------------------------------------------------------------

    def _found(self, op: Operation) -> Facts | None:
        match op:
            case tile.ConstantOp():
                number = from_attribute(op.value)
                known = int(number) if isinstance(number, int) else None
                sizes = tile.tile_type(op.out).sizes or (1,)
                divisor = power_of(known) if known is not None else 1
                runs = tuple(map(longest_run, sizes))
                return Facts((1,) * len(sizes), (divisor,) * len(sizes), runs, known, known is not None and known >= 0)
            case tile.PositionOp():
                return self._position(op)
            case collective_ops.ViewOp():
                return self._view(op)
            case tile.MapOp():
                return self._map(op)
            case tile.GatherOp():
                sizes = tile.tile_type(op.out).sizes
                parts = [self.spread(v, sizes).constancy for v in (op.offsets, op.mask) if v is not None]
                return replace(Facts.unknown(len(sizes)), constancy=least(*parts))
            case _:
                return None

    def _position(self, op: tile.PositionOp) -> Facts:
        sizes = tile.tile_type(op.out).sizes
        start = self._divisor_of(op.offset.data[0], op.indices)
        natural = all(self._is_natural(size, op.indices) for size in (*op.offset.data, *op.strides.data))
        if not sizes:
            offset = op.offset.data[0]
            return Facts((1,), (start,), (1,), offset if isinstance(offset, int) else None, natural)
        strides = [self._divisor_of(stride, op.indices) for stride in op.strides.data]
        known = [stride if isinstance(stride, int) else None for stride in op.strides.data]
        contiguity = tuple(longest_run(size) if stride == 1 else 1 for size, stride in zip(sizes, known, strict=True))
        constancy = tuple(
            longest_run(size) if stride == 0 or size == 1 else 1 for size, stride in zip(sizes, known, strict=True)
        )
        divisibility: list[int] = []
        for axis in range(len(sizes)):
            others = [strides[a] for a, size in enumerate(sizes) if a != axis and size > 1]
            own = contiguity[axis] if contiguity[axis] > 1 else strides[axis] if sizes[axis] > 1 else MOST
            divisibility.append(min([start, own, *others]))
        return Facts(contiguity, tuple(divisibility), constancy, None, natural)

    def _view(self, op: collective_ops.ViewOp) -> Facts:
        facts, source = self.of(op.value), tile.tile_type(op.value).sizes
        sizes = tile.tile_type(op.out).sizes
        if not sizes:
            return Facts((1,), (facts.divisor,), (1,), facts.constant, facts.natural)
        contiguity, constancy = [1] * len(sizes), [1] * len(sizes)
        divisibility = [facts.divisor] * len(sizes)
        axes = axes_of(op)
        for axis, (size, step) in enumerate(zip(sizes, op.steps, strict=True)):
            if size == 1:
                continue
            if step == 0:
                constancy[axis] = longest_run(size)
                continue
            walked = None if axes is None else next((a for a, w in enumerate(axes.walked) if w == axis), None)
            if walked is None and axis == len(sizes) - 1 and step == 1 and source and _is_reshape(op):
                walked = len(source) - 1
            if walked is not None:
                contiguity[axis] = min(facts.contiguity[walked], longest_run(size))
                constancy[axis] = min(facts.constancy[walked], longest_run(size))
                divisibility[axis] = starting(facts, [contiguity[axis]] * len(source))[walked]
        return Facts(tuple(contiguity), tuple(divisibility), tuple(constancy), facts.constant, facts.natural)

    def spread(self, value: SSAValue, sizes: Sequence[int]) -> Facts:
        """What is known of a tile that is repeated along the axes on which it has one place."""
        facts, own = self.of(value), tile.tile_type(value).sizes
        if len(own) != len(sizes):
            return facts
        rows = zip(facts.constancy, own, sizes, strict=True) if sizes else ()
        constancy = tuple(longest_run(n) if side == 1 else c for c, side, n in rows) or facts.constancy
        return facts if constancy == facts.constancy else replace(facts, constancy=constancy)

    def _map(self, op: tile.MapOp) -> Facts:
        args = [self.spread(arg, tile.tile_type(op.out).sizes) for arg in op.args]
        constancy = least(*(arg.constancy for arg in args))
        plain = replace(Facts.unknown(len(constancy)), constancy=constancy)
        if any(len(arg.constancy) != len(constancy) for arg in args):
            return Facts.unknown(len(tile.tile_type(op.out).sizes))
        integers = all(tile.tile_type(arg).dtype.is_integer for arg in op.args)
        match op.function.data, args:
            case "cast", [x] if integers and tile.tile_type(op.out).dtype.is_integer:
                return cast_facts(x, tile.tile_type(op.args[0]).dtype, tile.tile_type(op.out).dtype)
            case "select", [condition, x, y] if tile.tile_type(op.out).dtype.is_integer:
                contiguity = least(x.contiguity, y.contiguity, condition.constancy)
                divisibility = least(starting(x, contiguity), starting(y, contiguity))
                return Facts(contiguity, divisibility, constancy, None, x.natural and y.natural)
            case _ if not integers:
                return plain
            case "add" | "sub" | "mul", [x, y]:
                return sum_facts(op.function.data, x, y) if op.function.data != "mul" else product_facts(x, y)
            case "shl", [x, y] if y.constant is not None and 0 <= y.constant < 30:
                return product_facts(
                    x, replace(y, constant=1 << y.constant, divisibility=(1 << y.constant,) * len(constancy))
                )
            case "floordiv" | "truncdiv" | "shr", [x, y] if y.constant is not None and y.constant >= 0:
                divisor = 1 << min(y.constant, 30) if op.function.data == "shr" else y.constant
                return quotient_facts(x, divisor, constancy) if op.function.data != "truncdiv" or x.natural else plain
            case "remainder" | "fmod", [x, y] if (op.function.data == "remainder" or x.natural) and y.natural:
                return rest_facts(x, y)
            case "min" | "max", [x, y]:
                divisor = min(x.divisor, y.divisor)
                return replace(plain, divisibility=(divisor,) * len(constancy), natural=x.natural and y.natural)
            case "lt" | "ge", [x, y]:
                return replace(plain, constancy=compared_constancy(x, y, constancy))
            case "gt" | "le", [x, y]:
                return replace(plain, constancy=compared_constancy(y, x, constancy))
            case _:
                return plain

    # -- sizes -------------------------------------------------------------------------------------------------------

    def _divisor_of(self, size: Size, operands: Sequence[SSAValue]) -> int:
        if isinstance(size, int):
            return power_of(size)
        return min(
            min(MOST, power_of(coefficient) * _times(self._atom(atom, operands) for atom in monomial))
            for monomial, coefficient in size.terms
        )

    def _atom(self, atom: Atom, operands: Sequence[SSAValue]) -> int:
        if atom.kind == "symbol":
            return self.divisor(operands[int(atom.name[1:])])
        if atom.kind in ("min", "max"):
            return min(self._divisor_of(arg, operands) for arg in atom.args)
        return 1

    def _is_natural(self, size: Size, operands: Sequence[SSAValue]) -> bool:
        if isinstance(size, int):
            return size >= 0
        return all(
            coefficient >= 0
            and all(atom.kind == "symbol" and operands[int(atom.name[1:])] in self._naturals for atom in monomial)
            for monomial, coefficient in size.terms
        )


def _times(factors: object) -> int:
    result = 1
    for factor in cast("Sequence[int]", factors):
        result = min(MOST, result * factor)
    return result


def _yielded(block: Block) -> Sequence[SSAValue]:
    last = block.last_op
    assert isinstance(last, tile.YieldOp)
    return last.operands


def _is_reshape(op: collective_ops.ViewOp) -> bool:
    return op.offset.value.data == 0 and op.steps == collective_ops.row_major(tile.tile_type(op.out).sizes)


def _hinted(op: Operation, facts: Facts) -> Facts:
    """What the author says, besides."""
    given = {
        name: cast("tuple[int, ...]", from_attribute(op.attributes[name])) for name in HINTS if name in op.attributes
    }
    if not given:
        return facts
    sizes = tile.tile_type(op.results[0]).sizes or (1,)

    def at_least(known: tuple[int, ...], told: tuple[int, ...], most: Sequence[int]) -> tuple[int, ...]:
        return tuple(max(k, min(power_of(t), m)) for k, t, m in zip(known, told, most, strict=True))

    runs = tuple(map(longest_run, sizes))
    ones = (1,) * len(sizes)
    contiguity = at_least(facts.contiguity, given.get("max_contiguous", ones), runs)
    divisibility = at_least(starting(facts, facts.contiguity), given.get("multiple_of", ones), (MOST,) * len(sizes))
    return replace(
        facts,
        contiguity=contiguity,
        divisibility=divisibility,
        constancy=at_least(facts.constancy, given.get("max_constancy", ones), runs),
    )


@dataclass(frozen=True)
class Neighbours:
    """How an access to computed places runs through memory: along which axis, and how many elements at once."""

    axis: int | None
    widths: tuple[int, ...]
    """For each axis, how many neighbours lie side by side, aligned, and are all there or none."""


def neighbours_of(
    facts: AxisFacts, pointer: SSAValue, offsets: SSAValue, mask: SSAValue | None, widest: int, told: int = 1
) -> Neighbours:
    """What an access allows that moves at most `widest` bytes at once; `told` is what addresses are multiples of."""
    assert isinstance(pointer.type, tile.PointerType)
    size, sizes = pointer.type.dtype.bytes, tile.tile_type(offsets).sizes
    found, there = facts.of(offsets), None if mask is None else facts.spread(mask, sizes)
    aligned = max(1, facts.divisor(pointer) // size)
    widths: list[int] = []
    for axis in range(len(sizes)):
        known = max(min(found.divisibility[axis], aligned), min(found.contiguity[axis], told // size))
        width = min(found.contiguity[axis], known, max(1, widest // size))
        widths.append(width if there is None else min(width, there.constancy[axis]))
    runs = [(found.contiguity[axis], axis) for axis in range(len(sizes)) if found.contiguity[axis] > 1]
    return Neighbours(max(runs)[1] if runs else None, tuple(widths))
