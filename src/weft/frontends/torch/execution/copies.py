"""Copies of many tensors by few kernels: tensors of one type are copied together."""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportPrivateUsage=false, reportUnknownVariableType=false
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from weft.frontends.torch.execution.alignment import spanned
from weft.runtime.strides import lies_dense

_CARRIERS = {
    torch.uint16: torch.int16,
    torch.uint32: torch.int32,
    torch.uint64: torch.int64,
    **{
        each: torch.uint8
        for each in (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
    },
}
"""Types of which torch copies no list on a GPU, and what has the same bits."""


def copy_all(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Copy tensors to others of their shapes, which are the first of each pair."""
    together: list[tuple[torch.Tensor, torch.Tensor]] = []
    for target, source in pairs:
        if target.is_neg() or target.is_conj():
            target.copy_(source)  # torch writes to no list of tensors that are negated or conjugated when they are read
        else:
            together.append((target, source))
    for numbers in _by_type([target for target, _ in together]):
        _copied([together[n][0] for n in numbers], [together[n][1] for n in numbers])


class CopiesIn:
    """Copies of arguments, by their places, into memory that stays."""

    def __init__(self, statics: Mapping[int, torch.Tensor]) -> None:
        places, tensors = list(statics), list(statics.values())
        self._groups = [([tensors[n] for n in numbers], [places[n] for n in numbers]) for numbers in _by_type(tensors)]

    def __call__(self, arguments: Sequence[torch.Tensor]) -> None:
        for statics, places in self._groups:
            _copied(statics, [arguments[place] for place in places])


class CopiesOut:
    """Fresh copies of tensors in memory that stays; they have the same strides."""

    def __init__(self, statics: Sequence[torch.Tensor]) -> None:
        self._forms = [(tuple(tensor.shape), tensor.stride(), tensor.dtype) for tensor in statics]
        self._whole = all(lies_dense(tensor.shape, tensor.stride()) for tensor in statics)
        sources = list(statics) if self._whole else list(map(spanned, statics))
        self._groups = [(numbers, [sources[n] for n in numbers]) for numbers in _by_type(sources)]

    def __call__(self, new: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
        made = [new(*form) for form in self._forms]
        targets = made if self._whole else list(map(spanned, made))
        for numbers, sources in self._groups:
            _copied([targets[n] for n in numbers], sources)
        return made


def _copied(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    if len(targets) == 1:
        targets[0].copy_(sources[0])
        return
    carrier = _CARRIERS.get(targets[0].dtype)
    if carrier is not None:
        targets, sources = ([each.view(carrier) for each in tensors] for tensors in (targets, sources))
    torch._foreach_copy_(targets, sources)


def _by_type(tensors: Sequence[torch.Tensor]) -> list[list[int]]:
    found: dict[torch.dtype, list[int]] = {}
    for number, tensor in enumerate(tensors):
        found.setdefault(tensor.dtype, []).append(number)
    return list(found.values())
