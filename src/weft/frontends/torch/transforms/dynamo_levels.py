"""Lets Dynamo trace functions while `torch.func` transforms them: it leaves those to eager, unless Weft compiles them.

Dynamo guards on the levels, and its tensors keep their wrappers; what a backend makes of such a graph is its own part.
"""

# Dynamo has no public interface to it.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch._dynamo import symbolic_convert
from torch._subclasses import meta_utils


@cache
def trace_under_transforms(backend: Callable[..., Any]) -> None:
    """Let Dynamo trace what this backend compiles while functions of `torch.func` are entered."""
    translator: Any = symbolic_convert.InstructionTranslator
    refuse = getattr(translator, "_throw_if_in_functorch", None)
    if refuse is None:
        return  # then such functions run in eager

    def checked(self: Any) -> None:
        asked = inspect.getattr_static(self.output.compiler_fn, "compiler_fn", self.output.compiler_fn)
        asked = getattr(asked, "_torchdynamo_orig_backend", asked)
        if isinstance(asked, torch._TorchCompileWrapper):
            asked = asked.compiler_fn
        if asked is not backend:
            refuse(self)

    translator._throw_if_in_functorch = checked
    describer: Any = meta_utils.MetaTensorDescriber
    describe = describer.describe_tensor

    def described(self: Any, tensor: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        found = describe(self, tensor, *arguments, **options)
        return _of_its_own(found) if found.is_functorch_wrapped else found

    describer.describe_tensor = described


def _of_its_own(described: Any) -> Any:
    """What is wrapped, as if it were no view and no result, inside too: nothing here writes or differentiates by it."""
    inner = described.unwrapped
    inside = None if inner is None else _of_its_own(inner)
    return replace(described, is_view=False, base=None, is_leaf=True, unwrapped=inside)
