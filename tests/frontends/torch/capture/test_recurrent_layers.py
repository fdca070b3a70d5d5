"""nn.LSTM, nn.GRU and nn.RNN as compiled loops: results and gradients against float64."""

import copy

import pytest
import torch
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

from weft.errors import DataError
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


def check(module: nn.Module, x: torch.Tensor, *, digits: float = 1) -> None:
    """Results and gradients against float64, within bounds of f32 or `digits` of them."""
    torch._dynamo.reset()
    exact = copy.deepcopy(module).double()
    wide = x.to(torch.float64, copy=True).requires_grad_()
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
    bounds = {"rtol": 1e-4 * digits, "atol": 1e-5 * digits}
    for found in (inferred, trained):
        torch.testing.assert_close(found[0].detach().double(), wanted[0].detach(), **bounds)
    torch.testing.assert_close(given.grad.double(), wide.grad, **bounds)
    for found, parameter in zip(module.parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(found.grad.double(), parameter.grad, rtol=1e-3 * digits, atol=1e-4 * digits)


@pytest.mark.parametrize("name", CASES)
def test_layers_and_their_gradients(name):
    torch.manual_seed(0)
    check(CASES[name](), torch.randn(6, 3, 5))


@pytest.mark.parametrize("rows", [*(pytest.param(n, marks=pytest.mark.slow) for n in (1, 17)), 131])
def test_odd_sizes(rows):
    """Rows that fill no block of a kernel, and more of them than are multiplied with packed weights."""
    check(nn.LSTM(13, 37), torch.randn(3, rows, 13))


def test_double_precision():
    module = nn.GRU(13, 37).double()
    check(module, torch.randn(5, 17, 13, dtype=torch.float64), digits=1e-8)


@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.slow)])
def test_half_floats_are_loops_and_no_further_off_than_eager(dtype):
    """Torch's decomposition asks oneDNN for LSTMs of bf16, which has none on some processors where eager works."""
    torch._dynamo.reset()
    module, x = nn.LSTM(5, 7).to(dtype), torch.randn(6, 3, 5).to(dtype)
    with recording() as records, torch._dynamo.config.patch(allow_rnn=True), torch.no_grad():
        found, _ = torch.compile(module, backend="weft", options={"cache": False})(x)
        eager, _ = module(x)
        exact, _ = copy.deepcopy(module).double()(x.double())
    assert any(isinstance(step, LoopStep) for step in records[0].plan.steps)
    assert (found.double() - exact).abs().max() <= 2 * (eager.double() - exact).abs().max()


@pytest.mark.parametrize(
    "dtype", [torch.float32, *(pytest.param(d, marks=pytest.mark.slow) for d in (torch.bfloat16, torch.float16))]
)
def test_a_batch_of_none_gives_empty_results_and_gradients_of_zero(dtype):
    """Torch's decomposition gives LSTMs to oneDNN, which has none of no rows; eager looks first."""
    torch._dynamo.reset()
    module, x = nn.LSTM(5, 7, bidirectional=True).to(dtype), torch.empty(6, 0, 5, dtype=dtype)
    with torch._dynamo.config.patch(allow_rnn=True):
        compiled = torch.compile(module, backend="weft", options={"cache": False, "fallback": "error"})
        with torch.no_grad():
            y, (h, c) = compiled(x)
        compiled(x)[0].sum().backward()
    assert [tuple(v.shape) for v in (y, h, c)] == [(6, 0, 14), (2, 0, 7), (2, 0, 7)]
    assert y.dtype == dtype
    assert all(not parameter.grad.any() for parameter in module.parameters())


def test_sequences_of_no_turns_are_refused_as_in_eager():
    torch._dynamo.reset()
    module, x = nn.LSTM(5, 7), torch.empty(0, 0, 5)
    compiled = torch.compile(module, backend="weft", options={"cache": False})
    with torch._dynamo.config.patch(allow_rnn=True), torch.no_grad():
        for function in (module, compiled):
            with pytest.raises(RuntimeError, match="sequence length to be larger than 0"):
                function(x)
        whole = torch.compile(lambda x: module(x), backend="weft", fullgraph=True, options={"cache": False})
        with pytest.raises(BackendCompilerFailed) as error:
            whole(x)
    assert isinstance(error.value.inner_exception, DataError) and error.value.inner_exception.location is not None


@pytest.mark.slow
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_packed_sequences_are_left_to_torch(kind):
    def run(module, x, lengths):
        y, _ = module(pack_padded_sequence(x, lengths))
        return pad_packed_sequence(y)[0]

    torch._dynamo.reset()
    module, x, lengths = kind(5, 7), torch.randn(6, 3, 5), torch.tensor([6, 4, 1])
    with torch._dynamo.config.patch(allow_rnn=True), torch.no_grad():
        wanted = run(copy.deepcopy(module).double(), x.double(), lengths)
        found = torch.compile(run, backend="weft", options={"cache": False})(module, x, lengths)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-5)


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


def test_layers_in_a_checkpoint_are_loops():
    torch._dynamo.reset()
    module, x = nn.LSTM(5, 4), torch.randn(7, 2, 5)

    def kept(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda given: module(given)[0].sin(), x, use_reentrant=False)

    with recording() as records, torch._dynamo.config.patch(allow_rnn=True):
        compiled = torch.compile(kept, backend="weft", fullgraph=True, options={"cache": False})
        found, wanted = (torch.autograd.grad(run(x.requires_grad_()).sum(), x)[0] for run in (compiled, kept))
    torch.testing.assert_close(found, wanted)
    assert all(any(isinstance(step, LoopStep) for step in record.plan.steps) for record in records)
    assert not any(record.fallbacks for record in records)
