"""`vmap`: a torch function of a batch, with axes given as trees, as torch and JAX take them."""

# Torch's pytrees have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false, reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast, get_args

import torch
import torch.utils._pytree as pytree
from xdsl.ir import SSAValue

from weft.diagnostics import calling_line
from weft.errors import ShapeError, WeftError
from weft.frontends.torch.func.capture_function import fake_tensor
from weft.frontends.torch.func.capturing import current_capture
from weft.frontends.torch.func.chunked_batches import call_in_chunks, checked_chunk_size, joined
from weft.frontends.torch.func.custom_batching import batch_by_rule
from weft.frontends.torch.func.kept_transforms import kept
from weft.frontends.torch.func.program import Program, Slot
from weft.frontends.torch.func.transformed import Transformed, is_traced
from weft.ir.types import tensor_of
from weft.ops.graph import GraphBuilder
from weft.passes.transform.vmap import Randomness, vmap_function

Axes = Any
"""An axis, None, or a tree of them: a prefix of the tree of values."""
_UNSAID: Any = type("Unsaid", (), {"__repr__": lambda _: "0"})()
"""Stands for the first axis where nothing is said."""


class Vmap(Transformed):
    """A function of a batch of arguments."""

    def __init__(
        self,
        function: Callable[..., Any],
        in_axes: Axes,
        out_axes: Axes,
        randomness: Randomness,
        size: int | None,
        chunk: int | None = None,
    ) -> None:
        super().__init__(function)
        self.in_axes, self.out_axes, self.size, self.chunk = in_axes, out_axes, size, chunk
        self.randomness: Randomness = randomness
        self._of_chunk = Vmap(function, in_axes, out_axes, randomness, None) if chunk is not None else None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._of_chunk is None or self.chunk is None:
            return super().__call__(*args, **kwargs)
        leaves = pytree.tree_leaves((args, kwargs))
        axes = self._leaf_axes(args, kwargs)
        if is_traced(leaves) or all(axis is None for axis in axes):
            return super().__call__(*args, **kwargs)
        size = self._size(leaves, axes)
        if size <= self.chunk:
            return super().__call__(*args, **kwargs)
        chunks = call_in_chunks(
            self._of_chunk, (args, kwargs), axes, (size, self.chunk), same_numbers=self.randomness == "same"
        )
        return joined(chunks, leaf_axes(self.out_axes, chunks[0], "out_axes"))

    def _leaf_axes(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[int | None]:
        """The axis of each leaf of the arguments; as in torch, all share those by name."""
        given = self.in_axes
        by_place = given if given is None or isinstance(given, int) else tuple(given)
        return leaf_axes((by_place, None), (tuple(args), dict(kwargs)), "in_axes")

    def eager(self, *args: Any, **kwargs: Any) -> Any:
        in_axes = tuple(self.in_axes) if isinstance(self.in_axes, list) else self.in_axes
        # A graph holds the whole batch anyway, and torch's chunks would not share their random numbers.
        chunk = self.chunk if current_capture() is None else None
        batched = torch.func.vmap(self.inner.eager, in_axes, self.out_axes, self.randomness, chunk_size=chunk)
        return batched(*args, **kwargs)

    def program(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Program:
        axes = self._leaf_axes(args, kwargs)
        leaves, spec = pytree.tree_flatten((tuple(args), dict(kwargs)))
        size = self._size(leaves, axes)
        inner_types = pytree.tree_unflatten(
            [_without(leaf, axis) for leaf, axis in zip(leaves, axes, strict=True)], spec
        )
        inner = self.inner.program(*inner_types)
        given = [
            axis if axis is None else axis % leaf.dim()
            for leaf, axis in zip(leaves, axes, strict=True)
            if isinstance(leaf, torch.Tensor)
        ]
        outs = leaf_axes(self.out_axes, inner.tree(), "out_axes")
        slots = [(axis, leaf) for axis, leaf in zip(outs, inner.leaves, strict=True) if isinstance(leaf, Slot)]
        wanted = [
            _axis_in_graph(axis, slot, tensor_of(result.type).rank)
            for (axis, slot), result in zip(slots, inner.results, strict=True)
        ]
        held = len(inner.function.block.args) - inner.tensors
        made = vmap_function(
            inner.function,
            size,
            [*given, *(None for _ in range(held))],
            [*wanted, *(0 for _ in inner.verdict)],
            self.randomness,
            batch_by_rule,
        )
        found = list(made.returned.operands)
        if inner.verdict:
            found[-1] = _any_verdict(GraphBuilder(made.block, before=made.returned), found[-1])
        return inner.returning(made, found, inner.tree())

    def _size(self, leaves: Sequence[Any], axes: Sequence[int | None]) -> int:
        sizes: dict[int, int] = {}
        for number, (leaf, axis) in enumerate(zip(leaves, axes, strict=True)):
            if axis is None:
                continue
            if not isinstance(leaf, torch.Tensor):
                raise WeftError(
                    f"in_axes has {axis} for an argument of {type(leaf).__name__}",
                    location=calling_line(),
                    hint="only tensors have axes: None shares a value",
                )
            if not -leaf.dim() <= axis < leaf.dim():
                raise ShapeError(f"in_axes has {axis} for a tensor of {leaf.dim()} dimensions", location=calling_line())
            sizes[number] = leaf.shape[axis]
        if self.size is not None:
            sizes[-1] = self.size
        if len(set(sizes.values())) != 1:
            found = ", ".join(map(str, sizes.values())) or "nothing"
            raise ShapeError(
                f"vmap over axes of size {found}",
                location=calling_line(),
                hint="all batched axes have one size, and at least one argument is batched",
            )
        return next(iter(sizes.values()))


def _axis_in_graph(axis: int | None, slot: Slot, rank: int) -> int | None:
    """Where a batch of results of this rank stands, whose last dimension is that of a complex number's parts."""
    if axis is None or not slot.is_complex:
        return axis
    if not -rank <= axis < rank:
        raise ShapeError(f"out_axes has {axis} for a result of {rank} dimensions", location=calling_line())
    return axis % rank


def _any_verdict(b: GraphBuilder, verdict: SSAValue) -> SSAValue:
    """A verdict on the data of a whole batch."""
    shape = tensor_of(verdict.type).shape
    if not shape:
        return verdict
    return b.sum(verdict, dims=(0,), keep=False) if shape[0] == 0 else b.max(verdict, dims=(0,), keep=False)


def _without(leaf: Any, axis: int | None) -> Any:
    """A tensor's type without an axis."""
    if axis is None:
        return leaf
    shape = list(leaf.shape)
    del shape[axis]
    return fake_tensor(shape, leaf.dtype, leaf.device)


def leaf_axes(axes: Axes, tree: Any, what: str) -> list[int | None]:
    """The axis of each leaf of a tree; `axes` is a prefix of it."""
    if axes is None or isinstance(axes, int):
        return [axes for _ in pytree.tree_leaves(tree)]
    kind = pytree.SUPPORTED_NODES.get(pytree._get_node_type(tree))
    if kind is not None:
        children, _ = kind.flatten_fn(tree)
        own = pytree.SUPPORTED_NODES.get(pytree._get_node_type(axes))
        parts = [] if own is None else own.flatten_fn(axes)[0]
        alike = type(axes) is type(tree) or {type(axes), type(tree)} <= {list, tuple}
        keys = isinstance(axes, dict) and isinstance(tree, dict) and list(axes) != list(tree)
        if keys and set(axes) == set(tree):
            axes = {key: axes[key] for key in tree}
            return leaf_axes(axes, tree, what)
        if own is not None and alike and len(parts) == len(children) and not keys:
            return [axis for part, child in zip(parts, children, strict=True) for axis in leaf_axes(part, child, what)]
    raise WeftError(
        f"{what}={axes!r} does not match {_described(tree)}",
        location=calling_line(),
        hint="give an axis or None, or a tree of them with the structure of the values",
    )


def _described(tree: Any) -> str:
    return str(pytree.tree_map(lambda leaf: "*", tree)).replace("'*'", "*")


def vmap(
    function: Callable[..., Any],
    in_axes: Axes = _UNSAID,
    out_axes: Axes = _UNSAID,
    *,
    in_dims: Axes = _UNSAID,
    out_dims: Axes = _UNSAID,
    randomness: str = "error",
    axis_size: int | None = None,
    chunk_size: int | None = None,
) -> Callable[..., Any]:
    """The function of a batch: arguments are stacked along `in_axes`, None shares one, results along `out_axes`.

    Torch's names `in_dims` and `out_dims` say the same, and as there, all share arguments by name. Random numbers are
    an error unless `randomness` says whether the batch has the "same" or "different" ones. With `chunk_size`, so many
    samples are computed at a time, which takes less memory; inside of other transformations, all are.
    """
    chunk_size = checked_chunk_size(chunk_size)
    if randomness not in get_args(Randomness):
        raise WeftError(
            f"no randomness is called {randomness!r}",
            location=calling_line(),
            hint=f"there are {', '.join(get_args(Randomness))}",
        )
    if axis_size is not None and (not isinstance(cast(Any, axis_size), int) or axis_size < 0):
        raise WeftError(f"vmap over an axis of size {axis_size!r}", location=calling_line(), hint="give a whole number")
    return kept(
        Vmap,
        function,
        _one_of(("in_axes", in_axes), ("in_dims", in_dims)),
        _one_of(("out_axes", out_axes), ("out_dims", out_dims)),
        cast("Randomness", randomness),
        axis_size,
        chunk_size,
    )


def _one_of(ours: tuple[str, Axes], torchs: tuple[str, Axes]) -> Axes:
    """The axes that are given, under one of two names."""
    if ours[1] is not _UNSAID and torchs[1] is not _UNSAID:
        raise WeftError(
            f"vmap is given {ours[0]}={ours[1]!r} and {torchs[0]}={torchs[1]!r}",
            location=calling_line(),
            hint="they are two names of one option: give one",
        )
    name, given = torchs if ours[1] is _UNSAID else ours
    if given is _UNSAID:
        return 0
    if bad := [leaf for leaf in pytree.tree_leaves(given) if not isinstance(leaf, int | None) or leaf is True]:
        raise WeftError(
            f"{name} has {bad[0]!r}", location=calling_line(), hint="an axis is a whole number, None shares a value"
        )
    return given
