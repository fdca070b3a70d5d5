"""Functions of tensors that are compiled when they are called, and whose derivatives and batches are such functions.

    f(x, w)  ─ vjp ─►  f'(x, w, g)  ─ vmap ─►  f'(X, w, G)  ─ vjp ─►  …        each is traced and compiled by itself

A program is a function in Python over plain tensors. What is derived from it applies a transformation of torch's to
that function, and it is AOTAutograd that traces the whole: what torch can differentiate or batch, Weft compiles.
"""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch._functorch import eager_transforms
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel

from weft.frontends.torch.transforms.differentiable_forms import taking_tangents
from weft.frontends.torch.transforms.dynamo_levels import as_entered, without_forward_mode
from weft.frontends.torch.transforms.random_state import RandomState

Function: TypeAlias = Callable[..., tuple[Any, ...]]
"""Takes tensors, and numbers; gives tensors."""


_NO_TANGENTS = "forward AD", "forward mode AD", "INTERNAL ASSERT"
"""What errors of torch say where it has no rule for tangents, or fails itself, at some views and where it prints."""


@dataclass(frozen=True)
class CompiledProgram:
    """A compiled program, and which of its arguments it reads at all."""

    call: Callable[..., Sequence[Any]]
    reads: frozenset[int]


@dataclass(eq=False)
class Program:
    """A function of tensors, compiled anew for each kind of arguments, and what was derived from it."""

    function: Function
    compile: Callable[[Program, Sequence[Any]], CompiledProgram]
    location: str | None
    """The user's line that it comes from."""
    is_random: bool = False
    """Whether it draws random numbers: then it is run again from the state that it drew them from."""
    order: int = 0
    """How often it is differentiated."""
    has_loops: bool = False
    """Whether it has a loop whose number of turns its data decides."""
    otherwise: Function | None = None
    """The same function in another way, for a trace of its own where the first cannot be traced."""
    _compiled: dict[Hashable, CompiledProgram] = field(default_factory=dict[Hashable, CompiledProgram])
    _derived: dict[Hashable, Program] = field(default_factory=dict[Hashable, "Program"])

    def compiled_for(self, arguments: Sequence[Any]) -> CompiledProgram:
        """The program for arguments like these, which are plain tensors and numbers."""
        key = _key(arguments)
        found = self._compiled.get(key)
        if found is None:
            with _tracing(self.order + (torch.is_grad_enabled() and _require_gradients(arguments))):
                found = self._compiled[key] = self.compile(self, arguments)
        return found

    def __call__(self, arguments: Sequence[Any], state: RandomState | None = None) -> tuple[Any, ...]:
        """The results for plain tensors; gradients are kept track of as torch's mode says."""
        compiled = self.compiled_for(arguments)
        with nullcontext() if state is None else state.replayed():
            results = compiled.call(*arguments)
        if forward_ad._current_level >= 0:
            # Of a function with a result that lies in an argument's memory, torch drops the tangents of all others.
            lying = {value.untyped_storage()._cdata for value in arguments if isinstance(value, Tensor)}
            return tuple(
                value.clone() if isinstance(value, Tensor) and value.untyped_storage()._cdata in lying else value
                for value in results
            )
        # Torch takes no argument for the result of a function of its own: one that has to be is a view of it.
        return tuple(value.view_as(value) if any(value is each for each in arguments) else value for value in results)

    def vjp(self, wanted: tuple[int, ...], seeded: tuple[int, ...]) -> Program:
        """Maps arguments, and gradients of the results at `seeded`, to gradients of the arguments at `wanted`."""

        def function(*values: Any) -> tuple[Any, ...]:
            arguments, seeds = values[: len(values) - len(seeded)], values[len(values) - len(seeded) :]
            primals = tuple(arguments[place] for place in wanted)
            pulled: Any = torch.func.vjp(self._of(arguments, wanted, seeded), *primals)
            return pulled[1](seeds)

        return self._derive(("vjp", wanted, seeded), function, 1)

    def jvp(self, wanted: tuple[int, ...], given: tuple[int, ...]) -> Program:
        """Maps arguments, and tangents of those at `wanted`, to tangents of the results at `given`."""

        def function(*values: Any) -> tuple[Any, ...]:
            arguments, tangents = values[: len(values) - len(wanted)], values[len(values) - len(wanted) :]
            primals = tuple(arguments[place] for place in wanted)
            of = self._of(arguments, wanted, given)
            try:
                with as_entered():
                    return torch.func.jvp(of, primals, tangents)[1]
            except (NotImplementedError, RuntimeError) as error:
                if not any(words in str(error) for words in _NO_TANGENTS):
                    raise
            return _jvp_by_vjp(of, primals, tangents)

        def by_gradients(*values: Any) -> tuple[Any, ...]:
            arguments, tangents = values[: len(values) - len(wanted)], values[len(values) - len(wanted) :]
            return _jvp_by_vjp(self._of(arguments, wanted, given), tuple(arguments[n] for n in wanted), tangents)

        # Of derivatives, torch's two modes do not always agree, and differences take the side of reverse mode. But the
        # gradient of a loop is a loop with another one inside, which the next gradient has again: tangents are none.
        ways = (by_gradients, function) if self.order and not self.has_loops else (function, by_gradients)
        return self._derive(("jvp", wanted, given), ways[0], 2, ways[1])

    def vmap(self, dims: tuple[int | None, ...], randomness: str) -> Program:
        """Maps arguments with a batch along `dims` to results with a batch along their first dimension."""

        def function(*values: Any) -> tuple[Any, ...]:
            return torch.func.vmap(self.function, in_dims=dims, randomness=randomness)(*values)

        return self._derive(("vmap", dims, randomness), function)

    def _of(self, arguments: Sequence[Any], wanted: Sequence[int], given: Sequence[int]) -> Function:
        """As a function of the arguments at `wanted`, that gives the results at `given`."""

        def function(*primals: Any) -> tuple[Any, ...]:
            whole = list(arguments)
            for place, primal in zip(wanted, primals, strict=True):
                whole[place] = primal
            results = self.function(*whole)
            return tuple(results[place] for place in given)

        return function

    def _derive(self, key: Hashable, function: Function, order: int = 0, otherwise: Function | None = None) -> Program:
        found = self._derived.get(key)
        if found is None:
            made = Program(
                function, self.compile, self.location, self.is_random, self.order + order, self.has_loops, otherwise
            )
            found = self._derived[key] = made
        return found


def _jvp_by_vjp(function: Function, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, ...]:
    """Tangents by reverse mode: what pulls back is linear in its seeds, and what pulls that back takes tangents."""
    with taking_tangents():
        found: Any = torch.func.vjp(function, *primals)
    results, pull = found
    pushed: Any = torch.func.vjp(lambda *seeds: pull(seeds), *(torch.zeros_like(each) for each in results))
    return pushed[1](tangents)


def _key(arguments: Sequence[Any]) -> Hashable:
    """What a program is compiled for."""
    enabled = torch.is_grad_enabled()
    found: list[Hashable] = [enabled, torch.is_inference_mode_enabled()]
    for value in arguments:
        if isinstance(value, Tensor):
            found.append(
                (value.dtype, value.device, value.shape, value.stride(), enabled and value.requires_grad, type(value))
            )
        else:
            found.append((type(value), value))
    return tuple(found)


def _require_gradients(arguments: Sequence[Any]) -> bool:
    return any(isinstance(value, Tensor) and value.requires_grad for value in arguments)


@contextmanager
def _tracing(order: int) -> Generator[None]:
    """Tracing of what is differentiated `order` times, as from the top."""
    entered = int(forward_ad._current_level >= 0 and eager_transforms.JVP_NESTING == 0)
    # torch.func.jvp would enter a level of its own, but levels of forward mode do not nest.
    eager_transforms.JVP_NESTING += entered
    try:
        # Fused attention has a gradient, but neither tangents nor a gradient of its gradient.
        with without_forward_mode(), sdpa_kernel(SDPBackend.MATH) if order > 1 else nullcontext():
            yield
    finally:
        eager_transforms.JVP_NESTING -= entered


def floats(values: Sequence[Any]) -> tuple[int, ...]:
    """The places of values that can have gradients."""
    return tuple(
        n
        for n, value in enumerate(values)
        if isinstance(value, Tensor) and (value.dtype.is_floating_point or value.dtype.is_complex)
    )
