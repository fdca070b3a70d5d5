"""Jacobians and Hessians: a batch of gradients, or of tangents, along the directions of a basis."""

# Torch's pytrees have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false, reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from itertools import accumulate
from typing import Any, cast

import torch
import torch.utils._pytree as pytree
from xdsl.ir import SSAValue

from weft.diagnostics import calling_line
from weft.errors import DTypeError, UnsupportedError, WeftError
from weft.frontends.torch.func.capturing import current_capture
from weft.frontends.torch.func.chunked_batches import checked_chunk_size
from weft.frontends.torch.func.derivatives import Argnums, checked_argnums, differentiated, split_aux, with_tensors
from weft.frontends.torch.func.differentiable_call import needs_gradients
from weft.frontends.torch.func.kept_transforms import kept
from weft.frontends.torch.func.linear_maps import Linearized, Split
from weft.frontends.torch.func.program import Program, Slot
from weft.frontends.torch.func.tangents_by_gradients import jacobian_by_gradients, unless_torch_has_no_rule
from weft.frontends.torch.func.transformed import Transformed, is_traced
from weft.ir.expr import Size, product
from weft.ir.types import Tensor, i64, is_float, tensor_of
from weft.ops.graph import FuncOp, GraphBuilder
from weft.ops.rules import move_dim
from weft.passes.differentiate import value_and_vjp_function
from weft.passes.transform.arguments import bind_arguments, without_dead_ops
from weft.passes.transform.jvp import jvp_function
from weft.passes.transform.vmap import Randomness, vmap_function


class Jacobian(Transformed):
    """The derivatives of all results with respect to all elements of the arguments at `argnums`."""

    def __init__(
        self,
        function: Callable[..., Any],
        argnums: Argnums,
        has_aux: bool,
        forward: bool,
        randomness: Randomness,
        chunk: int | None = None,
    ) -> None:
        super().__init__(function)
        self.argnums, self.has_aux, self.forward = argnums, has_aux, forward
        self.randomness: Randomness = randomness
        self.chunk = chunk

    @cached_property
    def _linearized(self) -> Linearized:
        return Linearized(self.inner, False, self.has_aux, self.argnums)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.chunk is None or is_traced(pytree.tree_leaves((args, kwargs))):
            return super().__call__(*args, **kwargs)
        args = tuple(self.prepared(args))
        split, tensors = self._linearized.split(args, kwargs)
        if needs_gradients((*tensors, *split.inner.held)):
            return super().__call__(*args, **kwargs)
        return self._in_chunks(split, tensors, self.chunk)

    def _in_chunks(self, split: Split, tensors: Sequence[torch.Tensor], chunk: int) -> Any:
        """By some rows at a time, all of them of one forward pass."""
        returned, residuals = split(tensors)
        _refuse_complex((split.takes, split.program.tree()))
        value, aux = returned if self.has_aux else (returned, None)
        ends, tree = pytree.tree_flatten(value)
        total = sum(end.numel() for end in ends)
        parts: list[Sequence[torch.Tensor]] = []
        for start in range(0, max(total, 1), chunk):
            count = min(chunk, total - start)
            parts.append(split.batch(count)([*_basis_rows(ends, start, count), *residuals]))
        rows = [torch.cat(column).split([end.numel() for end in ends]) for column in zip(*parts, strict=True)]
        blocks = [
            split.program.restored([part[n].reshape(*end.shape, *part[n].shape[1:]) for part in rows])
            for n, end in enumerate(ends)
        ]
        jacobian = pytree.tree_unflatten(blocks, tree)
        return (jacobian, aux) if self.has_aux else jacobian

    def prepared(self, args: tuple[Any, ...]) -> Sequence[Any]:
        return with_tensors(args, self.argnums)

    def eager(self, *args: Any, **kwargs: Any) -> Any:
        if self.forward and not kwargs and current_capture() is not None:
            with unless_torch_has_no_rule():  # what has no second derivative in torch may have a tangent
                return jacobian_by_gradients(self.inner.eager, args, self.argnums, self.has_aux)
        if self.forward:
            make: Any = partial(torch.func.jacfwd, randomness=self.randomness)
        else:
            chunk = self.chunk if current_capture() is None else None
            make = partial(torch.func.jacrev, chunk_size=chunk)
        return make(self.inner.eager, self.argnums, has_aux=self.has_aux)(*args, **kwargs)

    def program(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Program:
        args = with_tensors(args, self.argnums)
        inner = self.inner.program(args, kwargs)
        wanted, arguments = differentiated(inner, args, self.argnums)
        values, aux, tree, aux_tree = split_aux(inner, self.has_aux, "a Jacobian")
        if bad := next((value for value in values if not is_float(value)), None):
            raise DTypeError(
                f"a result of {tensor_of(bad.type)}, which has no derivative",
                location=calling_line(),
                hint="integers and booleans have none: return floats, and others as aux",
            )
        _refuse_complex((tree, arguments))
        self._refuse_random(inner)
        ends = [tensor_of(value.type) for value in values]
        starts = [tensor_of(inner.function.block.args[place].type) for place in wanted]
        build = _columns if self.forward else _rows
        made, blocks = build(inner.function, wanted, ends, starts, self.randomness)
        found = list(made.returned.operands)
        aux_values, verdict = found[len(values) :][: len(aux)], found[len(values) + len(aux) :][: len(inner.verdict)]
        jacobian = pytree.tree_map(lambda leaf: arguments if isinstance(leaf, Slot) else leaf, tree)
        made_tree = (jacobian, aux_tree) if self.has_aux else jacobian
        program = inner.returning(made, [*blocks, *aux_values, *verdict], made_tree)
        without_dead_ops(program.function)
        return program

    def _refuse_random(self, inner: Program) -> None:
        """Raise where tangents would not know whose random numbers they are of."""
        if inner.seed is None or self.randomness != "error":
            return
        of_gradients = isinstance(self.inner, Jacobian) and not self.inner.forward
        instead = 'jacfwd(jacrev(f), randomness="same")' if of_gradients else 'jacfwd(f, randomness="same")'
        raise UnsupportedError(
            "tangents of a function that draws random numbers",
            location=calling_line(),
            hint=f"`{instead}` takes the derivative for numbers that are given",
        )


def _refuse_complex(tree: Any) -> None:
    if any(isinstance(leaf, Slot) and leaf.is_complex for leaf in pytree.tree_leaves(tree)):
        raise DTypeError(
            "a Jacobian of complex numbers",
            location=calling_line(),
            hint="take that of their parts, by `torch.view_as_real`; `vjp` and `jvp` take complex numbers",
        )


def _rows(
    function: FuncOp,
    wanted: Sequence[int],
    ends: Sequence[Tensor],
    starts: Sequence[Tensor],
    randomness: Randomness,
) -> tuple[FuncOp, list[SSAValue]]:
    """By gradients: one for each element of the results."""
    results, taken = len(function.returned.operands), len(function.block.args)
    joint = value_and_vjp_function(function, wanted, range(len(ends)))
    made = _batched(joint, ends, results, taken, len(wanted), randomness)
    b = GraphBuilder(made.block, before=made.returned)
    found = list(made.returned.operands)[results:]
    blocks: list[SSAValue] = []
    for end, first in zip(ends, _offsets(ends), strict=True):
        for start, gradients in zip(starts, found, strict=True):
            part = _part(b, gradients, first, product(end.shape))
            blocks.append(b.reshape(part, shape=(*end.shape, *start.shape)))
    return made, blocks


def _columns(
    function: FuncOp,
    wanted: Sequence[int],
    ends: Sequence[Tensor],
    starts: Sequence[Tensor],
    randomness: Randomness,
) -> tuple[FuncOp, list[SSAValue]]:
    """By tangents: one for each element of the arguments."""
    results, taken = len(function.returned.operands), len(function.block.args)
    moving = [n for n, value in enumerate(function.returned.operands) if is_float(value)]
    made = _batched(jvp_function(function, wanted), starts, results, taken, len(moving), randomness)
    b = GraphBuilder(made.block, before=made.returned)
    found = list(made.returned.operands)[results:]
    blocks: list[SSAValue] = []
    for end, tangents in zip(ends, found, strict=False):
        for start, first in zip(starts, _offsets(starts), strict=True):
            part = _part(b, tangents, first, product(start.shape))
            blocks.append(b.reshape(move_dim(b, part, 0, end.rank), shape=(*end.shape, *start.shape)))
    return made, blocks


def _basis_rows(tensors: Sequence[torch.Tensor], start: int, count: int) -> list[torch.Tensor]:
    """Some rows of the basis of all elements of some tensors, as a batch of directions of each."""
    found: list[torch.Tensor] = []
    for each in tensors:
        rows = torch.arange(start, start + count, device=each.device)[:, None]
        columns = torch.arange(each.numel(), device=each.device)
        found.append((rows == columns).to(each.dtype).reshape(count, *each.shape))
        start -= each.numel()
    return found


def _offsets(tensors: Sequence[Tensor]) -> list[Size]:
    """Where the directions of each tensor begin in a basis of all."""
    return [0, *accumulate(product(each.shape) for each in tensors)][:-1]


def _part(b: GraphBuilder, x: SSAValue, first: Size, count: Size) -> SSAValue:
    """Some of the first dimension."""
    shape = b.tensor(x).shape
    if first == 0 and count == shape[0]:
        return x
    starts = (first, *(0 for _ in shape[1:]))
    return b.slice(x, starts=starts, shape=(count, *shape[1:]), steps=tuple(1 for _ in shape))


def _batched(
    function: FuncOp,
    directions: Sequence[Tensor],
    results: int,
    taken: int,
    derivatives: int,
    randomness: Randomness,
) -> FuncOp:
    """A function of arguments and directions for all directions of a basis at once: values stay as they are."""
    total: Size = sum((product(each.shape) for each in directions), 0)
    axes = [*(None for _ in range(taken)), *(0 for _ in directions)]
    outs = [*(None for _ in range(results)), *(0 for _ in range(derivatives))]
    made = vmap_function(without_dead_ops(function), total, axes, outs, randomness)

    def basis(tensor: Tensor, first: Size) -> Callable[[GraphBuilder, SSAValue], SSAValue]:
        def build(b: GraphBuilder, _: SSAValue) -> SSAValue:
            shape = (total, product(tensor.shape))
            row = b.iota(shape=shape, dim=0, dtype=i64)
            column = b.iota(shape=shape, dim=1, dtype=i64, start=first)
            return b.reshape(b.cast(b.eq(row, column), dtype=tensor.dtype), shape=(total, *tensor.shape))

        return build

    pairs = zip(directions, _offsets(directions), strict=True)
    bind_arguments(made, {taken + n: basis(each, first) for n, (each, first) in enumerate(pairs)})
    return made


def jacrev(
    function: Callable[..., Any], argnums: Argnums = 0, *, has_aux: bool = False, chunk_size: int | None = None
) -> Callable[..., Any]:
    """The Jacobian by gradients, for functions of many arguments and few results.

    With `chunk_size`, so many rows are computed at a time, which takes less memory; inside of other transformations,
    all are.
    """
    chunk_size = checked_chunk_size(chunk_size)
    return kept(Jacobian, function, checked_argnums(argnums), has_aux, False, "same", chunk_size)


def jacfwd(
    function: Callable[..., Any], argnums: Argnums = 0, *, has_aux: bool = False, randomness: str = "error"
) -> Callable[..., Any]:
    """The Jacobian by tangents, for functions of few arguments and many results.

    Random numbers are an error, as in torch, unless `randomness` says that all tangents have the "same" ones.
    """
    if randomness not in ("error", "same"):
        raise WeftError(
            f"jacfwd has no randomness {randomness!r}",
            location=calling_line(),
            hint='"same" is the derivative of a function whose random numbers are given; "error" refuses them',
        )
    return kept(Jacobian, function, checked_argnums(argnums), has_aux, True, cast("Randomness", randomness))


def hessian(function: Callable[..., Any], argnums: Argnums = 0) -> Callable[..., Any]:
    """The second derivatives: the Jacobian, by tangents, of that by gradients."""
    return jacfwd(jacrev(function, argnums), argnums)
