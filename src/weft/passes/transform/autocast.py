"""Mixed precision of a graph function: products of matrices in narrow floats, sums and exponentials in wide ones.

An op's class says by `AUTOCAST` what it is computed in: products, convolutions and attention are `narrow`, what loses
digits is `wide`, and others follow their operands. Arguments and results keep their types, so that a function with
autocast is differentiated and batched like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass

from weft.errors import DTypeError, ParseError, ShapeError, UnsupportedError
from weft.ir.locations import sourced
from weft.ir.types import DType, bf16, f16, f32, f64, tensor_of
from weft.ops.base import GraphOp
from weft.ops.control import ControlOp
from weft.ops.create import Full
from weft.ops.graph import FuncOp, GraphBuilder
from weft.passes.differentiate import transform_functions
from weft.passes.recompute import inherit_marks, marks_of, ops_after


@dataclass(frozen=True)
class Autocast(ModulePass):
    """%y = graph.dot %x, %w : f32   →   %y = graph.cast (graph.dot (graph.cast %x), (graph.cast %w) : bf16) : f32"""

    name: ClassVar[str] = "autocast"
    dtype: str = "bf16"
    wide: str = "f32"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        narrow, wide = _float(self.dtype, (bf16, f16, f32)), _float(self.wide, (f32, f64))
        transform_functions(op, lambda function: autocast_function(function, narrow, wide))


def _float(name: str, allowed: Sequence[DType]) -> DType:
    found = next((each for each in allowed if each.name == name), None)
    if found is None:
        raise ParseError(f"autocast has no {name}", hint=f"there are {', '.join(each.name for each in allowed)}")
    return found


def autocast_function(function: FuncOp, narrow: DType = bf16, wide: DType = f32) -> FuncOp:
    """The function in which floats of the `wide` type are narrow where that loses little.

    graph.func @f(%x, %w) {                 graph.func @f_autocast(%x, %w) {
      %y = graph.dot %x, %w : f32             %p = graph.dot (graph.cast %x), (graph.cast %w) : bf16
      %r = graph.relu %y           →          %r = graph.relu %p : bf16
      %s = graph.sum %r                       %s = graph.sum (graph.cast %r : f32)
      graph.return %s                         graph.return %s : f32
    }                                       }
    """
    if narrow.bits >= wide.bits:
        raise DTypeError(f"autocast from {wide} to {narrow}", hint="autocast{dtype=f32 wide=f64}")
    made = function.clone()
    _Casting(made.block, narrow, wide).run()
    made.sym_name = StringAttr(f"{function.sym_name.data}_autocast")
    return made


class _Casting:
    """One block: ops take the place of those that compute in other floats, and casts stand where both meet."""

    def __init__(self, block: Block, narrow: DType, wide: DType) -> None:
        self.block, self.narrow, self.wide = block, narrow, wide
        self.narrowed: dict[SSAValue, SSAValue] = {}
        """What stands for a value in narrow floats."""
        self.lost: set[SSAValue] = set()
        """Values that are only there in narrow floats: who needs one in wide ones has it cast."""
        self.widened: dict[SSAValue, SSAValue] = {}
        self.replaced: list[Operation] = []

    def run(self) -> None:
        for op in list(self.block.ops):
            before = op.prev_op
            with sourced(op.location):
                self._rewrite(op)
            inherit_marks(marks_of(op), ops_after(before, GraphBuilder(self.block, before=op)))
        for op in reversed(self.replaced):
            op.detach()
            op.erase()

    def _rewrite(self, op: Operation) -> None:
        for region in op.regions if isinstance(op, ControlOp) else ():
            _Casting(region.block, self.narrow, self.wide).run()
        if isinstance(op, GraphOp) and op.AUTOCAST != "wide" and self._is_for(op) and self._narrow(op):
            return
        if any(operand in self.lost for operand in op.operands):
            b = GraphBuilder(self.block, before=op)
            op.operands = [self._wide(b, operand) for operand in op.operands]

    def _is_for(self, op: GraphOp) -> bool:
        """Whether an op's operands of wide floats are there in narrow ones, or become such."""
        wide = [x for x in op.operands if tensor_of(x.type).dtype == self.wide]
        if op.AUTOCAST == "narrow":
            return bool(wide)
        return any(x in self.lost for x in wide) and all(x in self.lost or isinstance(x.owner, Full) for x in wide)

    def _narrow(self, op: GraphOp) -> bool:
        """Put an op on narrow floats in this one's place; False where there is none."""
        b = GraphBuilder(self.block, before=op)
        last = op.prev_op
        operands = [
            self._narrowed(b, x) if tensor_of(x.type).dtype == self.wide else self._wide(b, x) for x in op.operands
        ]
        made = self._made(op, operands)
        if made is None:
            while (extra := op.prev_op) is not last and extra is not None:  # casts that nobody reads now
                self._forget(extra)
            return False
        made.attributes |= {key: value for key, value in op.attributes.items() if "." in key}
        b.insert(made)
        self.replaced.append(op)
        for old, new in zip(op.results, made.results, strict=True):
            if old.type == new.type:
                old.replace_all_uses_with(new)
            else:
                self.narrowed[old] = new
                self.lost.add(old)
        return True

    def _made(self, op: GraphOp, operands: Sequence[SSAValue]) -> GraphOp | None:
        """The op on these operands; None where it does not take them, or gives neither narrow floats nor its types."""
        try:
            made = type(op).make(*operands, location=op.location, **op.params)
        except (DTypeError, ShapeError, UnsupportedError):
            return None
        pairs = zip(op.results, made.results, strict=True)
        kinds = [(tensor_of(new.type).dtype, tensor_of(old.type).dtype) for old, new in pairs]
        return made if all(new == old or (new, old) == (self.narrow, self.wide) for new, old in kinds) else None

    def _forget(self, op: Operation) -> None:
        for known in (self.narrowed, self.widened):
            for key in [key for key, value in known.items() if value in op.results]:
                del known[key]
        op.detach()
        op.erase()

    def _narrowed(self, b: GraphBuilder, value: SSAValue) -> SSAValue:
        if value not in self.narrowed:
            self.narrowed[value] = b.cast(value, dtype=self.narrow)
        return self.narrowed[value]

    def _wide(self, b: GraphBuilder, value: SSAValue) -> SSAValue:
        if value not in self.lost:
            return value
        if value not in self.widened:
            self.widened[value] = b.cast(self.narrowed[value], dtype=self.wide)
        return self.widened[value]
