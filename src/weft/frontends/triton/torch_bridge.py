"""Kernels inside of `torch.compile`: a launch becomes one operator of the captured graph, without a graph break.

Dynamo follows `kernel[grid](...)` into `launch_traced`, which sorts the arguments into what a graph can hold, and calls
`weft::triton_launch`. The operator is functional: it gives new contents for the tensors that the kernel may write to,
which are then copied back. Backends see an ordinary operator; Weft's own calls the compiled kernel.
"""

# torch leaves much of its library without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportPrivateUsage=false, reportUntypedFunctionDecorator=false

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch
import torch._dynamo

from weft.frontends.triton import jit
from weft.frontends.triton.jit import Grid, JITFunction, LaunchError
from weft.frontends.triton.specialise import alias_groups
from weft.frontends.triton.stored import stored_parameters

_SCHEMA = (
    "(str kernel, str layout, Tensor[] tensors, SymInt[] integers, float[] numbers, SymInt[] grid, int[] changed)"
    " -> Tensor[]"
)
_library = torch.library.Library("weft", "FRAGMENT")
_kernels: dict[str, JITFunction] = {}


@torch._dynamo.assume_constant_result
def _identity(number: int) -> str:
    """The name of a kernel in graphs: the same in every process that has the same kernel."""
    kernel = jit.KERNELS[number]
    name = f"{kernel.__qualname__} {kernel.cache_key}"
    _kernels[name] = kernel
    return name


@torch._dynamo.assume_constant_result
def _stored(number: int) -> tuple[str, ...]:
    return stored_parameters(jit.KERNELS[number])


@torch._dynamo.assume_constant_result
def _written(layout: list[Any]) -> str:
    return json.dumps(layout)


def launch_traced(kernel: JITFunction, grid: Grid, args: Sequence[Any], keywords: dict[str, Any]) -> None:
    """What Dynamo traces for a launch."""
    given: dict[str, Any] = {**kernel.defaults, **dict(zip(kernel.arg_names, args, strict=False)), **keywords}
    sides: Any = grid(given) if callable(grid) else grid
    stored = _stored(kernel.number)
    tensors: list[Any] = []
    integers: list[Any] = []
    numbers: list[Any] = []
    layout: list[Any] = []
    changed: list[int] = []
    for name in given:
        value = given[name]
        if isinstance(value, torch.Tensor):
            place = -1
            for position, other in enumerate(tensors):
                if other is value:
                    place = position
            if place < 0:
                place = len(tensors)
                tensors.append(value)
            layout.append([name, "tensor", place])
            if name in stored and place not in changed:
                changed.append(place)
        elif name in kernel.constant_names or value is None or isinstance(value, bool | str):
            layout.append([name, "constant", value])
        elif isinstance(value, float):
            layout.append([name, "number", len(numbers)])
            numbers.append(value)
        else:
            layout.append([name, "integer", len(integers)])
            integers.append(value)
    with torch.no_grad():
        results = torch.ops.weft.triton_launch(
            _identity(kernel.number), _written(layout), tensors, integers, numbers, list(sides), changed
        )
        for position, place in enumerate(changed):
            tensors[place].copy_(results[position])


def _launch(
    kernel: str,
    layout: str,
    tensors: list[torch.Tensor],
    integers: list[int],
    numbers: list[float],
    grid: list[int],
    changed: list[int],
) -> list[torch.Tensor]:
    """The operator on real tensors: the kernel runs on copies of what it may write to."""
    function = _kernels.get(kernel)
    if function is None:
        raise LaunchError(f"the kernel {kernel} is not defined in this process", hint="import the module that has it")
    tensors = _copied(tensors, changed)
    held = {"tensor": tensors, "integer": integers, "number": numbers}
    given = {name: held[kind][value] if kind in held else value for name, kind, value in json.loads(layout)}
    function.run(grid=tuple(grid), **given)
    shared = _overlapping(tensors)
    return [tensors[place].clone() if shared is not None else tensors[place] for place in changed]


def _copied(tensors: list[torch.Tensor], changed: list[int]) -> list[torch.Tensor]:
    """The tensors, with copies in place of those that may be written to; what overlaps overlaps in the copy too."""
    groups = _overlapping(tensors) or range(len(tensors))
    written = {groups[place] for place in changed}
    copies: dict[int, tuple[int, torch.UntypedStorage]] = {}
    result: list[torch.Tensor] = []
    for tensor, group in zip(tensors, groups, strict=True):
        if group not in written:
            result.append(tensor)
        elif groups.count(group) == 1:
            result.append(_like(tensor).copy_(tensor))
        else:
            storage = tensor.untyped_storage()
            if group not in copies:
                copies[group] = storage.data_ptr(), storage.clone()
            start, copy = copies[group]
            if start != storage.data_ptr():
                raise LaunchError(
                    "a kernel in a compiled function is given tensors that overlap, but are not views of one tensor",
                    hint="make the tensors views of one, or launch the kernel outside of torch.compile",
                )
            made = torch.empty(0, dtype=tensor.dtype)
            result.append(made.set_(copy, tensor.storage_offset(), tensor.size(), tensor.stride()))
    return result


def _overlapping(tensors: list[torch.Tensor]) -> tuple[int, ...] | None:
    """A group for each tensor: those that overlap are of one. None where no two do."""
    ranges: list[tuple[int, int]] = []
    for tensor in tensors:
        start = tensor.data_ptr()
        last = sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True))
        ranges.append((start, start + (last + 1) * tensor.element_size() if tensor.numel() else start))
    return alias_groups(ranges)


def _like(tensor: torch.Tensor) -> torch.Tensor:
    """A new tensor with the same strides: the kernel was told these."""
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device)


def _fake(
    kernel: str,
    layout: str,
    tensors: list[torch.Tensor],
    integers: list[int],
    numbers: list[float],
    grid: list[int],
    changed: list[int],
) -> list[torch.Tensor]:
    return [_like(tensors[place]) for place in changed]


_library.define(f"triton_launch{_SCHEMA}")
_library.impl("triton_launch", _launch, "CPU")
torch.library.register_fake("weft::triton_launch", _fake)
