from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch.utils.checkpoint import checkpoint

from weft.frontends.torch.remat import checkpointed_draws
from weft.frontends.torch.remat.checkpointed_draws import draws
from weft.frontends.torch.report import record_targets

WITH_STATES = {"run_and_save_rng_state", "run_with_rng_state"}


def results(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    torch.manual_seed(7)
    x = x.clone().requires_grad_()
    y = function(x)
    (gradient,) = torch.autograd.grad(y.square().sum(), x)
    return y, gradient


def check(function: Callable[[Tensor], Tensor], x: Tensor) -> set[str]:
    """Compare with eager where nothing may be left to torch; what the graphs call."""
    torch.compiler.reset()
    compiled = torch.compile(function, backend="weft", options={"cache": False, "fallback": "error"})
    with record_targets() as record:
        found = results(compiled, x)
    torch.testing.assert_close(found, results(function, x))
    return record.seen


@pytest.mark.parametrize("masked", [False, True])
def test_attention_without_dropout_is_compiled_in_checkpoints(masked: bool) -> None:
    """It is tagged as random: a call that hands on a generator's state stood for all of it."""
    mask = torch.rand(5, 5) < 0.7 if masked else None

    def region(x: Tensor) -> Tensor:
        q = (x * 2).reshape(2, 5, 4, 8).transpose(1, 2)
        return x + F.scaled_dot_product_attention(q, q.sin(), q, attn_mask=mask).transpose(1, 2).reshape(2, 5, 32)

    seen = check(lambda x: checkpoint(region, x, use_reentrant=False), torch.randn(2, 5, 32).double())  # type: ignore[return-value]
    assert not seen & WITH_STATES


def test_dropout_beside_attention_is_drawn_again_from_its_state() -> None:
    def region(x: Tensor) -> Tensor:
        q = x.reshape(2, 5, 4, 8).transpose(1, 2)
        return F.dropout(F.scaled_dot_product_attention(q, q, q).exp(), 0.4)

    assert check(lambda x: checkpoint(region, x, use_reentrant=False), torch.randn(2, 5, 32).double()) >= WITH_STATES  # type: ignore[return-value]


@pytest.mark.parametrize("draw", ["dropout", "native_dropout", "rand_like"])
def test_what_a_gpu_draws_is_kept(draw: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state would be an argument that is no tensor, and the graph be left to torch."""
    monkeypatch.setattr(checkpointed_draws, "_is_on_gpu", lambda node: True)
    taken: dict[str, Callable[[Tensor], Tensor]] = {
        "dropout": lambda x: F.dropout(x, 0.3),
        "native_dropout": lambda x: torch.native_dropout(x, 0.3, True)[0],
        "rand_like": lambda x: torch.rand_like(x) * x,
    }

    def region(x: Tensor) -> Tensor:
        return taken[draw](x.sin()).cos() + taken[draw](x)

    seen = check(lambda x: checkpoint(region, x, use_reentrant=False), torch.randn(6, 7).double())  # type: ignore[return-value]
    assert not seen & WITH_STATES


@pytest.mark.parametrize("budget", [0.0, 0.2])
@pytest.mark.parametrize("draw", ["dropout", "native_dropout", "rand_like", "rrelu"])
def test_the_budget_of_torch_draws_nothing_again(draw: str, budget: float) -> None:
    """Numbers that the backward draws anew are others: gradients were those of another mask."""
    taken: dict[str, Callable[[Tensor], Tensor]] = {
        "dropout": lambda x: F.dropout(x, 0.3),
        "native_dropout": lambda x: torch.native_dropout(x, 0.3, True)[0],
        "rand_like": lambda x: x * torch.rand_like(x),
        "rrelu": lambda x: F.rrelu(x, training=True),
    }

    def layers(x: Tensor) -> Tensor:
        for _ in range(3):
            x = taken[draw](x.sin()).exp()
        return x

    with torch._functorch.config.patch(activation_memory_budget=budget):  # type: ignore[attr-defined]
        check(layers, torch.randn(4, 6).double())


def test_which_calls_draw() -> None:
    graph, aten = fx.Graph(), torch.ops.aten
    x = graph.placeholder("x")
    attention = aten._scaled_dot_product_flash_attention.default
    made = [
        graph.call_function(attention, (x, x, x)),
        graph.call_function(attention, (x, x, x, 0.0)),
        graph.call_function(attention, (x, x, x, 0.25)),
        graph.call_function(attention, (x, x, x), {"dropout_p": 0.25}),
        graph.call_function(aten.rand_like.default, (x,)),
        graph.call_function(aten.sin.default, (x,)),
    ]
    assert [draws(node) for node in made] == [False, False, True, True, True, False]
