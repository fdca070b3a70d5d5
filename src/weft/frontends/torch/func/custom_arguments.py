"""Arguments that a custom function is given by name: tensors stand at their places, others reach the rules by name.

f(x, weight=w, by=2.0)  ─►  f(x, w, by=2.0)        vjp(grads, (x, w), results, by=2.0)
"""

# Torch's pytrees have no types that can be followed.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree

from weft.diagnostics import calling_line
from weft.errors import WeftError

_NONE: Any = inspect.Parameter.empty
_BY_NAME = inspect.Parameter.KEYWORD_ONLY
_GIVEN = {"vjp": 3, "jvp": 2, "batch": 3}
"""How many arguments rules are given by place."""


@dataclass(frozen=True)
class Names:
    """What a function and its rules call their arguments, read once: Dynamo traces calls, but no signatures."""

    function: str
    places: tuple[tuple[str, Any], ...]
    """The names that have places, with their defaults."""
    rules: tuple[tuple[str, frozenset[str]], ...]
    """The names that each rule takes; a rule that takes any is left out."""
    fills: tuple[tuple[str, tuple[tuple[str, int, Any], ...]], ...] = ()
    """For each rule, which of the function's arguments it takes by name: the places, -1 for none, and the defaults."""

    @classmethod
    def of(cls, name: str, function: Callable[..., Any], rules: Mapping[str, Callable[..., Any] | None]) -> Names:
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        places = tuple((each.name, each.default) for each in _parameters(function) or () if each.kind in kinds)
        taken: list[tuple[str, frozenset[str]]] = []
        fills: list[tuple[str, tuple[tuple[str, int, Any], ...]]] = []
        known = [each for each, _ in places]
        own = {each.name: each.default for each in _parameters(function) or () if each.kind in (*kinds, _BY_NAME)}
        for rule, call in rules.items():
            found = None if call is None else _parameters(call)
            bound = call.keywords if isinstance(call, functools.partial) else {}
            wanted = [
                each.name for each in (found or ())[_GIVEN[rule] :] if each.name in own and each.name not in bound
            ]
            fills.append((rule, tuple((n, known.index(n) if n in known else -1, own[n]) for n in wanted)))
            if found is not None and all(each.kind != inspect.Parameter.VAR_KEYWORD for each in found):
                taken.append((rule, frozenset(each.name for each in found)))
        return cls(name, places, tuple(taken), tuple(each for each in fills if each[1]))

    def of_rules(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """What rules are given by name beside what the function is: its arguments by place, and defaults."""
        found: dict[str, dict[str, Any]] = {}
        for rule, names in self.fills:
            for name, place, default in names:
                if name not in kwargs:
                    value = args[place] if 0 <= place < len(args) else default
                    if value is not _NONE and not isinstance(value, torch.Tensor):
                        found.setdefault(rule, {})[name] = value
        return found

    def placed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with tensors at their places: it is places that rules have gradients and tangents of."""
        tensors = [name for name, value in kwargs.items() if _has_tensors(value)]
        known = [name for name, _ in self.places]
        for name in tensors:
            if name not in known:
                raise WeftError(
                    f"{self.function} takes the tensor {name} by name alone, and rules know arguments by their places",
                    location=calling_line(),
                    hint=f"define it without the * before {name}",
                )
        rest, found = dict(kwargs), list(args)
        last = max([known.index(name) for name in tensors], default=-1)
        for name, default in self.places[len(args) : last + 1]:
            if name not in rest and default is _NONE:
                return args, kwargs  # an argument is missing, as the function will say
            found.append(rest.pop(name) if name in rest else default)
        for rule, taken in self.rules:
            for name in rest:
                if name not in taken:
                    raise WeftError(
                        f"the {rule} rule of {self.function} takes no argument {name}",
                        location=calling_line(),
                        hint="rules are given what the function is given by name: add it, or pass it by place",
                    )
        return tuple(found), rest


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter] | None:
    try:
        return list(inspect.signature(function, follow_wrapped=False).parameters.values())
    except (TypeError, ValueError):  # a builtin says nothing of its arguments
        return None


def _has_tensors(value: Any) -> bool:
    return any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(value))
