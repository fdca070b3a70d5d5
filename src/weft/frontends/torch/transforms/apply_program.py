"""Programs under torch's transformations: an `autograd.Function` whose derivatives and batches are programs again.

torch.func.grad(f)  ─►  Function.backward  ─►  the program's vjp
torch.func.vmap(f)  ─►  Function.vmap      ─►  the program's vmap        torch peels one level after the other off
torch.func.jvp(f)   ─►  Function.jvp       ─►  the program's jvp
"""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false, reportAttributeAccessIssue=false, reportIncompatibleMethodOverride=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from weft.frontends.torch.transforms.batched_gradients import call_for_batch, is_batched
from weft.frontends.torch.transforms.program import Program, floats
from weft.frontends.torch.transforms.random_state import RandomState


def apply(program: Program, arguments: Sequence[Any], state: RandomState | None = None) -> tuple[Any, ...]:
    """The results of a program for tensors that torch may have wrapped, with all that torch keeps track of."""
    if any(map(is_batched, arguments)):
        return call_for_batch(program, arguments, lambda of, plain: apply(of, plain, state))
    if transforms_active():
        return _Applied.apply(program, state, *arguments)
    return program(arguments, state)


def transforms_active() -> bool:
    """Whether calls are being transformed: by a function of `torch.func`, or by forward mode."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


class _Applied(torch.autograd.Function):
    """One call of a program, for torch to transform. The first arguments are the program and its random state."""

    @staticmethod
    def forward(program: Program, state: RandomState | None, *arguments: Any) -> tuple[Any, ...]:
        return program(arguments, state)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        program, state, *arguments = inputs
        ctx.program, ctx.state = program, state
        ctx.others = [None if isinstance(value, Tensor) else (value,) for value in arguments]
        tensors = [value for value in arguments if isinstance(value, Tensor)]
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)
        ctx.seeded = floats(output)
        ctx.strides = [output[n].stride() for n in ctx.seeded]
        rest = [value for n, value in enumerate(output) if n not in ctx.seeded and isinstance(value, Tensor)]
        ctx.count = len(output)
        ctx.mark_non_differentiable(*rest)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        arguments = _arguments(ctx)
        places = floats(arguments)
        wanted = tuple(n for n in places if ctx.needs_input_grad[2 + n])
        found: list[Any] = [None] * (2 + len(arguments))
        if wanted and ctx.seeded:
            derived = ctx.program.vjp(wanted, ctx.seeded)
            results = apply(derived, [*arguments, *(grads[n] for n in ctx.seeded)], ctx.state)
            for place, gradient in zip(wanted, results, strict=True):
                found[2 + place] = gradient
        return tuple(found)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Any, ...]:
        arguments = _arguments(ctx)
        wanted = tuple(n for n in floats(arguments) if tangents[2 + n] is not None)
        if not ctx.seeded:
            return (None,) * ctx.count
        derived = ctx.program.jvp(wanted, ctx.seeded)
        results = apply(derived, [*arguments, *(tangents[2 + n] for n in wanted)], ctx.state)
        found: list[Any] = [None] * ctx.count
        for place, tangent, strides in zip(ctx.seeded, results, ctx.strides, strict=True):
            found[place] = _laid_out(tangent, strides)
        return tuple(found)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], program: Program, state: RandomState | None, *arguments: Any
    ) -> tuple[Any, Any]:
        results = apply(program.vmap(tuple(in_dims[2:]), info.randomness), arguments, state)
        return results, (0,) * len(results)


def _laid_out(tangent: Tensor, strides: tuple[int, ...]) -> Tensor:
    """A tangent that lies as its result does: torch fails at views of the pair elsewhere."""
    if tangent.dim() != len(strides) or tangent.stride() == strides or 0 in strides:
        return tangent
    return tangent.new_empty_strided(tangent.shape, strides).copy_(tangent)


def _arguments(ctx: Any) -> list[Any]:
    tensors = iter(ctx.saved_tensors)
    return [next(tensors) if other is None else other[0] for other in ctx.others]
