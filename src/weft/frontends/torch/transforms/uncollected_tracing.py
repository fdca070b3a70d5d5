"""No collection of garbage while Dynamo traces what Weft compiles, as there is none while Weft compiles it.

Tracing makes millions of objects that live until it ends. Whenever there are a quarter more of them, Python walks them
all, and all of the user's beside them, to find next to nothing.
"""

# Dynamo has no public interface to it.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from torch._dynamo import symbolic_convert

from weft.frontends.torch.transforms.dynamo_levels import is_traced_for
from weft.runtime.collection import without_collection


@cache
def trace_without_collection(backend: Callable[..., Any]) -> None:
    """Let the collector wait while Dynamo traces what this backend compiles."""
    translator: Any = symbolic_convert.InstructionTranslator
    run = translator.run

    def waiting(self: Any) -> Any:
        if not is_traced_for(self, backend):
            return run(self)
        with without_collection():
            return run(self)

    translator.run = waiting
