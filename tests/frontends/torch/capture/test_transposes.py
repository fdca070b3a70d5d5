"""Transposed matrices and exchanged dimensions are traced as torch's own decompositions have them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._decomp import _core_aten_decompositions_post_autograd as core_decompositions
from torch.fx.experimental.proxy_tensor import make_fx

from weft.frontends.torch.capture import decompositions as own
from weft.frontends.torch.capture.decompositions import decompositions

aten = torch.ops.aten


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (aten.t.default, (2, 3)),
        (aten.t.default, (3,)),
        (aten.t.default, ()),
        (lambda x: aten.transpose.int(x, 0, -1), (2, 3, 4)),
        (lambda x: aten.transpose.int(x, -2, 0), (2, 3, 4)),
        (lambda x: aten.transpose.int(x, 1, 1), (2, 3)),
        (lambda x: aten.transpose.int(x, 1, -1), (2, 3)),
        (lambda x: aten.transpose.int(x, 0, -1), (3,)),
    ],
)
def test_the_graph_is_the_same(function: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> None:
    x = torch.rand(shape)
    table: Any = core_decompositions()
    expected = make_fx(function, decomposition_table=table)(x)
    found = make_fx(function, decomposition_table=decompositions())(x)
    assert found.code == expected.code
    torch.testing.assert_close(found(x), function(x))


def test_a_matrix_is_transposed_by_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Tensor:
        raise AssertionError("torch's own is asked")

    x = torch.rand(2, 3)
    torch.testing.assert_close(own.t(refuse, x), x.t())
    torch.testing.assert_close(own.transpose(refuse, x, 1, -2), x.t())
