"""What others carry out → steps: calls of the framework, launches of kernels that people wrote, a library's matmuls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Operation, SSAValue

from weft.errors import LoweringError
from weft.ir.attributes import from_attribute
from weft.ir.expr import Size, product, symbols_of
from weft.ir.types import tensor_of
from weft.lower.scalar_arguments import word_of
from weft.lower.steps import CallStep, DotStep, LaunchStep, Place
from weft.ops.graph import GroupOp, LaunchOp, OpaqueOp
from weft.ops.layouts import StridedLayout, contiguous
from weft.ops.matmul.dot import Dot
from weft.passes.grouping.build_groups import PARTIAL_SUMS, launch_layout, strides_of
from weft.passes.place_launches import lies_as, wanted_layouts
from weft.passes.update_in_place import in_place_of
from weft.tile import dialect as tile

if TYPE_CHECKING:
    from weft.lower.plan import Planner
    from weft.passes.grouping.build_groups import Target


def plan_call(planner: Planner, op: OpaqueOp) -> None:
    """A call of the framework: its results are what it gives."""
    operands = tuple(planner.places[operand] for operand in op.operands)
    strides = strides_of(op, "result_strides", len(op.results))
    results = tuple(
        planner.new(result, "external", StridedLayout(given) if given else contiguous(tensor_of(result.type)))
        for result, given in zip(op.results, strides, strict=True)
    )
    if (told := op.attributes.get("symbols")) is not None:
        planner.symbols.update(from_attribute(told))  # type: ignore[arg-type]
    target = op.target.data
    claim = op.attributes.get("weft.claim")
    claimed = claim.data if isinstance(claim, StringAttr) else ""
    planner.steps.append(CallStep(target, op.arguments.data, operands, results, target, claimed))


def plan_launch(planner: Planner, op: LaunchOp, outputs: dict[SSAValue, Target]) -> None:
    """A launch of a kernel that somebody wrote: results that start from operands are written over them."""
    operands = [planner.places[operand] for operand in op.operands]
    for operand, place, wanted in zip(op.operands, operands, wanted_layouts(op), strict=True):
        if not lies_as(operand, place.layout, wanted):
            raise LoweringError(f"a kernel reads {place.tensor} with the strides {wanted.strides}")
    for result, start in zip(op.results, op.starts_from, strict=True):
        if start >= 0:
            planner.places[result] = operands[start]
            if planner.buffers[operands[start].buffer].role == "input":
                planner.replacing.add(result)
        else:
            planner.strided[result] = launch_layout(result)
            planner.result(result, outputs)
    known: dict[str, Sequence[Place]] = {"operand": operands, "result": [planner.places[r] for r in op.results]}
    arguments: list[Place | Size] = []
    for kind, value in op.words:
        if kind in known:
            arguments.append(known[kind][int(value)])
        else:
            arguments.append(word := word_of(kind, value))
            planner.symbols |= symbols_of(word)
    kernel = op.kernel
    assert isinstance(kernel, tile.KernelOp), "verified"
    name = kernel.sym_name.data
    planner.kernels.add(kernel, "written")
    label = name.rpartition("_")[0]
    work = planner.kernels.known_work(kernel)
    planner.steps.append(LaunchStep(name, tuple(arguments), product(op.sides), work, label))


def plan_accumulation(planner: Planner, group: GroupOp, outputs: dict[SSAValue, Target]) -> None:
    """A matmul that a library adds to what is there, or, where that is needed still, to a copy of it."""
    old, a, b = (planner.places[operand] for operand in group.operands)
    (result,) = group.results
    if in_place_of(group):
        planner.written_over(result, old, outputs)
    else:
        planner.result(result, outputs)
        planner.copy(old, planner.places[result])
    product = next(op for op in group.block.ops if isinstance(op, Dot))
    planner.steps.append(
        DotStep(a, b, planner.places[result], "dot_add", _partial_sums(product), accumulates=True),
    )


def plan_dot(planner: Planner, op: Operation, outputs: dict[SSAValue, Target]) -> None:
    """A matmul that a library carries out."""
    a, b = (planner.places[operand] for operand in op.operands)
    planner.result(op.results[0], outputs)
    planner.steps.append(DotStep(a, b, planner.places[op.results[0]], "dot", _partial_sums(op)))


def _partial_sums(op: Operation) -> Size:
    told = op.attributes.get(PARTIAL_SUMS)
    return 1 if told is None else from_attribute(told)  # type: ignore[return-value]
