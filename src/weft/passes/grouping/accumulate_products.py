"""Matmuls of a library that add to what is there: `C += A·B`, in place of a product that a kernel adds to C.

    %p = graph.dot %a, %b {weft.claim = "blas"}           %s = graph.group(%c, %a, %b) claim = "blas" {
    %s = graph.add %c, %p                           →         %p = graph.dot %a, %b
                                                              %s = graph.add %c, %p ; graph.yield %s }

Of a chain of such sums, as gradients of shared weights are, one tensor is there at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from xdsl.ir import Operation, OpResult, SSAValue

from weft.ir.attributes import from_attribute
from weft.ir.types import tensor_of
from weft.ops.base import GraphOp
from weft.ops.graph import FuncOp
from weft.ops.layouts import blas_writes, contiguous
from weft.ops.matmul.dot import Dot
from weft.passes.grouping.build_groups import CLAIM, Target, ValueLayouts
from weft.passes.grouping.kernel_groups import Group


@dataclass(frozen=True)
class AccumulateProducts:
    """What there is to know of a function whose ops are being placed."""

    consumers: Mapping[SSAValue, Sequence[Operation]]
    group_of: Mapping[Operation, Group]
    order: Mapping[Operation, int]
    replaced: Mapping[SSAValue, SSAValue]
    """Arguments, and the results that may be written over them."""
    targets: Mapping[SSAValue, Target]
    layouts: ValueLayouts

    def product_of(self, op: GraphOp) -> Dot | None:
        """The library's product that an addition adds to a tensor which ends there; of two, the later one.

        What it adds to is in memory anyway: no kernel that makes it could add to it, or it is an argument.
        """
        if op.name != "graph.add" or op.operands[0] is op.operands[1]:
            return None
        first, second = op.operands
        found = [
            product.owner
            for product, addend in ((first, second), (second, first))
            if isinstance(product.owner, Dot) and self._is_added(product, addend, op)
        ]
        return max(found, key=self.order.__getitem__, default=None)

    def _is_added(self, product: SSAValue, addend: SSAValue, op: GraphOp) -> bool:
        """Whether a matmul's result is added to a tensor and both are read there alone."""
        if not product.type == addend.type == op.results[0].type or not _is_claimed(product):
            return False
        if any(self.consumers.get(value) != [op] for value in (product, addend)):
            return False
        if not self._is_written_by_rows(op.results[0]):
            return False
        if self.replaced.get(addend) is op.results[0]:
            layout = self.layouts.of(addend)
            return layout is not None and blas_writes(tensor_of(addend.type), layout)
        return self._is_made_apart(addend)

    def _is_written_by_rows(self, sum_of: SSAValue) -> bool:
        """Whether a sum lies, where it is a result of the function, as a library can write it."""
        target = self.targets.get(sum_of)
        if target is None:
            return True
        tensor = tensor_of(sum_of.type)
        if target.result is sum_of:
            return blas_writes(tensor, target.layout)
        return target.layout == contiguous(tensor)

    def _is_made_apart(self, value: SSAValue) -> bool:
        """Whether a value is made by a kernel, or a matmul, that the addition cannot join."""
        maker = self.group_of.get(value.op) if isinstance(value, OpResult) else None
        return maker is not None and (maker.kind in ("accumulate", "anchor") or _is_claimed(value))


def _is_claimed(value: SSAValue) -> bool:
    return isinstance(value.owner, Dot) and CLAIM in value.owner.attributes


def replaced_arguments(function: FuncOp) -> dict[SSAValue, SSAValue]:
    """The arguments that results of a function may be written over, and these results."""
    pairs = function.attributes.get("replaced")
    known = cast("list[tuple[int, int]]", [] if pairs is None else from_attribute(pairs))
    returned, arguments = function.returned.operands, function.block.args
    return {arguments[argument]: returned[result] for argument, result in known}
