"""Calls of programs that write over donated buffers: each must be the program's alone when the call comes.

A saved tensor that another tensor shares memory with, that is a leaf, or that a retained graph needs again is copied
first. Hooks for saved tensors that keep the very tensor they pack see it written over, as with torch's own compiler.
What a graph that is not retained has saved, torch lets go of before the call: if that fails, it cannot be made again.
"""

# torch leaves what its own compiler uses private.
# pyright: reportPrivateUsage=false, reportAttributeAccessIssue=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from weft.frontends.torch.execution.torch_executor import BoxedCall

_ALONE = 2
"""References to the storage of a single tensor: the tensor's, and that of the storage's Python object."""


def with_own_arguments(call: BoxedCall, places: Sequence[int]) -> BoxedCall:
    """The call of a program that writes over the arguments at these places: it gets copies of those not its own."""
    if not places:
        return call

    def owning(arguments: list[Any]) -> list[Any]:
        retained = torch._C._autograd._get_current_graph_task_keep_graph()
        for place in places:
            tensor = arguments[place]
            # A tensor of its own: the gradient that it may become has no other holder then, and is not copied.
            arguments[place] = tensor.clone() if retained or not _is_alone(tensor) else tensor.detach()
            del tensor
        return call(arguments)

    owning._boxed_call = True  # pyright: ignore[reportFunctionMemberAccess]
    return owning


def _is_alone(tensor: torch.Tensor) -> bool:
    """Whether no other tensor reads the memory that a tensor lies in, and it is nobody's parameter."""
    if tensor.requires_grad:
        return False
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata) <= _ALONE
