"""Reads what attention is made of: matrices seen by heads, products of two tensors, sums over rows, joined caches."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from xdsl.ir import Operation, SSAValue

from weft.errors import UnsupportedError
from weft.ir.locations import line_of
from weft.ir.types import i32, tensor_of
from weft.ops.base import GraphOp
from weft.spatial.mapping.heads import head_sums, query_order, row_sums, score_order, score_product, value_product
from weft.spatial.mapping.layers import BlockProduct, Constant, Model, Node, Placed, Stream
from weft.spatial.mapping.values import Expression, Heads, Product, RowSum, Wide


@dataclass
class HeadReader:
    """The part of a reader of graphs that knows of heads."""

    model: Model
    per_tile: int
    values: dict[SSAValue, Any] = field(default_factory=dict[SSAValue, Any])
    known: dict[tuple[int, int], Constant] = field(default_factory=dict[tuple[int, int], Constant])
    """Constants of expressions, by the array that they are."""

    def _reshape(self, op: GraphOp, x: Any) -> Any:
        """One pixel may be a matrix of one row, and a matrix may be seen by heads."""
        shape = shape_of(op)
        if isinstance(x, Placed) and x.height * x.width == 1 and not x.border and shape == (1, x.channels):
            x.shape = shape
            return x
        if isinstance(x, Product) and len(x.shape) == 4 and x.output[:2] == (1, 1) and shape == (1, x.output[2]):
            return replace(x, shape=shape)
        if isinstance(x, Placed) and len(x.shape) == 2 and len(shape) == 3 and x.shape[0] == shape[0]:
            return Heads(x, shape[1], shape[2], "shd")
        if not isinstance(x, Heads):
            return None
        if x.axes == "shd" and shape == (x.tensor.width, x.heads * x.width) and len(x.tensor.shape) == 3:
            x.tensor.shape = shape
            return x.tensor
        if x.axes == "hsd" and shape == (x.heads, 1, x.tensor.width, x.width):
            return replace(x, axes="g1sd")
        if x.axes == "grsd" and shape == (x.heads, x.tensor.width, x.width):
            return replace(x, axes="hsd")
        return None

    def _permute(self, op: GraphOp, x: Any) -> Heads | None:
        dims = tuple(op.params["dims"])
        if isinstance(x, Placed) and len(x.shape) == 3 and dims == (1, 0, 2):
            return Heads(x, x.shape[0], x.shape[2], "shd")
        if isinstance(x, Heads) and len(x.axes) == 3 and sorted(dims) == [0, 1, 2]:
            return replace(x, axes="".join(x.axes[dim] for dim in dims))
        return None

    def _broadcast(self, op: GraphOp, x: Any) -> Heads | None:
        shape = shape_of(op)
        if not isinstance(x, Heads) or x.axes != "g1sd" or len(shape) != 4:
            return None
        return replace(x, axes="grsd", heads=shape[0] * shape[1], repeats=shape[1])

    def _concat(self, op: GraphOp, *parts: Any) -> Placed | None:
        """Rows of tensors one after another, such as what a cache holds and what is new, or their channels, such as
        what different chips compute: they lie so from the start."""
        if not all(isinstance(x, Placed) and len(x.shape) == 2 for x in parts):
            return None
        if any(x.within is not None or x.border for x in parts) or len(set(map(id, parts))) < 2:
            return None
        if op.params["dim"] == 1:
            return self._joined_channels(op, parts)
        if op.params["dim"] != 0 or any(x.order is not None for x in parts):
            return None
        rows, channels = shape_of(op)
        name = f"t{len(self.model.tensors)}"
        whole = self.model.tensor(name, (rows, channels), parts[0].dtype, (1, rows, channels))
        for number, part in enumerate(parts):
            part.within, part.shift = whole, sum(each.width for each in parts[:number])
        return whole

    def _joined_channels(self, op: GraphOp, parts: tuple[Placed, ...]) -> Placed | None:
        """A tensor whose blocks are those of its parts, one after another."""
        if any(each.dtype != parts[0].dtype for each in parts):
            return None
        rows, channels = shape_of(op)
        whole = self.model.tensor(f"t{len(self.model.tensors)}", (rows, channels), parts[0].dtype, (1, rows, channels))
        orders: list[np.ndarray] = []
        first = 0
        for part in parts:
            part.within, part.first_block = whole, sum(len(each) for each in orders) // self.model.lanes
            order = np.full(part.blocks * self.model.lanes, -1)
            own = np.arange(part.channels) if part.order is None else part.order
            order[: len(own)] = np.where(own >= 0, own + first, -1)
            orders.append(order)
            first += part.channels
        order = np.concatenate(orders)
        if not np.array_equal(order[:channels], np.arange(channels)):
            whole.order = order
        return whole

    def _product_of_tensors(self, op: GraphOp, x: Any, y: Any) -> Product | None:
        """Queries by keys, or scores by values."""
        if op.params.get("dtype") != i32 or not isinstance(y, Heads) or y.tensor.order is not None:
            return None
        heads, repeats, width, lanes = y.heads, y.repeats, y.width, self.model.lanes
        if isinstance(x, Heads) and x.axes == "hsd" and y.axes == "hds" and (x.heads, x.width) == (heads, width):
            if x.repeats != 1 or x.tensor is y.tensor:
                return None
            self._arrange(op, x.tensor, query_order(heads, repeats, width, lanes))
            work = score_product(x.tensor, y.tensor, heads, repeats, width, self.per_tile)
            order = score_order(heads, y.tensor.width, lanes)
            shape = (heads, x.tensor.width, y.tensor.width)
            return Product(x.tensor, (1, shape[1], heads * shape[2]), shape, work, order)
        if isinstance(x, Placed) and len(x.shape) == 3 and y.axes == "hsd" and x.shape[0] == heads:
            work = value_product(x, y.tensor, heads, repeats, width, self.per_tile)
            order = query_order(heads, repeats, width, lanes)
            return Product(x, (1, x.width, heads * width), (heads, x.width, width), work, order)
        return None

    def _row_sum(self, op: GraphOp, x: Wide) -> Product | None:
        """The sum over the last dimension; in how many lanes, what it is combined with tells."""
        rank = len(x.tensor.shape)
        if (
            x.value is not None
            or rank not in (2, 3)
            or tuple(op.params["dims"]) != (rank - 1,)
            or not op.params["keep"]
        ):
            return None
        return Product(x.tensor, (1, x.tensor.width, 1), shape_of(op), RowSum())

    def _resolved(self, product: Product, like: Product | Placed, shape: tuple[int, ...]) -> Product:
        """A sum over rows in the lanes of what it is combined with."""
        if not isinstance(product.work, RowSum):
            return product
        order = like.order
        channels = like.output[2] if isinstance(like, Product) else like.channels
        held = channels if order is None else len(order)
        work: BlockProduct
        if len(shape) == 3:
            repeats = 1 if order is None else _repeats(order, shape[0] * shape[2], shape[2])
            keys = product.source.shape[2]
            work = head_sums(product.source, shape[0], repeats, shape[2], keys, self.per_tile)
        else:
            work = row_sums(product.source, -(-held // self.model.lanes))
        return Product(product.source, (1, product.source.width, channels), shape, work, order)

    def _row_value(self, op: Operation, x: Expression) -> Expression:
        """What is computed of a sum over rows, written once: every block of what it is combined with reads it."""
        assert x.product is not None and isinstance(x.node, Node), "it is computed of a sum"
        source, lanes = x.product.source, self.model.lanes
        image = (1, source.width, lanes)
        product = Product(source, image, (source.width, lanes), row_sums(source, 1))
        made = self._layer(op, x.node, product, product.shape, image, np.dtype(np.float32))
        return Expression(Stream(made), None, made, (source.width, 1))

    def _layer(
        self,
        op: Operation,
        node: Node,
        product: Product | None,
        shape: tuple[int, ...],
        image: tuple[int, int, int],
        dtype: np.dtype[np.generic],
    ) -> Placed:
        """A layer that computes an expression; its output."""
        raise NotImplementedError

    def _arrange(self, op: Operation, tensor: Placed, order: np.ndarray | None) -> None:
        """Lay the channels of a tensor out in another order, and those of the tensors that are added to it."""
        if order is None and tensor.order is None:
            return
        if tensor.within is not None:
            raise UnsupportedError(
                f"{tensor.name} is a part of another tensor, and used by heads that share keys",
                location=line_of(op.location),
                hint="convert it in a layer of its own",
            )
        tensor.order = order
        for layer in self.model.layers:
            if layer.output is tensor:
                for stream in streams_of_node(layer.root):
                    self._arrange(op, stream.tensor, order)

    def _check_orders(self, op: Operation) -> None:
        """Tensors that are added lane by lane have the same order of channels."""
        for layer in self.model.layers:
            for stream in streams_of_node(layer.root):
                if stream.tensor.data is not None and len(layer.output.shape) == 3:
                    continue  # the same for every head, and a head begins with a block
                one, other = stream.tensor.order, layer.output.order
                same = np.array_equal(one, other) if one is not None and other is not None else one is other
                if not same:
                    raise UnsupportedError(
                        f"{stream.tensor.name} is used by heads that share keys, and beside a tensor that is not",
                        location=line_of(op.location),
                        hint="convert it in a layer of its own",
                    )


def streams_of_node(node: Any) -> list[Stream]:
    """The tensors that an expression reads."""
    if isinstance(node, Stream):
        return [node]
    return [each for operand in node.operands for each in streams_of_node(operand)] if isinstance(node, Node) else []


def fresh_streams(node: Any) -> Any:
    """An expression in which every place that reads a tensor does so on its own."""
    if isinstance(node, Stream):
        return replace(node)
    return Node(node.function, tuple(fresh_streams(each) for each in node.operands)) if isinstance(node, Node) else node


def combined_shape(x: Expression, y: Expression) -> tuple[int, ...] | None:
    """The shape of two expressions together; a sum over rows is the same in all of them."""
    for one, other in ((x, y), (y, x)):
        summed = other.product is not None and isinstance(other.product.work, RowSum)
        if one.shape == other.shape or (summed and (*one.shape[:-1], 1) == other.shape):
            return one.shape
    return None


def shape_of(op: Operation) -> tuple[int, ...]:
    return tuple(int(size) for size in tensor_of(op.results[0].type).shape)  # type: ignore[arg-type]


def _repeats(order: np.ndarray, channels: int, width: int) -> int:
    """How many heads share one of keys, from the order that this gives the queries."""
    heads = channels // width
    second = int(order[width]) // width if heads > 1 and len(order) > width and order[width] >= 0 else heads
    return second
