"""Lets functions of autograd's keep their rules where Dynamo traces what `torch.func` transforms.

Dynamo traces the body of one there, and would give the derivatives of that: another gradient than the user's, without a
word. In what Weft compiles it traces the function and its rules, as those of `weft.func.custom`.
"""

# Dynamo has no public interface to it.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportAttributeAccessIssue=false

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch._dynamo.variables import ConstantVariable, UserFunctionVariable
from torch._dynamo.variables.misc import AutogradFunctionVariable

from weft.frontends.torch.transforms.dynamo_levels import is_traced_for, traced_under_transforms

_Function: Any = torch.autograd.Function


@cache
def trace_autograd_functions(backend: Callable[..., Any]) -> None:
    """Let Dynamo trace the rules of autograd's functions in what this backend compiles."""
    functions: Any = AutogradFunctionVariable
    call_apply = functions.call_apply

    def apply(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if kwargs or not is_traced_for(tx, backend) or not _needs_rules(self.fn_cls):
            return call_apply(self, tx, args, kwargs)
        # What knows rules stands above: it is loaded where there are some.
        rules = importlib.import_module("weft.frontends.torch.func.autograd_functions")
        values = _values(args)
        key = None if values is None else rules.traced_key(self.fn_cls, values)
        if key is None:
            return call_apply(self, tx, args, kwargs)
        called: Any = UserFunctionVariable(rules.apply_traced)
        return tx.inline_user_function_return(called, [ConstantVariable.create(key), *args], {})

    functions.call_apply = apply


def _needs_rules(cls: Any) -> bool:
    """Whether Dynamo would not take them: while functions are transformed, and where tangents have a rule."""
    levels = torch._C._functorch.peek_interpreter_stack() is not None or traced_under_transforms()
    return levels or cls.jvp is not _Function.jvp


def _values(args: Any) -> list[Any] | None:
    """Examples of tensors among arguments, and the others as they are; None where Dynamo does not know one."""
    found: list[Any] = []
    for each in args:
        if each.is_tensor():
            found.append(each.as_proxy().node.meta["example_value"])
        elif each.is_python_constant():
            found.append(each.as_python_constant())
        else:
            return None
    return found
