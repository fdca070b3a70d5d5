"""Gradients of gradients of compiled functions, where they are asked for: `backward(create_graph=True)`.

AOTAutograd makes an `autograd.Function` of a compiled forward and backward, and lets its second derivative be an error.
That function is kept as it is; it only notes its arguments. When a gradient is asked for that has a gradient itself,
it is computed by a program: the vjp of the graph that Dynamo captured, which is compiled as if it had been the user's.
"""

# AOTAutograd has no public interface to it; torch leaves some of its functions without types.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._functorch._aot_autograd import runtime_wrappers
from torch._functorch._aot_autograd.schemas import OutputType

from weft.errors import UnsupportedError
from weft.frontends.torch.transforms.apply_program import apply
from weft.frontends.torch.transforms.program import Program, floats
from weft.frontends.torch.transforms.random_state import RandomState

_made: ContextVar[list[Any] | None] = ContextVar("_made", default=None)
_OWN = (OutputType.non_alias, OutputType.unsafe_view_alias, OutputType.custom_function_view)


@contextmanager
def functions_made() -> Generator[list[Any]]:
    """The `autograd.Function`s that AOTAutograd makes meanwhile."""
    _watch_factory()
    found: list[Any] = []
    token = _made.set(found)
    try:
        yield found
    finally:
        _made.reset(token)


def has_second_derivatives() -> bool:
    """Whether this release of torch lets functions of AOTAutograd's be found: 2.13 does."""
    return hasattr(runtime_wrappers, "_AOTDispatchAutogradFunctionFactory")


@cache
def _watch_factory() -> None:
    if not has_second_derivatives():
        return  # torch refuses them itself then, with a message
    factory: Any = runtime_wrappers._AOTDispatchAutogradFunctionFactory
    build = factory.build

    def watched(self: Any) -> Any:
        made = build(self)
        found = _made.get()
        if found is not None:
            found.append(made)
        return made

    factory.build = watched


@dataclass(frozen=True, eq=False)
class Kept:
    """The arguments of one call, as they were."""

    tensors: list[Any]
    """Each is itself, or what the hook for saved tensors made of it, in a tuple with the other hook."""
    versions: list[int]
    state: RandomState | None

    @classmethod
    def of(cls, arguments: Sequence[Any], is_random: bool) -> Kept:
        state = RandomState.before(arguments) if is_random else None
        hooks: Any = torch._C._autograd._top_saved_tensors_default_hooks(True)
        kept = list(arguments)
        if hooks is not None:
            pack, unpack = hooks
            for place, value in enumerate(kept):
                if isinstance(value, Tensor) and value.grad_fn is not None:
                    kept[place] = (pack(value), unpack)
        return cls(kept, [_version(value) for value in arguments], state)

    def arguments(self) -> list[Any]:
        return [value[1](value[0]) if isinstance(value, tuple) else value for value in self.tensors]


def _version(value: Any) -> int:
    return value._version if isinstance(value, Tensor) and not value.is_inference() else 0


def make_differentiable(function: Any, program: Callable[..., Program], *, leading: int, is_random: bool) -> None:
    """Let gradients of a function of AOTAutograd's have gradients: those of the program's vjp.

    The function takes `leading` arguments before those of the program.
    """
    if not all(hasattr(function, name) for name in ("_fwd_fn", "_bwd_fn", "_backward_impl", "metadata")):
        return  # another release has other names: torch refuses second derivatives itself
    forward, whole, backward = function._fwd_fn, function._bwd_fn, function._backward_impl

    def noting(ctx: Any, arguments: Any, *rest: Any) -> Any:
        ctx.weft_kept = Kept.of(arguments, is_random)
        return forward(ctx, arguments, *rest)

    def releasing(ctx: Any, arguments: list[Any]) -> Any:
        if not torch._C._autograd._get_current_graph_task_keep_graph():
            ctx.weft_kept = None
        return backward(ctx, arguments)

    def differentiable(grads: Any, ctx: Any, *rest: Any) -> Any:
        if torch.is_grad_enabled():
            return _gradients(function.metadata, program, ctx, grads[0], leading)
        return whole(grads, ctx, *rest)

    function._fwd_fn, function._bwd_fn, function._backward_impl = noting, differentiable, releasing


def _gradients(
    metadata: Any, of: Callable[..., Program], ctx: Any, grads: Sequence[Any], leading: int
) -> tuple[Any, ...]:
    """The gradients of a call's arguments, of which torch keeps track, of the gradients of its results."""
    kept: Kept | None = ctx.weft_kept
    if kept is None:
        raise RuntimeError("Trying to backward through the graph a second time: retain_graph=True keeps what it needs")
    whole = kept.arguments()
    arguments = whole[leading:]
    program = of(*arguments)
    seeds = {result: grads[place] for result, place in _seeded(metadata, program) if grads[place] is not None}
    wanted = tuple(n for n in floats(arguments) if arguments[n].requires_grad)
    derived = program.vjp(wanted, tuple(seeds))
    taken = [*arguments, *seeds.values()]
    _check_versions(derived, kept, whole, leading, taken)
    found: list[Any] = [None] * len(whole)
    for place, gradient in zip(wanted, apply(derived, taken, kept.state), strict=True):
        found[leading + place] = gradient
    return tuple(found)


def _seeded(metadata: Any, program: Program) -> list[tuple[int, int]]:
    """Which results of the program AOTAutograd has gradients of, and at which places."""
    refused = "a function that gives views of what it computed, or writes to arguments that have gradients,"
    hint = "give clones, or call the function without torch.compile where gradients of gradients are needed"
    written = [metadata.input_info[n] for n in metadata.mutated_inp_runtime_indices]
    if metadata.num_intermediate_bases or any(each.mutates_data and each.requires_grad for each in written):
        raise UnsupportedError(f"{refused} has no second derivative compiled", location=program.location, hint=hint)
    tensors = [n for n, info in enumerate(metadata.output_info) if issubclass(info.raw_type, Tensor)]
    infos = [metadata.output_info[n] for n in tensors]
    return [
        (result, len(written) + place)
        for result, (place, info) in enumerate(zip(tensors, infos, strict=True))
        if info.output_type in _OWN and info.requires_grad_for_backward
    ]


def _check_versions(derived: Program, kept: Kept, whole: Sequence[Any], leading: int, taken: Sequence[Any]) -> None:
    changed = [n - leading for n, value in enumerate(whole) if _version(value) != kept.versions[n] and n >= leading]
    if changed and (read := derived.compiled_for(taken).reads.intersection(changed)):
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: "
            f"argument {min(read)} of a compiled function, after it was called ({derived.location})"
        )
