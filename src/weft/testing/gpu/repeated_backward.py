"""The backward of one call, again and again: what benchmarks of gradients time."""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from weft.testing.bench.benchmark import Call

gradients_of: Any = torch.autograd.grad  # its types are unknown


def repeated_backward(
    run: Callable[..., Tensor], inputs: Sequence[Tensor], cotangent: Callable[[Tensor], Tensor]
) -> Call:
    """A call that gives the gradients of all inputs, for the cotangent of what one run has returned."""
    import torch._functorch.config as functorch

    leaves = [each.detach().requires_grad_() for each in inputs]
    patch: Any = functorch.patch  # pyright: ignore[reportUnknownVariableType]
    with patch(donated_buffer=False):  # what the forward kept must not be given away
        output = run(*leaves)
        given = cotangent(output)
        gradients_of(output, leaves, given, retain_graph=True)
    return lambda: gradients_of(output, leaves, given, retain_graph=True)
