"""Calls of inference graphs without AOTAutograd's wrappers, where a call has shown that these do nothing.

AOTAutograd stands between Dynamo and a compiled graph: it leaves out arguments that are given twice, takes subclasses
apart, makes views again, writes new values back. For most inference graphs there is nothing to do, and passing hundreds
of weights on takes longer than looking at them. What it does is decided while it traces, so one call tells: if the
graph got the very objects that Dynamo gave, and Dynamo the very objects that the graph gave, later calls go straight to
the graph. That mutated arguments count as changed is the graph's own part (`returning.write_back`).
"""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from weft.frontends.torch.execution.first_call import Boxed

_PLAIN = (torch.Tensor, torch.nn.Parameter)


class Shortcut:
    """The way to one inference graph; `watched` is told of it, `shortened` is what Dynamo calls."""

    def __init__(self) -> None:
        self._graph: Boxed | None = None
        self._is_decided = False
        self._seen: tuple[tuple[Any, ...], tuple[Any, ...]] | None = None
        self.is_taken = False

    def watched(self, graph: Boxed) -> Boxed:
        """The graph for AOTAutograd to call."""
        self._graph = graph

        def call(arguments: list[Any]) -> Sequence[Any]:
            if self._is_decided:
                return graph(arguments)
            given = tuple(arguments)
            results = graph(arguments)
            self._seen = given, tuple(results)
            return results

        call._boxed_call = True  # pyright: ignore[reportFunctionMemberAccess]
        return call

    def shortened(self, wrapped: Callable[..., Any]) -> Callable[..., Any]:
        """What does as AOTAutograd's callable; it is that itself where no inference graph was compiled."""
        graph = self._graph
        if graph is None:
            return wrapped

        def call(*arguments: Any) -> Any:
            if self.is_taken:
                return _without_gradients(graph, arguments) if torch.is_grad_enabled() else graph(list(arguments))
            return wrapped(*arguments) if self._is_decided else self._observed(wrapped, arguments)

        return call

    def _observed(self, wrapped: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        state = _state()
        results: Sequence[Any] = wrapped(*arguments)
        seen, self._seen = self._seen, None
        self._is_decided = True
        self.is_taken = (
            seen is not None
            # Sizes that are numbers may stand on results, for Dynamo to find; autocasting is turned off for the call.
            and all([type(value) in _PLAIN for value in arguments])
            and state == _state()
            and not torch._C._is_any_autocast_enabled()
            and type(results) in (list, tuple)
            and all([value is None or type(value) in _PLAIN for value in results])
            and _are_same(arguments, seen[0])
            and _are_same(results, seen[1])
        )
        return results


def _without_gradients(graph: Boxed, arguments: Sequence[Any]) -> Sequence[Any]:
    try:  # an interrupt may come after any statement: none that changes something stands before this one
        torch._C._set_grad_enabled(False)
        return graph(list(arguments))
    finally:
        torch._C._set_grad_enabled(True)


def _state() -> tuple[bool, bool]:
    """What a graph may change for what comes after it."""
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled()


def _are_same(values: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(values) == len(others) and all([one is other for one, other in zip(values, others, strict=True)])
