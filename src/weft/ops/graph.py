"""The graph dialect's containers (functions, groups, calls, launches, constants) and the builder that appends ops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, LocationAttr, ModuleOp, StringAttr, TensorType
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.irdl import (
    attr_def,
    irdl_op_definition,
    opt_attr_def,
    region_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.traits import IsolatedFromAbove, IsTerminator, NoTerminator

from weft.ir.attributes import Value, from_attribute, to_attribute
from weft.ir.expr import Size
from weft.ir.operations import WeftOp
from weft.ir.types import Tensor, tensor_of, tensor_type
from weft.ops.base import REGISTRY


@irdl_op_definition
class FuncOp(WeftOp):
    """A whole program: tensors in, tensors out.

    `result_names` are what a model calls its results, where it says so.
    `symbols` holds what is known of each symbolic size; `arg_strides` and `result_strides` hold strides, in elements,
    where they are not row-major; `mutated` pairs an argument with the result that must be written back to it, and
    `replaced` has those of the pairs whose result has no other use, so that it may be written over the argument.
    `donated` has the arguments that nobody reads after the call: whatever fits may be made in their memory.
    """

    name = "graph.func"
    sym_name = attr_def(StringAttr)
    arg_names = opt_attr_def(ArrayAttr[StringAttr])
    result_names = opt_attr_def(ArrayAttr[StringAttr])
    symbols = opt_attr_def(DictionaryAttr)
    body = region_def("single_block")
    traits = traits_def(IsolatedFromAbove())

    @classmethod
    def make(cls, name: str, arguments: Mapping[str, Tensor]) -> Self:
        block = Block(arg_types=[tensor_type(tensor) for tensor in arguments.values()])
        for value, hint in zip(block.args, arguments, strict=True):
            value.name_hint = hint if hint.isidentifier() else None
        names = ArrayAttr(StringAttr(name) for name in arguments)
        attributes = {"sym_name": StringAttr(name), "arg_names": names}
        return cls.create(attributes=attributes, regions=[Region(block)])

    @property
    def block(self) -> Block:
        return self.body.block

    @property
    def returned(self) -> ReturnOp:
        last = self.block.last_op
        assert isinstance(last, ReturnOp), "verified"
        return last


@irdl_op_definition
class ReturnOp(WeftOp):
    """Ends a function with its results."""

    name = "graph.return"
    args = var_operand_def(TensorType)
    traits = traits_def(IsTerminator())

    @classmethod
    def make(cls, values: Sequence[SSAValue]) -> Self:
        return cls.create(operands=values)


@irdl_op_definition
class GroupOp(WeftOp):
    """Ops that become one kernel. The block's arguments are the operands; `claim` names who makes the kernel."""

    name = "graph.group"
    args = var_operand_def(TensorType)
    outs = var_result_def(TensorType)
    claim = opt_attr_def(StringAttr)
    body = region_def("single_block")
    traits = traits_def(IsolatedFromAbove())

    @property
    def block(self) -> Block:
        return self.body.block

    @property
    def yielded(self) -> Sequence[SSAValue]:
        last = self.block.last_op
        assert isinstance(last, YieldOp), "verified"
        return last.operands


@irdl_op_definition
class YieldOp(WeftOp):
    """Ends a group with the values that leave it."""

    name = "graph.yield"
    args = var_operand_def(TensorType)
    traits = traits_def(IsTerminator())


@irdl_op_definition
class OpaqueOp(WeftOp):
    """A call that Weft does not look into: `target` names it for the framework that brought it.

    `arguments` is the call's argument list, where `#n` stands for operand n; the framework's runtime carries it out.
    """

    name = "graph.opaque"
    args = var_operand_def(TensorType)
    outs = var_result_def(TensorType)
    target = attr_def(StringAttr)
    arguments = attr_def(StringAttr)

    @classmethod
    def make(
        cls,
        target: str,
        operands: Sequence[SSAValue],
        arguments: str,
        results: Sequence[Tensor],
        location: LocationAttr | None = None,
    ) -> Self:
        return cls.create(
            operands=operands,
            result_types=[tensor_type(result) for result in results],
            attributes={"target": StringAttr(target), "arguments": StringAttr(arguments)},
            location=location,
        )


@irdl_op_definition
class LaunchOp(WeftOp):
    """A kernel that the user wrote, over a grid: its body holds the `tile.kernel`.

    `arguments` has an entry for each word the kernel takes: an operand or a result (`("operand", 0)`), or a number.
    `tied` has, for each result, the operand whose contents the kernel starts from, and -1 where it starts from nothing.
    The kernel was told where elements lie: `arg_strides` and `result_strides` hold that, where it is not row-major.
    """

    name = "graph.launch"
    args = var_operand_def(TensorType)
    outs = var_result_def(TensorType)
    arguments = attr_def(ArrayAttr)
    tied = attr_def(ArrayAttr)
    grid = attr_def(ArrayAttr)
    body = region_def("single_block")
    traits = traits_def(NoTerminator(), IsolatedFromAbove())

    @classmethod
    def make(
        cls,
        kernel: Operation,
        operands: Sequence[SSAValue],
        results: Sequence[Tensor],
        arguments: Sequence[tuple[str, Value]],
        tied: Sequence[int],
        grid: Sequence[Size],
        location: LocationAttr | None = None,
    ) -> Self:
        return cls.create(
            operands=operands,
            result_types=[tensor_type(result) for result in results],
            attributes={
                "arguments": to_attribute(tuple(arguments)),
                "tied": to_attribute(tuple(tied)),
                "grid": to_attribute(tuple(grid)),
            },
            regions=[Region(Block([kernel]))],
            location=location,
        )

    @property
    def kernel(self) -> Operation:
        first = self.body.block.first_op
        assert first is not None, "verified"
        return first

    @property
    def starts_from(self) -> tuple[int, ...]:
        """For each result the operand that it is tied to, or -1."""
        return cast("tuple[int, ...]", from_attribute(self.tied))

    @property
    def words(self) -> tuple[tuple[str, Any], ...]:
        """What the kernel takes, in order."""
        return cast("tuple[tuple[str, Any], ...]", from_attribute(self.arguments))

    @property
    def sides(self) -> tuple[Size, ...]:
        """The sides of the grid."""
        return cast("tuple[Size, ...]", from_attribute(self.grid))


@dataclass
class GraphBuilder:
    """Appends graph ops to a block: `b.add(x, y)`, `b.sum(x, dims=(1,), keep=True)`.

    Every op of the registry is a method; ops with one result return it, others a tuple.
    """

    block: Block
    location: LocationAttr | None = None
    before: Operation | None = None

    def insert(self, operation: Operation) -> Operation:
        if self.before is None:
            self.block.add_op(operation)
        else:
            self.block.insert_op_before(operation, self.before)
        return operation

    def emit(self, name: str, *operands: SSAValue, **params: Any) -> Any:
        made = REGISTRY[name].cls.make(*operands, location=self.location, **params)
        self.insert(made)
        return made.results[0] if len(made.results) == 1 else tuple(made.results)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_") or name not in REGISTRY.specs:
            raise AttributeError(name)
        return lambda *operands, **params: self.emit(name, *operands, **params)

    def tensor(self, value: SSAValue) -> Tensor:
        return tensor_of(value.type)

    def full_like(self, value: SSAValue, number: float | int | bool) -> SSAValue:
        """A scalar of the operand's type, to be broadcast."""
        return self.emit("full", value=number, shape=(), dtype=tensor_of(value.type).dtype)


def module_of(function: FuncOp) -> ModuleOp:
    """The module that a function is in; a new one, if it is in none."""
    parent = function.parent_op()
    return parent if isinstance(parent, ModuleOp) else ModuleOp([function])
