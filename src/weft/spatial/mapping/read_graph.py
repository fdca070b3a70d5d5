"""Reads a graph of 8-bit integers as layers: products, what is computed of them element by element, and windows.

The graph says all there is to say of numerics: what is cast, scaled, rounded and clamped is what the machine computes,
and running the graph on NumPy gives the same bits.

    %p = graph.dot %x, %w {dtype = i32}                 a product on the matrix units
    %f = graph.cast %p {dtype = f32}                  ┐
    %s = graph.mul %f, %scale                         │ an expression on the vector unit
    %b = graph.add %s, %bias                          │
    %q = graph.cast clamp(round(%b)) {dtype = i8}     ┘ one conversion, which rounds and saturates
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from xdsl.ir import Operation, SSAValue

from weft.backends.reference.graph import run
from weft.backends.target import argument_names
from weft.errors import UnsupportedError
from weft.ir.locations import line_of
from weft.ir.types import f32, i8, i32, tensor_of
from weft.ops.base import GraphOp
from weft.ops.graph import FuncOp, ReturnOp
from weft.spatial.int8_builder import chips_of
from weft.spatial.isa import Function
from weft.spatial.mapping.layers import (
    BlockProduct,
    Constant,
    Convolution,
    Layer,
    Model,
    Node,
    Operand,
    PixelSum,
    Placed,
    Stream,
    Window,
)
from weft.spatial.mapping.read_heads import HeadReader, combined_shape, fresh_streams, streams_of_node
from weft.spatial.mapping.read_heads import shape_of as _shape_of
from weft.spatial.mapping.values import Expression, Product, RowSum, Wide, array_of, by_channel, clamped, kind_of, unary


class GraphReader(HeadReader):
    """Turns the ops of a function into layers, one after another."""

    def read(self, function: FuncOp, constants: Mapping[str, np.ndarray]) -> Model:
        for name, value in zip(argument_names(function), function.block.args, strict=True):
            if name in constants:
                self.values[value] = np.asarray(constants[name])
            else:
                self.values[value] = self._input(name, value)
        for op in function.block.ops:
            if isinstance(op, ReturnOp):
                self._return(op)
            else:
                self.values[op.results[0]] = self._value(op)
        return self.model

    def _input(self, name: str, value: SSAValue) -> Placed:
        tensor = tensor_of(value.type)
        shape = tuple(int(size) for size in tensor.shape)  # type: ignore[arg-type]
        if tensor.dtype != i8:
            raise UnsupportedError(
                f"the argument {name} is {tensor}, and the machine takes integers of 8 bits",
                hint="quantize it before, or give it as a constant",
            )
        made = self.model.tensor(name, shape, np.dtype(np.int8), image_of(shape, name))
        self.model.inputs.append(made)
        return made

    def _value(self, op: Operation) -> Any:
        operands = [self.values[operand] for operand in op.operands]
        if all(isinstance(operand, np.ndarray) for operand in operands):
            return _computed(op, operands)
        rule = getattr(self, f"_{op.name.removeprefix('graph.')}", None)
        made = rule(op, *operands) if rule and isinstance(op, GraphOp) else None
        if made is None:
            kinds = ", ".join(kind_of(operand) for operand in operands)
            raise UnsupportedError(
                f"{op.name} of {kinds} has no mapping to a spatial machine",
                location=line_of(op.location),
                hint="docs/spatial.md lists what is mapped",
            )
        return made

    # Products

    def _dot(self, op: GraphOp, x: Any, w: Any) -> Product | None:
        weights = array_of(w)
        if weights is None:
            return self._product_of_tensors(op, x, w)
        if not isinstance(x, Placed) or len(x.shape) != 2 or weights.dtype != np.int8 or weights.ndim != 2:
            return None
        if op.params.get("dtype") != i32 or x.height != 1:
            return None
        inner, outer = weights.shape
        kernel = np.ascontiguousarray(weights.T).reshape(outer, inner, 1, 1)
        work = Convolution(kernel, Window((1, 1), (1, 1), ((0, 0), (0, 0))))
        return Product(x, (1, x.width, outer), (x.shape[0], outer), work)

    def _convolution(self, op: GraphOp, x: Any, w: Any) -> Product | None:
        given, weights = op.params, array_of(w)
        plain = not given["transposed"] and given["groups"] == 1 and set(given["dilation"]) == {1}
        if not isinstance(x, Wide) or weights is None or weights.ndim != 4 or not plain:
            return None
        if weights.min(initial=0) < -128 or weights.max(initial=0) > 127:
            return None
        padding = tuple((a + int(c), b + int(d)) for (a, b), (c, d) in zip(x.padding, given["padding"], strict=True))
        self._border(op, x.tensor, max(size for pair in padding for size in pair), 0 if x.value is None else x.value)
        window = Window(weights.shape[2:], given["strides"], padding)
        shape = _shape_of(op)
        work = Convolution(weights.astype(np.int8), window)
        return Product(x.tensor, (shape[2], shape[3], shape[1]), shape, work)

    def _sum(self, op: GraphOp, x: Any) -> Product | None:
        if isinstance(x, Wide) and len(x.tensor.shape) < 4:
            return self._row_sum(op, x)
        if not isinstance(x, Wide) or len(x.tensor.shape) != 4 or x.value is not None:
            return None
        if tuple(op.params["dims"]) != (2, 3):
            return None
        return Product(x.tensor, (1, 1, x.tensor.channels), _shape_of(op), PixelSum())

    def _border(self, op: Operation, tensor: Placed, size: int, fill: int) -> None:
        """Keep pixels around a tensor; all its readers see the same."""
        if size and tensor.border and tensor.fill != fill:
            raise UnsupportedError(
                f"{tensor.name} is padded with {tensor.fill} here and with {fill} there",
                location=line_of(op.location),
                hint="give tensors that are padded differently a scale and zero of their own",
            )
        if size:
            tensor.border, tensor.fill = max(tensor.border, size), fill

    # What stands before a product

    def _cast(self, op: GraphOp, x: Any) -> Any:
        to = op.params["dtype"]
        if isinstance(x, Placed) and x.dtype == np.int8:
            if to == i32:
                return Wide(x)
            if to == f32:
                return Expression(Node(Function.I8_TO_F32, (Stream(x),)), None, x, x.shape)
        if isinstance(x, Product) and to == f32:
            return Expression(Node(Function.I32_TO_F32, ("product",)), x, None, x.shape)
        if isinstance(x, Expression) and to == i8 and set(x.steps) == {"round", "least", "most"}:
            return self._finish(op, Node(Function.F32_TO_I8, (x.node,)), x, np.dtype(np.int8))
        return None

    def _pad(self, op: GraphOp, x: Any) -> Wide | None:
        low, high = op.params["low"], op.params["high"]
        if not isinstance(x, Wide) or x.value is not None or len(low) != 4 or any((*low[:2], *high[:2])):
            return None
        return Wide(x.tensor, ((low[2], high[2]), (low[3], high[3])), int(op.params["value"]))

    # The vector unit

    def _mul(self, op: GraphOp, x: Any, y: Any) -> Expression | None:
        return unary(Function.SQUARE_F32, x) if x is y else self._binary(op, Function.MUL_F32, x, y)

    def _add(self, op: GraphOp, x: Any, y: Any) -> Expression | None:
        return self._binary(op, Function.ADD_F32, x, y)

    def _relu(self, op: GraphOp, x: Any) -> Expression | None:
        return unary(Function.RELU_F32, x)

    def _exp(self, op: GraphOp, x: Any) -> Expression | None:
        return unary(Function.EXP_F32, x)

    def _tanh(self, op: GraphOp, x: Any) -> Expression | None:
        return unary(Function.TANH_F32, x)

    def _rsqrt(self, op: GraphOp, x: Any) -> Expression | None:
        return unary(Function.RSQRT_F32, x)

    def _round(self, op: GraphOp, x: Any) -> Expression | None:
        if not isinstance(x, Expression) or x.steps:
            return None
        return Expression(x.node, x.product, x.tensor, x.shape, ("round",))

    def _maximum(self, op: GraphOp, x: Any, y: Any) -> Expression | None:
        return clamped(x, y, -128.0, "least")

    def _minimum(self, op: GraphOp, x: Any, y: Any) -> Expression | None:
        return clamped(x, y, 127.0, "most")

    def _binary(self, op: GraphOp, function: Function, x: Any, y: Any) -> Expression | None:
        if array_of(x) is not None:
            x, y = y, x  # both functions commute, bit by bit
        if not isinstance(x, Expression) or x.steps:
            return None
        if (constant := array_of(y)) is not None:
            channels = by_channel(constant, x.shape)
            if constant.dtype != np.float32:
                return None
            if channels is None:
                beside = self._constant_tensor(constant, x.shape)
                return None if beside is None else self._binary(op, function, x, beside)
            return Expression(Node(function, (x.node, self._constant(y, channels))), x.product, x.tensor, x.shape)
        if not isinstance(y, Expression) or y.steps or (shape := combined_shape(x, y)) is None:
            return None
        if x.product and y.product:
            # Two products never meet: both are written first, as numbers of 32 bits.
            whole = x.product if not isinstance(x.product.work, RowSum) else y.product
            x, y = (self._materialized(op, each, whole, shape) for each in (x, y))
        product, tensor = x.product or y.product, x.tensor or y.tensor
        if _repeated_sum(product, tensor, shape):
            x, y = (self._row_value(op, each) if each.product else each for each in (x, y))
            return Expression(Node(function, (x.node, y.node)), None, tensor, shape)
        if product is not None and tensor is not None:
            product = self._resolved(product, tensor, shape)
        return Expression(Node(function, (x.node, y.node)), product, tensor, shape)

    def _constant_tensor(self, given: np.ndarray, shape: tuple[int, ...]) -> Expression | None:
        """A matrix of integers of 8 bits beside another, or beside the scores of each head."""
        small = np.all(given == np.rint(given)) and given.min(initial=0) >= -128 and given.max(initial=0) <= 127
        if len(shape) not in (2, 3) or given.shape[-2:] != shape[-2:]:
            return None
        if not small or given.size != shape[-2] * shape[-1]:
            return None
        found = next((each for each in self.model.constants if each.data is given), None)
        if found is None:
            image = (1, shape[-2], shape[-1])
            found = self.model.tensor(f"constant{len(self.model.tensors)}", image[1:], np.dtype(np.int8), image)
            found.data = given
            self.model.constants.append(found)
        return Expression(Node(Function.I8_TO_F32, (Stream(found),)), None, found, shape)

    def _constant(self, given: np.ndarray, channels: np.ndarray) -> Constant:
        """A constant of an expression; one that is used twice is the same."""
        return self.known.setdefault((id(given), len(channels)), Constant(channels))

    def _materialized(self, op: GraphOp, x: Expression, like: Product, shape: tuple[int, ...]) -> Expression:
        assert x.product is not None and isinstance(x.node, Node), "it is computed of a product"
        product = self._resolved(x.product, like, shape)
        made = self._layer(op, x.node, product, shape, product.output, np.dtype(np.float32))
        return Expression(Stream(made), None, made, shape)

    def _max_pool(self, op: GraphOp, x: Any) -> Placed | None:
        given = op.params
        if not isinstance(x, Placed) or len(x.shape) != 4 or len(given["window"]) != 2 or set(given["dilation"]) != {1}:
            return None
        window = Window(given["window"], given["strides"], given["padding"])
        self._border(op, x, max(size for pair in window.padding for size in pair), -128)
        (up, _), (left, _) = window.padding
        taps = [
            Stream(x, (row - up, column - left), (window.strides[0], window.strides[1]))
            for row in range(window.kernel[0])
            for column in range(window.kernel[1])
        ]
        node: Operand = taps[0]
        for tap in taps[1:]:
            node = Node(Function.MAX_I8, (node, tap))
        if not isinstance(node, Node):
            node = Node(Function.COPY_I8, (node,))
        shape = _shape_of(op)
        return self._layer(op, node, None, shape, (shape[2], shape[3], shape[1]), np.dtype(np.int8))

    # Layers

    def _finish(self, op: Operation, node: Node, of: Expression, dtype: np.dtype[np.generic]) -> Placed:
        if of.product is None and of.tensor is not None and len(of.shape) == 3:
            image = (1, of.tensor.width, of.tensor.channels)
        else:
            image = of.product.output if of.product else image_of(of.shape, op.name)
        return self._layer(op, node, of.product, of.shape, image, dtype)

    def _layer(
        self,
        op: Operation,
        node: Node,
        product: Product | None,
        shape: tuple[int, ...],
        image: tuple[int, int, int],
        dtype: np.dtype[np.generic],
    ) -> Placed:
        if product is not None and isinstance(product.work, RowSum):
            raise UnsupportedError(
                "a sum over rows is not combined with what has rows",
                location=line_of(op.location),
                hint="multiply or add it to a matrix",
            )
        output = self.model.tensor(f"t{len(self.model.tensors)}", shape, dtype, image)
        beside = [each.tensor.order for each in streams_of_node(node)]
        output.order = product.order if product is not None else next(iter(beside), None)
        node = fresh_streams(node)
        self.model.origins.append(f"{op.name} at {line_of(op.location) or 'no known line'}")
        origin, source = len(self.model.origins) - 1, product.source if product else None
        work = product.work if product else None
        assert not isinstance(work, RowSum), "it was refused above"
        loaded = tuple(work.tensors) if isinstance(work, BlockProduct) else ()
        self.model.layers.append(Layer(origin, source, output, node, work, loaded=loaded, chips=chips_of(op)))
        return output

    def _return(self, op: ReturnOp) -> None:
        for value in op.operands:
            made = self.values[value]
            if isinstance(made, Product):
                node = Node(Function.COPY_I32, ("product",))
                made = self._layer(op, node, made, made.shape, made.output, np.dtype(np.int32))
            if not isinstance(made, Placed) or made in self.model.inputs:
                raise UnsupportedError(
                    f"{kind_of(made)} is returned, which no layer computes",
                    location=line_of(op.location),
                    hint="results are integers: of 8 bits, or sums of products in 32",
                )
            self.model.outputs.append(made)
        self._check_orders(op)


def read_graph(function: FuncOp, constants: Mapping[str, np.ndarray], lanes: int, per_tile: int) -> Model:
    """The layers of a function whose arguments, apart from the constants, are integers of 8 bits."""
    return GraphReader(Model(lanes), per_tile).read(function, constants)


def image_of(shape: tuple[int, ...], name: str) -> tuple[int, int, int]:
    """A shape as rows, columns and channels: [M, K] and [1, C, H, W] are what machines take."""
    match shape:
        case (rows, channels):
            return 1, rows, channels
        case (1, channels, height, width):
            return height, width, channels
        case _:
            raise UnsupportedError(f"{name} has the shape {list(shape)}", hint="matrices, and images of a batch of one")


def _computed(op: Operation, operands: Sequence[np.ndarray]) -> np.ndarray:
    """The result of an op on constants."""
    block = FuncOp.make("constant", {f"x{n}": tensor_of(each.type) for n, each in enumerate(op.operands)})
    clone = op.clone(dict(zip(op.operands, block.block.args, strict=True)))
    block.block.add_op(clone)
    block.block.add_op(ReturnOp.make(clone.results))
    return run(block, list(operands))[0]


_FEW_ROWS = 16
"""Of so many rows the weights are the bound."""
_PLANES, _COPIES, _FILL = 4, 2, 90
"""About how many rows are multiplied and computed in a cycle, and the cycles in which a layer fills its pipeline."""


def _repeated_sum(product: Product | None, tensor: Placed | None, shape: tuple[int, ...]) -> bool:
    """Whether a sum over rows is written once, not computed anew for each block that is combined with it."""
    if product is None or tensor is None or not isinstance(product.work, RowSum) or len(shape) != 2:
        return False
    rows, passes = tensor.width, product.source.blocks
    once = rows * (passes - 1 + _PLANES / _COPIES) / _PLANES
    written = once + tensor.blocks * rows / _COPIES + _FILL
    return tensor.blocks > 2 and (rows <= _FEW_ROWS or written < tensor.blocks * once)
