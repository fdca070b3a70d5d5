"""nn.LSTM, nn.GRU and nn.RNN as compiled loops: results and gradients against float64."""

import copy

import pytest
import torch
from torch import nn

from weft.lower.steps import LoopStep
from weft.runtime.record import recording

CASES = {
    "lstm": lambda: nn.LSTM(5, 4),
    "gru": lambda: nn.GRU(5, 4),
    "rnn": lambda: nn.RNN(5, 4, nonlinearity="relu"),
    "projected": lambda: nn.LSTM(5, 4, proj_size=3, bias=False),
}
SLOW_CASES = {
    "deep": lambda: nn.GRU(5, 4, num_layers=2, bidirectional=True, batch_first=True),
    "deep_lstm": lambda: nn.LSTM(5, 4, num_layers=3, bidirectional=True, batch_first=True),
    "deep_rnn": lambda: nn.RNN(5, 4, num_layers=2, bidirectional=True),
    "deep_projected": lambda: nn.LSTM(5, 4, num_layers=2, bidirectional=True, proj_size=2),
}


def loss(result):
    outputs, states = result
    last = states[0] if isinstance(states, tuple) else states
    return outputs.sin().sum() + last.cos().sum()


def check(module: nn.Module, x: torch.Tensor) -> None:
    torch._dynamo.reset()
    exact = copy.deepcopy(module).double()
    wide = x.double().requires_grad_()
    wanted = exact(wide)
    loss(wanted).backward()
    with recording() as records, torch._dynamo.config.patch(allow_rnn=True):
        compiled = torch.compile(module, backend="weft", options={"cache": False})
        with torch.no_grad():
            inferred = compiled(x)
        given = x.clone().requires_grad_()
        trained = compiled(given)
        loss(trained).backward()
    assert [record.name for record in records] == ["inference", "forward", "backward"]
    for record in records:
        assert any(isinstance(step, LoopStep) for step in record.plan.steps)
        assert not record.fallbacks
    bounds = {"rtol": 1e-4, "atol": 1e-5}
    for found in (inferred, trained):
        torch.testing.assert_close(found[0].detach().double(), wanted[0].detach(), **bounds)
    torch.testing.assert_close(given.grad.double(), wide.grad, **bounds)
    for found, parameter in zip(module.parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(found.grad.double(), parameter.grad, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_layers_and_their_gradients(name):
    torch.manual_seed(0)
    check(CASES[name](), torch.randn(6, 3, 5))


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW_CASES)
def test_deep_layers_and_their_gradients(name):
    torch.manual_seed(0)
    check(SLOW_CASES[name](), torch.randn(6, 3, 5))


@pytest.mark.slow
def test_one_turn():
    torch.manual_seed(0)
    check(nn.LSTM(5, 4), torch.randn(1, 2, 5))


def test_what_torch_would_carry_out_agrees():
    x, h, c = torch.randn(4, 2, 3), torch.randn(2, 5), torch.randn(2, 5)
    weights = [torch.randn(20, 3), torch.randn(20, 5), torch.randn(20), torch.randn(20), None]
    given = [each if each is None else each.double().requires_grad_() for each in (x, h, c, *weights)]
    assert torch.autograd.gradcheck(lambda *a: torch.ops.weft.lstm_layer(*a, True)[:3], given)
    gru = [*given[:2], given[3][:15], given[4][:15], given[5][:15], given[6][:15]]
    assert torch.autograd.gradcheck(lambda *a: torch.ops.weft.gru_layer(*a, False)[:2], gru)
    rnn = [*given[:2], given[3][:5], given[4][:5], None, None]
    assert torch.autograd.gradcheck(lambda *a: torch.ops.weft.rnn_layer(*a, False, True), rnn)
