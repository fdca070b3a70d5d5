"""Gradients and derivatives of torch functions: `grad`, `value_and_grad`, `jvp`, Jacobians and Hessians."""

# Torch's pytrees have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false, reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.nn.attention import SDPBackend, sdpa_kernel
from xdsl.ir import SSAValue

from weft.diagnostics import calling_line
from weft.errors import DTypeError, ShapeError, WeftError
from weft.frontends.torch.func.capturing import current_capture
from weft.frontends.torch.func.kept_transforms import kept
from weft.frontends.torch.func.program import Program, Slot, slot_of
from weft.frontends.torch.func.tangents_by_gradients import jvp_by_gradients, unless_torch_has_no_rule
from weft.frontends.torch.func.transformed import Transformed, tensor_places
from weft.ir.types import is_float, tensor_of
from weft.ops.graph import GraphBuilder
from weft.passes.differentiate import value_and_vjp_function
from weft.passes.transform.arguments import bind_arguments, order_arguments, without_dead_ops
from weft.passes.transform.jvp import jvp_function

Argnums = int | tuple[int, ...]


def checked_argnums(argnums: Any) -> Argnums:
    """Numbers of arguments; raise for what are none."""
    numbers: list[Any] = list(argnums) if isinstance(argnums, tuple | list) else [argnums]
    if not numbers or any(not isinstance(each, int) or isinstance(each, bool) for each in numbers):
        raise WeftError(
            f"argnums={argnums!r}",
            location=calling_line(),
            hint="give the number of an argument that is differentiated, counted from 0, or a tuple of them",
        )
    return tuple(numbers) if isinstance(argnums, tuple | list) else numbers[0]


def with_tensors(args: Sequence[Any], argnums: Argnums) -> list[Any]:
    """The arguments, with tensors for Python's floats and complex numbers among those that are differentiated."""
    wanted = range(len(args)) if argnums == () else [argnums] if isinstance(argnums, int) else argnums
    found = list(args)
    for number in wanted:
        if not -len(found) <= number < len(found):
            raise WeftError(
                f"argnums has {number}, and the function got {len(found)} arguments",
                location=calling_line(),
                hint="keyword arguments are not differentiated: pass it by place",
            )
        found[number] = pytree.tree_map_only((float, complex), torch.tensor, found[number])
        if argnums != ():
            _require_numbers(found[number], number)
    return found


def _require_numbers(argument: Any, number: int) -> None:
    """Raise where a function would be given, to be differentiated, what is no number at all."""
    for leaf in pytree.tree_leaves(argument):
        if not isinstance(leaf, torch.Tensor | int):
            raise DTypeError(
                f"argument {number} has a leaf of {type(leaf).__name__}, which has no derivative",
                location=calling_line(),
                hint="differentiate tensors: choose other `argnums`, or convert it by `torch.as_tensor`",
            )


def differentiated(program: Program, args: Sequence[Any], argnums: Argnums) -> tuple[list[int], Any]:
    """The places of the tensors of differentiated arguments, and the tree of these, with slots for tensors."""
    numbers = [argnums] if isinstance(argnums, int) else list(argnums)
    numbers = [number % len(args) for number in numbers]
    if twice := [number for number in numbers if numbers.count(number) > 1]:
        raise WeftError(
            f"argnums has {twice[0]} twice", location=calling_line(), hint="differentiate each argument once"
        )
    places = iter(tensor_places(args))
    per_argument = [[next(places) for _ in pytree.tree_leaves(argument)] for argument in args]
    wanted: list[int] = []
    for number in numbers:
        for place, leaf in zip(per_argument[number], pytree.tree_leaves(args[number]), strict=True):
            if place is None or not is_float(program.function.block.args[place]):
                kind = leaf.dtype if isinstance(leaf, torch.Tensor) else type(leaf).__name__
                raise DTypeError(
                    f"argument {number} has a leaf of {kind}, which has no derivative",
                    location=calling_line(),
                    hint="differentiate floats: choose other `argnums`, or convert it by `.float()`",
                )
            wanted.append(place)
    tree = [pytree.tree_map(slot_of, args[number]) for number in numbers]
    return wanted, tree[0] if isinstance(argnums, int) else tuple(tree)


def split_aux(program: Program, has_aux: bool, what: str) -> tuple[list[SSAValue], list[SSAValue], Any, Any]:
    """The results that are differentiated and the others, and the trees of both."""
    tree = program.tree()
    if not has_aux:
        _require_tensors(tree, what)
        return program.results, [], tree, None
    if not isinstance(tree, tuple) or len(tree) != 2:
        raise WeftError(
            f"{what} with has_aux takes a function that returns a pair",
            location=calling_line(),
            hint="return (what is differentiated, aux)",
        )
    _require_tensors(tree[0], what)
    count = sum(isinstance(leaf, Slot) for leaf in pytree.tree_leaves(tree[0]))
    return program.results[:count], program.results[count:], tree[0], tree[1]


def _require_tensors(tree: Any, what: str) -> None:
    """Raise where a result that is differentiated is no tensor."""
    bad = [leaf for leaf in pytree.tree_leaves(tree) if not isinstance(leaf, Slot)]
    if bad:
        kind = "nothing" if bad[0] is None else f"a {type(bad[0]).__name__}"
        raise DTypeError(
            f"{what} of a function that returns {kind}",
            location=calling_line(),
            hint="return tensors; what has no derivative is returned beside them, with has_aux=True",
        )


def _ones(b: GraphBuilder, like: SSAValue) -> SSAValue:
    tensor = tensor_of(like.type)
    return b.full(value=1, shape=tensor.shape, dtype=tensor.dtype)


class Grad(Transformed):
    """The gradient of a function of one number, alone or beside its value."""

    def __init__(self, function: Callable[..., Any], argnums: Argnums, has_aux: bool, with_value: bool) -> None:
        super().__init__(function)
        self.argnums, self.has_aux, self.with_value = argnums, has_aux, with_value

    def prepared(self, args: tuple[Any, ...]) -> Sequence[Any]:
        return with_tensors(args, self.argnums)

    def eager(self, *args: Any, **kwargs: Any) -> Any:
        make: Any = torch.func.grad_and_value if self.with_value else torch.func.grad
        found = make(self.inner.eager, self.argnums, self.has_aux)(*args, **kwargs)
        return (found[1], found[0]) if self.with_value else found

    def program(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Program:
        args = with_tensors(args, self.argnums)
        inner = self.inner.program(args, kwargs)
        wanted, gradients = differentiated(inner, args, self.argnums)
        values, aux, tree, aux_tree = split_aux(inner, self.has_aux, "grad")
        _check_scalar(values, tree)
        made = value_and_vjp_function(inner.function, wanted, [0])
        bind_arguments(made, {len(made.block.args) - 1: _ones})
        found = list(made.returned.operands)
        count, extra = len(values), len(aux)
        value, aux_values = found[:count], found[count : count + extra]
        verdict = found[count + extra : count + extra + len(inner.verdict)]
        results = found[count + extra + len(inner.verdict) :]
        if self.with_value:
            head = (tree, aux_tree) if self.has_aux else tree
            made_tree, order = (head, gradients), [*value, *aux_values, *results]
        elif self.has_aux:
            made_tree, order = (gradients, aux_tree), [*results, *aux_values]
        else:
            made_tree, order = gradients, results
        program = inner.returning(made, [*order, *verdict], made_tree)
        without_dead_ops(program.function)
        return program


def _check_scalar(values: Sequence[SSAValue], tree: Any) -> None:
    if any(isinstance(leaf, Slot) and leaf.is_complex for leaf in pytree.tree_leaves(tree)):
        raise DTypeError(
            "grad of a function that returns complex numbers",
            location=calling_line(),
            hint="return a real number, as `.abs()` or `.real` of it; `vjp` takes the gradient of a complex one",
        )
    if len(values) != 1 or tensor_of(values[0].type).shape != ():
        given = ", ".join(str(tensor_of(value.type)) for value in values) or "nothing"
        raise ShapeError(
            f"grad takes a function of one number, this one returns {given}",
            location=calling_line(),
            hint="return a sum or a mean; `jacrev` differentiates tensors, and has_aux=True returns others beside",
        )
    if not is_float(values[0]):
        raise DTypeError(
            f"grad of a function that returns {tensor_of(values[0].type).dtype}",
            location=calling_line(),
            hint="integers and booleans have no derivative: return a float",
        )


def grad(function: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False) -> Callable[..., Any]:
    """The function that gives the gradient of a function of one number, with respect to the arguments at `argnums`.

    With `has_aux` the function returns a pair, of which the second is passed on: (gradient, aux).
    """
    return kept(Grad, function, checked_argnums(argnums), has_aux, False)


def value_and_grad(function: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False) -> Callable[..., Any]:
    """As `grad`, beside the value: (value, gradient), or ((value, aux), gradient)."""
    return kept(Grad, function, checked_argnums(argnums), has_aux, True)


class Jvp(Transformed):
    """The derivative along a direction: of arguments and tangents, as two tuples."""

    def __init__(self, function: Callable[..., Any], has_aux: bool = False) -> None:
        super().__init__(function)
        self.has_aux = has_aux

    def prepared(self, args: tuple[Any, ...]) -> Sequence[Any]:
        primals, tangents = (tuple(with_tensors(each, ())) for each in args)
        check_tangents(primals, tangents)
        return primals, tangents

    def eager(self, *args: Any, **kwargs: Any) -> Any:
        primals, tangents = args
        if current_capture() is not None:
            with unless_torch_has_no_rule():  # what has no second derivative in torch may have a tangent
                return jvp_by_gradients(self.inner.eager, primals, tangents, self.has_aux)
            with unless_torch_has_no_rule():
                return torch.func.jvp(self.inner.eager, primals, tangents, has_aux=self.has_aux)
            with sdpa_kernel(SDPBackend.MATH):  # torch's other kinds of attention have neither
                return jvp_by_gradients(self.inner.eager, primals, tangents, self.has_aux)
        return torch.func.jvp(self.inner.eager, primals, tangents, has_aux=self.has_aux)

    def program(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Program:
        primals, _ = args
        inner = self.inner.program(primals, {})
        wanted, _ = differentiated(inner, primals, tuple(range(len(primals))))
        values, aux, tree, aux_tree = split_aux(inner, self.has_aux, "jvp")
        made = jvp_function(inner.function, wanted)
        given, held = inner.tensors, len(inner.function.block.args) - inner.tensors
        count = len(wanted)
        order = [*range(given), *range(given + held, given + held + count), *range(given, given + held)]
        order_arguments(made, order)
        found, total = list(made.returned.operands), len(inner.function.returned.operands)
        moving = [n for n, value in enumerate(inner.function.returned.operands) if is_float(value)]
        by_result = dict(zip(moving, found[total:], strict=True))
        if (integer := next((n for n in range(len(values)) if n not in by_result), None)) is not None:
            raise DTypeError(
                f"result {integer} is of integers, which have no tangent",
                location=calling_line(),
                hint="return it as aux",
            )
        results = [
            *found[: len(values)],
            *(by_result[n] for n in range(len(values))),
            *found[len(values) :][: len(aux)],
        ]
        verdict = found[len(values) + len(aux) : total]
        made_tree = (tree, tree, aux_tree) if self.has_aux else (tree, tree)
        program = inner.returning(made, [*results, *verdict], made_tree, given + count)
        without_dead_ops(program.function)
        return program


def jvp(
    function: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], *, has_aux: bool = False
) -> tuple[Any, ...]:
    """The value of a function and its derivative along `tangents`: (value, tangent), or (value, tangent, aux)."""
    if not isinstance(primals, tuple | list):
        raise WeftError(
            f"jvp takes a tuple of primals, got {type(primals).__name__}",
            location=calling_line(),
            hint="give one for each argument: jvp(f, (x,), (dx,))",
        )
    if not isinstance(tangents, tuple | list):
        raise WeftError(
            f"jvp takes a tuple of tangents, got {type(tangents).__name__}",
            location=calling_line(),
            hint="give one for each argument: jvp(f, (x,), (dx,))",
        )
    return kept(Jvp, function, has_aux)(tuple(primals), tuple(tangents))


def check_tangents(primals: Any, tangents: Any, what: str = "tangent", of: str = "argument") -> None:
    """Raise where tangents, or gradients, are not of the types of their values."""
    (values, spec), (given, other) = pytree.tree_flatten(primals), pytree.tree_flatten(tangents)
    if spec != other:
        raise WeftError(
            f"{what}s of another structure, {other}, than the {of}s, {spec}",
            location=calling_line(),
            hint=f"give a tree with a {what} for each {of}",
        )
    for value, tangent in zip(values, given, strict=True):
        types = [(tuple(x.shape), x.dtype) if isinstance(x, torch.Tensor) else type(x) for x in (value, tangent)]
        if types[0] != types[1]:
            raise ShapeError(
                f"a {what} of {types[1]} for {'an' if of[0] in 'aeiou' else 'a'} {of} of {types[0]}",
                location=calling_line(),
                hint=f"a {what} has the shape and the type of its {of}",
            )
