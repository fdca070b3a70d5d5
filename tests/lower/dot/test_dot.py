"""Products as kernels of Weft's own, in shapes whose dimensions vanish."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor


@pytest.mark.parametrize(
    ("product", "shape"),
    [
        (lambda x: x @ x, (6, 1, 1)),
        (lambda x: x @ x, (2, 3, 1, 1)),
        (lambda x: x @ x.mT, (6, 1, 4)),
        (lambda x: x.mT @ x, (6, 4, 1)),
    ],
)
def test_a_batch_of_matrices_times_itself(product: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> None:
    x = torch.rand(shape)
    torch.compiler.reset()
    run = torch.compile(product, backend="weft", options={"cache": False, "strict": True})
    torch.testing.assert_close(run(x), product(x.double()).float())
