"""`vjp` and `linearize`: the value of a function now, and its derivative at that point as a function for later.

The function that computes both is split: what needs the point alone runs once and keeps what the derivative needs.
"""

# Torch's pytrees have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false, reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
import torch.utils._pytree as pytree

from weft.config import Config
from weft.diagnostics import calling_line
from weft.errors import DTypeError
from weft.frontends.torch.dtypes import to_torch
from weft.frontends.torch.func.capture_function import fake_tensors
from weft.frontends.torch.func.custom_batching import batch_by_rule
from weft.frontends.torch.func.derivatives import (
    Argnums,
    Jvp,
    check_tangents,
    differentiated,
    split_aux,
    with_tensors,
)
from weft.frontends.torch.func.differentiable_call import ProgramCall, needs_gradients
from weft.frontends.torch.func.execute import Call, compile_program, drawn
from weft.frontends.torch.func.kept_transforms import kept
from weft.frontends.torch.func.program import SLOT, Program, Slot
from weft.frontends.torch.func.transformed import Transformed, is_traced, located, type_of
from weft.ir.types import is_float, tensor_of
from weft.passes.differentiate import return_values, value_and_vjp_function
from weft.passes.split_joint import split_joint
from weft.passes.transform.arguments import forget_ends, order_arguments, without_dead_ops
from weft.passes.transform.jvp import jvp_function
from weft.passes.transform.vmap import vmap_function


class Split:
    """A function's value and derivative for one signature: what runs first, and what runs for each direction."""

    def __init__(
        self,
        inner: Program,
        args: Sequence[Any],
        forward: bool,
        has_aux: bool,
        config: Config,
        argnums: Argnums | None = None,
    ) -> None:
        wanted, arguments = differentiated(inner, args, tuple(range(len(args))) if argnums is None else argnums)
        values, _, tree, _ = split_aux(inner, has_aux, "linearize" if forward else "vjp")
        if bad := next((value for value in values if not is_float(value)), None):
            raise DTypeError(
                f"a result of {tensor_of(bad.type)}, which has no derivative",
                location=calling_line(),
                hint="return it as aux",
            )
        self.inner, self.forward = inner, forward
        results = len(inner.function.returned.operands)
        if forward:
            joint = jvp_function(inner.function, wanted, apart=True)
            found = list(joint.returned.operands)
            moving = [n for n, value in enumerate(inner.function.returned.operands) if is_float(value)]
            tangents = dict(zip(moving, found[results:], strict=True))
            return_values(joint, [*found[:results], *(tangents[n] for n in range(len(values)))])
            self.takes, gives = arguments, tree
        else:
            joint = value_and_vjp_function(inner.function, wanted, range(len(values)))
            self.takes, gives = (tree,), arguments
        seeds = len(wanted) if forward else len(values)
        self.cut = split_joint(forget_ends(without_dead_ops(joint)), results, seeds)
        first = list(self.cut.forward.returned.operands)
        whole = replace(inner, tensors=len(inner.function.block.args), held=(), seed=None)
        self.returned = len(inner.results)
        residuals = first[results:]
        order = [*first[: self.returned], *residuals, *first[self.returned : results]]
        head = whole.returning(self.cut.forward, order, [SLOT] * (self.returned + len(residuals)))
        self.first = compile_program(head, config)
        backward = self.cut.backward
        taken = len(backward.block.args)
        order_arguments(backward, [*range(taken - seeds, taken), *range(taken - seeds)])
        leaves, spec = pytree.tree_flatten(gives)
        self.program = replace(whole, function=backward, tensors=taken, leaves=tuple(leaves), out_spec=spec, checks=())
        self._args, self._has_aux = args, has_aux
        self.second, self.config, self._batches = compile_program(self.program, config), config, dict[int, Call]()

    @cached_property
    def value(self) -> ProgramCall:
        """The function itself."""
        return ProgramCall(self.inner, self.config)

    @cached_property
    def at_point(self) -> ProgramCall:
        """The derivative, as a function of the point, too: torch's autograd differentiates it."""
        inner = self.inner
        wanted, _ = differentiated(inner, self._args, tuple(range(len(self._args))))
        values, _, _, _ = split_aux(inner, self._has_aux, "vjp")
        results, given = len(inner.function.returned.operands), len(inner.function.block.args)
        if self.forward:
            made = jvp_function(inner.function, wanted)
            moving = [n for n, value in enumerate(inner.function.returned.operands) if is_float(value)]
            tangents = dict(zip(moving, list(made.returned.operands)[results:], strict=True))
            found = [tangents[n] for n in range(len(values))]
        else:
            made = value_and_vjp_function(inner.function, wanted, range(len(values)))
            found = list(made.returned.operands)[results:]
        taken = len(made.block.args)
        order_arguments(made, [*range(given, taken), *range(given)])
        whole = replace(inner, held=(), seed=None, checks=())
        program = whole.returning(made, found, self.program.tree(), taken)
        without_dead_ops(made)
        return ProgramCall(program, self.config)

    def batch(self, size: int) -> Call:
        """What runs for so many directions at once."""
        if size not in self._batches:
            seeds = len(pytree.tree_leaves(self.takes))
            axes = [0 if n < seeds else None for n in range(self.program.tensors)]
            made = vmap_function(self.program.function, size, axes, None, "same", batch_by_rule)
            self._batches[size] = compile_program(replace(self.program, function=made), self.config)
        return self._batches[size]

    def check(self, args: Sequence[Any]) -> None:
        """Raise where the derivative is given what is not like the results, or arguments."""
        arguments = iter(self.program.function.block.args)
        expected = pytree.tree_map(lambda slot: _like(next(arguments), slot), tuple(self.takes))
        named = ("tangent", "argument") if self.forward else ("gradient", "result")
        check_tangents(expected, tuple(args), *named)

    def __call__(self, tensors: Sequence[torch.Tensor]) -> tuple[Any, list[torch.Tensor]]:
        """What the function returns, and what its derivative needs."""
        given = [*tensors, *drawn(self.inner)]
        found = self.first(given)
        residuals = [*(given[place] for place in self.cut.arguments), *found[self.returned :]]
        return self.inner.restored(found[: self.returned]), residuals


class LinearMap(Transformed):
    """The derivative of a function at a point: of one tree, of gradients of the results, or of tangents."""

    def __init__(
        self,
        split: Split,
        residuals: Sequence[torch.Tensor],
        eager: Callable[..., Any],
        at_point: ProgramCall | None = None,
    ) -> None:
        self.split, self.residuals, self._eager = split, tuple(residuals), eager
        self._program = split.program if at_point is None else at_point.program
        self._call: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]] = at_point or split.second
        self.config, self._compiled = Config.from_options(), {}

    def weft_reads(self) -> Sequence[Any]:
        return self.residuals

    def eager(self, *args: Any, **kwargs: Any) -> Any:
        return self._eager(*args)

    def program(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Program:
        self.split.check(args)
        program = self._program
        return replace(program, tensors=program.tensors - len(self.residuals), held=self.residuals)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves = pytree.tree_leaves(args)
        if is_traced(leaves):
            return self._eager(*args)
        self.split.check(args)
        return self._program.restored(self._call([*leaves, *self.residuals]))


def _like(value: Any, slot: Slot) -> torch.Tensor:
    """A tensor of a value's type, without contents."""
    tensor = tensor_of(value.type)
    shape: Any = tensor.shape
    return slot.restored(torch.empty(shape, dtype=to_torch(tensor.dtype), device="meta"))


class Linearized(Transformed):
    """Splits a function, once for each signature."""

    def __init__(
        self, function: Callable[..., Any], forward: bool, has_aux: bool = False, argnums: Argnums | None = None
    ) -> None:
        super().__init__(function)
        self.forward, self.has_aux, self.argnums = forward, has_aux, argnums
        self._splits: dict[Any, Split] = {}

    @property
    def reads_numbers(self) -> bool:
        return any(split.inner.reads_numbers for split in self._splits.values())

    def program(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Program:
        raise AssertionError("it returns a function, and is not transformed itself")

    def eager(self, *args: Any, **kwargs: Any) -> Any:
        if self.forward:  # by tangents: torch's own computes part of it at once, which tracing has no data for
            return self.inner.eager(*args), lambda *tangents: Jvp(self.inner).eager(args, tangents)[1]
        return torch.func.vjp(self.inner.eager, *args, has_aux=self.has_aux)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        args = tuple(with_tensors(args, ()))
        if is_traced(pytree.tree_leaves(args)):
            return self.eager(*args)
        split, tensors = self.split(args, kwargs)
        if needs_gradients((*tensors, *split.inner.held)):
            return self._differentiable(split, args, tensors)
        returned, residuals = split(tensors)
        derivative = LinearMap(split, residuals, self._eager_map(args))
        return (returned[0], derivative, returned[1]) if self.has_aux else (returned, derivative)

    def _eager_map(self, args: tuple[Any, ...]) -> Callable[..., Any]:
        return lambda *given: self.eager(*args)[1](*given)

    def _differentiable(self, split: Split, args: tuple[Any, ...], tensors: Sequence[torch.Tensor]) -> Any:
        """The same, with graphs for torch's autograd."""
        point = replace(split.inner, held=tuple(drawn(split.inner)), seed=None)  # value and derivative draw the same
        returned = split.inner.restored(split.value.at(tensors, point.held))
        derivative = LinearMap(split, (*tensors, *point.held), self._eager_map(args), split.at_point)
        return (returned[0], derivative, returned[1]) if self.has_aux else (returned, derivative)

    def split(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Split, list[torch.Tensor]]:
        """The split function for such arguments, and the tensors among them."""
        leaves, spec = pytree.tree_flatten((args, dict(kwargs)))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        key = (spec, *map(type_of, leaves))
        if key not in self._splits:
            fakes = iter(fake_tensors(tensors))
            types, names = pytree.tree_map_only(torch.Tensor, lambda _: next(fakes), (args, dict(kwargs)))
            with located():
                inner = self.inner.program(types, names)
                self._splits[key] = Split(inner, types, self.forward, self.has_aux, self.config, self.argnums)
        return self._splits[key], tensors


def vjp(function: Callable[..., Any], *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """The value of a function, and the function that takes gradients of the results to those of the arguments.

    With `has_aux` the function returns a pair: (value, function, aux).
    """
    return kept(Linearized, function, False, has_aux)(*primals)


def linearize(function: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """The value of a function, and the function that takes tangents of the arguments to those of the results."""
    return kept(Linearized, function, True)(*primals)
