"""Attention takes the masks that eager takes, and refuses those that eager refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

BATCH, HEADS, ROWS, KEYS, WIDTH = 2, 3, 5, 7, 8
SCORES = (BATCH, HEADS, ROWS, KEYS)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def operator(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return torch.ops.aten.scaled_dot_product_attention(q, k, v, mask)


def arguments(scores: tuple[int, ...], mask: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
    *batch, rows, keys = scores
    given = [torch.randn(*batch, size, WIDTH) for size in (rows, keys, keys)]
    return [*given, torch.rand(mask) > 0.3 if dtype == torch.bool else torch.randn(mask)]


def compiled(function: Any, **options: Any) -> Any:
    torch.compiler.reset()
    return torch.compile(function, backend="weft", options={"cache": False}, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool])
@pytest.mark.parametrize(
    ("scores", "mask"),
    [
        (SCORES, (1, 1, 1, ROWS, KEYS)),
        (SCORES, (1, *SCORES)),
        (SCORES, (2, *SCORES)),
        ((ROWS, KEYS), (HEADS, ROWS, KEYS)),
        ((1, HEADS, ROWS, KEYS), SCORES),
        ((BATCH, 1, ROWS, KEYS), (HEADS, ROWS, KEYS)),
        ((BATCH, HEADS, 1, KEYS), (ROWS, KEYS)),
        ((BATCH, HEADS, ROWS, 1), (1, KEYS)),
    ],
)
def test_a_mask_that_is_larger_than_the_scores_is_refused(
    scores: tuple[int, ...], mask: tuple[int, ...], dtype: torch.dtype
) -> None:
    given = arguments(scores, mask, dtype)
    for call in (attend, compiled(attend)):
        with pytest.raises(RuntimeError, match=r"shape|larger than the scores|size"):
            call(*given)


@pytest.mark.parametrize("mask", [(), (KEYS,)])
def test_a_mask_without_rows_and_keys_is_refused(mask: tuple[int, ...]) -> None:
    given = arguments(SCORES, mask, torch.float32)
    for call in (attend, compiled(attend)):
        with pytest.raises(Exception, match=r"Dimension|out of range"):
            call(*given)


def test_the_error_names_the_line_and_what_to_do() -> None:
    given = arguments(SCORES, (1, 1, 1, ROWS, KEYS), torch.float32)
    with pytest.raises(RuntimeError, match=r"\[1, 1, 1, 5, 7\] is larger .*\[2, 3, 5, 7\]") as caught:
        compiled(operator)(*given)
    assert "test_mask_shapes.py" in str(caught.value)
    assert "take leading dimensions off" in str(caught.value)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("scores", "mask"),
    [
        (SCORES, (ROWS, KEYS)),
        (SCORES, (HEADS, ROWS, 1)),
        (SCORES, (BATCH, 1, 1, KEYS)),
        ((HEADS, ROWS, KEYS), (1, ROWS, KEYS)),
        ((2, *SCORES), (1, 1, 1, ROWS, KEYS)),
    ],
)
def test_a_mask_that_repeats_along_the_scores_is_taken(
    scores: tuple[int, ...], mask: tuple[int, ...], dynamic: bool
) -> None:
    given = arguments(scores, mask, torch.float32)
    q, k, v, m = (each.double() for each in given)
    expected = torch.softmax(q @ k.mT / WIDTH**0.5 + m, -1) @ v
    torch.testing.assert_close(compiled(attend, dynamic=dynamic)(*given).double(), expected, rtol=1e-4, atol=1e-5)


def test_queries_and_keys_that_repeat_along_each_other_make_the_scores() -> None:
    q, k = torch.randn(1, HEADS, ROWS, WIDTH), torch.randn(BATCH, HEADS, KEYS, WIDTH)
    given = q, k, torch.randn(BATCH, HEADS, KEYS, WIDTH), torch.randn(SCORES)
    torch.testing.assert_close(compiled(attend)(*given), attend(*given), rtol=1e-4, atol=1e-5)


def test_inside_a_transformation_masks_are_as_eager_takes_them() -> None:
    given = arguments(SCORES, (1, 1, ROWS, KEYS), torch.float32)

    def each(*args: Tensor) -> Tensor:
        return torch.vmap(attend, in_dims=(0, 0, 0, None))(*args)

    torch.testing.assert_close(compiled(each)(*given), each(*given), rtol=1e-4, atol=1e-5)


def test_a_size_that_is_computed_may_be_one() -> None:
    def later(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return attend(q, k, v, mask[1:])

    given = arguments((BATCH, HEADS, 1, KEYS), (2, KEYS), torch.float32)
    torch.testing.assert_close(compiled(later, dynamic=True)(*given), later(*given), rtol=1e-4, atol=1e-5)
