"""Bodies of loops and branches, traced once: torch runs them again and again while it traces an operator that has them.

For a schema, for a look at what they share memory with, for the types of results and for the graph: four times or more,
and as often in each turn of those for loops inside. A body that is a derivative of a derivative takes seconds each
time, a graph of it does not. `control_functions` makes bodies whose results have memory of their own, so that nobody
has to look for what they share.
"""

# torch leaves what its own operators use private, and its functions without types.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from torch import Tensor
from torch._higher_order_ops import utils
from torch._subclasses.functional_tensor import FunctionalTensor

_PATCHED = threading.RLock()


def traced_once(body: Callable[..., Any], values: Sequence[Any]) -> Callable[..., Any]:
    """A graph of a body for values like these, where torch makes one of the operator that has it; else the body."""
    if not any(isinstance(value, FunctionalTensor) for value in values):
        return body
    if not all(isinstance(value, Tensor) for value in values):
        return body
    return utils.materialize_as_graph(body, tuple(values))


@contextmanager
def own_results() -> Generator[None]:
    """Let torch know of the bodies that it traces here that they share no memory and write to none; in this thread."""
    with _PATCHED:
        owner, original = threading.get_ident(), utils.has_potential_input_alias_or_mutation

        def found(*given: Any, **named: Any) -> Any:
            return (False, False) if threading.get_ident() == owner else original(*given, **named)

        with patch.object(utils, "has_potential_input_alias_or_mutation", found):
            yield
