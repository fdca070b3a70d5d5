"""Vectorisation of a graph function: one call for a batch of arguments, by the batching rules of its ops.

A value that depends on no batched argument stays as it is and is computed once. Batch dimensions stand in front inside;
arguments and results may have them anywhere. The size of a batch may be symbolic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self, cast

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

from weft.errors import ParseError, ShapeError, UnsupportedError
from weft.ir.expr import Size
from weft.ir.locations import line_of, sourced
from weft.ir.size_text import parse_size
from weft.ir.types import Tensor, tensor_of
from weft.ops.base import GraphOp
from weft.ops.call_rules import rules_of
from weft.ops.control import ControlOp
from weft.ops.custom import CustomOp
from weft.ops.graph import FuncOp, GraphBuilder, OpaqueOp, ReturnOp
from weft.ops.random import Uniform
from weft.ops.rules import move_dim, with_batch
from weft.passes.differentiate import no_rule, transform_functions
from weft.passes.recompute import inherit_marks, marks_of, ops_after
from weft.passes.transform.vmap_regions import batch_control, batched_custom

Randomness = Literal["error", "same", "different"]
CustomBatching = Callable[[GraphBuilder, str, Sequence[SSAValue], Sequence[bool], Size], Sequence[SSAValue]]
"""Appends what a batching rule, by its name, makes of operands, of which some have the batch in front."""


@dataclass(frozen=True)
class Vmap(ModulePass):
    """graph.func @f(%x: 3) { … }   →   graph.func @f_vmap(%x: 8x3) { … }

    The `size` is a number or the name of a symbol; the arguments `shared`, by their places, are one for all.
    """

    name: ClassVar[str] = "vmap"
    size: int | str
    shared: tuple[int, ...] = ()
    randomness: str = "error"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.randomness not in ("error", "same", "different"):
            raise ParseError(f"no randomness is called {self.randomness}", hint="there are error, same and different")
        size = parse_size(str(self.size))

        def transform(function: FuncOp) -> FuncOp:
            if isinstance(size, int) and size < 0:
                raise ShapeError(f"a batch of {size}", hint="vmap{size=8}: a batch has 0 or more samples")
            axes = [None if n in self.shared else 0 for n in range(len(function.block.args))]
            return vmap_function(function, size, axes, randomness=cast("Randomness", self.randomness))

        transform_functions(op, transform)


def vmap_function(
    function: FuncOp,
    size: Size,
    in_axes: Sequence[int | None] | None = None,
    out_axes: Sequence[int | None] | None = None,
    randomness: Randomness = "error",
    custom: CustomBatching | None = None,
) -> FuncOp:
    """The function of a batch: of `size` arguments each, stacked along `in_axes`, None where all share one.

        graph.func @f(%x: 3, %w: 3x4) {            graph.func @f_vmap(%x: 8x3, %w: 3x4) {
          %y = graph.dot %x, %w             →        %y = graph.dot %x, %w
          graph.return %y : 4                        graph.return %y : 8x4
        }                                          }

    Axes are 0 where none are given. Results are stacked along `out_axes`; None asks for one that is the same for all.
    `custom` knows the batching rules that functions have of their own.
    """
    arguments = list(function.block.args)
    in_axes = [0] * len(arguments) if in_axes is None else list(in_axes)
    names = [name.data for name in function.arg_names or ()] or [f"arg{n}" for n in range(len(arguments))]
    tensors = [
        _stacked(tensor_of(value.type), axis, size, f"argument {name}")
        for name, value, axis in zip(names, arguments, in_axes, strict=True)
    ]
    made = FuncOp.make(f"{function.sym_name.data}_vmap", dict(zip(names, tensors, strict=True)))
    made.arg_names = ArrayAttr(StringAttr(name) for name in names)
    if function.symbols is not None:
        made.symbols = function.symbols
    b = GraphBuilder(made.block)
    batch = Batch(b, size, randomness, custom)
    for old, new, axis in zip(arguments, made.block.args, in_axes, strict=True):
        batch.values[old] = new if axis is None else move_dim(b, new, axis % tensor_of(new.type).rank, 0)
        if axis is not None:
            batch.batched.add(old)
    returned = function.returned
    for op in function.block.ops:
        if op is not returned:
            batch.append(op)
    results = list(returned.operands)
    axes = [0] * len(results) if out_axes is None else list(out_axes)
    b.insert(ReturnOp.make([batch.result(x, axis, n) for n, (x, axis) in enumerate(zip(results, axes, strict=True))]))
    return made


@dataclass
class Batch:
    """The ops of a function, appended for a batch: what stands for each value, and which of these are batched."""

    b: GraphBuilder
    size: Size
    randomness: Randomness = "error"
    custom: CustomBatching | None = None

    def __post_init__(self) -> None:
        self.values: dict[SSAValue, SSAValue] = {}
        self.batched: set[SSAValue] = set()

    def inside(self, b: GraphBuilder) -> Self:
        """The same batch, in a region."""
        return replace(self, b=b)

    def append(self, op: Operation) -> None:
        """Append an op for the batch; one that reads nothing batched as it is."""
        before = self.b.block.last_op
        with sourced(op.location):
            if isinstance(op, Uniform) and not self._is_batched(op):
                self._draw(op)
            elif not self._is_batched(op):
                copy = self.b.insert(op.clone(value_mapper=self.values))
                self.values.update(zip(op.results, copy.results, strict=True))
            elif isinstance(op, ControlOp):
                batch_control(self, op)
            elif isinstance(op, CustomOp):
                self._batch_custom(op)
            else:
                self._batch(op)
        inherit_marks(marks_of(op), ops_after(before, self.b))

    def of(self, value: SSAValue) -> SSAValue:
        """What stands for a value, with the batch in front: broadcast, where all share one."""
        return with_batch(self.b, self.values[value], value in self.batched, self.size)

    def set(self, value: SSAValue, found: SSAValue, is_batched: bool) -> None:
        self.values[value] = found
        if is_batched:
            self.batched.add(value)

    def result(self, value: SSAValue, axis: int | None, number: int) -> SSAValue:
        """A result, with the batch where it is asked for."""
        if axis is None:
            if value in self.batched:
                raise ShapeError(
                    f"result {number} differs within the batch, and its axis is None",
                    hint="say along which axis results are stacked: `out_axes=0`",
                )
            return self.values[value]
        rank = tensor_of(value.type).rank + 1
        if not -rank <= axis < rank:
            raise ShapeError(f"result {number} has no axis {axis}", hint=f"with the batch it has {rank} dimensions")
        return move_dim(self.b, self.of(value), 0, axis % rank)

    def _is_batched(self, op: Operation) -> bool:
        return any(operand in self.batched for operand in op.operands)

    def _draw(self, op: Uniform) -> None:
        """Random numbers from one seed: other ones for each of the batch are those of later places."""
        if self.randomness == "error":
            raise UnsupportedError(
                "random numbers under vmap: the same for all of the batch, or different ones?",
                location=line_of(op.location),
                hint='say `vmap(f, randomness="different")` or "same"',
            )
        different = self.randomness == "different"
        shape = op.params["shape"]
        found = self.b.uniform(self.values[op.operands[0]], shape=(self.size, *shape) if different else shape)
        self.set(op.results[0], found, different)

    def _batch_custom(self, op: CustomOp) -> None:
        flags = [operand in self.batched for operand in op.operands]
        operands = [self.values[operand] for operand in op.operands]
        if op.batching is not None:
            if self.custom is None:
                raise no_rule(op, "batching", "its own rule is only known where the function is")
            results = self.custom(self.b, op.batching.data, operands, flags, self.size)
        else:
            made = batched_custom(self, op, flags)
            self.b.insert(made)
            results = list(made.results)
        self._keep(op, results)

    def _batch(self, op: Operation) -> None:
        rule: Callable[..., Any] | None = getattr(type(op), "batch", None)
        flags = tuple(operand in self.batched for operand in op.operands)
        if isinstance(op, OpaqueOp) and (call := rules_of(op)) is not None:
            given = [self.values[operand] for operand in op.operands]
            self._keep(op, call.batch(self.b, op, given, flags, self.size))
            return
        if rule is None or not isinstance(op, GraphOp):
            raise no_rule(op, "batching", "call it once for each of the batch, or give a rule of your own")
        found = rule(self.b, tuple(self.values[operand] for operand in op.operands), flags, **op.params)
        self._keep(op, cast("tuple[SSAValue, ...]", found if isinstance(found, tuple) else (found,)))

    def _keep(self, op: Operation, results: Sequence[SSAValue]) -> None:
        """Note what stands for an op's results, which have the batch in front."""
        for old, new in zip(op.results, results, strict=True):
            tensor = tensor_of(old.type)
            if tensor_of(new.type) != Tensor(tensor.dtype, (self.size, *tensor.shape)):
                raise ShapeError(
                    f"the batching rule of {op.name} gives {tensor_of(new.type)} for {self.size} of {tensor}",
                    location=line_of(op.location),
                    hint="the batch stands in front of the dimensions of a result",
                )
            self.set(old, new, True)


def _stacked(tensor: Tensor, axis: int | None, size: Size, what: str) -> Tensor:
    if axis is None:
        return tensor
    rank = tensor.rank + 1
    if not -rank <= axis < rank:
        raise ShapeError(f"{what} has no axis {axis}", hint=f"with the batch it has {rank} dimensions")
    shape = list(tensor.shape)
    shape.insert(axis % rank, size)
    return Tensor(tensor.dtype, tuple(shape))
