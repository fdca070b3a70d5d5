"""What a caller gets of a call's results: outputs, and new values of its arguments."""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportPrivateUsage=false, reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from weft.frontends.torch.execution.copies import copy_all
from weft.frontends.torch.importer.aliasing import replaced
from weft.frontends.torch.importer.float_sizes import FloatFormula
from weft.frontends.torch.importer.imported_graph import Calling, Number, Output, Passed, Returned, Viewed
from weft.ir.expr import Expr, evaluate


def write_back(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Give arguments their new values, unless the program has written over them: then they only count as changed."""
    copies: list[tuple[torch.Tensor, torch.Tensor]] = []
    changed: list[torch.Tensor] = []
    for argument, value in pairs:
        if value is argument:
            changed.append(argument)
            continue
        new = torch.view_as_complex(value) if argument.is_complex() else value
        if argument.shape != new.shape:
            # Of arguments that overlap torch passes the memory, of which tracing saw what they cover.
            argument = argument.as_strided(new.shape, new.stride())
        copies.append((argument, new))
    if copies:
        with torch.no_grad():
            copy_all(copies)
    if changed:
        torch.autograd.graph.increment_version(changed)  # which leaves out what has no version


def written_inputs(calling: Calling) -> dict[int, int]:
    """The results that replace a tensor and are nothing else, with the number of the function's argument that it is."""
    numbers = {place: number for number, place in enumerate(calling.arguments)}
    pairs = [
        (numbers[place], result)
        for place, result in calling.mutated
        if numbers[place] not in calling.resolved_arguments
    ]
    return {result: number for number, result in replaced(pairs, calling.outputs)}


def needs_arguments(calling: Calling) -> bool:
    """Whether a call's arguments are of use when its program has run: to write to, or to return."""
    bases = [output.base if isinstance(output, Viewed) else output for output in calling.outputs]
    return bool(calling.mutated) or any(isinstance(base, Passed) for base in bases)


def output_of(
    output: Output, arguments: Sequence[Any], results: Sequence[torch.Tensor], symbols: Mapping[str, int]
) -> Any:
    match output:
        case Passed(argument):
            return arguments[argument]
        case Number(FloatFormula() as formula):
            return formula.number(symbols)
        case Number(value):
            return evaluate(value, symbols) if isinstance(value, Expr) else value
        case Viewed(base, shape, strides, offset, dtype, is_conjugated, is_negated):
            memory = _as_it_lies(output_of(base, arguments, results, symbols))
            sizes, steps = ([evaluate(each, symbols) for each in values] for values in (shape, strides))
            start = memory.storage_offset()
            if (read_as := getattr(torch, dtype)) != memory.dtype:
                start = start * memory.itemsize // read_as.itemsize
                memory = _reinterpreted(memory, read_as)
            view = memory.as_strided(sizes, steps, start + evaluate(offset, symbols))
            view = torch._neg_view(view) if is_negated else view
            return view.conj() if is_conjugated else view
        case _:
            result = results[output.result]
            # Detached, or it would be a view made without gradients, into which nothing that has one may be written.
            return torch.view_as_complex(result).detach() if output.is_complex else result


def _as_it_lies(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor neither negated nor conjugated when it is read."""
    tensor = tensor.conj() if tensor.is_conj() else tensor
    return torch._neg_view(tensor) if tensor.is_neg() else tensor


def _reinterpreted(memory: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """All the memory that a tensor lies in, as a row of elements of another type.

    Torch, which may make the view again of its argument, follows those of parts of complex numbers by their names only.
    """
    size = memory.untyped_storage().nbytes()
    count = size // max(dtype.itemsize, memory.itemsize) * max(dtype.itemsize, memory.itemsize) // memory.itemsize
    row = memory.as_strided((count,), (1,), 0)
    if row.is_complex() and dtype == row.dtype.to_real():
        return torch.view_as_real(row).view(-1)
    if dtype.is_complex and row.dtype == dtype.to_real():
        return torch.view_as_complex(row.view(-1, 2))
    return row.view(dtype)


Pick = Callable[[Sequence[Any], Sequence[Any]], list[Any]]
"""Outputs, of results and arguments."""


def picked_from(outputs: Sequence[Output]) -> Pick | None:
    """What gives outputs that are results or arguments as they are, or always the same; None where others are among
    them."""
    places: list[tuple[int, int]] = []
    fixed: list[Any] = []
    for output in outputs:
        match output:
            case Returned(result, False):
                places.append((0, result))
            case Passed(argument):
                places.append((1, argument))
            case Number(value) if not isinstance(value, Expr | FloatFormula):
                places.append((2, len(fixed)))
                fixed.append(value)
            case _:
                return None

    def pick(results: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
        there = (results, arguments, fixed)
        return [there[which][place] for which, place in places]

    return pick
