"""What a model does for arrays of one signature: a compiled function, a call on the host, and what follows."""

# NumPy leaves the types of arrays open that come in by narrowing, and functions for the host take whatever there is.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from weft.frontends.onnx.call import HostFunction
from weft.frontends.onnx.checks import Verdict
from weft.frontends.onnx.model import Node
from weft.frontends.onnx.values import Absent, Known, Value

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


def _elements(array: np.ndarray) -> Any:
    return tuple(array.reshape(-1).tolist()) if array.dtype == object else array.tobytes()
