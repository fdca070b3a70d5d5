"""Factors of whole rows go behind matmuls of few rows: a norm is no kernel of its own then.

A matmul of few rows reads its weights, and waits for nothing but its rows. What a norm multiplies a row by is known
when all of the row is; behind the matmul it is needed last. The kernel that makes a row multiplies it by the norm's
weights, and the matmul's kernel finds the factor by itself, from the row as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.ir import Operation, OpResult, SSAValue
from xdsl.passes import ModulePass

from weft.ir.expr import Size, product
from weft.ir.types import bf16, f32, tensor_of
from weft.ops.base import Elementwise, GraphOp
from weft.ops.graph import FuncOp, GraphBuilder
from weft.ops.matmul.dot import Dot
from weft.ops.reduce import DimensionReduction
from weft.passes.claim_libraries import worth_streaming
from weft.passes.grouping.build_groups import CLAIM, INLINED, is_free

_MOST_HELD = 16384
"""Elements of all rows that the kernel of a matmul holds at once to reduce them."""
_MOST_OPS = 16


@dataclass(frozen=True)
class ScaleAfterDots(ModulePass):
    """%r = graph.rsqrt (graph.sum (graph.mul %h, %h))      %r = … {weft.inlined}
    %n = graph.mul (graph.mul %h, %r), %w                   %n = graph.mul %h, %w
    %y = graph.dot %n, %m                           →       %y = graph.mul (graph.dot %n, %m), %r

    Numbers of bf16 have the range for it, those of f16 do not. It rounds less often than the program does.
    """

    name: ClassVar[str] = "scale_after_dots"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if isinstance(function, FuncOp) and "prepares" not in function.attributes:
                for candidate in list(function.block.ops):
                    if isinstance(candidate, GraphOp) and candidate.parent is function.block and candidate.results:
                        _scale_behind(candidate.results[0])


@dataclass(frozen=True)
class _Scaled:
    """A value with a factor for each row, the ops in which it is, and the value made without it."""

    factor: SSAValue
    ops: tuple[Operation, ...]
    without: Callable[[GraphBuilder], SSAValue]

    def around(self, op: GraphOp, again: Callable[[GraphBuilder, SSAValue], SSAValue]) -> _Scaled:
        """The same of what an op makes of the value."""
        return _Scaled(self.factor, (op, *self.ops), lambda b: again(b, self.without(b)))


def _scale_behind(value: SSAValue) -> None:
    """Take the factor out of a value that matmuls of few rows read, and nobody else."""
    if tensor_of(value.type).dtype != bf16 or (found := _scaled(value)) is None:
        return
    dots = list(_products(value))
    rows = {tensor_of(dot.results[0].type).shape[0] for dot in dots if dot is not None}
    if None in dots or len(rows) != 1:
        return
    (count,) = rows
    made = _made_for(found, _width(value))
    if not made or product(tensor_of(found.factor.type).shape) != count or not _is_held(count, value):
        return
    assert isinstance(value, OpResult)
    value.replace_all_uses_with(found.without(_before(value.op)))
    for dot in dots:
        assert dot is not None
        _multiply(dot, found.factor, count)
    for op in found.ops:
        op.detach()
        op.erase()
    for op in made:
        op.attributes[INLINED] = UnitAttr()
        if isinstance(op, DimensionReduction):
            _reduce_last(op)


def _before(op: Operation) -> GraphBuilder:
    block = op.parent_block()
    assert block is not None
    return GraphBuilder(block, op.location, before=op)  # type: ignore[arg-type]


def _products(value: SSAValue) -> Iterator[Dot | None]:
    """The matmuls of few rows that a value is the rows of, seen through reshapes; None for any other reader."""
    for use in value.uses:
        op = use.operation
        if op.name == "graph.reshape" and _width(op.results[0]) == _width(value):
            yield from _products(op.results[0])
        elif isinstance(op, Dot) and use.index == 0 and CLAIM not in op.attributes:
            result = tensor_of(op.results[0].type)
            few = result.dtype == bf16 and worth_streaming(bf16, result.shape, _width(value))
            yield op if few else None
        else:
            yield None


def _width(value: SSAValue) -> Size:
    shape = tensor_of(value.type).shape
    return shape[-1] if shape else 1


def _is_held(count: Size, value: SSAValue) -> bool:
    elements = count * _width(value)
    return isinstance(elements, int) and elements <= _MOST_HELD


def _scaled(value: SSAValue) -> _Scaled | None:
    """How a value that one op reads is a matmul with a factor of its rows, if it is."""
    if not isinstance(value, OpResult) or not isinstance(op := value.op, GraphOp):
        return None
    tensor = tensor_of(value.type)
    match op.name:
        case "graph.mul":
            return _in_product(op)
        case "graph.cast" if tensor.dtype in (bf16, f32):
            inner = _scaled_inside(op.operands[0])
            return inner and inner.around(op, lambda b, v: _cast(b, v, tensor_of(value.type).dtype == bf16))
        case "graph.reshape" if _width(op.operands[0]) == _width(value):
            inner = _scaled_inside(op.operands[0])
            return inner and inner.around(op, lambda b, v: b.reshape(v, shape=tensor.shape))
        case _:
            return None


def _scaled_inside(value: SSAValue) -> _Scaled | None:
    return _scaled(value) if value.has_one_use() else None


def _in_product(op: GraphOp) -> _Scaled | None:
    shape = tensor_of(op.results[0].type).shape
    whole = [operand for operand in op.operands if tensor_of(operand.type).shape == shape]
    if len(whole) == 1:
        (other,) = [operand for operand in op.operands if operand is not whole[0]]
        if _is_row_factor(other, shape):
            return _Scaled(other, (op,), lambda b: whole[0])
    for operand in whole:
        first = operand is op.operands[0]
        other = op.operands[1 if first else 0]
        if (inner := _scaled_inside(operand)) is not None:
            return inner.around(op, lambda b, v, other=other: b.mul(v, other))
    return None


def _is_row_factor(value: SSAValue, shape: tuple[Size, ...]) -> bool:
    """Whether a value of f32 is computed, one for all of a row."""
    tensor = tensor_of(value.type)
    return isinstance(value, OpResult) and tensor.dtype == f32 and _width(value) == 1 and shape[-1] != 1


def _cast(b: GraphBuilder, value: SSAValue, narrow: bool) -> SSAValue:
    """A value in bf16 or f32; of what was widened, the narrow value itself."""
    if narrow and isinstance(value, OpResult) and value.op.name == "graph.cast":
        source = value.op.operands[0]
        if tensor_of(source.type).dtype == bf16:
            return source
    return b.cast(value, dtype=bf16 if narrow else f32)


def _made_for(found: _Scaled, width: Size) -> list[Operation]:
    """The ops that make a factor and nothing else, if one of them reduces rows of that width and all can be inlined."""
    made: list[Operation] = []
    pending = [found.factor]
    while pending:
        op = pending.pop().owner
        if not isinstance(op, GraphOp) or op in made or (is_free(op) and not op.operands):
            continue
        only = all(use.operation in made or use.operation in found.ops for r in op.results for use in r.uses)
        if (
            only
            and (isinstance(op, Elementwise) or op.CHEAP or _reduces_rows(op, width))
            and CLAIM not in op.attributes
        ):
            made.append(op)
            pending += op.operands
    fitting = any(_reduces_rows(op, width) for op in made) and len(made) <= _MOST_OPS
    return [op for op in made if not is_free(op)] if fitting else []


def _reduces_rows(op: Operation, width: Size) -> bool:
    """Whether an op reduces rows of that width: those that the matmul's kernel has at hand."""
    if not isinstance(op, DimensionReduction) or op.name not in ("graph.sum", "graph.max", "graph.min"):
        return False
    *others, last = range(tensor_of(op.operands[0].type).rank)
    dims, shape = op.params["dims"], tensor_of(op.operands[0].type).shape
    return last in dims and shape[last] == width and all(shape[d] == 1 for d in others if d in dims)


def _reduce_last(op: DimensionReduction) -> None:
    """Reduce the last dimension alone: of others that are reduced with it there is one element."""
    last = tensor_of(op.operands[0].type).rank - 1
    if op.params["dims"] == (last,):
        return
    b = _before(op)
    made = b.emit(op.name.removeprefix("graph."), op.operands[0], **{**op.params, "dims": (last,), "keep": True})
    made.op.attributes[INLINED] = UnitAttr()
    op.results[0].replace_all_uses_with(b.reshape(made, shape=tensor_of(op.results[0].type).shape))
    op.detach()
    op.erase()


def _multiply(dot: Dot, factor: SSAValue, rows: Size) -> None:
    """Scale the rows of a matmul."""
    following = dot.next_op
    assert following is not None
    b, result = _before(following), dot.results[0]
    wide = b.cast(result, dtype=f32)
    scaled = b.cast(b.mul(wide, b.reshape(factor, shape=(rows, 1))), dtype=bf16)
    result.replace_uses_with_if(scaled, lambda use: use.operation is not wide.op)
