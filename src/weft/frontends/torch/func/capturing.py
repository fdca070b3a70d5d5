"""What is known while a torch function is captured: regions of it, and that `autograd.Function`s have rules.

A function of autograd's that is only run would lose its gradient: while a capture lasts, calling one is calling a
function with rules of its own.
"""

# Torch's own names have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportAttributeAccessIssue=false

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
import torch.autograd.function
import torch.fx.traceback as fx_traceback
from torch import fx

from weft.frontends.torch.capture.custom_calls import CALLS
from weft.frontends.torch.importer.custom_functions import MARKS

_functions: Any = torch.autograd.function
_Function: Any = torch.autograd.Function
_Base: Any = _functions._SingleLevelFunction


class SeedArgument(Protocol):
    """The seed of a captured function, an argument of its graph."""

    draws: int
    functions: int
    argument: fx.Node | None


@dataclass
class Capture:
    """One capture: how many regions it has so far, the keys of its calls, and where its random numbers come from."""

    regions: int = 0
    keys: list[str] = field(default_factory=list[str])
    seed: SeedArgument | None = None
    reads_numbers: bool = False
    """Whether Python read numbers of a tensor from outside."""


class _Current(threading.local):
    capture: Capture | None = None


_CURRENT = _Current()
AUTOGRAD_RULES: list[Callable[[Any], Callable[..., Any] | None]] = []
"""What finds the rules of a function of autograd's: `autograd_functions`, above this, puts it here."""


def current_capture() -> Capture | None:
    """The capture that this thread is at; Dynamo traces what it may have to be outside of it."""
    return None if torch.compiler.is_dynamo_compiling() else _CURRENT.capture


def is_capturing() -> bool:
    """Whether this thread is at a capture, be it that Dynamo traces a region of it."""
    return _CURRENT.capture is not None


@contextmanager
def capturing(seed: SeedArgument | None = None) -> Generator[Capture]:
    """Capture what runs inside, and import it there: calls are known until the outermost capture ends."""
    outer, own = _CURRENT.capture, Capture(seed=seed)
    _CURRENT.capture = own
    if outer is None:
        _PATCH.enter()
    try:
        yield own
    finally:
        _CURRENT.capture = outer
        if outer is None:
            _PATCH.leave()
            for key in own.keys:
                del CALLS[key]
        else:
            outer.keys += own.keys
            outer.reads_numbers |= own.reads_numbers


class _Patch:
    """`Function.apply` while any thread captures: the first that begins changes it, the last that ends puts it back.

    A method that was taken before, `relu = ReLU.apply`, is torch's own, so that what it calls in turn is changed too:
    the call without transformations, and that inside of torch's.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._captures = 0
        self._apply: Any = None
        self._call: Any = None

    def enter(self) -> None:
        with self._lock:
            self._captures += 1
            if self._captures == 1:
                self._apply, self._call = _Function.__dict__["apply"], _functions.custom_function_call
                _Function.apply = classmethod(_applied(self._apply.__get__))
                _Base.apply = classmethod(_applied(_Base.__base__.__dict__["apply"].__get__))
                _functions.custom_function_call = _applied(lambda _, cls: partial(self._call, cls))

    def leave(self) -> None:
        with self._lock:
            self._captures -= 1
            if self._captures == 0:
                _Function.apply = self._apply
                del _Base.apply
                _functions.custom_function_call = self._call


_PATCH = _Patch()


def _applied(bound: Callable[[None, Any], Any]) -> Any:
    """What calls a function's rules; where nothing is captured, or it is not a user's, what is bound to its class."""

    def captured(cls: Any, *args: Any, **kwargs: Any) -> Any:
        rules = AUTOGRAD_RULES[0](cls) if AUTOGRAD_RULES and current_capture() is not None else None
        return (bound(None, cls) if rules is None else rules)(*args, **kwargs)

    return captured


@contextmanager
def marked(**marks: str) -> Generator[None]:
    """Annotate the ops of what is captured inside."""
    known: Any = fx_traceback.current_meta
    outer = known.get("custom")
    inner = dict(outer or {})
    known["custom"] = {**inner, MARKS: {**inner.get(MARKS, {}), **marks}}
    try:
        yield
    finally:
        if outer is None:
            known.pop("custom", None)
        else:
            known["custom"] = outer
