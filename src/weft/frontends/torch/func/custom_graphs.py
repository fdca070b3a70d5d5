"""Traces a custom function and its rules, each for a graph of its own: random numbers are of the seed around.

y = f(x)  ─►  graph.custom(x, seed) { what f draws, from the seed and the number of the call } { its rules }
"""

# Torch's operators have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx

from weft.frontends.torch.func.capture_function import decompositions_of_functions, fake_tensors, functionalized, traced
from weft.frontends.torch.func.capturing import SeedArgument, capturing, current_capture
from weft.frontends.torch.func.random_numbers import Seed, drawing_from, first_draw, read_seed_around
from weft.frontends.torch.func.users_calls import UsersCalls

Flat = Callable[..., list[torch.Tensor]]


class CallTracer:
    """Traces one call of a custom function: its body first, then its rules."""

    def __init__(self, name: str, device: torch.device, runs_again: bool) -> None:
        capture = current_capture()
        self.name, self.device, self.runs_again = name, device, runs_again
        self.seed: SeedArgument | None = None if capture is None else capture.seed
        self.number, self.has_drawn = 0, False
        if self.seed is not None:
            self.seed.functions += 1
            self.number = self.seed.functions

    def trace(self, flat: Flat, given: Sequence[torch.Tensor], rule: str | None = None) -> fx.GraphModule:
        """The graph of the function, or of a rule; those that run the function again draw its numbers."""

        def watched(*tensors: torch.Tensor) -> list[torch.Tensor]:
            what = self.name if rule is None else f"the {rule} rule of {self.name}"
            # A rule that autograd calls once, under `no_grad`, has derivatives here all the same.
            with UsersCalls(tensors, what, stops_under_no_grad=False) as calls:
                found = flat(*tensors)
            calls.refuse_writes()
            return found

        table, run = decompositions_of_functions(self.device), functionalized(watched)
        around = self.seed
        if around is not None:
            draws = first_draw(self.number, None if self.runs_again else rule)
            seed = Seed(torch.zeros(1, dtype=torch.int64, device=self.device), draws)
            table |= drawing_from(seed)
            run = partial(_run, run, seed)
        with capturing(around):
            graph = traced(run, fake_tensors(given), table)
        graph.graph.eliminate_dead_code()
        if around is not None and read_seed_around(graph, around.argument):
            around.draws += 1
            self.has_drawn = True
        return graph


def _run(functional: Callable[..., Any], seed: Seed, *tensors: torch.Tensor) -> Any:
    """Run a function that reads the seed in its own trace."""
    seed.value = torch.ops.weft.seed(seed.value.device)
    return functional(*tensors)
