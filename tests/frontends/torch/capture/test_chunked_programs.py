"""Programs around a loss in chunks: what they compute stays, and where chunks would change it, the loss stays whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.frontends.torch.transforms.second_derivatives import needs_second_derivatives
from weft.config import Config
from weft.diagnostics import forget
from weft.frontends.torch.capture.chunked_cross_entropy import chunked_cross_entropy
from weft.frontends.torch.capture.chunked_loss import chunk_rows, with_chunked_losses

BATCH, LENGTH, WIDTH, CLASSES = 3, 5, 6, 9
ROWS = BATCH * LENGTH


def operands(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    hidden, weight = torch.randn(ROWS, WIDTH, dtype=dtype), torch.randn(CLASSES, WIDTH, dtype=dtype)
    return hidden, weight, torch.arange(ROWS) * 5 % CLASSES


def rewritten(call: Callable[..., Any], config: Config | None = None) -> tuple[Callable[..., Any], list[bool]]:
    """A function as torch runs its graph after losses were put into chunks, and whether that changed each graph."""
    chunked: list[bool] = []

    def backend(module: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        before = str(module.graph)
        made = with_chunked_losses(module, config or Config(chunked_loss="4"))
        assert str(module.graph) == before
        made.graph.lint()
        chunked.append(any(node.target is chunked_cross_entropy for node in made.graph.nodes))
        return made.forward

    torch._dynamo.reset()
    return torch.compile(call, backend=backend, fullgraph=True), chunked


def results(call: Callable[..., Any], hidden: Tensor, weight: Tensor, *rest: Any) -> list[Tensor]:
    given = [hidden.detach().clone().requires_grad_(), weight.detach().clone().requires_grad_()]
    loss = call(*given, *rest)
    loss.sum().backward()
    return [loss.detach(), *(value.grad for value in given if value.grad is not None)]


def flat(hidden: Tensor) -> Tensor:
    return hidden.reshape(BATCH, LENGTH, WIDTH)


def by_name(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(
        target=labels, input=torch.reshape(input=F.linear(weight=weight, input=hidden), shape=(-1, 9))
    )


def cut_then_flat(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    logits = F.linear(flat(hidden), weight)[:, :-1, :]
    return F.cross_entropy(logits.reshape(-1, CLASSES), labels.view(BATCH, LENGTH)[:, 1:].reshape(-1))


def narrowed(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(hidden, weight).to(torch.bfloat16), labels)


def by_product(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(torch.mm(hidden, mat2=weight.t()), labels)


def labels_written(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    logits, labels = hidden @ weight.t(), labels.clone()
    labels[::2] = -100
    return F.cross_entropy(logits, labels)


def all_ignored(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(hidden, weight), torch.full_like(labels, -100))


def all_under_autocast(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return F.cross_entropy(F.linear(hidden, weight), labels)


def statistics(hidden: Tensor, weight: Tensor, labels: Tensor, count: Tensor) -> Tensor:
    count.add_(1)
    count += 1
    return F.cross_entropy(F.linear(hidden, weight), labels)


CHUNKED = [by_name, cut_then_flat, narrowed, by_product, labels_written, all_ignored, all_under_autocast]


@pytest.mark.parametrize("call", CHUNKED)
def test_programs_stay_what_they_are(call: Callable[..., Tensor]) -> None:
    made, chunked = rewritten(call)
    exact, found = results(call, *operands()), results(made, *operands())
    assert chunked == [True]
    tolerance = 2e-2 if call in (narrowed, all_under_autocast) else 1e-5
    for one, other in zip(found, exact, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance, equal_nan=True)


def test_what_is_written_without_a_reader_is_still_written() -> None:
    count = torch.zeros(())
    made, chunked = rewritten(statistics)
    results(made, *operands(), count)
    assert chunked == [True] and count.item() == 2


@pytest.mark.parametrize("options", [{"chunked_loss": 4}, {"memory_budget": 0.5, "chunked_loss": 4}])
def test_statistics_of_a_batch_norm_are_kept(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, CLASSES))
    hidden, _, labels = operands()
    torch._dynamo.reset()
    step = torch.compile(lambda x: F.cross_entropy(model(x), labels), backend="weft", options=options)
    for _ in range(2):
        step(hidden).backward()
    norm = model[1]
    assert isinstance(norm, torch.nn.BatchNorm1d) and norm.num_batches_tracked is not None
    assert norm.num_batches_tracked.item() == 2


def flat_then_cut(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(flat(hidden), weight).view(-1, CLASSES)[:-1, :], labels[:-1])


def written_between(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    hidden = hidden * 2
    logits = F.linear(hidden, weight)
    hidden += hidden.sin()
    return F.cross_entropy(logits, labels) + hidden.sum()


def written_by_option(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    hidden = hidden * 2
    logits = F.linear(hidden, weight)
    F.relu(hidden, inplace=True)
    return F.cross_entropy(logits, labels)


def written_by_place(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    hidden = hidden * 2
    logits = F.linear(hidden, weight)
    F.relu(hidden, True)
    return F.cross_entropy(logits, labels)


def renormalised(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    logits = F.linear(hidden, weight)
    rows = F.embedding(labels, weight, max_norm=0.5)
    return F.cross_entropy(logits, labels) + rows.sum()


def renormalised_by_place(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    logits = F.linear(hidden, weight)
    rows = F.embedding(labels, weight, None, 0.5)
    return F.cross_entropy(logits, labels) + rows.sum()


def renormalised_bags(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    logits = F.linear(hidden, weight)
    bags = F.embedding_bag(labels.view(BATCH, LENGTH), weight, max_norm=0.5)
    return F.cross_entropy(logits, labels) + bags.sum()


def normalised_by_the_batch(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    hidden = hidden * 2
    mean, variance = hidden[0], hidden[1]
    logits = F.linear(hidden, weight)
    normalised = F.batch_norm(weight, mean, variance, training=True)
    return F.cross_entropy(logits, labels) + normalised.sum()


def normalised_by_torch(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    hidden = hidden * 2
    mean, variance = hidden[0], hidden[1]
    logits = F.linear(hidden, weight)
    normalised = torch.batch_norm(weight, None, None, mean, variance, True, 0.5, 1e-5, False)
    return F.cross_entropy(logits, labels) + normalised.sum()


def normalised_by_names(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    hidden = hidden * 2
    mean, variance = hidden[0], hidden[1]
    logits = F.linear(hidden, weight)
    normalised = torch.batch_norm(
        weight, None, None, mean, variance, training=True, momentum=0.5, eps=1e-5, cudnn_enabled=False
    )
    return F.cross_entropy(logits, labels) + normalised.sum()


def normalised_by_an_operator(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    hidden = hidden * 2
    logits = F.linear(hidden, weight)
    normalised = torch.native_batch_norm(weight, None, None, hidden[0], hidden[1], True, 0.5, 1e-5)[0]
    return F.cross_entropy(logits, labels) + normalised.sum()


def without_gradients(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    with torch.no_grad():
        logits = F.linear(hidden, weight)
    return F.cross_entropy(logits, labels) + hidden.sum() + weight.sum()


def projected_under_autocast(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        logits = F.linear(hidden, weight)
    return F.cross_entropy(logits, labels)


def into_memory(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(torch.mm(hidden, weight.t(), out=torch.empty(ROWS, CLASSES)), labels)


def cast_twice(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(hidden, weight).bfloat16().float().double(), labels)


WRITTEN = [written_between, written_by_option, written_by_place, into_memory]
WRITTEN += [renormalised, renormalised_by_place, renormalised_bags, normalised_by_the_batch, normalised_by_torch]
WRITTEN += [normalised_by_names, normalised_by_an_operator]
WHOLE = [flat_then_cut, without_gradients, projected_under_autocast, cast_twice]


@pytest.mark.parametrize("call", WHOLE)
def test_losses_stay_whole_where_chunks_would_change_them(call: Callable[..., Tensor]) -> None:
    made, chunked = rewritten(call)
    exact, found = results(call, *operands()), results(made, *operands())
    assert chunked == [False]
    for one, other in zip(found, exact, strict=True):
        assert torch.equal(one, other) and one.dtype == other.dtype


@pytest.mark.parametrize("call", WRITTEN)
def test_losses_stay_whole_where_what_they_read_is_written_to(call: Callable[..., Tensor]) -> None:
    made, chunked = rewritten(call)
    with torch.no_grad():
        torch.testing.assert_close(made(*operands()), call(*operands()))
    assert chunked == [False]


def test_without_gradients_a_loss_is_the_same() -> None:
    made, chunked = rewritten(by_name)
    with torch.no_grad():
        torch.testing.assert_close(made(*operands()), by_name(*operands()))
    assert chunked == [True]


@pytest.mark.parametrize("label", [CLASSES, -1])
def test_labels_that_are_no_class_are_an_error(label: int) -> None:
    hidden, weight, labels = operands()
    labels[7] = label
    with pytest.raises((IndexError, RuntimeError)):
        by_name(hidden, weight, labels)
    torch._dynamo.reset()
    with pytest.raises((IndexError, RuntimeError)):
        torch.compile(by_name, backend="weft", options={"chunked_loss": 4})(hidden, weight, labels)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_gradients_of_float16_that_are_too_small_come_back_by_a_scale(reduction: str) -> None:
    hidden, weight, labels = operands(torch.float16)

    def loss(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
        logits = F.linear(hidden, weight).float()
        return F.cross_entropy(logits, labels, reduction=reduction) * 1e-9

    def scaled(call: Callable[..., Tensor]) -> list[Tensor]:
        return results(lambda *given: call(*given) * 2.0**30, hidden, weight, labels)

    made, chunked = rewritten(loss)
    for one, other in zip(scaled(made), scaled(loss), strict=True):
        assert other.abs().max() > 0.1
        torch.testing.assert_close(one, other, rtol=5e-3, atol=5e-3)
    assert chunked == [True]


def test_functions_of_torch_transform_what_is_compiled() -> None:
    hidden, weight, labels = operands(torch.float64)
    torch._dynamo.reset()
    step = torch.compile(by_name, backend="weft", options={"chunked_loss": 4})
    found = torch.func.grad(step)(hidden, weight, labels)
    torch.testing.assert_close(found, torch.func.grad(by_name)(hidden, weight, labels))
    several = torch.stack([hidden, 2 * hidden])
    batched = torch.func.vmap(step, in_dims=(0, None, None))(several, weight, labels)
    torch.testing.assert_close(batched, torch.stack([by_name(each, weight, labels) for each in several]))


def test_a_function_may_be_transformed_inside() -> None:
    made, chunked = rewritten(lambda *given: torch.func.grad(by_name)(*given))
    torch.testing.assert_close(made(*operands()), torch.func.grad(by_name)(*operands()))
    assert not any(chunked)


@needs_second_derivatives
def test_gradients_have_gradients() -> None:
    hidden, weight, labels = operands(torch.float64)

    def penalty(call: Callable[..., Tensor]) -> Tensor:
        given = hidden.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(call(given, weight, labels), given, create_graph=True)
        (second,) = torch.autograd.grad(gradient.square().sum(), given)
        return second

    torch._dynamo.reset()
    step = torch.compile(by_name, backend="weft", options={"chunked_loss": 4})
    torch.testing.assert_close(penalty(step), penalty(by_name))


def test_nothing_is_said_or_done_where_chunks_are_not_wanted(caplog: pytest.LogCaptureFixture) -> None:
    forget()
    made, chunked = rewritten(flat_then_cut, Config(chunked_loss="0", memory_budget="0.5"))
    made(*operands())
    assert chunked == [False] and not any("chunked_loss" in message for message in caplog.messages)


def test_there_are_at_most_so_many_chunks() -> None:
    assert chunk_rows(Config(chunked_loss="4"), 6400, 1000, 10, "cpu") == 100
    assert chunk_rows(Config(chunked_loss="4"), 200, 1000, 10, "cpu") == 4
    assert chunk_rows(Config(chunked_loss="auto"), 64 * 4096, 128256, 4096, "cuda") == 4096
