"""Levels of `torch.func` inside of a graph that Dynamo captured, as they are where the graph runs under other levels.

Dynamo writes `vmap(f)(x)` down as the calls that enter a level, wrap tensors for it by its number, and leave it. It
counts from 1, as outside of all transformations:

    _vmap_increment_nesting(3, "error")        ─►  enters level 2, where the graph itself runs in level 1
    y = _add_batch_dim(x, 0, 1)                ─►  _add_batch_dim(x, 0, 2)

Where a graph fails between the two, the levels that it entered are left: torch's stack of them outlives the call.
"""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false, reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

_NUMBERED = {"_wrap_for_grad": 1, "_unwrap_for_grad": 1, "_add_batch_dim": 2, "_remove_batch_dim": 1}
"""Where the number of a level is among the arguments."""
_LEFT_BY: dict[str, Callable[[], Any]] = {
    "_vmap_increment_nesting": torch._C._functorch._vmap_decrement_nesting,
    "_grad_increment_nesting": torch._C._functorch._grad_decrement_nesting,
    "_jvp_increment_nesting": torch._C._functorch._jvp_decrement_nesting,
}
_LEAVE = frozenset(name.replace("increment", "decrement") for name in _LEFT_BY)
_MODULES = ("torch._C._functorch", "torch._functorch.predispatch")


def has_levels(module: fx.GraphModule) -> bool:
    """Whether a graph, or one inside of it, enters levels."""
    graphs = (each for each in module.modules() if isinstance(each, fx.GraphModule))
    return any(_name(node.target) in _LEFT_BY for graph in graphs for node in graph.graph.nodes)


@dataclass(frozen=True)
class _Entered:
    number: int
    leave: Callable[[], Any]
    recorded: bool
    """Whether gradients were recorded around it."""


@dataclass
class CapturedLevels:
    """The levels that one run of a graph has entered, the innermost last."""

    first: int
    """The number that the graph has for the outermost of them."""
    entered: list[_Entered] = field(default_factory=list[_Entered])
    duals: list[bool] = field(default_factory=list[bool])
    """For each level of forward mode whether it is one of its own: inside of another, it is that."""
    hooks: bool = field(default_factory=torch._C._autograd._saved_tensors_hooks_is_enabled)
    """Whether saved tensors may have hooks around the graph: levels of gradients forbid them."""

    @classmethod
    def of(cls, module: fx.GraphModule) -> CapturedLevels:
        """Those of a graph, none of which is entered yet."""
        found = [_number(node) for node in module.graph.nodes]
        return cls(min((each for each in found if each is not None), default=1))

    def call(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any] | None:
        """What a call gives that is about levels; None where it is about others."""
        name = _name(target)
        if name in _LEFT_BY:
            recorded = torch.is_grad_enabled()
            level = target(*args, **kwargs)
            self.entered.append(_Entered(level, _LEFT_BY[name], recorded))
            if name == "_grad_increment_nesting":  # as `torch.func.grad` does, which Dynamo leaves out where it is so
                torch._C._set_grad_enabled(True)
            return (level,)
        if name in _LEAVE:
            return (self._leave(),)
        if name in _NUMBERED:
            place = _NUMBERED[name]
            level = self.entered[args[place] - self.first].number
            return (target(*args[:place], level, *args[place + 1 :], **kwargs),)
        if name == "_enter_dual_level":
            return (self._enter_dual(target),)
        if name == "_exit_dual_level":
            return (target(*args, **kwargs) if self.duals.pop() else None,)
        return None

    def leave(self) -> None:
        """Leave what is still entered, where the graph has failed."""
        while self.duals:
            if self.duals.pop():
                torch._C._exit_dual_level(level=0)
        while self.entered:
            self._leave()
        if self.hooks and not torch._C._autograd._saved_tensors_hooks_is_enabled():
            torch._C._autograd._saved_tensors_hooks_enable()

    def _leave(self) -> Any:
        entered = self.entered.pop()
        level = entered.leave()
        torch._C._set_grad_enabled(entered.recorded)
        return level

    def _enter_dual(self, target: Any) -> int:
        try:
            level = target()
        except RuntimeError:  # levels of forward mode do not nest: there is one
            self.duals.append(False)
            return 0
        self.duals.append(True)
        return level


def _name(target: Any) -> str:
    """The name of a function of levels, of no other."""
    return target.__name__ if getattr(target, "__module__", None) in _MODULES else ""


def _number(node: fx.Node) -> int | None:
    """The number of the level that a node wraps a tensor for, if it does."""
    place = _NUMBERED.get(_name(node.target))
    return None if place is None else int(node.args[place])  # pyright: ignore[reportArgumentType]
