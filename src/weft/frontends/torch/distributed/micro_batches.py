"""A batch as micro-batches, which go through a pipeline one behind the other, and their outputs as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree

from weft.errors import ShardingError, UnsupportedError


def batch_size(leaves: Sequence[Any]) -> int:
    """The rows of a batch: the first dimension of its tensors, those of one row apart."""
    sizes = {leaf.shape[0] for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.dim() and leaf.shape[0] != 1}
    if len(sizes) > 1:
        raise ShardingError(
            f"the tensors of a batch have {', '.join(map(str, sorted(sizes)))} rows",
            hint="the first dimension of all inputs and targets is the batch, or 1",
        )
    return sizes.pop() if sizes else 1


def cut_batch(leaves: Sequence[Any], count: int) -> list[list[Any]]:
    """The leaves of each micro-batch: tensors are cut along their first dimension, those of one row stay whole."""
    rows = batch_size(leaves)
    if rows % count:
        raise ShardingError(
            f"a batch of {rows} rows is not {count} micro-batches of one size",
            hint=f"pad it to {-(-rows // count) * count} rows, or use another number of micro-batches",
        )
    if count == 1:
        return [list(leaves)]

    def part(leaf: Any, number: int) -> Any:
        cut = isinstance(leaf, torch.Tensor) and leaf.dim() > 0 and leaf.shape[0] != 1
        return leaf.chunk(count)[number].contiguous() if cut else leaf

    return [[part(leaf, number) for leaf in leaves] for number in range(count)]


def joined_outputs(outputs: Sequence[Any], first: Sequence[Any]) -> Any:
    """The outputs of micro-batches as those of the batch: rows one behind the other, numbers as their mean."""
    if len(outputs) == 1:
        return outputs[0]
    rows = batch_size(first)

    def joined(*parts: Any) -> Any:
        if not isinstance(parts[0], torch.Tensor):
            return parts[0]
        if parts[0].dim() == 0 and parts[0].is_floating_point():
            return torch.stack(parts).mean()
        if parts[0].dim() and parts[0].shape[0] == rows:
            return torch.cat(parts)
        raise UnsupportedError(
            f"an output of shape {list(parts[0].shape)} is no part of a batch",
            hint="return tensors whose first dimension is the batch",
        )

    spec = pytree.tree_structure(outputs[0])
    parts = zip(*(pytree.tree_leaves(each) for each in outputs), strict=True)
    return pytree.tree_unflatten([joined(*each) for each in parts], spec)
