"""`custom`: a torch function with rules of its own for gradients, tangents and batches, in plain torch code.

A custom function is called like any other. In graphs that `weft.func` transforms it is a `graph.custom`; torch's own
transformations, and autograd, take its rules through an `autograd.Function`. What is not given is derived from it.
"""

# Torch's pytrees have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false, reportPrivateUsage=false, reportIncompatibleMethodOverride=false

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.utils._pytree as pytree
from torch import fx
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from weft.diagnostics import calling_line
from weft.errors import UnsupportedError, WeftError
from weft.frontends.torch.capture.custom_calls import CALLS
from weft.frontends.torch.func.argument_writes import looking_at_types
from weft.frontends.torch.func.capture_function import (
    capture,
    fake_tensor,
    fake_tensors,
)
from weft.frontends.torch.func.capturing import current_capture
from weft.frontends.torch.func.custom_arguments import Names
from weft.frontends.torch.func.custom_checks import (
    checked_batch,
    checked_gradients,
    checked_tangents,
    is_inexact,
    zeros_for_none,
)
from weft.frontends.torch.func.custom_eager import eager_call
from weft.frontends.torch.func.custom_graphs import CallTracer
from weft.frontends.torch.func.custom_traced import custom_rules, in_batches, traced_call
from weft.frontends.torch.transforms.dynamo_levels import without_forward_mode
from weft.ops.custom import CustomOp
from weft.passes.custom_derivatives import check_linear

Rule = Callable[..., Any]
_is_wrapped: Callable[[torch.Tensor], bool] = is_functorch_wrapped_tensor
_F = TypeVar("_F", bound=Callable[..., Any])
_keys = itertools.count()
_TENSOR = torch.empty(0)
"""Stands for a tensor among leaves."""
BATCHING: dict[str, Call] = {}
"""Calls of functions with batching rules, by the names under which graphs know them."""


def _disable(function: _F) -> _F:
    """A function that Dynamo does not trace."""
    found: Any = torch._dynamo.disable(function)
    return found


_PLACES: dict[str, list[Custom]] = {}


class Custom:
    """A function with rules of its own."""

    runs_again = False
    """Whether rules run the function, whose random numbers they have to draw."""

    def __init__(self, function: Callable[..., Any], vjp: Rule | None, jvp: Rule | None, batch: Rule | None) -> None:
        if not callable(function):
            raise WeftError(f"custom takes a function, got {type(function).__name__}", location=calling_line())
        for rule, given in (("vjp", vjp), ("jvp", jvp), ("batch", batch)):
            if given is not None and not callable(given):
                raise WeftError(
                    f"custom takes a function as {rule}, got {type(given).__name__}",
                    location=calling_line(),
                    hint="give a function of what the docs of `custom` say, or None",
                )
        self.function, self.vjp, self.jvp, self.batch = function, vjp, jvp, batch
        self.name = getattr(function, "__name__", type(function).__name__)
        self.names = Names.of(self.name, function, {"vjp": vjp, "jvp": jvp, "batch": batch})
        self._linear: set[Any] = set()
        functools.update_wrapper(self, function, updated=())

    def check_linear(self, args: Sequence[Any], line: str | None) -> None:
        """Raise where the gradient rule gives no tangents for such arguments: they are its transpose, if it is linear.

        Its graph is looked at, once for types of arguments: no numbers tell.
        """
        leaves, spec = pytree.tree_flatten(tuple(args))
        key = spec, *(tuple(map(_known, x.shape)) if isinstance(x, torch.Tensor) else repr(x) for x in leaves)
        if key in self._linear:
            return
        with _disable_current_modes(), temporarily_clear_interpreter_stack(), without_forward_mode():
            types = [plain_fake(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
            program = capture(self, pytree.tree_unflatten(types, spec), {})
        try:
            for op in program.function.walk():
                if isinstance(op, CustomOp) and op.rule("vjp") is not None and op.rule("jvp") is None:
                    check_linear(op)
        except UnsupportedError as error:
            raise UnsupportedError(error.message, location=line, hint=error.hint) from None
        self._linear.add(key)

    def weft_reads(self) -> Sequence[Any]:
        """What it calls."""
        return self.function, self.vjp, self.jvp, self.batch

    @property
    def place(self) -> str:
        """Where the function is defined, and which of those defined there it is."""
        named = f"{getattr(self.function, '__module__', '')}.{getattr(self.function, '__qualname__', self.name)}"
        known = _PLACES.setdefault(named, [])
        if self not in known:
            known.append(self)
        return f"{named}#{known.index(self)}"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs:
            args, kwargs = self.names.placed(args, kwargs)
        named = self.names.of_rules(args, kwargs) if self.names.fills else {}
        if torch.compiler.is_dynamo_compiling() and (self.batch is None or not in_batches()):
            return traced_call(self, args, kwargs, named)
        return self.untraced(args, kwargs, named)

    @_disable
    def untraced(self, args: tuple[Any, ...], kwargs: dict[str, Any], named: dict[str, dict[str, Any]]) -> Any:
        """Call it where Dynamo does not trace; rules are given by name what the function is, and more."""
        if kwargs or named:
            function = functools.partial(self.function, **kwargs)
            rules = {"vjp": self.vjp, "jvp": self.jvp, "batch": self.batch}
            bound = {
                rule: None if each is None else functools.partial(each, **kwargs, **named.get(rule, {}))
                for rule, each in rules.items()
            }
            made = Custom(function, **bound)
            made.name = self.name
            return made(*args)
        leaves, spec = pytree.tree_flatten(args)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        has_rules = any(each is not None for each in (self.vjp, self.jvp, self.batch))
        if not has_rules or any(isinstance(each, FakeTensor) for each in tensors):
            return self.function(*args)
        capture = current_capture()
        if capture is None or any(map(_is_wrapped, tensors)):
            return eager_call(self, args)
        kept = [_TENSOR if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        call = Call(self, kept, spec, calling_line(), tuple(each.is_complex() for each in tensors))
        if self.batch is not None:
            BATCHING[call.batching or ""] = call
        key = f"{self.name}.{next(_keys)}"
        CALLS[key] = call
        capture.keys.append(key)
        found = torch.ops.weft.custom(tensors, key)
        return call.tree_of(found)


def _known(size: Any) -> int:
    """A size that may be a symbol, as a number."""
    return size if isinstance(size, int) else int(size.node.hint)


def plain_fake(tensor: torch.Tensor) -> torch.Tensor:
    """One of the type of another, which torch may have wrapped."""
    return fake_tensor([_known(size) for size in tensor.shape], tensor.dtype, tensor.device)


@dataclass
class Call:
    """A call of a custom function: what is no tensor among its arguments, and where it is."""

    custom: Custom
    leaves: list[Any]
    spec: pytree.TreeSpec
    line: str | None
    complexes: tuple[bool, ...]
    """Which of its tensors are of complex numbers."""
    out: tuple[list[Any], pytree.TreeSpec] | None = None
    seeded: bool = False
    """Whether it draws random numbers."""
    batches: int = 0
    """How often its batching rule was used."""
    has_checks: bool = False
    """Whether its graph looks at its data, as indices do."""

    @property
    def batching(self) -> str | None:
        """The name of the batching rule for such a call: calls of one kind have one."""
        if self.custom.batch is None or (self.seeded and self.custom.runs_again):  # the rule would draw other numbers
            return None
        own = [leaf for leaf in self.leaves if leaf is not _TENSOR]
        return (
            f"{self.custom.place}({hashlib.sha256(repr((self.spec, own, self.complexes)).encode()).hexdigest()[:12]})"
        )

    @property
    def name(self) -> str:
        return self.custom.name

    def batched(self, size: int, flags: Sequence[bool], tensors: Sequence[torch.Tensor]) -> Any:
        """The results of the batching rule, for tensors of which the flagged ones have the batch in front."""
        assert self.custom.batch is not None, "asked before"
        made = self.custom.batch(size, self.arguments(flags), self.arguments(tensors))
        return checked_batch(self.name, self.line, size, made, len(self.out[0]) if self.out else None)

    def arguments(self, tensors: Sequence[Any]) -> tuple[Any, ...]:
        """The arguments, with these tensors."""
        given = iter(tensors)
        leaves = [next(given) if isinstance(leaf, torch.Tensor) else leaf for leaf in self.leaves]
        return tuple(pytree.tree_unflatten(leaves, self.spec))

    def tree_of(self, tensors: Sequence[Any]) -> Any:
        """What the function returns, with these tensors."""
        assert self.out is not None, "it has run"
        given = iter(tensors)
        leaves = [next(given) if isinstance(leaf, torch.Tensor) else leaf for leaf in self.out[0]]
        return pytree.tree_unflatten(leaves, self.out[1])

    def evaluate(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        on_types = any(isinstance(each, FakeTensor) for each in tensors)
        with looking_at_types(self.custom.name) if on_types else nullcontext():
            found, spec = pytree.tree_flatten(self.custom.function(*self.arguments(tensors)))
        self.out = [_TENSOR if isinstance(leaf, torch.Tensor) else leaf for leaf in found], spec
        given = {id(each) for each in tensors}
        results = [leaf for leaf in found if isinstance(leaf, torch.Tensor)]
        return [each.clone() if id(each) in given else each for each in results]

    def graphs(self, tensors: Sequence[torch.Tensor]) -> dict[str, fx.GraphModule]:
        count = len(tensors)
        device = next((each.device for each in tensors), torch.device("cpu"))
        results: list[torch.Tensor] = []
        tracer = CallTracer(self.custom.name, device, self.custom.runs_again)
        trace = tracer.trace

        def body(*given: torch.Tensor) -> list[torch.Tensor]:
            found = self.evaluate(given)
            results[:] = fake_tensors(found)
            return [each.clone(memory_format=torch.contiguous_format) for each in found]

        found = {"body": trace(body, tensors)}
        floats = [each for each in results if is_inexact(each)]
        moving = [each for each in tensors if is_inexact(each)]
        if (vjp := self.custom.vjp) is not None:

            def gradients(*given: torch.Tensor) -> list[torch.Tensor]:
                arguments, values = self.arguments(given[:count]), given[count : count + len(results)]
                seeds = iter(given[count + len(results) :])
                grads = [next(seeds) if is_inexact(each) else None for each in results]
                made = vjp(self.tree_of(grads), arguments, self.tree_of(values))
                made = checked_gradients(self.custom.name, self.line, made, arguments)
                return [zeros_for_none(each, like) for each, like in zip(made, moving, strict=True)]

            found["vjp"] = trace(gradients, [*tensors, *results, *floats], "vjp")
        if (jvp := self.custom.jvp) is not None:

            def tangents(*given: torch.Tensor) -> list[torch.Tensor]:
                seeds = iter(given[count:])
                directions = [next(seeds) if is_inexact(each) else None for each in tensors]
                made = jvp(self.arguments(given[:count]), self.arguments(directions))
                made = checked_tangents(self.custom.name, self.line, made, results)
                return [zeros_for_none(each, like) for each, like in zip(made, floats, strict=True)]

            found["jvp"] = trace(tangents, [*tensors, *moving], "jvp")
        self.seeded = tracer.has_drawn
        return found


def custom(
    function: Callable[..., Any] | None = None,
    *,
    vjp: Rule | None = None,
    jvp: Rule | None = None,
    batch: Rule | None = None,
) -> Any:
    """A function with rules of its own, in plain torch code; also as a decorator, `@custom(vjp=...)`.

    `vjp(grads, args, results)` gives a tuple with the gradient of each argument, None for 0; `grads` is like what the
    function returns. `jvp(args, tangents)` gives the tangents of the results. `batch(size, batched, args)` gives the
    results with the batch in front; `batched` is like `args`, and says which of the tensors have it in front. Tensors
    that are given by name stand at their places among `args`; what else is given by name, rules are given so, too.
    """
    if function is None:
        return lambda given: Custom(given, vjp, jvp, batch)
    return Custom(function, vjp, jvp, batch)


custom_rules.custom = custom
