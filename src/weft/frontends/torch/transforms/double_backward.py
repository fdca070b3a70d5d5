"""Gradients of gradients of compiled functions, where they are asked for: `backward(create_graph=True)`.

AOTAutograd makes an `autograd.Function` of a compiled forward and backward, and lets its second derivative be an error.
That function is kept as it is; it only notes its arguments. When a gradient is asked for that has a gradient itself,
it is computed by a program: the vjp of the graph that Dynamo captured, which is compiled as if it had been the user's.
"""

# AOTAutograd has no public interface to it; torch leaves some of its functions without types.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from itertools import count
from operator import attrgetter
from typing import Any

import torch
import torch._dynamo  # before AOTAutograd, which it imports  # pyright: ignore[reportUnusedImport]
from torch import Tensor
from torch._dynamo.eval_frame import skip_code
from torch._functorch._aot_autograd import runtime_wrappers
from torch._functorch._aot_autograd.schemas import OutputType
from torch.autograd.function import FunctionMeta
from torch.utils.weak import TensorWeakRef

from weft.errors import UnsupportedError
from weft.frontends.torch.transforms.apply_program import apply
from weft.frontends.torch.transforms.batched_gradients import call_for_batch, is_batched
from weft.frontends.torch.transforms.program import Program, floats
from weft.frontends.torch.transforms.random_state import RandomState

_made: ContextVar[list[Any] | None] = ContextVar("_made", default=None)
_counted = attrgetter("_version")
_COMPILED = "CompiledFunction"
"""What AOTAutograd calls its functions."""
_OWN = (OutputType.non_alias, OutputType.unsafe_view_alias, OutputType.custom_function_view)


@contextmanager
def functions_made() -> Generator[list[Any]]:
    """The `autograd.Function`s that AOTAutograd makes meanwhile."""
    _watch_classes()
    found: list[Any] = []
    token = _made.set(found)
    try:
        yield found
    finally:
        _made.reset(token)


def has_second_derivatives() -> bool:
    """Whether this release of torch makes functions whose parts can be exchanged: 2.13 does."""
    return hasattr(runtime_wrappers, "_AOTDispatchAutogradFunctionFactory")


@cache
def _watch_classes() -> None:
    """See every class of functions that is made: where AOTAutograd makes its own differs from release to release."""
    kind: Any = FunctionMeta
    initialize = kind.__init__

    def watched(made: Any, name: str, *rest: Any) -> None:
        initialize(made, name, *rest)
        found = _made.get()
        if found is not None and name == _COMPILED:
            found.append(made)

    kind.__init__ = watched


@dataclass(frozen=True, eq=False)
class Kept:
    """The arguments of one call, as they were: those that live until the gradient anyway, and traces of the others."""

    values: list[Any]
    """Each is a number, a tensor, or one of the classes below."""
    versions: list[int]
    state: RandomState | None

    def arguments(self, ctx: Any) -> list[Any]:
        """The arguments; those that are gone are tensors without values, at the places that `gone` has."""
        saved: Any = ctx.saved_tensors if any(isinstance(value, _Saved) for value in self.values) else ()
        return [value.given(saved) if isinstance(value, _Trace) else value for value in self.values]

    def gone(self) -> set[int]:
        return {n for n, value in enumerate(self.values) if isinstance(value, _Noticed) and value.reference() is None}


class _Trace:
    """Leads to an argument."""

    __slots__ = ()

    def given(self, saved: Sequence[Tensor]) -> Tensor:
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class _Saved(_Trace):
    """A tensor that the function saved for its gradient: torch keeps it, and its hooks may do so elsewhere."""

    place: int

    def given(self, saved: Sequence[Tensor]) -> Tensor:
        return saved[self.place]


_saved_at = cache(_Saved)
"""One for each place, which all calls share."""


@dataclass(frozen=True, eq=False)
class _Packed(_Trace):
    """What a hook for saved tensors made of an argument, and the hook that gives it back."""

    value: Any
    unpack: Callable[[Any], Tensor]

    def given(self, saved: Sequence[Tensor]) -> Tensor:
        return self.unpack(self.value)


class _Noticed(_Trace):
    """A tensor that the gradient does not need: to keep it would cost memory in every step of a training."""

    __slots__ = ("device", "dtype", "reference", "requires_grad", "shape", "strides")

    def __init__(self, value: Tensor) -> None:
        self.reference = TensorWeakRef(value)
        self.shape, self.strides = value.shape, value.stride()
        self.dtype, self.device, self.requires_grad = value.dtype, value.device, value.requires_grad

    def is_of(self, value: Tensor) -> bool:
        """Whether it is this very tensor's, which lies as it did; all else is guarded."""
        return self.reference.ref() is value and self.shape == value.shape and self.strides == value.stride()

    def given(self, saved: Sequence[Tensor]) -> Tensor:
        found = self.reference()
        if found is not None:
            return found
        made = torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=self.device)
        return made.requires_grad_(self.requires_grad)


def _traced(ctx: Any, arguments: Sequence[Any], written: Collection[int], noticed: dict[int, _Noticed]) -> list[Any]:
    """The arguments of a call that has been computed, so that none lives longer than for its first gradient.

    What was `noticed` in the call before is taken again where it is the same: a model has hundreds of buffers.
    """

    def notice(n: int, value: Tensor) -> _Noticed:
        known = noticed.get(n)
        if known is None or not known.is_of(value):
            known = noticed[n] = _Noticed(value)
        return known

    places = dict(zip(map(id, ctx.to_save or ()), count(), strict=False))
    unchecked = {id(value) for value in getattr(ctx, "_tensors_no_vc_check", ())}
    return [
        value
        if not isinstance(value, Tensor) or id(value) in unchecked
        else notice(n, value)  # one that is written to has this call in its own history: a cycle
        if n in written
        else _saved_at(places[id(value)])
        if id(value) in places
        else value
        if value.requires_grad and value.is_leaf
        else notice(n, value)
        if (kept := _view_kept(value, ctx.to_save or ())) is None
        else kept
        for n, value in enumerate(arguments)
    ]


def _view_kept(value: Tensor, saved: Sequence[Tensor]) -> Any:
    """A view of which AOTAutograd has saved what is detached from it; None for what is not saved at all."""
    if not value._is_view() or all(value.data_ptr() != each.data_ptr() for each in saved):
        return None
    hooks: Any = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return value if hooks is None else _Packed(hooks[0](value), hooks[1])


def _versions(values: Sequence[Any]) -> list[int]:
    try:
        return list(map(_counted, values))
    except (AttributeError, RuntimeError):  # a number, or a tensor of inference mode
        return [_version(value) for value in values]


def _version(value: Any) -> int:
    return value._version if isinstance(value, Tensor) and not value.is_inference() else 0


def make_differentiable(
    function: Any, program: Callable[..., Program], *, leading: int, is_random: bool, keeps_arguments: bool = False
) -> None:
    """Let gradients of a function of AOTAutograd's have gradients: those of the program's vjp.

    The function takes `leading` arguments before those of the program. It keeps its arguments from being freed only if
    `keeps_arguments`; a second derivative that needs one that was freed is an error.
    """
    if not all(hasattr(function, name) for name in ("_fwd_fn", "_bwd_fn", "_backward_impl", "metadata")):
        return  # another release has other names: torch refuses second derivatives itself
    forward, whole, backward = function._fwd_fn, function._bwd_fn, function._backward_impl
    written = frozenset(function.metadata.mutated_inp_runtime_indices)
    noticed: dict[int, _Noticed] = {}
    unseen: Any = torch._dynamo.disable(_gradients, reason="it carries out programs that are compiled already")

    def noting(ctx: Any, arguments: Any, *rest: Any) -> Any:
        state = RandomState.before(arguments) if is_random else None
        versions = _versions(arguments)
        results = forward(ctx, arguments, *rest)
        values = list(arguments) if keeps_arguments else _traced(ctx, arguments, written, noticed)
        ctx.weft_kept = Kept(values, versions, state)
        return results

    def releasing(ctx: Any, arguments: list[Any]) -> Any:
        if not torch._C._autograd._get_current_graph_task_keep_graph():
            ctx.weft_kept = None
        return backward(ctx, arguments)

    def differentiable(grads: Any, ctx: Any, *rest: Any) -> Any:
        if torch.is_grad_enabled() or any(map(is_batched, grads[0])):
            return unseen(function.metadata, program, ctx, grads[0], leading)
        return whole(grads, ctx, *rest)

    function._fwd_fn, function._bwd_fn, function._backward_impl = noting, differentiable, releasing
    for each in (noting, differentiable, releasing):  # in a compiled function that asks for gradients Dynamo sees them
        skip_code(each.__code__)


def _gradients(
    metadata: Any, of: Callable[..., Program], ctx: Any, grads: Sequence[Any], leading: int
) -> tuple[Any, ...]:
    """The gradients of a call's arguments, of which torch keeps track, of the gradients of its results."""
    kept: Kept | None = ctx.weft_kept
    if kept is None:
        raise RuntimeError("Trying to backward through the graph a second time: retain_graph=True keeps what it needs")
    whole = kept.arguments(ctx)
    arguments = whole[leading:]
    program = of(*arguments)
    seeds = {result: grads[place] for result, place in _seeded(metadata, program) if grads[place] is not None}
    wanted = tuple(n for n in floats(arguments) if arguments[n].requires_grad)
    derived, taken = program.vjp(wanted, tuple(seeds)), [*arguments, *seeds.values()]

    def pulled(of: Program, taken: Sequence[Any]) -> tuple[Any, ...]:
        _check_read(of, kept, whole, leading, taken)
        return apply(of, taken, kept.state)

    gradients = call_for_batch(derived, taken, pulled) if any(map(is_batched, taken)) else pulled(derived, taken)
    found: list[Any] = [None] * len(whole)
    for place, gradient in zip(wanted, gradients, strict=True):
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


def _check_read(derived: Program, kept: Kept, whole: Sequence[Any], leading: int, taken: Sequence[Any]) -> None:
    """Refuse to read arguments that were freed, or written to, since the call."""
    gone = kept.gone()
    if gone and (read := derived.compiled_for(taken).reads.intersection(n - leading for n in gone)):
        raise UnsupportedError(
            f"a second derivative needs argument {min(read)} of a compiled function, which was freed after the call: "
            "its first derivative does not need it",
            location=derived.location,
            hint="keep a reference to it until then, or compile what makes it and what takes it as one function",
        )
    changed = [
        n - leading
        for n, (value, before) in enumerate(zip(whole, kept.values, strict=True))
        if n >= leading and n not in gone and not isinstance(before, _Saved) and _version(value) != kept.versions[n]
    ]
    if changed and (read := derived.compiled_for(taken).reads.intersection(changed)):
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: "
            f"argument {min(read)} of a compiled function, after it was called ({derived.location})"
        )
