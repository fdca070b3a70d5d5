"""Constant folding: compute at compile time what depends on no argument, as a constant where one can say it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass

from weft.ir.expr import product
from weft.ir.types import tensor_of
from weft.ops.base import Elementwise, GraphOp, Movement, Reduction, View
from weft.ops.graph import FuncOp, GraphBuilder
from weft.passes.simplify.constant_values import Number, as_held, evaluated, number_in, progression_in


@dataclass(frozen=True)
class FoldConstants(ModulePass):
    """Ops on constants become `full`, or `iota` where integers count; any other result stays as it is computed.

    %i = graph.iota 0..4                       %i = graph.iota 0..4
    %a = graph.add %i, 1                       %a = graph.iota 1..5
    %d = graph.sub %a, %i               →      %d = graph.full 1
    %m = graph.mul(graph.full 2, 3.5)          %m = graph.full 7

    So does what has no elements, whatever it is made of: lowering never asks where they lie.
    """

    name: ClassVar[str] = "fold_constants"

    most_elements: int = 1 << 20
    """The size of the largest result that is computed."""
    most_work: int = 1 << 24
    """How many elements are computed in all."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if isinstance(function, FuncOp):
                _Folding(function, self.most_elements, self.most_work).run()


class _Folding:
    """The constants of one function: numbers that fill tensors of any size, and whole arrays of small ones."""

    def __init__(self, function: FuncOp, most_elements: int, most_work: int) -> None:
        self.block = function.block
        self.most_elements, self.work_left = most_elements, most_work
        self.numbers: dict[SSAValue, Number] = {}
        self.arrays: dict[SSAValue, np.ndarray] = {}

    def run(self) -> None:
        for op in list(self.block.ops):
            if isinstance(op, GraphOp) and not self._is_empty(op) and not self._is_number(op):
                self._evaluate(op)

    def _is_empty(self, op: GraphOp) -> bool:
        """Fold an op that computes nothing; views stay, which say whose memory a result is."""
        if isinstance(op, View) or not isinstance(op, Elementwise | Movement | Reduction):
            return False
        if not op.operands or not all(0 in tensor_of(result.type).shape for result in op.results):
            return False
        for result in op.results:
            self._fill(op, result, as_held(0, tensor_of(result.type).dtype))
        self._drop(op)
        return True

    def _is_number(self, op: GraphOp) -> bool:
        """Fold an op that gives one number everywhere, whatever its size."""
        if op.name == "graph.full":
            result = tensor_of(op.results[0].type)
            self.numbers[op.results[0]] = as_held(op.params["value"], result.dtype)
            return True
        if not op.operands or not all(operand in self.numbers for operand in op.operands):
            return False
        if not isinstance(op, Elementwise | View):
            return False
        number = self.numbers[op.operands[0]]
        if isinstance(op, Elementwise):
            scalars = [np.asarray(self.numbers[x]).astype(tensor_of(x.type).dtype.numpy) for x in op.operands]
            found = evaluated(op, scalars)
            if found is None:
                return False
            number = found[0].item()
        self._fill(op, op.results[0], number)
        self._drop(op)
        return True

    def _evaluate(self, op: GraphOp) -> None:
        """Compute an op on known arrays, and replace those of its results that are constants."""
        if not all(operand in self.numbers or operand in self.arrays for operand in op.operands):
            return
        sizes = [product(tensor_of(result.type).shape) for result in op.results]
        work = sum(size for size in sizes if isinstance(size, int) and size <= self.most_elements)
        if work > self.work_left or any(not isinstance(size, int) or size > self.most_elements for size in sizes):
            return
        self.work_left -= work
        operands = [array for x in op.operands if (array := self._array(x)) is not None]
        found = evaluated(op, operands) if len(operands) == len(op.operands) else None
        if found is None:
            return
        for result, array in zip(op.results, found, strict=True):
            self._replace(op, result, array)
        self._drop(op)

    def _array(self, value: SSAValue) -> np.ndarray | None:
        tensor = tensor_of(value.type)
        if value in self.numbers and tensor.is_static:
            shape = [size for size in tensor.shape if isinstance(size, int)]
            return np.broadcast_to(np.asarray(self.numbers[value]).astype(tensor.dtype.numpy), shape)
        return self.arrays.get(value)

    def _replace(self, op: GraphOp, result: SSAValue, array: np.ndarray) -> None:
        number = number_in(array)
        if number is not None:
            self._fill(op, result, number)
            return
        if op.name != "graph.iota" and (line := progression_in(array)) is not None:
            dim, start, step = line
            tensor = tensor_of(result.type)
            b = GraphBuilder(self.block, op.location, before=op)
            value: SSAValue = b.iota(shape=tensor.shape, dim=dim, dtype=tensor.dtype, start=start, step=step)
            result.replace_all_uses_with(value)
            result = value
        self.arrays[result] = array

    def _fill(self, op: GraphOp, result: SSAValue, number: Number) -> None:
        tensor = tensor_of(result.type)
        b = GraphBuilder(self.block, op.location, before=op)
        value: SSAValue = b.full(value=number, shape=tensor.shape, dtype=tensor.dtype)
        result.replace_all_uses_with(value)
        self.numbers[value] = number

    def _drop(self, op: GraphOp) -> None:
        if not any(result.uses for result in op.results):
            op.detach()
            op.erase()
