"""Arguments of which a graph takes strided views from a place in their memory.

`x.as_strided(size, stride, 3)` begins at the fourth element of what x lies in, wherever x itself begins there. Tracing
knows where that is, and does not guard it: calls look (`starts_checked`), and the import may count from x.
"""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from weft.config import Config
from weft.diagnostics import warn
from weft.errors import UnsupportedError
from weft.frontends.torch.importer.aliasing import viewed_node
from weft.frontends.torch.locations import first_line

START_IS_CHECKED = "weft.start"
"""What the metadata of a placeholder says where every call looks at its start."""
_aten: Any = torch.ops.aten
_PLACES = {_aten.as_strided.default: 3, _aten.as_strided_copy.default: 3, _aten.as_strided_scatter.default: 4}
"""Where the offset stands among the arguments of each operator."""
_WHY = "an argument, of which it takes a strided view, begins at another place in its memory than when it was traced"
_ADVICE = "clone such arguments"

Boxed = Callable[[list[Any]], Sequence[Any]]


def strided_arguments(module: fx.GraphModule) -> dict[int, int]:
    """Where arguments begin of which a graph takes views from a place in their memory, by their positions.

    They are marked: who compiles the graph has to let calls look.
    """
    found: dict[int, int] = {}
    positions = {node: n for n, node in enumerate(module.graph.find_nodes(op="placeholder"))}
    for target, place in _PLACES.items():
        for node in module.graph.find_nodes(op="call_function", target=target):
            offset = node.args[place] if len(node.args) > place else node.kwargs.get("storage_offset")
            source = viewed_node(node.args[0])
            start = source.meta["val"].storage_offset() if source in positions else None
            if offset is not None and isinstance(start, int):
                source.meta[START_IS_CHECKED] = True
                found[positions[source]] = start
    return found


def starts_checked(compiled: Boxed, module: fx.GraphModule, starts: Mapping[int, int], config: Config) -> Boxed:
    """What does as a compiled graph; it runs the captured one where arguments begin elsewhere in their memory."""
    if not starts:
        return compiled
    line = first_line(module.graph.nodes)

    def call(arguments: list[Any]) -> Sequence[Any]:
        if all(arguments[position].storage_offset() == start for position, start in starts.items()):
            return compiled(arguments)
        if config.forbids_fallbacks:
            raise UnsupportedError(f"a graph cannot run compiled: {_WHY}", location=line, hint=_ADVICE)
        if config.fallback == "warn":
            warn("fallback", "a graph runs uncompiled", _WHY, _ADVICE, location=line)
        return module.forward(*arguments)

    call._boxed_call = True  # pyright: ignore[reportFunctionMemberAccess]
    return call
