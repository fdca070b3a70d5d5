"""Facts about ops that both passes and emitters ask for."""

from __future__ import annotations

from collections.abc import Iterable

from xdsl.ir import Operation, OpResult, SSAValue

from weft.backends.nvidia.ir.alignment import pointer_dtype
from weft.backends.nvidia.ir.tma_store import TruncatePackOp
from weft.ir.attributes import from_attribute
from weft.ir.types import DType
from weft.tile import collective_ops
from weft.tile import dialect as tile

_COMMUTATIVE = frozenset(["add", "mul", "max", "min", "fmax", "fmin", "and", "or", "xor"])


def is_commutative(op: collective_ops.FoldOp) -> bool:
    """Whether two elements may be joined in any order."""
    (first, *others) = op.yielded.operands
    joined = first.op if isinstance(first, OpResult) and not others else None
    if not isinstance(joined, tile.MapOp):
        return False
    return joined.function.data in _COMMUTATIVE and set(joined.args) == set(op.block.args)


def loses_digits(value: SSAValue, summed: bool) -> bool:
    """Whether all that becomes of a tile of positive numbers is narrowed to 16 bits or, where it may be, `summed`.

    On the way something may be added to it: where that takes digits away, it takes those of exact results too.
    """
    for use in value.uses:
        match use.operation:
            case tile.ReduceOp() as op if summed and op.kind.data == "sum":
                pass
            case TruncatePackOp():
                pass
            case tile.MapOp() as op if narrowed_to(op) is not None:
                pass
            case tile.StoreOp() as op if pointer_dtype(op).bytes == 2 and pointer_dtype(op).is_float:
                pass
            case tile.MapOp() as op if _scales(op, use.index) and loses_digits(op.out, summed):
                pass
            case _:
                return False
    return True


def _scales(op: tile.MapOp, operand: int) -> bool:
    """Whether a result has about as many right digits as an operand."""
    return op.function.data in ("add", "sub", "mul") or (op.function.data == "div" and operand == 0)


def narrowed_to(op: Operation) -> DType | None:
    """The type of 16 bits that a cast rounds floats to, if it is such a cast."""
    if not isinstance(op, tile.MapOp) or op.function.data != "cast" or "rounding" in op.attributes:
        return None
    source, target = from_attribute(op.attributes["source"]), from_attribute(op.attributes["target"])
    assert isinstance(source, DType) and isinstance(target, DType)
    return target if source.name == "f32" and target.name in ("bf16", "f16") else None


def depends_on_program(values: Iterable[SSAValue]) -> bool:
    """Whether values are different in different programs."""
    left, seen = [value.owner for value in values], set[object]()
    while left:
        op = left.pop()
        if isinstance(op, tile.ProgramOp):
            return True
        if isinstance(op, Operation) and op not in seen:
            seen.add(op)
            left += [operand.owner for operand in op.operands]
    return False
