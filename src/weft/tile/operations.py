"""How much arithmetic a kernel does: what a roofline sets against the bytes that it moves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from xdsl.ir import Block, SSAValue

from weft.ir.attributes import from_attribute
from weft.ir.expr import Size, evaluate
from weft.ir.types import DType
from weft.tile import dialect as tile


@dataclass(frozen=True)
class Operations:
    """Multiplications and additions, by whether tensor cores can do them: those of products, and all others."""

    products: int = 0
    others: int = 0
    dtype: DType | None = None
    """What the products multiply, the narrower where two types meet."""


def count_operations(kernel: tile.KernelOp, sizes: Mapping[str, int]) -> Operations:
    """The operations of all programs, for these sizes.

    Loops may be as long as a program's number says (the rows of a triangle): what the first and the last program do is
    counted, and all others taken to lie between them.
    """
    grid = [evaluate(size, sizes) for size in kernel.grid.data]
    if not all(count > 0 for count in grid):
        return Operations()
    given = kernel.block.args[len(kernel.block.args) - len(kernel.size_names) :]
    known: dict[SSAValue, int] = {value: sizes[name] for value, name in zip(given, kernel.size_names, strict=True)}
    ends = [_Counter(dict(known), places) for places in ([0] * len(grid), [count - 1 for count in grid])]
    for end in ends:
        end.count(kernel.block, 1.0)
    programs = prod(grid)
    products, others = (programs * sum(getattr(end, name) for end in ends) / 2 for name in ("products", "others"))
    return Operations(int(products), int(others), ends[0].dtype)


class _Counter:
    """Walks one program."""

    def __init__(self, known: dict[SSAValue, int], program: list[int]) -> None:
        self.known = known
        self.program = program
        self.products = self.others = 0.0
        self.dtype: DType | None = None

    def count(self, block: Block, times: float) -> None:
        for op in block.ops:
            match op:
                case tile.ProgramOp():
                    self.known[op.out] = self.program[op.axis.value.data]
                case tile.DotOp():
                    a, out = tile.tile_type(op.a), tile.tile_type(op.out)
                    self.products += times * 2 * prod(out.sizes) * a.sizes[-1]
                    types = [_held(op.a), _held(op.b), *([self.dtype] if self.dtype else [])]
                    self.dtype = min(types, key=lambda dtype: dtype.bits)
                case tile.MapOp():
                    self.others += times * prod(tile.tile_type(op.out).sizes)
                case tile.ReduceOp():
                    self.others += times * prod(tile.tile_type(op.value).sizes)
                case tile.ForOp():
                    lower, upper, step = (self._value(size, op.indices) for size in op.bounds.data)
                    turns = max(0, -(-(upper - lower) // step))
                    # Of loops inside, the turn in the middle is taken for all.
                    self.known[op.block.args[0]] = lower + turns // 2 * step
                    self.count(op.block, times * turns)
                case _:
                    pass

    def _value(self, size: Size, indices: tuple[SSAValue, ...] | list[SSAValue]) -> int:
        return evaluate(size, {f"d{place}": self.known.get(value, 0) for place, value in enumerate(indices)})


def _held(value: SSAValue) -> DType:
    """The type in which an operand is exact: what it is loaded from or rounded to, maybe narrower than its own."""
    match value.owner:
        case tile.LoadOp(pointer=pointer) if isinstance(pointer.type, tile.PointerType):
            return pointer.type.dtype
        case tile.MapOp() as op if op.function.data == "cast":
            target = from_attribute(op.attributes["target"])
            return target if isinstance(target, DType) else tile.tile_type(value).dtype
        case _:
            return tile.tile_type(value).dtype
