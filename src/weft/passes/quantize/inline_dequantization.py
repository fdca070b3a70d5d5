"""Leave quantized tensors in memory as codes of 8 bits: kernels that read them later widen them by themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.ir import Block, Operation, SSAValue, Use
from xdsl.passes import ModulePass

from weft.ir.types import i8, tensor_of, u8
from weft.ops.base import Elementwise, View
from weft.ops.elementwise.cast import Cast
from weft.ops.graph import FuncOp, GraphBuilder
from weft.ops.reduce import DimensionReduction
from weft.passes.grouping.build_groups import CLAIM, INLINED, is_free, readers
from weft.passes.simplify.constant_values import number_of

_STEPS = ("graph.cast", "graph.sub", "graph.add", "graph.mul", "graph.div")


@dataclass(frozen=True)
class InlineDequantization(ModulePass):
    """Codes that a kernel makes, to which another adds what it has made after them:

    %q = graph.cast %y to u8                        %q = graph.cast %y to u8
    %f = graph.cast %q to f32                       %f = graph.cast %q to f32        {weft.inlined}
    %x = graph.mul %f, 0.02                  →      %x = graph.mul %f, 0.02          {weft.inlined}
    %a = graph.dot %b, %c                           %a = graph.dot %b, %c
    %z = graph.add %a, %x                           %z = graph.add %a, %x

    What can join the kernel that makes the codes finds them in registers. What does not read every element once (a
    matmul, a window) finds the wide tensor in memory, as before.
    """

    name: ClassVar[str] = "inline_dequantization"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if isinstance(function, FuncOp) and "prepares" not in function.attributes:
                order = {each: place for place, each in enumerate(function.block.ops)}
                for each in list(function.block.ops):
                    if isinstance(each, Cast) and tensor_of(each.operands[0].type).dtype in (i8, u8):
                        _inline(function, each, order)


def _inline(function: FuncOp, cast: Cast, order: dict[Operation, int]) -> None:
    chain = _chain(cast)
    end = chain[-1].results[0]
    if is_free(cast) or not tensor_of(end.type).dtype.is_float:
        return
    near = [use for use in end.uses if _reads_once(use) and _comes_later(use, chain, order)]
    if not near:
        return
    if len(near) == len(list(end.uses)):
        for op in chain:
            op.attributes[INLINED] = UnitAttr()
        return
    if cast.operands[0].has_one_use():  # the wide tensor is in memory anyway, and codes would be there for this alone
        return
    b = GraphBuilder(function.block, cast.location, before=cast)
    made = cast.operands[0]
    for op in chain:
        operands = [made if _is_made(each) else each for each in op.operands] if op is not cast else [made]
        copy = type(op).make(*operands, location=op.location, **op.params)
        copy.attributes[INLINED] = UnitAttr()
        b.before = op
        made = b.insert(copy).results[0]
    for use in near:
        use.operation.operands[use.index] = made


def _chain(cast: Cast) -> list[Elementwise]:
    """The ops from codes to what they stand for: each but the last is read by the next alone."""
    chain: list[Elementwise] = [cast]
    while chain[-1].results[0].has_one_use():
        (use,) = chain[-1].results[0].uses
        op = use.operation
        if not isinstance(op, Elementwise) or op.name not in _STEPS or CLAIM in op.attributes or is_free(op):
            break
        if isinstance(op, Cast) and not tensor_of(op.results[0].type).dtype.is_float:
            break
        same = tensor_of(op.results[0].type).shape == tensor_of(cast.results[0].type).shape
        if not same or any(_is_made(each) and each is not chain[-1].results[0] for each in op.operands):
            break
        chain.append(op)
    return chain


def _is_made(value: SSAValue) -> bool:
    """Whether an operand is a tensor, and not a number."""
    return number_of(value) is None


def _reads_once(use: Use) -> bool:
    op: Operation = use.operation
    if isinstance(op, View):
        reading = list(readers(op.results[0]))
        return bool(reading) and all(_is_elementwise(each) for each in reading)
    return _is_elementwise(op)


def _comes_later(use: Use, chain: Sequence[Elementwise], order: dict[Operation, int]) -> bool:
    """Whether what reads codes cannot join the kernel that makes them: it is a reduction, or waits for another."""
    made = _origin(chain[0].operands[0])
    here = order.get(made, -1) if isinstance(made, Operation) else -1
    if here < 0:
        return True
    for reader in readers(use.operation.results[0]) if isinstance(use.operation, View) else (use.operation,):
        others = (_origin(each) for each in reader.operands if _is_made(each) and each.owner is not chain[-1])
        waits = any(isinstance(each, Operation) and order.get(each, -1) > here for each in others)
        if not isinstance(reader, DimensionReduction) and not waits:
            return False
    return True


def _origin(value: SSAValue) -> Operation | Block:
    """The op that starts the kernel which makes a value: seen through views, and ops of one tensor and numbers."""
    while isinstance(op := value.owner, Elementwise | View):
        tensors = [each for each in op.operands if _is_made(each)]
        if not tensors:
            break
        value = max(tensors, key=lambda each: tensor_of(each.type).rank)
    return value.owner


def _is_elementwise(op: Operation) -> bool:
    return isinstance(op, Elementwise | DimensionReduction) and CLAIM not in op.attributes
