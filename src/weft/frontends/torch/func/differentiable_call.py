"""Calls of compiled programs that torch's autograd differentiates, where arguments or what is held require gradients.

    y = program(x, w)  ─►  y.grad_fn: backward(g) = vjp of program (x, w, g), compiled when it is first needed

A backward computes again what it needs. It is a program itself, called in the same way, so that it has derivatives.
"""

# Autograd's functions have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownParameterType=false, reportMissingParameterType=false, reportIncompatibleMethodOverride=false

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.utils._pytree as pytree

from weft.config import Config
from weft.diagnostics import calling_line
from weft.errors import WeftError
from weft.frontends.torch.func.execute import Call, compile_program, drawn
from weft.frontends.torch.func.program import SLOT, Program
from weft.ir.types import is_float
from weft.passes.differentiate import return_values, value_and_vjp_function
from weft.passes.transform.arguments import forget_ends, without_dead_ops


class ProgramCall:
    """A compiled program, with its gradients where torch asks for them."""

    def __init__(self, program: Program, config: Config) -> None:
        self.program, self.config = program, config
        self.compiled: Call = compile_program(program, config)
        self._gradients: dict[tuple[tuple[int, ...], tuple[int, ...]], ProgramCall] = {}

    def __call__(self, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """The tensors that the program returns."""
        if not needs_gradients((*tensors, *self.program.held)):
            return self.compiled(tensors)
        return self.at(tensors, drawn(self.program))

    def at(self, tensors: Sequence[torch.Tensor], held: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """The same, with a graph for torch's autograd, for constants that have been drawn."""
        made: Any = _Differentiable.apply(self, *tensors, *held)
        return made

    def gradients(self, wanted: tuple[int, ...], seeded: tuple[int, ...]) -> ProgramCall:
        """What maps arguments, what is held, and gradients of some results to gradients of some of the former."""
        if (wanted, seeded) not in self._gradients:
            try:
                made = _gradients_of(self.program, wanted, seeded)
            except WeftError as error:
                error.locate(calling_line())
                raise
            self._gradients[wanted, seeded] = ProgramCall(made, self.config)
        return self._gradients[wanted, seeded]


def needs_gradients(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether autograd records what is computed of these."""
    return torch.is_grad_enabled() and any(each.requires_grad for each in tensors)


def _gradients_of(program: Program, wanted: Sequence[int], seeded: Sequence[int]) -> Program:
    joint = value_and_vjp_function(program.function, wanted, seeded)
    return_values(joint, list(joint.returned.operands)[len(program.function.returned.operands) :])
    leaves, spec = pytree.tree_flatten([SLOT for _ in wanted])
    made = forget_ends(without_dead_ops(joint))
    count = len(made.block.args)
    return replace(
        program, function=made, tensors=count, held=(), out_spec=spec, leaves=tuple(leaves), checks=(), seed=None
    )


class _Differentiable(torch.autograd.Function):
    """A call, of all of a program's arguments."""

    @staticmethod
    def forward(ctx: Any, call: ProgramCall, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.call = call
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        found = tuple(call.compiled.of_all(tensors))
        ctx.mark_non_differentiable(*(each for each in found if not each.is_floating_point()))
        return found

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        tensors, call = ctx.saved_tensors, ctx.call
        arguments = call.program.function.block.args
        wanted = tuple(n for n, needs in enumerate(ctx.needs_input_grad[1:]) if needs and is_float(arguments[n]))
        seeded = tuple(n for n, grad in enumerate(grads) if grad is not None)
        found: list[torch.Tensor | None] = [None for _ in tensors]
        if wanted and seeded:
            made = call.gradients(wanted, seeded)([*tensors, *(grads[n] for n in seeded)])
            for place, gradient in zip(wanted, made, strict=True):
                found[place] = torch.view_as_complex(gradient) if tensors[place].is_complex() else gradient
        return None, *found
