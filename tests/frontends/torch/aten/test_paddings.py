"""Paddings with a tensor's own elements, and windows of it: eager's to the bit, and no tables of places."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import weft

CASES = [
    ((2, 3, 7), (2, 3)),
    ((3, 7), (0, 3)),
    ((2, 3, 7), (6, 6)),
    ((2, 3, 5, 6), (1, 2, 3, 4)),
    ((2, 3, 5, 6), (-1, 2, 3, -2)),
    ((3, 4, 5, 6), (1, 2, 3, 2, 2, 1)),
    ((0, 3, 7), (1, 2)),
]


def compiled(function: Callable[..., Tensor], dynamic: bool = False) -> Callable[..., Tensor]:
    torch.compiler.reset()
    return torch.compile(function, backend="weft", options={"strict": True}, dynamic=dynamic)


@pytest.mark.parametrize(("shape", "pads"), CASES)
@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_paddings_and_their_gradients(mode: str, shape: tuple[int, ...], pads: tuple[int, ...]) -> None:
    def pad(x: Tensor) -> Tensor:
        return F.pad(x, pads, mode=mode)

    x = torch.randn(shape, requires_grad=True)
    wanted = pad(x)
    found = compiled(pad)(x)
    assert torch.equal(found, wanted) and found.stride() == wanted.stride()
    weights = torch.randn(wanted.shape)
    torch.testing.assert_close(
        torch.autograd.grad((found * weights).sum(), x), torch.autograd.grad((wanted * weights).sum(), x)
    )


@pytest.mark.parametrize("dtype", [torch.complex64, torch.bfloat16, torch.int64])
def test_paddings_of_other_types(dtype: torch.dtype) -> None:
    def pad(x: Tensor) -> Tensor:
        return F.pad(x, (1, 2, 3, 0), mode="reflect")

    x = (torch.randn(2, 3, 5, 6) * 9).to(dtype)
    assert torch.equal(compiled(pad)(x), pad(x))


def test_paddings_of_symbolic_sizes() -> None:
    def pad(x: Tensor) -> Tensor:
        return F.pad(F.pad(x, (2, 1), mode="reflect"), (1, 3), mode="replicate")

    run = compiled(pad, dynamic=True)
    for length in (5, 9):
        x = torch.randn(2, 3, length)
        assert torch.equal(run(x), pad(x))


@pytest.mark.parametrize(
    ("shape", "window"),
    [((20,), (0, 5, 3)), ((4, 9, 5), (1, 3, 2)), ((4, 9, 5), (0, 4, 1)), ((4, 9, 5), (-1, 1, 2)), ((0, 9), (1, 3, 1))],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_windows(shape: tuple[int, ...], window: tuple[int, int, int], dtype: torch.dtype) -> None:
    x = torch.randn(shape, dtype=dtype)
    assert torch.equal(compiled(lambda x: x.unfold(*window) * 2)(x), x.unfold(*window) * 2)


def test_short_transforms_take_no_tables_of_places() -> None:
    """Windows of a padded line: eager makes the padded line, the windows and the transform."""
    window = torch.hann_window(16)
    torch.compiler.reset()
    (record,) = weft.explain(lambda x: torch.stft(x, 16, window=window, return_complex=True), torch.randn(4096)).records
    assert record.plan is not None
    assert not [b for b in record.plan.buffers if b.role == "temporary" and b.tensor.dtype.is_integer and b.tensor.rank]
