"""`graph.custom`: a function with rules of its own for derivatives, as regions beside its body.

The body takes the operands and yields the results. A region for each of the `rules` follows: `vjp` takes operands,
results and gradients of the results of floats, and yields gradients of the operands of floats; `jvp` takes operands and
tangents of those of floats, and yields tangents of the results of floats. The last operands, `captured` in number, come
from around the function: rules read them, and have no gradients for them. `inline_custom` puts the body in its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

from xdsl.dialects.builtin import ArrayAttr, IntegerAttr, LocationAttr, StringAttr, TensorType
from xdsl.ir import Block, Region, SSAValue
from xdsl.irdl import (
    attr_def,
    irdl_op_definition,
    opt_attr_def,
    traits_def,
    var_operand_def,
    var_region_def,
    var_result_def,
)
from xdsl.traits import IsolatedFromAbove
from xdsl.utils.exceptions import VerifyException

from weft.ir.operations import WeftOp
from weft.ir.types import tensor_of
from weft.ops.graph import GraphBuilder, YieldOp


@irdl_op_definition
class CustomOp(WeftOp):
    """A function, and rules of its own for its derivatives."""

    name = "graph.custom"
    args = var_operand_def(TensorType)
    outs = var_result_def(TensorType)
    bodies = var_region_def("single_block")
    rules = attr_def(ArrayAttr[StringAttr])
    captured = attr_def(IntegerAttr)
    batching = opt_attr_def(StringAttr)
    """Names a batching rule that whoever brought the function knows."""
    traits = traits_def(IsolatedFromAbove())

    @classmethod
    def make(
        cls,
        operands: Sequence[SSAValue],
        body: Block,
        rules: Mapping[str, Block],
        captured: int = 0,
        batching: str | None = None,
        location: LocationAttr | None = None,
    ) -> Self:
        attributes = {
            "rules": ArrayAttr(StringAttr(name) for name in rules),
            "captured": IntegerAttr(captured, 64),
            **({} if batching is None else {"batching": StringAttr(batching)}),
        }
        return cls.create(
            operands=operands,
            result_types=[value.type for value in yielded(body)],
            attributes=attributes,
            regions=[Region(block) for block in (body, *rules.values())],
            location=location,
        )

    @property
    def body(self) -> Block:
        return self.bodies[0].block

    @property
    def own(self) -> Sequence[SSAValue]:
        """The operands that rules have derivatives of."""
        return self.operands[: len(self.operands) - self.captured.value.data]

    def rule(self, name: str) -> Block | None:
        """The region of a rule, None where there is none."""
        for number, each in enumerate(self.rules):
            if each.data == name:
                return self.bodies[1 + number].block
        return None

    def verify_(self) -> None:
        if len(self.bodies) != 1 + len(self.rules):
            raise VerifyException("graph.custom has a region for its body and one for each rule")
        operands, results = list(self.operands), list(self.results)
        moving, floats = _floats(self.own), _floats(results)
        expected = {"vjp": ([*operands, *results, *floats], moving), "jvp": ([*operands, *moving], floats)}
        for name, region in zip(("", *(each.data for each in self.rules)), self.bodies, strict=True):
            if name and name not in expected:
                raise VerifyException(f"graph.custom has no rule {name}")
            taken, given = expected[name] if name else (operands, results)
            found = [each.type for each in region.block.args], [each.type for each in yielded(region.block)]
            if found != ([each.type for each in taken], [each.type for each in given]):
                raise VerifyException(f"graph.custom: the region of {name or 'the body'} has other types")


def yielded(block: Block) -> Sequence[SSAValue]:
    """What a region ends with."""
    last = block.last_op
    if not isinstance(last, YieldOp):
        raise VerifyException("a region ends with graph.yield")
    return last.operands


def inline_block(b: GraphBuilder, block: Block, arguments: Sequence[SSAValue]) -> list[SSAValue]:
    """A region's ops at the builder's place, of these arguments: what it yields."""
    values: dict[SSAValue, SSAValue] = dict(zip(block.args, arguments, strict=True))
    for op in block.ops:
        if isinstance(op, YieldOp):
            break
        b.insert(op.clone(value_mapper=values))
    return [values[value] for value in yielded(block)]


def _floats(values: Sequence[SSAValue]) -> list[SSAValue]:
    return [value for value in values if tensor_of(value.type).dtype.is_float]
