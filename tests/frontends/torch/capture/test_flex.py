"""FlexAttention: functions of places become masks, numbers that are added and limits of scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from weft.lower.machine import gpu_machine
from weft.lower.steps import CallStep
from weft.testing.interpreted import GpuInterpreter

LENGTH = 160
SLOPES = torch.tensor([0.5, -0.25, 0.125, 0.0625])
LENGTHS = torch.tensor([100, 160])
Score = Callable[..., torch.Tensor]


def capped(score: Any, batch: Any, head: Any, row: Any, key: Any) -> Any:
    return torch.tanh(score / 20) * 20


def sloped(score: Any, batch: Any, head: Any, row: Any, key: Any) -> Any:
    return score + SLOPES[head] * (key - row)


def capped_and_hidden(score: Any, batch: Any, head: Any, row: Any, key: Any) -> Any:
    return torch.where(row - key < 64, 5 * torch.tanh(score / 5) - 0.1 * (row - key), -float("inf"))


def squared(score: Any, batch: Any, head: Any, row: Any, key: Any) -> Any:
    return score * score


def doubled(score: Any, batch: Any, head: Any, row: Any, key: Any) -> Any:
    return 2 * score + score**2 * 0.1 + 1


def window(batch: Any, head: Any, row: Any, key: Any) -> Any:
    return (row >= key) & (row - key < 100) & (key < LENGTHS[batch])


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch.compiler.reset()


def assert_same_gradients(
    attend: Callable[..., Any], written_out: Callable[..., Any], inputs: Sequence[torch.Tensor]
) -> None:
    """The gradients of a function that is compiled whole are those of another one."""
    compiled = torch.compile(attend, backend="weft", fullgraph=True, options={"fallback": "error", "cache": False})
    gradients: list[Any] = []
    for function in (compiled, written_out):
        given = [x.clone().requires_grad_() for x in inputs]
        gradients.append(torch.autograd.grad(function(*given).sin().sum(), given))
    # Torch declares the sums of powers, which the backward reads, to be float32.
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-5)


def calls(backend: GpuInterpreter) -> list[str]:
    return [step.target for made in backend.plans for step in made.plan.steps if isinstance(step, CallStep)]


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("score", [None, capped, sloped, capped_and_hidden])
@pytest.mark.parametrize("masked", [False, True])
def test_functions_of_places_stand_in_the_kernel(score: Score | None, masked: bool) -> None:
    mask = create_block_mask(window, 2, None, LENGTH, LENGTH, device="cpu") if masked else None
    inputs = [torch.randn(2, heads, LENGTH, 64, dtype=torch.bfloat16) for heads in (4, 2, 2)]

    def attend(query: Any, key: Any, value: Any) -> Any:
        return flex_attention(query, key, value, score_mod=score, block_mask=mask, enable_gqa=True, return_lse=True)

    backend = GpuInterpreter(gpu_machine())
    with torch.no_grad():
        found = torch.compile(attend, backend=backend)(*inputs)
        expected = attend(*(x.double() for x in inputs))
    assert calls(backend) == []
    for one, other, most in zip(found, expected, (6e-3, 1e-4), strict=True):
        seen = torch.isfinite(other)
        assert torch.equal(torch.isfinite(one), seen)
        assert (one.double() - other)[seen].norm() < most * other[seen].norm()


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_of_other_functions_of_scores_the_products_are_the_librarys() -> None:
    inputs = [torch.randn(1, 2, LENGTH, 64, dtype=torch.bfloat16) for _ in range(3)]
    backend = GpuInterpreter(gpu_machine())
    with torch.no_grad():
        torch.compile(lambda q, k, v: flex_attention(q, k, v, score_mod=squared), backend=backend)(*inputs)
    assert set(calls(backend)) == {"aten::bmm"}


def banded(batch: Any, head: Any, row: Any, key: Any) -> Any:
    return (row >= key) & (row - key < 17)


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("score", [squared, sloped, doubled])
def test_on_a_processor_all_functions_of_scores_are_wefts(score: Score) -> None:
    inputs = [torch.randn(2, heads, 37, 24) for heads in (4, 2, 2)]
    mask = create_block_mask(banded, None, None, 37, 37, device="cpu")

    def attend(query: Any, key: Any, value: Any) -> Any:
        return flex_attention(query, key, value, score_mod=score, block_mask=mask, enable_gqa=True, return_lse=True)

    compiled = torch.compile(attend, backend="weft", fullgraph=True, options={"fallback": "error", "cache": False})
    with torch.no_grad():
        found, expected = compiled(*inputs), attend(*(x.double() for x in inputs))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other.double(), rtol=1e-4, atol=1e-4)


def test_gradients_of_queries_keys_values_and_of_what_a_function_of_scores_reads() -> None:
    query, key, value = (torch.randn(2, heads, 37, 24, dtype=torch.float64) for heads in (4, 2, 2))
    bias = torch.randn(4, dtype=torch.float64)
    mask = create_block_mask(banded, None, None, 37, 37, device="cpu")

    def attend(query: Any, key: Any, value: Any, bias: Any) -> Any:
        def biased(score: Any, batch: Any, head: Any, row: Any, key: Any) -> Any:
            return torch.sin(score) + bias[head] * (row - key)

        call = torch.ops.higher_order.flex_attention
        return call(query, key, value, biased, mask.as_tuple(), 0.25, {})[0]

    def written_out(query: Any, key: Any, value: Any, bias: Any) -> Any:
        scores = torch.sin(query @ key.repeat_interleave(2, 1).mT * 0.25)
        rows = torch.arange(37)
        distance = rows[:, None] - rows
        scores = scores + bias[:, None, None] * distance
        scores = scores.masked_fill((distance < 0) | (distance >= 17), -torch.inf)
        return scores.softmax(-1) @ value.repeat_interleave(2, 1)

    assert_same_gradients(attend, written_out, (query, key, value, bias))


def test_gradients_where_a_function_of_scores_reads_integers() -> None:
    query, key, value = (torch.randn(2, 3, 29, 16, dtype=torch.float64) for _ in range(3))
    documents, bias = torch.arange(29) // 9, torch.randn(4, dtype=torch.float64)
    mask = create_block_mask(banded, None, None, 29, 29, device="cpu")

    def attend(query: Any, key: Any, value: Any, bias: Any) -> Any:
        def within(score: Any, batch: Any, head: Any, row: Any, key: Any) -> Any:
            return torch.where(documents[row] == documents[key], score + bias[documents[key]], score * 0.5)

        return torch.ops.higher_order.flex_attention(query, key, value, within, mask.as_tuple(), 0.25, {})[0]

    def written_out(query: Any, key: Any, value: Any, bias: Any) -> Any:
        scores, distance = query @ key.mT * 0.25, torch.arange(29)[:, None] - torch.arange(29)
        scores = torch.where(documents[:, None] == documents, scores + bias[documents], scores * 0.5)
        return scores.masked_fill((distance < 0) | (distance >= 17), -torch.inf).softmax(-1) @ value

    assert_same_gradients(attend, written_out, (query, key, value, bias))
