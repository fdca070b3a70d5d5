"""The program of a graph that Dynamo captured: its function made pure, and what it does beside giving results.

What the graph writes to an argument is one more result, which the caller writes back. Blocks without gradients, custom
functions and autocasting mean what they mean in eager: it is the captured graph that is transformed.
"""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false, reportIncompatibleMethodOverride=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch._dispatch.python import enable_python_dispatcher
from torch._functorch._aot_autograd.functional_utils import has_data_mutation, to_fun
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import TorchDispatchMode

from weft.frontends.torch.locations import first_line
from weft.frontends.torch.transforms.captured_levels import has_levels
from weft.frontends.torch.transforms.dynamo_levels import without_forward_mode
from weft.frontends.torch.transforms.evaluate_graph import evaluate
from weft.frontends.torch.transforms.program import CompiledProgram, Program


@dataclass(frozen=True)
class Autocasting:
    """How torch casts, on a kind of device."""

    device: str
    enabled: bool
    dtype: torch.dtype

    @classmethod
    def now(cls) -> tuple[Autocasting, ...]:
        """How torch casts at the moment."""
        kinds = ("cpu", "cuda")
        return tuple(cls(kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in kinds)

    def context(self) -> Any:
        return torch.autocast(self.device, self.dtype, self.enabled)


@dataclass(frozen=True)
class Effects:
    """What a captured graph does: which arguments it writes to, whether it draws numbers, which results are tensors."""

    mutated: tuple[int, ...]
    is_random: bool
    constants: tuple[tuple[Any] | None, ...]
    """For each result that is no tensor what it is; None for a tensor."""

    def outputs(self, results: Sequence[Any]) -> tuple[Any, ...]:
        """What the graph gives, of the results of its program."""
        rest = iter(results)
        return tuple(next(rest) if constant is None else constant[0] for constant in self.constants)

    def write_back(self, arguments: Sequence[Any], results: Sequence[Any]) -> None:
        """Let arguments have the values that the graph gave them."""
        written = results[len(results) - len(self.mutated) :]
        for place, value in zip(self.mutated, written, strict=True):
            arguments[place].copy_(value)


class _Draws(TorchDispatchMode):
    """Watches for operators that draw random numbers."""

    found = False
    supports_higher_order_operators = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found |= torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())
        return func(*args, **(kwargs or {}))


def effects_of(module: fx.GraphModule, arguments: Sequence[Any]) -> Effects:
    """What a graph does to arguments like these, found by running it on their shapes."""
    fake = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
    levels = has_levels(module)
    outside = temporarily_clear_interpreter_stack()  # custom functions of autograd's ask whether any level is there
    with outside, torch.no_grad(), fake, _Draws() as draws, without_forward_mode():
        plain = [_like(value) if isinstance(value, Tensor) else value for value in arguments]
        # Batch norm writes to its buffers without saying so, but for the dispatcher in Python.
        with enable_python_dispatcher(), FunctionalTensorMode(_allow_token_discovery=True):
            given = [to_fun(value) for value in plain]
            results = evaluate(module, given) if levels else module(*given)
            mutated = tuple(n for n, x in enumerate(given) if isinstance(x, Tensor) and has_data_mutation(x))
    constants = tuple(None if isinstance(value, Tensor) else (value,) for value in results)
    return Effects(mutated, draws.found, constants)


def _like(value: Tensor) -> Tensor:
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)


def program_of(
    module: fx.GraphModule,
    effects: Effects,
    casting: Sequence[Autocasting],
    compile: Callable[[Program, Sequence[Any]], CompiledProgram],
) -> Program:
    """The program of a graph: its results that are tensors, and the values that it writes."""

    def function(*arguments: Any) -> tuple[Any, ...]:
        given = list(arguments)
        for place in effects.mutated:
            given[place] = given[place].clone()
        with ExitStack() as stack:
            for each in casting:
                stack.enter_context(each.context())
            results = evaluate(module, given)
        tensors = [value for value, constant in zip(results, effects.constants, strict=True) if constant is None]
        return (*tensors, *(given[place] for place in effects.mutated))

    parts = [part for part in module.modules() if isinstance(part, fx.GraphModule)]
    names = {getattr(node.target, "_name", "") for part in parts for node in part.graph.nodes}
    line = first_line(module.graph.nodes)
    return Program(function, compile, line, effects.is_random, has_loops="while_loop" in names)
