"""The function that computes a program's constants as plain data: a stored plan runs it without parsing its text.

    %2 = "graph.mul"(%0, %1) : …        →   PreparationOp("mul", (0, 1), (), (tensor,))

Values are numbered: the constant arguments first, then the results of each op in turn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from xdsl.ir import SSAValue

from weft.ir.attributes import from_attribute
from weft.ir.types import DType, Tensor, tensor_of
from weft.ops.base import REGISTRY, GraphOp
from weft.ops.control import ControlOp
from weft.ops.graph import FuncOp, GroupOp, LaunchOp, OpaqueOp, ReturnOp


@dataclass(frozen=True)
class PreparationOp:
    """One op: its name, the values that it reads, its parameters, and the types of its results."""

    op: str
    operands: tuple[int, ...]
    params: tuple[tuple[str, Any], ...]
    results: tuple[Tensor, ...]


@dataclass(frozen=True)
class Preparation:
    """Ops in order, which values are the constants, and the strides of each, where they are stated."""

    arguments: tuple[Tensor, ...]
    ops: tuple[PreparationOp, ...]
    results: tuple[int, ...]
    strides: Any = None


def preparation_of(prepare: FuncOp) -> Preparation | None:
    """A function as data; None where it has more than ops that NumPy carries out, or sizes that are not known."""
    numbers: dict[SSAValue, int] = {value: number for number, value in enumerate(prepare.block.args)}
    arguments = tuple(tensor_of(value.type) for value in prepare.block.args)
    attribute = prepare.attributes.get("result_strides")
    strides: Any = None if attribute is None else from_attribute(attribute)
    if not all(map(_is_known, arguments)) or not _is_plain(strides):
        return None
    ops: list[PreparationOp] = []
    for op in prepare.block.ops:
        operands = tuple(numbers[value] for value in op.operands)
        if isinstance(op, ReturnOp):
            return Preparation(arguments, tuple(ops), operands, strides)
        name = op.name.removeprefix("graph.")
        if not isinstance(op, GraphOp) or isinstance(op, ControlOp | GroupOp | LaunchOp | OpaqueOp):
            return None
        params, results = op.params, tuple(tensor_of(value.type) for value in op.results)
        known = name in REGISTRY.specs and REGISTRY.specs[name].cls is type(op) and hasattr(type(op), "reference")
        if not known or not all(map(_is_known, results)) or not all(map(_is_plain, params.values())):
            return None
        for value in op.results:
            numbers[value] = len(numbers)
        ops.append(PreparationOp(name, operands, tuple(params.items()), results))
    return None


def _is_known(tensor: Tensor) -> bool:
    return all(isinstance(size, int) for size in tensor.shape)


def _is_plain(value: Any) -> bool:
    """Whether a parameter is the same after it was stored."""
    if isinstance(value, tuple):
        return all(map(_is_plain, cast("tuple[Any, ...]", value)))
    return value is None or isinstance(value, bool | int | float | str | DType)
