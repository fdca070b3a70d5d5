"""Batches of gradients and tangents that reach a compiled call in tensors of torch's first `vmap`.

    autograd.grad(f(x), x, G, is_grads_batched=True)  ─►  the vmap of the program's vjp, for all rows of G at once

`torch.autograd.functional` makes its vectorised Jacobians so. `torch.func` does not know these tensors, and no data
lies behind them.
"""

# It has no public interface, and torch leaves some of its functions without types.
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from weft.frontends.torch.transforms.program import Program


def is_batched(value: Any) -> bool:
    """Whether it is a tensor of torch's first `vmap`."""
    return isinstance(value, Tensor) and torch._C._functorch.is_legacy_batchedtensor(value)


def call_for_batch(
    program: Program, arguments: Sequence[Any], call: Callable[[Program, Sequence[Any]], Sequence[Any]]
) -> tuple[Any, ...]:
    """The results for arguments of which some are batched, as tensors of that batch: `call` calls a program."""
    dims = tuple(0 if is_batched(value) else None for value in arguments)
    with _outside() as level:
        plain = [
            value if dim is None else torch._remove_batch_dim(value, level, 0, dim)
            for value, dim in zip(arguments, dims, strict=True)
        ]
        results = call(program.vmap(dims, "same"), plain)
        return tuple(torch._add_batch_dim(value, 0, level) for value in results)


@contextmanager
def _outside() -> Generator[int]:
    """Code that runs as outside of the batch, and the batch's level."""
    level = torch._C._vmapmode_decrement_nesting() + 1
    try:
        yield level
    finally:
        torch._C._vmapmode_increment_nesting()
