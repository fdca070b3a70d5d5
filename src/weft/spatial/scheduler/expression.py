"""What the vector unit has to do for a layer: how many copies of its expression run side by side, and what they read.

Also how a slot of padding gets its value: where rows of an image share vectors, some slots hold rows outside of it. The
expression computes them like the others, with constants of their own that make the result the padding's value.
"""

from __future__ import annotations

from collections.abc import Iterator

from weft.errors import UnsupportedError
from weft.spatial.isa import Function
from weft.spatial.machine import StreamingMachine
from weft.spatial.mapping.layers import Constant, Layer, Node, Operand, Stream
from weft.spatial.scheduler.mesh import Chains, place_expression

TENSOR_STREAMS = (28, 29)
"""Streams that bring tensors to an expression beside a product."""
NARROW_STREAMS = (*TENSOR_STREAMS, 30, 31)
"""Streams that bring tensors of 8 bits to an expression without a product, beside tensors of 32."""
OUTPUT_STREAMS = 8


def streams_of(node: Operand) -> list[Stream]:
    """The tensors that an expression reads."""
    if isinstance(node, Stream):
        return [node]
    return [each for operand in node.operands for each in streams_of(operand)] if isinstance(node, Node) else []


def constants_of(node: Node) -> Iterator[Constant]:
    """The constants of an expression, in the order of its operands."""
    for operand in node.operands:
        if isinstance(operand, Constant):
            yield operand
        elif isinstance(operand, Node):
            yield from constants_of(operand)


def in_one_half(layer: Layer) -> bool:
    """Whether a layer has the planes of one half: the one in which its weights lie, where they are a tensor."""
    return bool(layer.tile_tensors)


def stream_groups(layer: Layer) -> int:
    """Groups of four streams that bring tensors of 32 bits to an expression: those that constants leave."""
    return 5 - len({id(each) for each in constants_of(layer.root)})


def chains_of(machine: StreamingMachine, layer: Layer) -> Chains:
    """As many copies of a layer's expression as ALUs and streams allow."""
    most = min(machine.matrix.planes, OUTPUT_STREAMS // layer.output.dtype.itemsize)
    tensors = streams_of(layer.root)
    if in_one_half(layer):
        most = min(most, machine.matrix.planes // 2)
    if layer.source is not None:
        most = min(most, len(TENSOR_STREAMS) // len(tensors)) if tensors else most
        if any(each.tensor.dtype.itemsize > 1 for each in tensors):
            raise UnsupportedError("a tensor of 32 bits is read beside a product", hint="convert it to 8 bits")
    elif wide := sum(each.tensor.dtype.itemsize > 1 for each in tensors):
        most = min(most, stream_groups(layer) // wide, len(NARROW_STREAMS) // max(1, len(tensors) - wide))
    elif len(tensors) > 1 and len({each.tensor.number for each in tensors}) < len(tensors):
        most = 1
    if not most:
        raise UnsupportedError(f"an expression reads {len(tensors)} tensors beside a product", hint="split it")
    return place_expression(layer.root, machine.vector, most)


def padding_constants(root: Node, fill: int) -> dict[int, float] | None:
    """For constants of an expression, by `id`, the numbers that make its result `fill`; None where none do."""
    if root.function != Function.F32_TO_I8 or not isinstance(root.operands[0], Node):
        return None
    return _forced(root.operands[0], float(fill))


def _forced(node: Operand, value: float) -> dict[int, float] | None:
    if not isinstance(node, Node):
        return None
    if node.function == Function.RELU_F32:
        return _forced(node.operands[0], value) if value >= 0 else None
    if len(node.operands) != 2:
        return None
    one, other = node.operands
    if node.function == Function.MUL_F32 and isinstance(other, Constant):
        return {id(other): 0.0} if value == 0 else None
    if node.function != Function.ADD_F32:
        return None
    if isinstance(other, Constant):
        left = _forced(one, 0.0)
        return None if left is None else {**left, id(other): value}
    both: tuple[tuple[Operand, Operand], ...] = ((one, other), (other, one))
    for first, second in both:
        left, right = _forced(first, value), _forced(second, 0.0)
        if left is not None and right is not None:
            return {**left, **right}
    return None
