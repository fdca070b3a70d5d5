"""Kernels inside of `torch.compile`: a launch becomes one operator of the captured graph, without a graph break.

Dynamo follows `kernel[grid](...)` into `launch_traced`, which sorts the arguments into what a graph can hold, and calls
`weft::triton_launch`. The operator is functional: it gives new contents for the tensors that the kernel may write to,
which are then copied back. Weft's own backend takes the kernel into the graph (`graph.py`); for others, and where
that cannot be, the operator launches it.
"""

# torch leaves much of its library without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportPrivateUsage=false, reportUntypedFunctionDecorator=false

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch._dynamo

from weft.frontends.triton.compiler.stored_parameters import stored_parameters
from weft.frontends.triton.errors import KernelValueError, LaunchError
from weft.frontends.triton.runtime import jit
from weft.frontends.triton.runtime.jit import Grid, JITFunction, KernelInterface
from weft.frontends.triton.runtime.specialise import alias_groups
from weft.frontends.triton.tuning.autotune import Autotuner, Heuristics, kernel_of

_SCHEMA = (
    "(str kernel, str layout, Tensor[] tensors, SymInt[] integers, float[] numbers, SymInt[] grid, int[] changed)"
    " -> Tensor[]"
)
_library = torch.library.Library("weft", "FRAGMENT")
_kernels: dict[str, KernelInterface] = {}
_INT32 = 0x7FFFFFFF


@torch._dynamo.assume_constant_result
def _identity(number: int) -> str:
    """The name of a kernel in graphs: the same in every process that has the same kernel."""
    whole = jit.KERNELS[number]
    kernel = kernel_of(whole)
    origin = kernel.fingerprint()
    # What has no stable text is found in no other process, nor in a cache.
    name = f"{kernel.__qualname__} {origin.digest}{'' if origin.stable else uuid.uuid4().hex}"
    if whole is not kernel:
        name += f" {type(whole).__name__}"
    _kernels[name] = whole
    return name


def kernel_named(name: str) -> KernelInterface:
    """The kernel that a graph names."""
    function = _kernels.get(name)
    if function is None:
        raise LaunchError(f"the kernel {name} is not defined in this process", hint="import the module that has it")
    return function


@torch._dynamo.assume_constant_result
def _stored(number: int) -> tuple[str, ...]:
    return stored_parameters(kernel_of(jit.KERNELS[number]))


@torch._dynamo.assume_constant_result
def _written(given: list[Any], variants: list[Any]) -> str:
    return json.dumps({"given": given, "variants": variants})


def _variants(kernel: Any, given: dict[str, Any]) -> list[dict[str, Any]]:
    """The values that heuristics and tuning may add to what is given: one set for each config."""
    if isinstance(kernel, Heuristics):
        added: dict[str, Any] = {}
        for name in kernel.values:
            added[name] = kernel.values[name]({**given, **added})
        return [{**added, **more} for more in _variants(kernel.fn, {**given, **added})]
    if isinstance(kernel, Autotuner):
        configs = kernel.configs
        if any([config.pre_hook is not None for config in configs]):
            # It is to be called before the launch with that config: which one must be known by now.
            configs = configs[:1]
            hook = configs[0].pre_hook
            if hook is not None:
                hook({**given, **configs[0].all_kwargs()})
        result: list[dict[str, Any]] = []
        for config in configs:
            chosen = config.all_kwargs()
            result += [{**chosen, **more} for more in _variants(kernel.fn, {**given, **chosen})]
        return result
    return [{}]


def launch_traced(kernel: Any, grid: Grid, args: Sequence[Any], keywords: dict[str, Any]) -> None:
    """What Dynamo traces for a launch."""
    function: Any = kernel
    while not isinstance(function, JITFunction):
        function = function.fn
    given: dict[str, Any] = {**dict(zip(function.arg_names, args, strict=False)), **keywords}
    variants = _variants(kernel, given)
    for name in function.defaults:
        if name not in given and name not in variants[0]:
            given[name] = function.defaults[name]
    sides: list[Any] = []
    for variant in variants:
        here: Any = grid({**given, **variant}) if callable(grid) else grid
        here = list(here) if isinstance(here, tuple | list) else [here]
        for side in here:
            if isinstance(side, float | str) or side is None:
                raise KernelValueError(f"the sides of a grid are integers, not {side!r}")
        sides += [*here, 1, 1][:3]
    stored = _stored(kernel.weft_number)
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
        elif name in function.constant_names or value is None or isinstance(value, bool | str):
            layout.append([name, "constant", value])
        elif isinstance(value, float):
            layout.append([name, "number", len(numbers)])
            numbers.append(value)
        else:
            # Asking makes the answer a condition for using the graph.
            narrow = -_INT32 <= value <= _INT32
            layout.append([name, "integer" if narrow else "long", len(integers)])
            integers.append(value)
    with torch.no_grad():
        results = torch.ops.weft.triton_launch(
            _identity(kernel.weft_number), _written(layout, variants), tensors, integers, numbers, sides, changed
        )
        for position, place in enumerate(changed):
            tensors[place].copy_(results[position])


def grid_among(variants: Sequence[Mapping[str, Any]], sides: Sequence[int]) -> Callable[[dict[str, Any]], Any]:
    """The grid as a function of what was chosen, from the sides that it has for each choice."""

    def grid(meta: dict[str, Any]) -> tuple[int, ...]:
        number = variant_with(variants, meta)
        return tuple(sides[3 * number : 3 * number + 3])

    return grid


def variant_with(variants: Sequence[Mapping[str, Any]], chosen: Mapping[str, Any]) -> int:
    """Which of the variants has the chosen values; options of the launch are no matter."""
    matching = (
        number
        for number, variant in enumerate(variants)
        if all(chosen[name] == value for name, value in variant.items() if name in chosen)
    )
    return next(matching, 0)


def arguments_in(layout: Sequence[Any], tensors: Sequence[Any], integers: Sequence[Any], numbers: Sequence[Any]) -> Any:
    """The arguments of a launch by name, from where the graph holds them."""
    held = {"tensor": tensors, "integer": integers, "long": integers, "number": numbers}
    return {name: held[kind][value] if kind in held else value for name, kind, value in layout}


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
    function = kernel_named(kernel)
    tensors = _copied(tensors, changed)
    text = json.loads(layout)
    given, variants = arguments_in(text["given"], tensors, integers, numbers), text["variants"]
    if len(variants) == 1:
        kernel_of(function).run(grid=tuple(grid), **given, **variants[0])
    else:
        function.run(grid=grid_among(variants, grid), **given)
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
            made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
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
for _device in ("CPU", "CUDA"):
    _library.impl("triton_launch", _launch, _device)
torch.library.register_fake("weft::triton_launch", _fake)
