"""Let kernels compute the small operands that they broadcast: a launch costs more than computing them again.

And let them widen what is in memory in a narrower type: to read it takes half as long.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.ir import Operation, OpResult, SSAValue
from xdsl.passes import ModulePass

from weft.ir.expr import Size, product
from weft.ir.types import bf16, f16, f32, tensor_of
from weft.ops.base import Elementwise, View, viewed
from weft.ops.elementwise.cast import Cast
from weft.ops.graph import FuncOp, OpaqueOp, ReturnOp
from weft.ops.matmul.attention import AnyAttention
from weft.ops.matmul.attention_gradients import AttentionGradients
from weft.ops.matmul.dot import Dot
from weft.ops.reduce import DimensionReduction
from weft.passes.grouping.build_groups import CLAIM, INLINED, is_free, readers

_CHEAP = frozenset(
    f"graph.{name}"
    for name in (
        *("cast", "add", "sub", "mul", "div", "neg", "abs", "sqrt", "rsqrt"),
        *("maximum", "minimum", "where", "eq", "ne", "lt", "le", "gt"),
    )
)
_MASKING = _CHEAP | {
    f"graph.{name}"
    for name in ("ge", "bitwise_and", "bitwise_or", "bitwise_not", "logical_and", "logical_or", "logical_not")
}
"""What masks of attention are made of, which has the places of rows and keys at hand."""
_SMALLER = 64
"""How many times the elements of an operand a mask must have to be computed wherever it is needed."""
_TIMES = 4
"""How many times the elements of what is computed the smallest kernel that reads it must have."""


@dataclass(frozen=True)
class InlineSmall(ModulePass):
    """Cheap ops on arguments, all of whose readers broadcast what they give, belong to no kernel of their own.

    %v = graph.add %variance, %eps   (512)           %v = graph.add %variance, %eps {weft.inlined}
    %f = graph.rsqrt %v              (512)     →     %f = graph.rsqrt %v {weft.inlined}
    %y = graph.mul %x, %f    (25088 x 512)           %y = graph.mul %x, %f

    Nor does a cast to f32 of a product that the function gives as it is, for a gradient say, if it is reduced and read
    again: the norm of a batch behind a convolution. Nor do those of attention's result and of its gradient, whose
    products are summed up for each row: they may lie in different orders, and so have no kernel in common.
    """

    name: ClassVar[str] = "inline_small"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if isinstance(function, FuncOp) and "prepares" not in function.attributes:
                wider = [each for each in function.block.ops if _widens_what_stays(each) or _widens_for_means(each)]
                for each in (*_small(function), *wider):
                    each.attributes[INLINED] = UnitAttr()


def _widens_what_stays(op: Operation) -> bool:
    """Whether an op is a cast to f32 of a product that is a result, too, and a reduction and others read it."""
    if not isinstance(op, Cast) or tensor_of(op.results[0].type).dtype != f32 or CLAIM in op.attributes:
        return False
    product = viewed(op.operands[0])
    is_narrow = tensor_of(product.type).dtype in (bf16, f16)
    if not is_narrow or not isinstance(product, OpResult) or not isinstance(product.op, Dot):
        return False
    reading = set(readers(op.results[0]))
    reduced = len(reading) > 1 and any(isinstance(each, DimensionReduction) for each in reading)
    stays = any(isinstance(each, ReturnOp) for each in readers(product))
    return reduced and stays and not any(isinstance(each, ReturnOp) for each in reading)


def _widens_for_means(op: Operation) -> bool:
    """Whether all that a cast to a wider type is for is a product summed up for the gradients of attention."""
    for name in ("graph.cast", "graph.mul", "graph.sum"):
        if op.name != name or CLAIM in op.attributes:
            return False
        users = list(_users(op.results[0]))
        if len(users) != 1:
            return False
        (op,) = users
    return isinstance(op, AttentionGradients)


def _users(value: SSAValue) -> Iterator[Operation]:
    """Who reads a value, as it is or through views."""
    for use in value.uses:
        if isinstance(use.operation, View):
            yield from _users(use.operation.results[0])
        else:
            yield use.operation


def _small(function: FuncOp) -> set[Operation]:
    """The ops that readers compute: of those that are cheap, all with operands that are there and such readers."""
    masks = _masks(function)
    found: set[Operation] = {
        op for op in function.block.ops if isinstance(op, Elementwise) and _is_cheap(op, op in masks)
    }
    asked: Iterable[Operation] = found
    while lacking := {op for op in asked if not _is_inlined(op, found, masks)}:
        found -= lacking
        asked = found.intersection(near for op in lacking for near in _beside(op))
    return found


def _beside(op: Operation) -> Iterator[Operation]:
    """The ops of which it may count whether readers compute an op: those that read it, and those that it reads."""
    yield from (use.operation for result in op.results for use in result.uses)
    values = list(op.operands)
    while values:
        owner = values.pop().owner
        if isinstance(owner, Operation):
            yield owner
            if isinstance(owner, View) or is_free(owner):
                values += owner.operands


def _is_cheap(op: Elementwise, masks: bool) -> bool:
    fixed = isinstance(product(tensor_of(op.results[0].type).shape), int)
    return (op.name in _CHEAP or masks) and CLAIM not in op.attributes and fixed and bool(op.results[0].uses)


def _is_inlined(op: Operation, others: set[Operation], masks: set[Operation]) -> bool:
    size = product(tensor_of(op.results[0].type).shape)
    if not all(_is_there(o) or o.owner in others or (op in masks and _is_small(o, size)) for o in op.operands):
        return False
    return op in masks or all(reader in others or _is_larger(reader, size) for reader in readers(op.results[0]))


def _is_small(value: SSAValue, size: Size) -> bool:
    """Whether a value has far fewer elements than what is computed of it: it is read again instead."""
    own = product(tensor_of(value.type).shape)
    return isinstance(own, int) and isinstance(size, int) and own * _SMALLER <= size


def _masks(function: FuncOp) -> set[Operation]:
    """The ops of which nothing is made but masks of attention: its factors come from memory, as matmuls want them."""
    attentions = [op for op in function.block.ops if isinstance(op, AnyAttention)]
    factors = {viewed(factor) for op in attentions for factor in op.operands[:3]}
    found: set[Operation] = set()
    for op in reversed(list(function.block.ops)):
        if isinstance(op, Elementwise) and op.name in _MASKING and op.results[0] not in factors:
            reading = list(readers(op.results[0]))
            if reading and all(isinstance(reader, AnyAttention) or reader in found for reader in reading):
                found.add(op)
    return found


def _is_there(value: SSAValue) -> bool:
    """Whether a value is in memory without a kernel, or computed wherever it is needed."""
    return not isinstance(value, OpResult) or isinstance(value.op, OpaqueOp) or is_free(value.op)


def _is_larger(reader: Operation, size: Size) -> bool:
    if not isinstance(reader, Elementwise):
        return False
    made = product(tensor_of(reader.results[0].type).shape)
    return not isinstance(made, int) or not isinstance(size, int) or made >= _TIMES * size
