"""Whole graphs of odd shapes, strides and types, compiled for a GPU and run as PTX, give what eager gives."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from weft.testing.gpu.narrow import coded

from ..emulated_graphs import emulated

FLOATS = [torch.float32, torch.bfloat16, torch.float16]
TYPES = [*FLOATS, torch.int64, torch.uint8]


def some(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape).to(dtype) if dtype.is_floating_point else torch.randint(0, 100, shape).to(dtype)


def check(function: Callable[..., Tensor | tuple[Tensor, ...]], *args: Tensor) -> None:
    """Results, and arguments that are written, are eager's."""
    own, theirs = ([a.clone(memory_format=torch.preserve_format) for a in args] for _ in range(2))
    found, expected = emulated(function)(*own), function(*theirs)
    torch.testing.assert_close((found, own), (expected, theirs))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(("rows", "columns"), [(3, 17), (6, 5)])
def test_columns_that_are_rows_in_memory(rows: int, columns: int, dtype: torch.dtype) -> None:
    """Neighbours in memory are three, or a multiple: no vector is so wide."""
    check(lambda x: torch.maximum(x, x) + 1, some(columns, rows, dtype=dtype).t())
    check(lambda x: x.expand(rows, columns) + 1, some(rows, 1, dtype=dtype))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_memory_that_begins_anywhere(dtype: torch.dtype) -> None:
    x = some(3 * 65 + 1, dtype=dtype)[1:].view(3, 65)
    check(lambda x: x[:, 1:] * 2 + x[:, :-1], x)
    check(lambda x: F.pad(x, (1, 2)).sum(-1), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_angles_of_many_turns(dtype: torch.dtype) -> None:
    """They are reduced by a table, which is memory of the program's own."""
    check(lambda x: (x.sin(), x.cos()), torch.tensor([1e7, 3.0, -5e20, 2.5e30, 0.1], dtype=dtype))


@pytest.mark.parametrize("shape", [(0,), (0, 5), (5, 0), (3, 0, 2)])
def test_nothing(shape: tuple[int, ...]) -> None:
    check(lambda x: (x.sum(-1), torch.cat([x, x]) + 1, x.sum()), some(*shape))


@pytest.mark.parametrize(
    ("m", "n", "k"), [(70, 1, 64), (70, 64, 1), (5, 0, 64), (70, 0, 64), (5, 64, 0), (1, 1, 1), (0, 1, 8), (0, 9, 1)]
)
def test_products_with_a_side_of_one_or_none(m: int, n: int, k: int) -> None:
    x, y = some(2, m, k, dtype=torch.bfloat16), some(2, k, n, dtype=torch.bfloat16)
    torch.testing.assert_close(emulated(torch.matmul, strict=True)(x, y), x @ y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("rows", "keys"), [(5, 1), (70, 1), (1, 1), (5, 0)])
def test_attention_over_a_single_key_or_none(rows: int, keys: int, dtype: torch.dtype) -> None:
    operands = [some(1, 2, size, 64, dtype=dtype) for size in (rows, keys, keys)]
    attend = F.scaled_dot_product_attention
    torch.testing.assert_close(emulated(attend, strict=True)(*operands), attend(*operands))


def test_backwards() -> None:
    check(lambda x: (x.flip(0) + x.flip(1), x.flip(0, 1).cumsum(0), x.flip(0) @ x.t()), some(9, 33))


def test_the_sign_of_a_byte() -> None:
    check(lambda x, y: x.float() / (y.float().abs() + 0.5), *(some(64, 33).mul(40).to(torch.int8) for _ in range(2)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_floats_that_small_integers_do_not_hold_wrap_around(dtype: torch.dtype) -> None:
    x = torch.tensor([0.9, -0.9, 127.5, 128, 255, 256, 300, -5, -129, -300, 32768, -40000, 1e5, -2e9]).to(dtype)
    check(lambda x: (x.to(torch.int8), x.to(torch.uint8), x.to(torch.int16)), x)
    check(lambda x: x.to(torch.uint8), torch.tensor([3e9, -3e9, 2.0**40 + 2**17, -1e18]).to(dtype))


def test_constants_that_kernels_make() -> None:
    check(lambda x: x * torch.arange(7.0).sin() + torch.linalg.cross(x[:, :3], x[:, 3:6])[:, :1], some(5, 7))


def written(x: Tensor, s: Tensor) -> Tensor:
    y = x * s
    s.add_(1)
    x[::2].mul_(2)
    x.t()[1].sub_(s)
    return y + x.sum()


def test_written_in_place() -> None:
    check(written, some(40, 30), torch.tensor(2.0))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_gradients(dtype: torch.dtype) -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        return F.layer_norm(F.gelu(x * w), (33,)).softmax(0)

    compiled, errors = emulated(f), torch.zeros(2, 2, dtype=torch.float64)
    for _ in range(8):  # of one draw, either error may be small by chance
        x, w, seed = some(5, 33, dtype=dtype), some(33, dtype=dtype), some(5, 33, dtype=dtype)
        found = [_gradients(each, x, w, seed) for each in (compiled, f)]
        wanted = _gradients(f, x.double(), w.double(), seed.double())
        for own, each in zip(errors, found, strict=True):
            own += torch.stack([(g - e).square().sum() / e.square().sum() for g, e in zip(each, wanted, strict=True)])
    assert (errors[0].sqrt() <= 1.5 * errors[1].sqrt()).all()


def _gradients(function: Callable[..., Tensor], x: Tensor, w: Tensor, seed: Tensor) -> tuple[Tensor, ...]:
    inputs = [t.clone().requires_grad_() for t in (x, w)]
    return torch.autograd.grad(function(*inputs), inputs, seed)


def test_products_of_many_rows_have_coded_weights_too() -> None:
    model = torch.nn.Linear(128, 128).bfloat16()
    x = some(40, 128, dtype=torch.bfloat16)
    with torch.no_grad():
        found = emulated(model, quantize="fp8")(x)
        wanted = x.double() @ coded(model.weight, "fp8").T + model.bias.double()
    assert (found.double() - wanted).norm() < 2**-7 * wanted.norm()


@torch.no_grad()
def test_what_torch_is_called_with_is_of_this_call() -> None:
    """Memory of temporaries is another in every call, and so are the views of it that calls are given."""

    def fill(x: Tensor, rows: Tensor) -> Tensor:
        rows[1:].fill_(2)
        return x.clamp(-3, 3)

    run = emulated(fill, fallback="quiet")
    for number in range(3):
        own, eager = (torch.arange(number, number + 7, dtype=torch.int32).view(7, 1) for _ in range(2))
        assert torch.equal(run(own, own[::2]), fill(eager, eager[::2])) and torch.equal(own, eager)


def test_gradients_of_the_greatest_behind_a_batch_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel that sums up channels is told which elements are the greatest of rows, and not their shares."""
    monkeypatch.setattr("weft.passes.grouping.spread_rows._WORTH", 0)

    def loss(x: Tensor, weight: Tensor) -> Tensor:
        return F.relu(F.batch_norm(x, None, None, weight, training=True)).amax(-1).square().sum()

    inputs = some(4, 6, 200), some(6)
    wide = [each.double().requires_grad_() for each in inputs]
    for each in inputs:
        each.requires_grad_()
    found = torch.autograd.grad(emulated(loss)(*inputs), inputs)
    expected = torch.autograd.grad(loss(*wide), wide)
    torch.testing.assert_close(found, tuple(each.float() for each in expected), rtol=1e-4, atol=1e-5)
