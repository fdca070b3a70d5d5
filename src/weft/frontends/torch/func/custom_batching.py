"""Batching rules of custom functions in graphs: traced for the types of a batch, and put in the function's place."""

# Torch's pytrees have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from xdsl.ir import SSAValue

from weft.errors import ShapeError, UnsupportedError
from weft.frontends.torch.dtypes import to_torch
from weft.frontends.torch.func.capture_function import capture, fake_tensor
from weft.frontends.torch.func.custom import BATCHING
from weft.ir.expr import Size
from weft.ir.types import tensor_of
from weft.ops.graph import GraphBuilder, ReturnOp


def batch_by_rule(
    b: GraphBuilder, key: str, operands: Sequence[SSAValue], flags: Sequence[bool], size: Size
) -> list[SSAValue]:
    """The results of a batch by the rule of the custom function of that name."""
    call = BATCHING[key]
    if not isinstance(size, int):
        raise UnsupportedError(f"the batching rule of {call.name} for a batch of {size}", hint="give a size")
    tensors = [tensor_of(value.type) for value in operands]
    fakes = [fake_tensor([int(s) for s in x.shape], to_torch(x.dtype), torch.device("cpu")) for x in tensors]  # pyright: ignore[reportArgumentType]

    def rule(*given: torch.Tensor) -> Any:
        return tuple(pytree.tree_leaves(call.batched(size, flags, given)))

    program = capture(rule, fakes, {})
    if len(program.held) > 1 or program.seed is not None:
        raise UnsupportedError(
            f"the batching rule of {call.name} reads tensors that it is not given", hint="pass them as arguments"
        )
    given: dict[SSAValue, SSAValue] = dict(zip(program.function.block.args, operands, strict=False))
    for op in program.function.block.ops:
        if isinstance(op, ReturnOp):
            found = [given[value] for value in op.operands]
            if any(tensor_of(value.type).shape[:1] != (size,) for value in found):
                raise ShapeError(
                    f"the batching rule of {call.name} gives results without the batch of {size} in front",
                    hint="stack results along the first dimension",
                )
            return found
        b.insert(op.clone(value_mapper=given))
    raise AssertionError("verified")
