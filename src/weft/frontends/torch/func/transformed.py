"""A transformed function: it builds a program for the types of a call's arguments, compiles it once, and calls it.

Transformations compose on programs: `vmap(grad(f))` asks `grad(f)` for its graph and batches that. Where one is called
while torch traces or transforms around it, it is what torch has under its name, so that all of it is traced.
"""

# Torch's pytrees have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportPrivateUsage=false

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from weft.config import Config
from weft.diagnostics import calling_line
from weft.errors import WeftError
from weft.frontends.torch.func import autograd_functions as autograd_functions
from weft.frontends.torch.func import matrix_rules as matrix_rules
from weft.frontends.torch.func.capture_function import capture, fake_tensors
from weft.frontends.torch.func.differentiable_call import ProgramCall
from weft.frontends.torch.func.program import Program
from weft.frontends.torch.func.quick_trees import signature_of, value_key
from weft.frontends.torch.func.retracing import tell_of_retracing


class Transformed(ABC):
    """A callable on trees of tensors whose graph is known for each signature."""

    def __init__(self, function: Callable[..., Any] | Transformed) -> None:
        if not callable(function):
            raise WeftError(
                f"a transformation takes a function, got {type(function).__name__}", location=calling_line()
            )
        self.inner = function if isinstance(function, Transformed) else TorchFunction(function)
        self._compiled: dict[Any, tuple[Program, ProgramCall]] = {}
        if not torch.compiler.is_dynamo_compiling():
            functools.update_wrapper(self, function, updated=())

    @functools.cached_property
    def config(self) -> Config:
        return Config.from_options()

    @property
    def reads_numbers(self) -> bool:
        """Whether what was traced holds numbers of tensors that the function closes over."""
        return any(program.reads_numbers for program, _ in self._compiled.values())

    def weft_reads(self) -> Sequence[Any]:
        """What it calls."""
        return (self.inner,)

    @abstractmethod
    def program(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Program:
        """The program for arguments of these types; the contents of tensors do not matter."""

    @abstractmethod
    def eager(self, *args: Any, **kwargs: Any) -> Any:
        """The same by torch's own transformations."""

    def prepared(self, args: tuple[Any, ...]) -> Sequence[Any]:
        """The arguments as they are traced, checked; what has been compiled for others is found without it."""
        return args

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            return self.eager(*self.prepared(args), **kwargs)
        given = signature_of((args, kwargs))
        # Sizes that are symbols while torch traces have no hash.
        found = None if given is None or is_traced(given.tensors) else self._compiled.get(given.key)
        if given is None or found is None:
            return self._call_unknown(self.prepared(args), kwargs)
        program, call = found
        return program.restored(call(given.tensors))

    def _call_unknown(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Call what may have to be compiled first, or traced."""
        leaves, spec = pytree.tree_flatten((tuple(args), kwargs))
        if is_traced(leaves):
            return self.eager(*args, **kwargs)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        usual = signature_of((tuple(args), kwargs))
        key = (spec, *map(type_of, leaves)) if usual is None else usual.key
        found = self._compiled.get(key)
        if found is None:
            fakes = iter(fake_tensors(tensors))
            types = [next(fakes) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
            abstract_args, abstract_kwargs = pytree.tree_unflatten(types, spec)
            with located():
                tell_of_retracing(self, key)
                program = self.program(abstract_args, abstract_kwargs)
                found = self._compiled[key] = program, ProgramCall(program, self.config)
        program, call = found
        return program.restored(call(tensors))


@contextmanager
def located() -> Generator[None]:
    """Let errors of graphs, which know no line, name the one that called."""
    try:
        yield
    except WeftError as error:
        error.locate(calling_line())
        raise


class TorchFunction(Transformed):
    """A function of torch's as it is: the innermost one."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._compiled = {}

    def weft_reads(self) -> Sequence[Any]:
        return (self.function,)

    def program(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Program:
        return capture(self.function, args, kwargs)

    def eager(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def is_traced(leaves: Sequence[Any]) -> bool:
    """Whether torch traces, or transforms what these are part of."""
    if torch.compiler.is_compiling() or get_proxy_mode() is not None:  # Dynamo traces the first alone
        return True
    wrapped: Any = is_functorch_wrapped_tensor
    return any(isinstance(leaf, torch.Tensor) and wrapped(leaf) for leaf in leaves)


def type_of(leaf: Any) -> Any:
    """What programs differ by: a tensor's type, or a value."""
    if isinstance(leaf, torch.Tensor):
        return leaf.shape, leaf.dtype, leaf.device
    try:
        hash(leaf)
    except TypeError as error:
        raise WeftError(
            f"an argument of {type(leaf).__name__}",
            location=calling_line(),
            hint="pass tensors, numbers and trees of them",
        ) from error
    return value_key(leaf)


def tensor_places(args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> list[int | None]:
    """For each leaf of arguments the place among the tensors, None where it is no tensor."""
    places: list[int | None] = []
    for leaf in pytree.tree_leaves((tuple(args), dict(kwargs or {}))):
        count = sum(place is not None for place in places)
        places.append(count if isinstance(leaf, torch.Tensor) else None)
    return places
