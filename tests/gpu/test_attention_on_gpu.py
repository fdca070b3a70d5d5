"""Attention on a GPU against float64: lengths and widths of all kinds, masks, shared heads, single queries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

Attend = Callable[..., torch.Tensor]


def operands(query: tuple[int, ...], heads: int, keys: int, dtype: torch.dtype = torch.bfloat16) -> list[torch.Tensor]:
    batch, _, _, width = query
    shapes = (query, (batch, heads, keys, width), (batch, heads, keys, width))
    return [torch.randn(shape, device="cuda", dtype=dtype) for shape in shapes]


def check(attend: Attend, inputs: list[torch.Tensor], *others: torch.Tensor) -> None:
    torch.compiler.reset()
    found = torch.compile(attend, backend="weft", options={"cache": False})(*inputs, *others)
    expected = attend(*(x.double() for x in inputs), *others)
    assert torch.equal(found.isnan(), expected.isnan())
    error = (found.double() - expected).nan_to_num().norm() / expected.nan_to_num().norm()
    assert error < 5e-3


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("query", "heads", "keys"),
    [
        ((2, 8, 2048, 64), 8, 2048),
        ((2, 8, 1111, 128), 2, 1111),
        ((1, 4, 700, 96), 4, 900),
        ((1, 2, 1024, 256), 1, 1024),
        ((3, 33, 640, 64), 33, 640),
    ],
)
def test_lengths_and_widths(query: tuple[int, ...], heads: int, keys: int, causal: bool) -> None:
    def attend(q: Any, k: Any, v: Any) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)

    check(attend, operands(query, heads, keys))
    check(attend, operands(query, heads, keys, torch.float16))


@pytest.mark.parametrize(("batch", "heads", "shared", "keys"), [(1, 64, 8, 8192), (5, 32, 32, 1500), (3, 12, 4, 777)])
def test_single_queries(batch: int, heads: int, shared: int, keys: int) -> None:
    def attend(q: Any, k: Any, v: Any) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    check(attend, operands((batch, heads, 1, 128), shared, keys))


@pytest.mark.parametrize("position", [0, 127, 128, 1000, 2047])
def test_keys_up_to_a_position(position: int) -> None:
    def attend(q: Any, k: Any, v: Any, place: Any) -> torch.Tensor:
        mask = torch.arange(2048, device=q.device)[None, :] <= place[:, None]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)

    check(attend, operands((1, 32, 1, 128), 8, 2048), torch.tensor([position], device="cuda"))


@pytest.mark.parametrize("name", ["window", "window and first", "given"])
@pytest.mark.parametrize("length", [1024, 1000])
def test_masks(name: str, length: int) -> None:
    def attend(q: Any, k: Any, v: Any, given: Any) -> torch.Tensor:
        row, key = torch.arange(length, device=q.device)[:, None], torch.arange(length, device=q.device)[None]
        near = row - key < 200
        masks = {"window": near, "window and first": near | (key < 4), "given": given}
        return F.scaled_dot_product_attention(q, k, v, attn_mask=masks[name] & (row >= key))

    given = torch.rand(length, length, device="cuda") < 0.7
    check(attend, operands((2, 16, length, 128), 16, length), given)


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("first", [0, 4, 1024])
@pytest.mark.parametrize("width", [64, 128])
def test_masks_in_memory(added: bool, first: int, width: int) -> None:
    def attend(q: Any, k: Any, v: Any, given: Any) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=given.to(q.dtype) if added else given)

    place = torch.arange(1024, device="cuda")
    behind = place[:, None] - place
    seen = (behind >= 0) & ((behind < 300) | (place < first))
    given = torch.zeros(1024, 1024, device="cuda").masked_fill(~seen, float("-inf")) if added else seen
    check(attend, operands((2, 16, 1024, width), 16, 1024), given.bfloat16() if added else given)


@pytest.mark.parametrize(
    ("query", "heads", "window", "first"),
    [((2, 33, 1111, 128), 11, 200, 0), ((3, 32, 1500, 64), 8, 333, 5), ((2, 24, 2000, 96), 24, 700, 200)],
)
def test_programs_of_different_lengths_are_drawn_anew_in_every_run(
    query: tuple[int, ...], heads: int, window: int, first: int
) -> None:
    def attend(q: Any, k: Any, v: Any) -> torch.Tensor:
        place = torch.arange(q.shape[2], device=q.device)
        behind = place[:, None] - place
        seen = (behind >= 0) & ((behind < window) | (place < first))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)

    inputs = operands(query, heads, query[2])
    check(attend, inputs)
    again = torch.compile(attend, backend="weft", options={"cache": False})
    found = [again(*inputs).clone() for _ in range(5)]
    assert all(torch.equal(found[0], other) for other in found)


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("capped", [False, True])
def test_functions_of_places(capped: bool) -> None:
    slopes = torch.rand(8, device="cuda")

    def score(s: Any, batch: Any, head: Any, row: Any, key: Any) -> Any:
        return torch.tanh(s / 3) * 3 if capped else s + slopes[head] * (key - row)

    def window(batch: Any, head: Any, row: Any, key: Any) -> Any:
        return (row >= key) & (row - key < 300)

    mask = create_block_mask(window, None, None, 1024, 1024, device="cuda")

    def attend(q: Any, k: Any, v: Any) -> torch.Tensor:
        return flex_attention(q, k, v, score_mod=score, block_mask=mask)  # type: ignore[return-value]

    with torch.no_grad():
        check(attend, operands((2, 8, 1024, 64), 8, 1024))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("heads", "shared", "width"), [(16, 16, 64), (32, 8, 128), (4, 2, 192)])
def test_sequences_one_after_the_other(causal: bool, heads: int, shared: int, width: int) -> None:
    lengths = [37, 700, 1, 0, 640, 130, 512]
    starts = torch.tensor([0, *lengths], device="cuda").cumsum(0)
    ends, total = starts.int(), sum(lengths)

    def attend(q: Any, k: Any, v: Any, ends: Any) -> torch.Tensor:
        packed: Any = torch.ops.aten._flash_attention_forward
        return packed(q, k, v, ends, ends, max(lengths), max(lengths), 0.0, causal, False)[0]

    inputs = [torch.randn(total, count, width, device="cuda").bfloat16() for count in (heads, shared, shared)]
    with torch.no_grad():
        found = torch.compile(attend, backend="weft", options={"cache": False})(*inputs, ends)
    for start, length in zip(starts.tolist(), lengths, strict=False):
        q, k, v = (x[start : start + length].transpose(0, 1)[None].double() for x in inputs)
        expected = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)[0].transpose(0, 1)
        error = (found[start : start + length].double() - expected).norm()
        assert error <= 5e-3 * expected.norm()


@pytest.mark.parametrize(("page", "count", "lengths"), [(16, 64, [1, 700, 1024]), (64, 20, [65, 1280, 513])])
def test_keys_in_pages(page: int, count: int, lengths: list[int]) -> None:
    def attend(q: Any, keys: Any, values: Any, table: Any, lengths: Any) -> torch.Tensor:
        k, v = (x[table].reshape(len(table), -1, *x.shape[2:]).transpose(1, 2) for x in (keys, values))
        seen = torch.arange(k.shape[2], device=q.device) < lengths[:, None]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen[:, None, None], enable_gqa=True)

    pages = [torch.randn(100, page, 4, 128, device="cuda").bfloat16() for _ in range(2)]
    query = torch.randn(3, 32, 1, 128, device="cuda").bfloat16()
    table = torch.randint(-100, 100, (3, count), device="cuda", dtype=torch.int32)
    check(attend, [query, *pages], table, torch.tensor(lengths, device="cuda"))


def repeated(x: torch.Tensor, times: int) -> torch.Tensor:
    batch, heads, length, width = x.shape
    return x[:, :, None].expand(batch, heads, times, length, width).reshape(batch, heads * times, length, width)


@pytest.mark.parametrize("form", ["plain", "soft cap", "sinks", "added"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("query", "heads", "keys"), [((2, 8, 1024, 64), 2, 1024), ((1, 6, 333, 128), 3, 777), ((3, 12, 1, 128), 4, 1500)]
)
def test_attention_that_is_written_out(
    form: str, dtype: torch.dtype, query: tuple[int, ...], heads: int, keys: int
) -> None:
    """As models write it: keys repeated, a causal mask, and a softmax in a wider type."""

    def attend(q: Any, k: Any, v: Any, sinks: Any, bias: Any) -> torch.Tensor:
        k, v = (repeated(x, q.shape[1] // heads) for x in (k, v))
        scores = q @ k.transpose(2, 3) * 0.2
        if form == "soft cap":
            scores = torch.tanh(scores / 5) * 5
        if form == "added":
            scores = scores + bias
        row, key = (torch.arange(size, device=q.device) for size in scores.shape[2:])
        scores = scores.masked_fill(row[:, None] + (keys - q.shape[2]) < key, -torch.inf)
        if form == "sinks":
            scores = torch.cat([scores, sinks.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)], -1)
            scores = scores - scores.max(-1, keepdim=True).values
        weights = torch.softmax(scores, -1, dtype=torch.promote_types(q.dtype, torch.float32)).to(q.dtype)
        return weights[..., :keys] @ v

    inputs = operands(query, heads, keys, dtype)
    inputs += [torch.randn(shape, device="cuda", dtype=dtype) for shape in ((query[1],), (query[2], keys))]
    with torch.no_grad():
        check(attend, inputs)


def test_single_queries_with_lengths_share_keys() -> None:
    def attend(q: Any, k: Any, v: Any, lengths: Any) -> torch.Tensor:
        mask = torch.arange(k.shape[2], device=q.device) < lengths
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None], enable_gqa=True)

    check(attend, operands((3, 12, 1, 128), 4, 777), torch.tensor([[0], [1], [700]], device="cuda"))


@pytest.mark.parametrize(("batch", "heads", "keys"), [(2, 16, 8192), (3, 40, 1000), (1, 128, 777)])
def test_values_that_are_a_part_of_wide_keys(batch: int, heads: int, keys: int) -> None:
    def attend(q: Any, latent: Any) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, latent, latent[..., :512], scale=0.07, enable_gqa=True)

    shapes = (batch, heads, 1, 576), (batch, 1, keys, 576)
    check(attend, [torch.randn(shape, device="cuda").bfloat16() for shape in shapes])
