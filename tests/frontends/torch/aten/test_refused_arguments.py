"""What eager refuses because of types and numbers is refused where it is compiled as well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

Case = tuple[Callable[..., Any], Callable[[], list[Tensor]]]


def x() -> Tensor:
    return torch.randn(4, 5)


def labels(dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.tensor([0, 4, 2, 1], dtype=dtype)


REFUSED: dict[str, Case] = {
    "index_select, i8": (lambda x, i: x.index_select(0, i), lambda: [x(), torch.tensor([1, 2], dtype=torch.int8)]),
    "index_select, u8": (lambda x, i: x.index_select(0, i), lambda: [x(), torch.tensor([1, 2], dtype=torch.uint8)]),
    "index_select, matrix": (lambda x, i: x.index_select(0, i), lambda: [x(), torch.tensor([[1, 2]])]),
    "index_select of a number": (lambda x, i: x.index_select(0, i), lambda: [torch.tensor(1.0), torch.tensor([0, 0])]),
    "index_add, f64": (
        lambda x, i, v: x.index_add(0, i, v),
        lambda: [x(), torch.tensor([1]), torch.randn(1, 5, dtype=torch.float64)],
    ),
    "labels, i32": (lambda x, t: F.cross_entropy(x, t), lambda: [x(), labels(torch.int32)]),
    "weights, f64": (
        lambda x, t, w: F.cross_entropy(x, t, w),
        lambda: [x(), labels(), torch.rand(5, dtype=torch.float64)],
    ),
    "weights, i64": (lambda x, t, w: F.nll_loss(x, t, w), lambda: [x(), labels(), torch.arange(5)]),
    "layer_norm, f64": (lambda x, w: F.layer_norm(x, (5,), w), lambda: [x(), torch.rand(5, dtype=torch.float64)]),
    "group_norm, f64": (lambda x, w: F.group_norm(x, 5, w), lambda: [x(), torch.rand(5, dtype=torch.float64)]),
    "complex, f64": (lambda a, b: torch.complex(a, b), lambda: [x(), x().double()]),
    "multinomial, none": (lambda x: torch.multinomial(x, 0), lambda: [torch.rand(5)]),
    "binary_cross_entropy": (
        lambda a, t: F.binary_cross_entropy(a, t),
        lambda: [torch.rand(2), torch.tensor([0.5, 2])],
    ),
    "smooth_l1_loss": (lambda a, t: F.smooth_l1_loss(a, t, beta=-1.0), lambda: [x(), x()]),
    "searchsorted, i32": (
        lambda a, v, s: torch.searchsorted(a, v, sorter=s),
        lambda: [torch.tensor([2.0, 1.0]), torch.rand(3), torch.tensor([1, 0], dtype=torch.int32)],
    ),
    "celu": (lambda a: F.celu(a, 0.0), lambda: [x()]),
    "hardswish of integers": (F.hardswish, lambda: [torch.arange(3)]),
    "logsigmoid of integers": (F.logsigmoid, lambda: [torch.arange(3)]),
    "glu of integers": (F.glu, lambda: [torch.arange(4)]),
    "booleans @ booleans": (lambda a: a @ a.t(), lambda: [x() > 0]),
    "booleans @ a vector": (lambda a: a @ a[0], lambda: [x() > 0]),
    "batches of booleans": (lambda a: torch.bmm(a[None], a.t()[None]), lambda: [x() > 0]),
    "i0 of complex numbers": (torch.special.i0, lambda: [torch.randn(3, dtype=torch.complex64)]),
    "bessel_j0 of complex numbers": (torch.special.bessel_j0, lambda: [torch.randn(3, dtype=torch.complex64)]),
    "lerp of integers": (lambda a: torch.lerp(a, a, 0.5), lambda: [torch.arange(3)]),
    "1 - booleans": (lambda a: 1 - a, lambda: [x() > 0]),
    "a boolean - integers": (lambda a: True - a, lambda: [torch.arange(3)]),
    "integers - a boolean": (lambda a: torch.sub(a, True), lambda: [torch.arange(3)]),
    "integers - booleans": (lambda a, b: a - b, lambda: [torch.arange(2), torch.tensor([True, False])]),
    "rsub of booleans": (lambda a, b: torch.rsub(a, b), lambda: [torch.arange(2), torch.tensor([True, False])]),
    "floor of booleans": (lambda a: a.floor(), lambda: [x() > 0]),
    "ceil of booleans": (lambda a: a.ceil(), lambda: [x() > 0]),
    "round of booleans": (lambda a: a.round(), lambda: [x() > 0]),
    "celu of integers": (lambda a: F.celu(a), lambda: [torch.arange(-2, 3)]),
    "bernoulli, above 1": (lambda p: torch.bernoulli(p), lambda: [torch.tensor([0.5, 1.5])]),
    "bernoulli, below 0": (lambda p: torch.bernoulli(p), lambda: [torch.tensor([0.5, -0.5])]),
    "one_hot, i32": (lambda i: F.one_hot(i, 5), lambda: [labels(torch.int32)]),
    "one_hot, i32, as many as there are": (lambda i: F.one_hot(i), lambda: [labels(torch.int32)]),
    "layer_norm, f32 and bf16": (
        lambda x, w, b: F.layer_norm(x, (5,), w, b),
        lambda: [x().bfloat16(), torch.rand(5), torch.rand(5).bfloat16()],
    ),
    "interpolate to nothing": (lambda a: F.interpolate(a, size=(0, 3)), lambda: [torch.randn(1, 2, 4, 4)]),
    "lu_solve, a pivot of -1": (
        lambda a, p, b: torch.linalg.lu_solve(a, p, b),
        lambda: [torch.eye(3), torch.tensor([-1, 2, 3], dtype=torch.int32), torch.randn(3, 2)],
    ),
}

TAKEN: dict[str, Case] = {
    "index_select, i32": (lambda x, i: x.index_select(0, i), lambda: [x(), torch.tensor([1, 2], dtype=torch.int32)]),
    "index_select, number": (lambda x, i: x.index_select(0, i), lambda: [x(), torch.tensor(1)]),
    "index_select of a number": (lambda x, i: x.index_select(0, i), lambda: [torch.tensor(1.0), torch.tensor([0])]),
    "labels": (lambda x, t, w: F.cross_entropy(x, t, w), lambda: [x(), labels(), torch.rand(5)]),
    "layer_norm, f32 beside bf16": (lambda x, w: F.layer_norm(x, (5,), w), lambda: [x().bfloat16(), torch.rand(5)]),
    "floor": (lambda x: (x.floor(), x.ceil(), x.trunc(), x.round()), lambda: [3 * x()]),
    "floor of integers": (lambda x: x.floor(), lambda: [torch.arange(3)]),
    "binary_cross_entropy": (
        lambda a, t: F.binary_cross_entropy(a, t),
        lambda: [torch.rand(2), torch.tensor([0.0, 1])],
    ),
    "lerp": (lambda a: torch.lerp(a, 2 * a, 0.5), lambda: [x()]),
    "differences": (lambda a: (a - 1, 1 - a, a - 0.5), lambda: [torch.arange(3)]),
    "celu": (lambda a: F.celu(a, 0.5), lambda: [x()]),
    "one_hot": (lambda i: F.one_hot(i, 5), lambda: [labels()]),
    "layer_norm, f32 and f32 beside bf16": (
        lambda x, w, b: F.layer_norm(x, (5,), w, b),
        lambda: [x().bfloat16(), torch.rand(5), torch.rand(5)],
    ),
}


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    torch.compiler.reset()
    return torch.compile(function, backend="weft", options={"cache": False})


@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_refuses_is_refused(name: str) -> None:
    function, arguments = REFUSED[name]
    given = arguments()
    for call in (function, compiled(function)):
        with pytest.raises((RuntimeError, IndexError, NotImplementedError)):
            call(*given)


@pytest.mark.parametrize("name", TAKEN)
def test_what_eager_takes_is_taken(name: str) -> None:
    function, arguments = TAKEN[name]
    given = arguments()
    torch.testing.assert_close(
        compiled(function)(*given), function(*given), rtol=1e-2 if "bf16" in name else 1e-5, atol=1e-5
    )


def test_bernoulli_draws_what_eager_draws() -> None:
    p = torch.rand(200)
    drawn = list[Tensor]()
    for call in (torch.bernoulli, compiled(lambda p: torch.bernoulli(p))):
        torch.manual_seed(3)
        drawn.append(call(p))
    assert torch.equal(*drawn)
