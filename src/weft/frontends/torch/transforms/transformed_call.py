"""A graph that Dynamo captured, as it is called while torch transforms: with levels of `torch.func` or of forward mode.

The captured graph becomes a program at its first call, when the shapes of its arguments are known; see `apply_program`.
"""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from weft.config import Config
from weft.diagnostics import warn
from weft.errors import UnsupportedError, WeftError
from weft.frontends.torch.locations import first_line
from weft.frontends.torch.report import HOW_TO_DECIDE, Fallback, note_whole_graph
from weft.frontends.torch.transforms.apply_program import apply
from weft.frontends.torch.transforms.captured import Autocasting, Effects, effects_of, program_of
from weft.frontends.torch.transforms.captured_levels import has_levels
from weft.frontends.torch.transforms.evaluate_graph import evaluate, has_while, must_be_evaluated, sizes_for_loops
from weft.frontends.torch.transforms.program import CompiledProgram, Function, Program
from weft.frontends.torch.transforms.random_state import RandomState

CompileFunction = Callable[[torch.nn.Module, Sequence[Any], Config, "Program"], CompiledProgram]
"""Compiles a module for arguments; the program is what its own derivatives are made of."""

log = logging.getLogger("weft")


class Body(torch.nn.Module):
    """A function as a module, for AOTAutograd to trace."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *arguments: Any) -> tuple[Any, ...]:
        return self.function(*arguments)


@dataclass(eq=False)
class Captured:
    """A captured graph, its programs by what it does, and how they are compiled."""

    module: fx.GraphModule
    config: Config
    compile_function: CompileFunction
    casting: tuple[Autocasting, ...] = field(default_factory=Autocasting.now)
    _effects: dict[Any, tuple[Effects, Program]] = field(default_factory=dict[Any, tuple[Effects, Program]])

    def program(self, arguments: Sequence[Any]) -> tuple[Effects, Program]:
        """What the graph does to arguments like these, and its program."""
        key = tuple((x.shape, x.dtype, x.device) if isinstance(x, Tensor) else x for x in arguments)
        found = self._effects.get(key)
        if found is None:
            effects = effects_of(self.module, arguments)
            same = next((made for known, made in self._effects.values() if known == effects), None)
            made = same or program_of(self.module, effects, self.casting, self._compile)
            found = self._effects[key] = effects, made
        return found

    def differentiable(self, arguments: Sequence[Any]) -> torch.nn.Module:
        """The graph for AOTAutograd: as it is, or with what it can take where it would fail."""
        trained = torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in arguments)
        if not must_be_evaluated(self.module, trained=trained):
            return self.module
        return Body(lambda *given: evaluate(self.module, given))

    def __call__(self, *arguments: Any) -> tuple[Any, ...]:
        """What the graph gives, for arguments that torch has wrapped."""
        try:
            effects, program = self.program(arguments)
        except Exception as error:  # whatever cannot be looked at, torch may run
            self._leave_to_eager(first_line(self.module.graph.nodes), error)
            return evaluate(self.module, arguments) if has_levels(self.module) else self.module(*arguments)
        state = RandomState.before(arguments) if effects.is_random else None
        # What is written to is given as a clone: torch keeps what is given for gradients.
        given = [x.clone() if place in effects.mutated else x for place, x in enumerate(arguments)]
        results = apply(program, given, state)
        if state is not None:
            state.go_on()
        effects.write_back(arguments, results)
        return effects.outputs(results)

    def _compile(self, program: Program, arguments: Sequence[Any]) -> CompiledProgram:
        try:
            with sizes_for_loops() if has_while(self.module) else nullcontext():
                return self.compile_function(Body(program.function), arguments, self.config, program)
        except Exception as error:  # whatever cannot be traced, torch may run
            if program.otherwise is not None:  # for what is derived of it, too
                log.info("%s: it is traced in another way, as %r", program.location, error)
                program.function, program.otherwise = program.otherwise, None
                return self._compile(program, arguments)
            self._leave_to_eager(program.location, error)
            return CompiledProgram(program.function, frozenset(range(len(arguments))))

    def _leave_to_eager(self, location: str | None, error: Exception) -> None:
        """Tell that something runs in eager for a reason, or raise that where it may not."""
        if self.config.forbids_fallbacks:
            if isinstance(error, WeftError):
                raise error
            raise UnsupportedError(
                f"a derivative or batch of a compiled function cannot be compiled: {error}",
                location=location,
                hint=HOW_TO_DECIDE,
            ) from error
        why = str(error).partition("\n")[0]
        if self.config.fallback == "warn":
            what = "a derivative or batch of a compiled function runs in eager"
            warn("fallback", what, why, HOW_TO_DECIDE, location=location)
        note_whole_graph(Fallback("the whole graph", location, why))
