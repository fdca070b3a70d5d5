"""Batching rules of custom functions in graphs: traced for the types of a batch, and put in the function's place."""

# Torch's pytrees have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from xdsl.ir import SSAValue

from weft.errors import UnsupportedError
from weft.frontends.torch.dtypes import to_torch
from weft.frontends.torch.func.capture_function import capture, fake_tensor
from weft.frontends.torch.func.custom import BATCHING, Call
from weft.frontends.torch.func.random_numbers import seed_of_batch
from weft.ir.expr import Size
from weft.ir.types import Tensor, i64, tensor_of
from weft.ops.graph import GraphBuilder, ReturnOp


def _fake(x: Tensor, is_complex: bool) -> torch.Tensor:
    """A tensor of a graph's type; parts of complex numbers alternate in the last dimension."""
    sizes, kind = [int(size) for size in x.shape], to_torch(x.dtype)  # pyright: ignore[reportArgumentType]
    if is_complex:
        sizes, kind = sizes[:-1], kind.to_complex()
    return fake_tensor(sizes, kind, torch.device("cpu"))


def _seed(b: GraphBuilder, call: Call, captures: Sequence[SSAValue]) -> SSAValue:
    """The seed of a rule that draws random numbers: that of the function, moved for each batch."""
    seeds = [each for each in captures if tensor_of(each.type) == Tensor(i64, (1,))]
    if len(seeds) != 1:
        raise UnsupportedError(
            f"the batching rule of {call.name} draws random numbers, and closes over integers",
            location=call.line,
            hint="pass them as arguments",
        )
    call.batches += 1
    return b.add(seeds[0], b.full(value=seed_of_batch(call.batches), shape=(), dtype=i64))


def _code(b: GraphBuilder, call: Call, verdict: Sequence[SSAValue], size: int) -> list[SSAValue]:
    """What is wrong with the data of a batch, where the function looks at its own."""
    if not call.has_checks:
        if verdict:
            raise UnsupportedError(
                f"the batching rule of {call.name} looks at its data, and {call.name} does not",
                location=call.line,
                hint="indices and matrices to invert belong into the function, whose check the batch takes over",
            )
        return []
    none = b.full(value=0, shape=(), dtype=i64)
    wrong = b.cast(b.ne(verdict[0], none), dtype=i64) if verdict else none
    return [b.add(wrong, b.full(value=0, shape=(size,), dtype=i64))]


def batch_by_rule(
    b: GraphBuilder, key: str, operands: Sequence[SSAValue], flags: Sequence[bool], size: Size
) -> list[SSAValue]:
    """The results of a batch by the rule of the custom function of that name."""
    call = BATCHING[key]
    if not isinstance(size, int):
        raise UnsupportedError(
            f"the batching rule of {call.name} for a batch of {size}", location=call.line, hint="give a size"
        )
    tensors = [tensor_of(value.type) for value in operands]
    pairs = zip(tensors, [*call.complexes, *(False for _ in tensors)], strict=False)
    fakes = [_fake(x, is_complex) for x, is_complex in pairs]

    def rule(*given: torch.Tensor) -> Any:
        return call.batched(size, flags, given)

    program = capture(rule, fakes, {})
    reads_seed = program.seed is not None
    if len(program.held) > 1 or (reads_seed and not call.seeded):
        raise UnsupportedError(
            f"the batching rule of {call.name} reads tensors that it is not given",
            location=call.line,
            hint="pass them as arguments",
        )
    behind = [_seed(b, call, operands[len(call.complexes) :])] if reads_seed else []
    given: dict[SSAValue, SSAValue] = dict(zip(program.function.block.args, [*operands, *behind], strict=False))
    for op in program.function.block.ops:
        if isinstance(op, ReturnOp):
            found = [given[value] for value in op.operands]
            return [*found[: len(program.results)], *_code(b, call, found[len(program.results) :], size)]
        b.insert(op.clone(value_mapper=given))
    raise AssertionError("verified")
