"""The calls of a user's function while it is traced: their lines, what they write to, and what is from outside."""

# Torch's values have no types that can be followed; tracing has no public name.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportPrivateUsage=false, reportMissingTypeStubs=false, reportIncompatibleMethodOverride=false, reportPrivateImportUsage=false, reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, cast

import torch
import torch.fx.traceback as fx_traceback
import torch.utils._pytree as pytree
from torch import nn
from torch._C._functorch import peek_interpreter_stack
from torch._subclasses.functional_tensor import FunctionalTensor, disable_functional_mode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from weft.diagnostics import calling_line
from weft.errors import UnsupportedError
from weft.frontends.torch.capture.loop_states import with_own_states
from weft.frontends.torch.capture.stop_gradients import stopped
from weft.frontends.torch.func import tensor_indices
from weft.frontends.torch.func.capturing import current_capture
from weft.frontends.torch.func.no_grad_results import NoGradResults, storage_of

_ASKING: frozenset[Any] = frozenset(
    each.__get__ for each in vars(torch._C.TensorBase).values() if type(each).__name__ == "getset_descriptor"
)
"""What reads attributes of tensors."""


def _is_outside(leaf: Any) -> bool:
    """Whether something is a tensor that tracing has not made: one that a function closes over."""
    return type(leaf) is torch.Tensor and not (
        torch._C._functorch.is_functorch_wrapped_tensor(leaf) or torch._is_functional_tensor(leaf)
    )


_PROXY: Any = torch._C._TorchDispatchModeKey.PROXY
_DATA: Any = torch.Tensor.data.__get__
_DETACHING: tuple[Any, ...] = (torch.detach, torch.Tensor.detach)
_READING: frozenset[Any] = frozenset(
    getattr(torch.Tensor, name)
    for name in ("tolist", "numpy", "item", "__array__", "__repr__", "__format__", "__bool__", "__int__", "__float__")
)
"""What reads the numbers of a tensor, for Python: of one from outside they are known."""


def writes(func: Any, kwargs: Any) -> bool:
    """Whether a call writes to a tensor, by its name: `add_`, `__setitem__`, `__iadd__`, or anything with `out`."""
    name = getattr(func, "__name__", "")
    if name.startswith("__"):
        return name == "__setitem__" or (name.startswith("__i") and hasattr(torch.Tensor, f"__{name[3:]}"))
    return (name.endswith("_") and name != "requires_grad_") or (kwargs or {}).get("out") is not None


class UsersCalls(TorchFunctionMode):
    """Notes the user's line of every call; what is computed without gradients, under `no_grad()`, has none later.

    What comes from outside of the function is traced as what it computes itself: copies of it can be written to.
    """

    def __init__(
        self, arguments: Sequence[torch.Tensor], what: str = "the function", *, stops_under_no_grad: bool = True
    ) -> None:
        super().__init__()
        self._stops_under_no_grad = stops_under_no_grad
        self._what = what
        self._arguments = {id(each): each for each in arguments if isinstance(each, FunctionalTensor)}
        self._outside: dict[int, tuple[torch.Tensor, FunctionalTensor]] = {}
        self._originals: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._given: set[int] = set()
        self._lines: dict[int, str | None] = {}
        self._no_grad = NoGradResults()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.compiler.is_dynamo_compiling():  # control flow, whose regions Dynamo traces
            return func(*args, **(kwargs or {}))
        place = calling_line()
        file, _, line = (place or "").rpartition(":")
        if file:
            fx_traceback.current_meta["stack_trace"] = f'File "{file}", line {line}'
        known = self._original(args[0]) if args else None
        if func in _READING and known is not None:
            self.refuse_writes()
            if (capture := current_capture()) is not None:
                capture.reads_numbers = True
            with _disable_current_modes():
                return func(known, *args[1:], **(kwargs or {}))
        func = torch.Tensor.detach if func == _DATA else func  # of a parameter, torch does not trace the other
        is_write = writes(func, kwargs)
        self._given.clear()
        if func not in _ASKING:
            args, kwargs = pytree.tree_map_only(_is_outside, self._traced, (args, kwargs or {}))
        if is_write:
            (first, out), rest = (args[:1], (kwargs or {}).get("out")), args[1:]
            first, out = pytree.tree_map_only(nn.Parameter, self._traced, (first, out))
            args, kwargs = (*first, *rest), {**kwargs, "out": out} if out is not None else kwargs
        no_grad = self._stops_under_no_grad and not torch.is_grad_enabled()
        if no_grad:
            args, kwargs = self._no_grad.shared((args, kwargs))
        before = self._no_grad.before_write(args) if no_grad and is_write else None
        if tensor_indices.is_read(func, args):
            found = tensor_indices.read(*args)
        elif tensor_indices.is_written(func, args):
            found = tensor_indices.write(*args)
        else:
            found = func(*with_own_states(func, args), **(kwargs or {}))
        if is_write:
            self._no_grad.after_write(args, before)
            self._no_grad.refresh(args)
        self._note_writes(self._outside if is_write else self._given, place)
        self._refuse_written_arguments(
            self._arguments if is_write else map(id, pytree.tree_leaves((args, kwargs))), place
        )
        if func not in _ASKING:
            found = pytree.tree_map_only(_is_outside, partial(self._own, args=args), found)
        if func not in _DETACHING:
            return self._no_grad.results(found, args) if no_grad else found
        found = pytree.tree_map_only(torch.Tensor, stopped, found)
        if known is not None:
            self._originals[id(found)] = found, known
        return found

    def _original(self, tensor: Any) -> torch.Tensor | None:
        """What is outside of the function, for one that has the same elements: the traced one, or it detached."""
        if _is_outside(tensor) or type(tensor) is nn.Parameter:
            return tensor
        known = self._originals.get(id(tensor))
        return None if known is None else known[1]

    def _traced(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor from outside as one of the function's own; the same one each time."""
        known = self._outside.get(id(tensor))
        if known is None and _is_old_trace() and cast(Any, peek_interpreter_stack()) is not None:
            return tensor  # what it would be wrapped in, inside of a transformation, that trace does not know
        if known is None:
            plain = tensor.detach() if tensor.requires_grad else tensor
            known = self._outside[id(tensor)] = tensor, FunctionalTensor.to_functional(_recorded(plain))
            self._originals[id(known[1])] = known[1], tensor
        self._given.add(id(tensor))
        return known[1]

    def _own(self, result: torch.Tensor, args: Any) -> torch.Tensor:
        """What a call makes of parameters alone is the function's own, unless it has the memory of one."""
        given = [leaf for leaf in pytree.tree_leaves(args) if isinstance(leaf, nn.Parameter)]
        memory = storage_of(result)
        if memory is not None and any(memory == storage_of(each) for each in given):
            return result
        return FunctionalTensor.to_functional(_recorded(result))

    def _note_writes(self, numbers: Iterable[int], place: str | None) -> None:
        """Remember the line of the first call that wrote to each of these."""
        for number in numbers:
            if number not in self._lines and torch._functionalize_has_data_mutation(self._outside[number][1].elem):
                self._lines[number] = place

    def _refuse_written_arguments(self, numbers: Iterable[int], place: str | None) -> None:
        """Raise where an argument among these was written to: a compiled function changes none."""
        found = (self._arguments[number] for number in numbers if number in self._arguments)
        if any(torch._functionalize_has_data_mutation(each.elem) for each in found):
            raise UnsupportedError(
                f"{self._what} writes to its arguments",
                location=place,
                hint="write to a clone, and return that; modules that keep statistics, as batch norm, take `.eval()`",
            )

    def refuse_writes(self) -> None:
        """Raise where a tensor from outside was written to: a compiled function changes none."""
        self._note_writes(self._outside, None)
        self._refuse_written_arguments(self._arguments, None)
        if self._lines:
            line = next(iter(self._lines.values()))
            raise UnsupportedError(
                f"{self._what} writes to a tensor from outside of it", location=line, hint="write to a clone of it"
            )


def _is_old_trace() -> bool:
    return cast(Any, torch.__version__) < (2, 12) and torch._C._get_dispatch_mode(_PROXY) is not None


def _recorded(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor from outside, as the trace knows it: that of torch 2.11 takes no other for one of the function's own."""
    if not _is_old_trace():
        return tensor
    with disable_functional_mode():
        return torch.ops.aten.alias.default(tensor)
