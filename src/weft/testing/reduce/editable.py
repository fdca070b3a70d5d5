"""A graph function as plain values that are easy to take apart: what `weft reduce` works on.

Values are numbers. Types of results are not kept: they follow from the arguments when a function is built again, so
that a change of sizes or types is made at the arguments alone. Only an opaque call states its types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, cast

from xdsl.ir import Block, Operation, SSAValue

from weft.errors import UnsupportedError, WeftError
from weft.ir.attributes import from_attribute, to_attribute
from weft.ir.expr import Expr, Size, product
from weft.ir.types import DType, Tensor, tensor_of
from weft.ops.base import REGISTRY, GraphOp
from weft.ops.graph import FuncOp, GraphBuilder, GroupOp, OpaqueOp, ReturnOp, YieldOp


@dataclass(frozen=True)
class Node:
    """An op: `types` is empty but for an opaque call, whose target and arguments are its parameters."""

    name: str
    operands: tuple[int, ...]
    params: Mapping[str, Any]
    results: tuple[int, ...]
    types: tuple[Tensor, ...] = ()


@dataclass(frozen=True)
class Program:
    """A function. `arg_strides` and `out_strides` hold strides where they are not row-major."""

    arguments: Mapping[int, Tensor]
    nodes: tuple[Node, ...]
    outputs: tuple[int, ...]
    arg_strides: Mapping[int, Any] = field(default_factory=dict[int, Any])
    out_strides: Mapping[int, Any] = field(default_factory=dict[int, Any])
    """By the number of the value."""

    @property
    def made(self) -> set[int]:
        return {result for node in self.nodes for result in node.results}

    def live(self) -> Program:
        """Without what no output needs."""
        needed = set(self.outputs)
        kept: list[Node] = []
        for node in reversed(self.nodes):
            if needed & set(node.results):
                kept.append(node)
                needed.update(node.operands)
        arguments = {value: tensor for value, tensor in self.arguments.items() if value in needed}
        return replace(self, arguments=arguments, nodes=tuple(reversed(kept)))

    def keep(self, nodes: Iterable[int], types: Mapping[int, Tensor], *, expose: bool) -> Program | None:
        """Only these nodes; what they need of others comes in. `expose` returns what no node that is left uses."""
        kept = [self.nodes[number] for number in sorted(set(nodes))]
        made = {result for node in kept for result in node.results}
        used = {operand for node in kept for operand in node.operands}
        outputs = [value for value in self.outputs if value in made]
        if expose:
            outputs += [value for node in kept for value in node.results if value not in used]
        if not outputs:
            return None
        arguments = {value: types[value] for value in sorted(used - made)}
        return replace(self, arguments=arguments, nodes=tuple(kept), outputs=tuple(dict.fromkeys(outputs))).live()

    def renamed(self, old: int, new: int) -> Program:
        """With one value in the place of another."""

        def name(value: int) -> int:
            return new if value == old else value

        nodes = tuple(replace(node, operands=tuple(map(name, node.operands))) for node in self.nodes)
        return replace(self, nodes=nodes, outputs=tuple(map(name, self.outputs))).live()

    def mapped(self, size: Callable[[Size], Size], dtype: Callable[[DType], DType]) -> Program:
        """With other sizes and element types, in the arguments and in the parameters that are sizes or types."""

        def tensor(old: Tensor) -> Tensor:
            return Tensor(dtype(old.dtype), tuple(map(size, old.shape)))

        def param(name: str, value: Any) -> Any:
            if isinstance(value, DType):
                return dtype(value)
            if isinstance(value, Expr):
                return size(value)
            if isinstance(value, tuple):
                return tuple(
                    size(item) if isinstance(item, Expr) or (name == "shape" and isinstance(item, int)) else item
                    for item in cast(tuple[Any, ...], value)
                )
            return value

        nodes = tuple(
            replace(
                node,
                params={name: param(name, value) for name, value in node.params.items()},
                types=tuple(map(tensor, node.types)),
            )
            for node in self.nodes
        )
        return replace(self, arguments={n: tensor(t) for n, t in self.arguments.items()}, nodes=nodes)


def program_of(function: FuncOp) -> Program:
    """A function as plain values; groups are opened."""
    numbers: dict[SSAValue, int] = {value: number for number, value in enumerate(function.block.args)}
    nodes: list[Node] = []
    outputs = _read_block(function.block, numbers, nodes, count(len(numbers)))
    strides = {name: _strides(function, name) for name in ("arg_strides", "result_strides")}
    return Program(
        {numbers[value]: tensor_of(value.type) for value in function.block.args},
        tuple(nodes),
        tuple(outputs),
        dict(enumerate(strides["arg_strides"])),
        dict(zip(outputs, strides["result_strides"], strict=False)),
    ).live()


def _strides(function: FuncOp, name: str) -> tuple[Any, ...]:
    attribute = function.attributes.get(name)
    return () if attribute is None else cast(tuple[Any, ...], from_attribute(attribute))


def _read_block(block: Block, numbers: dict[SSAValue, int], nodes: list[Node], fresh: Iterator[int]) -> list[int]:
    for op in block.ops:
        operands = tuple(numbers[operand] for operand in op.operands)
        if isinstance(op, ReturnOp | YieldOp):
            return list(operands)
        if isinstance(op, GroupOp):
            numbers.update(zip(op.block.args, operands, strict=True))
            inner = _read_block(op.block, numbers, nodes, fresh)
            numbers.update(zip(op.results, inner, strict=True))
            continue
        numbers.update((result, next(fresh)) for result in op.results)
        nodes.append(_node(op, operands, tuple(numbers[result] for result in op.results)))
    raise UnsupportedError("a block has no return or yield at its end")


def _node(op: Operation, operands: tuple[int, ...], results: tuple[int, ...]) -> Node:
    if isinstance(op, OpaqueOp):
        params = {"target": op.target.data, "arguments": op.arguments.data}
        return Node(op.name, operands, params, results, tuple(tensor_of(result.type) for result in op.results))
    if isinstance(op, GraphOp):
        return Node(op.name, operands, op.params, results)
    raise UnsupportedError(f"{op.name} is not an op of a graph")


def function_of(program: Program, name: str = "reduced") -> FuncOp:
    """Build the function; raises a `WeftError` where an op does not take what it would get."""
    made, _ = build(program, name)
    return made


def build(program: Program, name: str = "reduced") -> tuple[FuncOp, dict[int, Tensor]]:
    """The function, and the type of every value."""
    function = FuncOp.make(name, {f"x{number}": tensor for number, tensor in program.arguments.items()})
    values: dict[int, SSAValue] = dict(zip(program.arguments, function.block.args, strict=True))
    builder = GraphBuilder(function.block)
    for node in program.nodes:
        operands = [values[operand] for operand in node.operands]
        results = _emit(builder, node, operands)
        values.update(zip(node.results, results, strict=True))
    builder.insert(ReturnOp.make([values[output] for output in program.outputs]))
    arg_strides = tuple(program.arg_strides.get(number) for number in program.arguments)
    out_strides = tuple(program.out_strides.get(number) for number in program.outputs)
    for key, strides in (("arg_strides", arg_strides), ("result_strides", out_strides)):
        if any(strides):
            function.attributes[key] = to_attribute(strides)
    return function, {number: tensor_of(value.type) for number, value in values.items()}


def _emit(builder: GraphBuilder, node: Node, operands: list[SSAValue]) -> list[SSAValue]:
    if node.types:
        call = OpaqueOp.make(node.params["target"], operands, node.params["arguments"], node.types)
        return list(builder.insert(call).results)
    params = _fitting(node, [tensor_of(operand.type) for operand in operands])
    try:
        made = REGISTRY[node.name.removeprefix("graph.")].cls.make(*operands, **params)
    except (TypeError, ValueError, LookupError) as error:  # a type rule met what it does not expect
        raise WeftError(f"{node.name}: {error}") from error
    return list(builder.insert(made).results)


def _fitting(node: Node, tensors: list[Tensor]) -> dict[str, Any]:
    """The parameters, with the one size of a reshape corrected that no longer fits."""
    params = dict(node.params)
    if node.name == "graph.reshape" and tensors[0].is_static:
        whole, shape = product(tensors[0].shape), params["shape"]
        for position in range(len(shape)):
            others = product(size for place, size in enumerate(shape) if place != position)
            if product(shape) == whole or not isinstance(others, int) or others == 0 or not isinstance(whole, int):
                break
            if whole % others == 0:
                params["shape"] = (*shape[:position], whole // others, *shape[position + 1 :])
                break
    return params
