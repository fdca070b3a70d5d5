"""Parts of a joint graph as modules that are written as Python when they are called, which is if torch runs them.

torch's partitioner writes the backward graph as Python twice, and AOTAutograd its copy of it a third time.
"""

# torch has no public interface to it.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

from torch import fx
from torch.fx._lazy_graph_module import _LazyGraphModule

_unwritten: ContextVar[dict[int, fx.GraphModule] | None] = ContextVar("_unwritten", default=None)


@contextmanager
def writing_later() -> Generator[None]:
    """Put off all that this thread writes as Python of modules until the end; what `lazy` has taken is left out."""
    _watch_writing()
    found: dict[int, fx.GraphModule] = {}
    token = _unwritten.set(found)
    try:
        yield
    finally:
        _unwritten.reset(token)
        for module in found.values():
            module.recompile()


def lazy(module: fx.GraphModule) -> fx.GraphModule:
    """A module of the same graph that is written when it is called."""
    if isinstance(module, _LazyGraphModule):
        return module
    unwritten = _unwritten.get()
    if unwritten is not None:
        unwritten.pop(id(module), None)
    made = _LazyGraphModule(module, module.graph)
    made.meta = module.meta
    return made


@cache
def _watch_writing() -> None:
    modules: Any = fx.GraphModule
    write = modules.recompile

    def noted(self: Any) -> Any:
        unwritten = _unwritten.get()
        if unwritten is None or isinstance(self, _LazyGraphModule):  # whose own method does not come here
            return write(self)
        unwritten[id(self)] = self
        return None

    modules.recompile = noted
