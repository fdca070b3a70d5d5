"""What a model does for arrays of one signature: a compiled function, a call on the host, and what follows."""

# NumPy leaves the types of arrays open that come in by narrowing, and functions for the host take whatever there is.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias, cast

import numpy as np

from weft.frontends.onnx.call import HostFunction
from weft.frontends.onnx.checks import Verdict
from weft.frontends.onnx.model import Node
from weft.frontends.onnx.values import Absent, Known, Value
from weft.runtime.array_function import ArrayFunction, are_plain
from weft.runtime.launch_plan import LaunchPlan

Source: TypeAlias = Known | Absent | tuple[str, Any]
"""Where a value of the next stage, or a result, comes from: `("slot", n)`, `("made", n)`, `("host", n)`, or items."""


@dataclass(frozen=True)
class HostCall:
    """An operator that runs between two compiled functions."""

    node: Node
    function: HostFunction
    operands: tuple[Source, ...]


@dataclass(frozen=True)
class Step:
    """What is done for one signature at one state."""

    function: Any
    arguments: tuple[int, ...]
    host: HostCall | None
    carried: tuple[Source, ...]
    following: State | None
    results: tuple[Source, ...] = ()
    verdict: Verdict | None = None
    plans: list[LaunchPlan] = field(default_factory=list[LaunchPlan], compare=False)
    """What is left of calls of the function, once one was made that is one launch."""

    def made(self, slots: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """What the function gives for the arrays of the step's signature."""
        if self.function is None:
            return ()
        arrays = [slots[place] for place in self.arguments]
        if self.plans and are_plain(arrays) and (found := self.plans[0](arrays)) is not None:
            return found
        given: object = self.function
        made = [_on_host(each) for each in self.function(*arrays)]
        if not self.plans and isinstance(given, ArrayFunction):
            plan = cast("ArrayFunction[Any]", given).planned(arrays)
            self.plans.extend([] if plan is None else [plan])
        return made

    @cached_property
    def made_results(self) -> tuple[int, ...] | None:
        """Which results of the compiled function are those of the model, where they are nothing else, each one once."""
        places = tuple(source[1] for source in self.results if isinstance(source, tuple) and source[0] == "made")
        last = self.function is not None and self.host is None and self.following is None
        return places if last and len(set(places)) == len(places) == len(self.results) else None


@dataclass
class State:
    """A place in a model. `by_value` are the slots whose elements the import depends on."""

    pending: tuple[Node, ...]
    values: Mapping[str, Value]
    by_value: set[int] = field(default_factory=set[int])
    structure: Any = None
    """How slots are the model's inputs, of the state before the first node."""
    steps: OrderedDict[Any, Step] = field(default_factory=OrderedDict[Any, Step])

    def key(self, slots: Sequence[np.ndarray]) -> Any:
        shapes = tuple((array.dtype, array.shape) for array in slots)
        return shapes, tuple((place, _elements(slots[place])) for place in sorted(self.by_value))


def _on_host(value: Any) -> np.ndarray:
    return value if isinstance(value, np.ndarray) else value.numpy()


def _elements(array: np.ndarray) -> Any:
    return tuple(array.reshape(-1).tolist()) if array.dtype == object else array.tobytes()
