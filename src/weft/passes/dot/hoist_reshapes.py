"""Move reshapes up through elementwise ops of arguments, so that these are computed in the shape of who reads them.

`SinkReshapes` lets what follows a matmul be computed in its rows. What else that reads may be a chain of ops in the
model's own shape, as the normalized input of a norm in the norm's gradient: in another shape, it would be a kernel of
its own that writes what the other one reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue
from xdsl.passes import ModulePass

from weft.ir.expr import Size
from weft.ir.types import Tensor, tensor_of, tensor_type
from weft.ops.base import Elementwise, GraphOp
from weft.ops.graph import FuncOp, GraphBuilder, OpaqueOp
from weft.passes.dot.sink_reshapes import target_shape

Shape = tuple[Size, ...]


@dataclass(frozen=True)
class HoistReshapes(ModulePass):
    """Elementwise ops of arguments, all of whose readers reshape them alike, are computed in that shape.

    %c = graph.sub %x, %mean : 8x1024x768             %u = graph.reshape %x : 8192x768
    %n = graph.mul %c, %rstd : 8x1024x768      →      %m = graph.reshape %mean : 8192x1 ; %s = … %rstd : 8192x1
    %r = graph.reshape %n : 8192x768                  %c = graph.sub %u, %m : 8192x768
    %g = graph.mul %d, %r : 8192x768                  %n = graph.mul %c, %s : 8192x768 ; %g = graph.mul %d, %n
    """

    name: ClassVar[str] = "hoist_reshapes"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if isinstance(function, FuncOp):
                _hoist(function)


def _hoist(function: FuncOp) -> None:
    for op in list(function.block.ops):
        if _is_reshape(op):
            _reshape_before_broadcast(function, op)
    shapes = _shapes(function)
    made: dict[SSAValue, SSAValue] = {}
    hoisted = [op for op in function.block.ops if op in shapes]
    for op in hoisted:
        result, wanted = tensor_of(op.results[0].type), shapes[op]
        b = GraphBuilder(function.block, op.location, before=op)
        operands = [made[x] if x in made else _reshaped(b, x, result.shape, wanted) for x in op.operands]
        if all(tensor_of(x.type).rank < len(wanted) for x in operands):
            # Numbers and rows are left without dimensions of one element: of them alone would come fewer than wanted.
            first = tensor_of(operands[0].type).shape
            operands[0] = b.reshape(operands[0], shape=(*(1,) * (len(wanted) - len(first)), *first))
        new = type(op).create(
            operands=operands,
            result_types=[tensor_type(Tensor(result.dtype, wanted))],
            attributes=op.attributes,
            location=op.location,
        )
        function.block.insert_op_before(new, op)
        made[op.results[0]] = new.results[0]
    for op in reversed(hoisted):
        for use in list(op.results[0].uses):
            use.operation.results[0].replace_all_uses_with(made[op.results[0]])
            use.operation.detach()
            use.operation.erase()
        op.detach()
        op.erase()


def _reshape_before_broadcast(function: FuncOp, op: Operation) -> None:
    """Broadcast in the shape that a broadcast is reshaped to: what a row has, in a kernel of rows."""
    value = op.operands[0]
    if not isinstance(value, OpResult) or value.op.name != "graph.broadcast":
        return
    (x,), whole, wanted = value.op.operands, tensor_of(value.type).shape, tensor_of(op.results[0].type).shape
    if _target(tensor_of(x.type).shape, whole, wanted) is None:
        return
    b = GraphBuilder(function.block, op.location, before=op)
    op.results[0].replace_all_uses_with(b.broadcast(_reshaped(b, x, whole, wanted), shape=wanted))
    op.detach()
    op.erase()


def _shapes(function: FuncOp) -> dict[Operation, Shape]:
    """The ops that are computed in another shape, and that."""
    shapes: dict[Operation, Shape] = {}
    for op in reversed(list(function.block.ops)):
        if isinstance(op, Elementwise) and len(op.results) == 1:
            wanted = {_wanted(use.operation, op, shapes) for use in op.results[0].uses}
            (shape,) = wanted if len(wanted) == 1 else (None,)
            own = tensor_of(op.results[0].type).shape
            if shape is not None and shape != own and all(_is_free(x, own, shape) for x in op.operands):
                shapes[op] = shape
    # An op that cannot be moved is read in its own shape, and so are those that it is computed of.
    while stuck := [
        op for op in shapes if _is_read_as_it_is(op, shapes) or any(_stays(x, shapes, op) for x in op.operands)
    ]:
        for op in stuck:
            del shapes[op]
        for op in list(shapes):
            if any(not _is_reshape(use.operation) and use.operation not in shapes for use in op.results[0].uses):
                del shapes[op]
    return shapes


def _is_read_as_it_is(op: Operation, shapes: dict[Operation, Shape]) -> bool:
    """Whether what reads an op's result behind a reshape moves to the shape before that reshape."""
    for reshape in (use.operation for use in op.results[0].uses if _is_reshape(use.operation)):
        own = tensor_of(reshape.results[0].type).shape
        for reader in (use.operation for use in reshape.results[0].uses if use.operation in shapes):
            target = _target(own, tensor_of(reader.results[0].type).shape, shapes[reader])
            if target is not None and _source(reshape.results[0], target) is not None:
                return True
    return False


def _stays(x: SSAValue, shapes: dict[Operation, Shape], reader: Operation) -> bool:
    """Whether an operand is computed, and not in the shape that its reader moves to."""
    if not isinstance(x, OpResult) or not isinstance(x.op, Elementwise):
        return False
    own, whole = tensor_of(x.type).shape, tensor_of(reader.results[0].type).shape
    return x.op not in shapes or shapes[x.op] != _target(own, whole, shapes[reader])


def _wanted(user: Operation, op: Operation, shapes: dict[Operation, Shape]) -> Shape | None:
    """The shape in which a user reads an op's result."""
    if _is_reshape(user):
        return tensor_of(user.results[0].type).shape
    if user not in shapes:
        return None
    own, whole = tensor_of(op.results[0].type).shape, tensor_of(user.results[0].type).shape
    return _target(own, whole, shapes[user])


def _is_reshape(op: Operation) -> bool:
    return op.name == "graph.reshape"


def _is_free(x: SSAValue, whole: Shape, wanted: Shape) -> bool:
    """Whether an operand can be read in another shape: what is in memory, or made by a reshape from it, or elementwise.

    Of the others, kernels are best if they and what is computed of them have one shape.
    """
    target = _target(tensor_of(x.type).shape, whole, wanted)
    if target is None:
        return False
    if _source(x, target) is not None:
        return True
    while isinstance(x, OpResult) and isinstance(x.op, GraphOp) and x.op.CHEAP and x.op.operands:
        x = x.op.operands[0]
    plain = isinstance(x, BlockArgument) or isinstance(x.owner, OpaqueOp | Elementwise)
    return plain or (isinstance(x.owner, GraphOp) and x.owner.CHEAP)


def _source(x: SSAValue, target: Shape) -> SSAValue | None:
    """What a reshape makes a value from, if that has the wanted shape."""
    if not isinstance(x, OpResult) or not _is_reshape(x.op):
        return None
    return x.op.operands[0] if tensor_of(x.op.operands[0].type).shape == target else None


def _target(own: Shape, whole: Shape, wanted: Shape) -> Shape | None:
    """The shape of an operand for an op that is computed in another shape than it was."""
    if all(size == 1 for size in own):
        return own if len(own) <= len(wanted) else ()
    return target_shape((*(1,) * (len(whole) - len(own)), *own), whole, wanted)


def _reshaped(b: GraphBuilder, x: SSAValue, whole: Shape, wanted: Shape) -> SSAValue:
    own = tensor_of(x.type).shape
    target = _target(own, whole, wanted)
    assert target is not None
    if own == target or (len(own) <= len(target) and target == (*(1,) * (len(target) - len(own)), *own)):
        return x
    source = _source(x, target)
    return b.reshape(x, shape=target) if source is None else source
