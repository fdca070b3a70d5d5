"""Compiled functions behave as eager ones: shapes that change, mutation, views, strides, random numbers, training."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree
from torch import nn
from torch.utils.checkpoint import checkpoint

from weft.frontends.torch import backend
from weft.frontends.torch.report import record_targets


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch.compiler.reset()


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the graphs that were compiled during the test."""
    names: list[str] = []
    original = backend.import_graph

    def count(module: Any, name: str, *options: Any) -> Any:
        names.append(name)
        return original(module, name, *options)

    monkeypatch.setattr(backend, "import_graph", count)
    return names


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return torch.compile(function, backend=backend.weft_backend, options={"target": "reference", **options})


def check(function: Callable[..., Any], *arguments: Any) -> None:
    """Results, what is left in the arguments, and strides are eager's."""
    theirs, mine = (pytree.tree_map_only(torch.Tensor, restored, arguments) for _ in range(2))
    expected = (function(*theirs), theirs)
    actual = (compiled(function)(*mine), mine)
    torch.testing.assert_close(actual, expected)
    for a, e in zip(pytree.tree_leaves(actual), pytree.tree_leaves(expected), strict=True):
        if isinstance(e, torch.Tensor):
            assert a.stride() == e.stride()


def restored(tensor: torch.Tensor) -> torch.Tensor:
    copied = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).copy_(tensor)
    return copied.requires_grad_(tensor.requires_grad)


def test_the_entry_point_is_found_by_name() -> None:
    assert "weft" in torch._dynamo.list_backends(exclude_tags=())
    x = torch.randn(3)
    function = torch.compile(lambda x: x.sin() + 1, backend="weft", options={"target": "reference"})
    torch.testing.assert_close(function(x), x.sin() + 1)


def test_twenty_sizes_cost_two_compilations(compilations: list[str]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return F.softmax(x.reshape(x.shape[0] * 2, -1), -1)[1:] + x.shape[0]

    run = compiled(function)
    for n in range(2, 22):
        x = torch.randn(n, 6)
        torch.testing.assert_close(run(x), function(x))
    assert len(compilations) == 2


def test_two_symbolic_sizes_that_must_agree() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cat([x @ y, y.t() @ x.t()], 1).mean(0)

    run = compiled(function)
    for m, k in ((3, 4), (5, 6), (7, 9)):
        x, y = torch.randn(m, k), torch.randn(k, m)
        torch.testing.assert_close(run(x, y), function(x, y))


def test_a_mutated_argument_is_written_and_returned_as_itself() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x.add_(1)
        y[1:].mul_(2)
        return x, x.t(), y.sum()

    check(function, torch.randn(2, 3), torch.randn(4))
    x, y = torch.randn(2, 3), torch.randn(4)
    assert compiled(function)(x, y)[0] is x


def test_arguments_that_exchange_their_values() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> None:
        old = x.clone()
        x.copy_(y)
        y.copy_(old)

    check(function, torch.randn(3), torch.randn(3))


def test_views_alias_what_they_view() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x[1:], x.view(-1)

    x = torch.arange(6.0).reshape(2, 3)
    part, whole = compiled(function)(x)
    x.zero_()
    assert not part.any()
    assert not whole.any()


def test_an_argument_comes_back_as_itself_and_results_may_be_none() -> None:
    def function(x: torch.Tensor) -> tuple[Any, ...]:
        return x, None, x + 1, 3, "text"

    x = torch.randn(3)
    result = compiled(function)(x)
    assert result[0] is x
    assert (result[1], result[3], result[4]) == (None, 3, "text")


def test_equal_results_do_not_share_memory() -> None:
    a, b = compiled(lambda x: ((y := x + 1), y.clone()))(torch.zeros(3))
    a.zero_()
    assert b.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.permute(2, 0, 1) + 1,
        lambda x: x.transpose(0, 1).contiguous().transpose(0, 1) * 2,
        lambda x: x.sum(1, keepdim=True).expand(2, 5, 4),
        lambda x: x[:, ::2].clone(),
        lambda x: F.conv2d(x[None].to(memory_format=torch.channels_last), torch.ones(3, 2, 1, 1)),
        lambda x: (x.t() if x.dim() == 2 else x)[..., 1:].relu(),
        lambda x: torch.as_strided(x + 1, (2, 2), (1, 3), 1),
        lambda x: (x + 1).permute(1, 2, 0).as_strided((3, 2), (2, 1), 4),
    ],
)
def test_strides_are_eagers(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    check(function, torch.randn(2, 3, 4))
    check(function, torch.randn(4, 3, 2).permute(2, 1, 0))


def test_opaque_calls_see_eagers_strides() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(torch.fft.fft(x.t() * 2).t()).sum(0)

    check(function, torch.randn(4, 3))


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1,)])
def test_tensors_without_elements_or_dimensions(shape: tuple[int, ...]) -> None:
    check(lambda x: (x.exp().sum(), x * 2, x.reshape(-1)), torch.randn(shape))


def test_random_numbers_follow_the_generator() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.rand_like(x) + torch.randn(3) + F.dropout(x, 0.3) + torch.randint(0, 9, (3,))

    torch.manual_seed(1)
    expected = [function(torch.ones(3)) for _ in range(2)]
    torch.manual_seed(1)
    run = compiled(function)
    torch.testing.assert_close([run(torch.ones(3)) for _ in range(2)], expected)


def test_a_custom_operator_that_mutates() -> None:
    @torch.library.custom_op("weft_tests::increment", mutates_args=("x",))
    def increment(x: torch.Tensor, n: int) -> None:
        x.add_(n)

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        increment(y, 3)
        return y + 1

    check(function, torch.randn(3))


def test_autocast_and_half_floats() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.gelu(x @ w) * 0.1 + F.layer_norm(x[:, :3], (3,))

    check(function, torch.randn(4, 8), torch.randn(8, 3))


def test_complex_arguments_and_results() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y.mul_(2j)
        rotated = torch.view_as_complex(x.reshape(3, -1, 2)) * torch.polar(torch.ones(2), torch.arange(2.0))
        return rotated.t(), torch.view_as_real(rotated).flatten(1), (y @ y.t()).sum(0), y[1:].conj() - 1

    check(function, torch.randn(3, 4), torch.randn(3, 4, dtype=torch.complex64))
    check(function, torch.randn(3, 4), torch.randn(4, 3, dtype=torch.complex64).t())


def test_a_conjugate_beside_what_it_is_of() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.fft.fft(x)
        return y, y.conj(), y.conj().imag

    check(function, torch.randn(6))


def test_tensors_that_are_negated_when_they_are_read() -> None:
    def function(x: torch.Tensor, negated: torch.Tensor) -> tuple[torch.Tensor, ...]:
        negated.mul_(3)
        return x.conj().imag, (x.mH @ x).imag.sin(), negated + 1, negated[1:], torch.ops.aten._neg_view(negated[0])

    x = torch.randn(4, 3, dtype=torch.complex64)
    theirs, mine = (x.clone().conj().imag for _ in range(2))
    assert mine.is_neg()
    expected = function(x, theirs)
    torch.testing.assert_close(compiled(function)(x, mine), expected)
    torch.testing.assert_close(mine, theirs)


def test_several_arguments_that_are_negated_or_conjugated_when_they_are_read_are_written_to() -> None:
    def function(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
        a.mul_(b)
        b.neg_()
        c.mul_(d)
        d.add_(1j)
        return a - b

    numbers = [torch.randn(5, dtype=torch.complex64) for _ in range(4)]
    found: list[list[torch.Tensor]] = []
    for call in (function, torch.compile(function, backend="weft", options={"fallback": "error"})):
        z, w, u, v = memory = [each.clone() for each in numbers]
        found.append([call(z.conj().imag, w.conj().imag, u.conj(), v.conj()), *memory])
    torch.testing.assert_close(found[1], found[0])


def test_gradients_of_a_tensor_that_is_negated_when_it_is_read() -> None:
    x = torch.randn(5, dtype=torch.complex64, requires_grad=True)
    compiled = torch.compile(lambda x: x.conj().imag.sin(), backend="weft", options={"fallback": "error"})
    compiled(x).sum().backward()
    torch.testing.assert_close(x.grad, torch.complex(torch.zeros(5), -torch.cos(-x.detach().imag)))


def test_attention_stays_whole_at_inference() -> None:
    q, k, v = (torch.randn(1, 2, 5, 8) for _ in range(3))
    mask = torch.randn(5, 5)
    check(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), q, k, v)
    with record_targets() as record:
        check(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m), q, k, v, mask)
    assert not record.opaque
    assert "aten._scaled_dot_product_flash_attention_for_cpu.default" in record.seen


def test_heads_that_share_keys_and_values() -> None:
    q, k, v = torch.randn(1, 4, 5, 8), torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8)
    check(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True), q, k, v)


@pytest.mark.parametrize("heads", [2, 4, 8])
def test_heads_whose_number_is_symbolic_share_keys_and_values(heads: int) -> None:
    def function(q: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        k = (x @ weight.T).view(2, 5, -1, 4).transpose(1, 2)
        return F.scaled_dot_product_attention(q, k, k.flip(2), is_causal=True, enable_gqa=True)

    q, x, weight = torch.randn(2, 8, 5, 4), torch.randn(2, 5, 6), torch.randn(4 * heads, 6)
    torch._dynamo.mark_dynamic(weight, 0)
    torch._dynamo.reset()
    run = torch.compile(function, backend="weft", options={"fallback": "error"})
    torch.testing.assert_close(run(q, x, weight), function(q, x, weight))


def test_a_checkpointed_region_draws_its_random_numbers_once() -> None:
    weight = torch.randn(4, 4)

    def function(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda y: F.dropout((y @ weight).relu(), 0.5), x, use_reentrant=False) * 2

    def gradient(run: Callable[[torch.Tensor], torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor | None]:
        torch.manual_seed(5)
        x = torch.ones(3, 4, requires_grad=True)
        y = run(x)
        y.sum().backward()
        return y, x.grad

    with record_targets() as record:
        torch.testing.assert_close(gradient(compiled(function)), gradient(function))
    assert {"run_and_save_rng_state", "run_with_rng_state"} <= record.seen
    assert not record.opaque, "torch's generator draws them, as it does outside of checkpoints"


class Attention(nn.Module):
    """One attention block over small sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.inner = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return x + self.inner(y, y, y, need_weights=False)[0]


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), nn.GELU(), nn.Dropout(0.5), nn.LayerNorm(8), nn.Linear(8, 2))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.SiLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 4, 3, stride=2, groups=2),
        nn.GroupNorm(2, 4),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 3),
    )


def embedded() -> nn.Module:
    return nn.Sequential(
        nn.Embedding(7, 6), nn.AvgPool1d(2), nn.Tanh(), nn.Flatten(), nn.Linear(12, 2), nn.LogSoftmax(-1)
    )


@pytest.mark.parametrize(
    ("build", "inputs"),
    [
        (perceptron, lambda n: torch.randn(n, 3)),
        (convolutional, lambda n: torch.randn(n, 3, 10, 10)),
        (Attention, lambda n: torch.randn(n, 5, 16)),
        (embedded, lambda n: torch.randint(0, 7, (n, 4))),
    ],
)
def test_training_steps_are_eagers(build: Callable[[], nn.Module], inputs: Callable[[int], torch.Tensor]) -> None:
    torch.manual_seed(0)
    model = build()
    batches = [inputs(n) for n in (2, 4, 5)]
    torch.testing.assert_close(trained(copy.deepcopy(model), batches, compiled), trained(model, batches, lambda m: m))


def trained(model: nn.Module, batches: list[torch.Tensor], compile: Callable[[Any], Any]) -> Any:
    """Losses, gradients and the state after a few steps."""
    run = compile(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    losses: list[torch.Tensor] = []
    torch.manual_seed(3)
    for batch in batches:
        optimizer.zero_grad()
        loss = run(batch).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses, [p.grad for p in model.parameters()], model.state_dict()


def test_strict_training_of_attention_leaves_nothing_to_torch() -> None:
    torch.manual_seed(0)
    model = Attention()
    batch = torch.randn(2, 5, 16)
    expected = trained(copy.deepcopy(model), [batch], lambda m: m)
    with record_targets() as record:
        actual = trained(model, [batch], lambda m: compiled(m, strict=True))
    torch.testing.assert_close(actual, expected)
    assert not record.opaque


def test_conjugated_and_negated_arguments() -> None:
    torch.compiler.reset()
    add = torch.compile(lambda z: z.add_(1), backend="weft", options={"cache": False})
    z = torch.randn(5, dtype=torch.complex64)
    expected = z.clone().conj().add_(1).conj()
    add(z.conj())
    torch.testing.assert_close(z, expected.resolve_conj())
    double = torch.compile(lambda x: x * 2, backend="weft", options={"cache": False})
    torch.testing.assert_close(double(z.conj().imag), z.conj().imag * 2)
