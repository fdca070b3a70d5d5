"""Cross-entropy of a projection in chunks of rows: losses and gradients stay, the peak falls to what is predicted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from weft.backends.cpu.target import host_target
from weft.config import Config
from weft.diagnostics import forget
from weft.errors import WeftError
from weft.frontends.torch.capture.chunked_loss import chunk_rows
from weft.runtime.record import recording
from weft.testing.allocated_memory import allocated_peak

ROWS, WIDTH, CLASSES, IGNORED = 45, 24, 70, 3
TOLERANCES = {torch.float32: 1e-6, torch.float64: 1e-13, torch.bfloat16: 2e-2, torch.float16: 4e-3}


def operands(dtype: torch.dtype, *, bias: bool) -> list[torch.Tensor]:
    torch.manual_seed(0)
    made = [torch.randn(ROWS, WIDTH), torch.randn(CLASSES, WIDTH) * 0.3, *([torch.randn(CLASSES)] if bias else [])]
    return [value.to(dtype) for value in made]


def labels(rows: int = ROWS) -> torch.Tensor:
    found = torch.arange(rows) * 7 % CLASSES
    found[::4] = IGNORED
    return found


def results(call: Any, values: list[torch.Tensor], *rest: Any) -> list[torch.Tensor]:
    given = [value.clone().requires_grad_() for value in values]
    loss = call(*given, *rest)
    loss.backward()
    return [loss.detach(), *(value.grad for value in given if value.grad is not None)]


def compiled(call: Any, **options: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(call, backend="weft", options={"fallback": "error", **options})


CASES: dict[str, tuple[torch.dtype, bool, bool, dict[str, Any]]] = {
    "mean": (torch.float32, False, False, {}),
    "sum with bias": (torch.float64, True, False, {"reduction": "sum"}),
    "rows": (torch.float32, True, True, {"reduction": "none", "label_smoothing": 0.2}),
    "weights and smoothing": (torch.float32, True, True, {"label_smoothing": 0.1}),
    "narrow": (torch.bfloat16, False, False, {"label_smoothing": 0.1}),
    "narrow, later": (torch.float16, True, True, {"label_smoothing": 0.1}),
}


@pytest.mark.parametrize("case", CASES)
def test_losses_and_gradients_are_those_of_the_whole(case: str) -> None:
    dtype, bias, weighed, parameters = CASES[case]
    values, factors = operands(dtype, bias=bias), torch.arange(ROWS) * 0.1
    weights = torch.linspace(0.5, 2.0, CLASSES, dtype=torch.float64) if weighed else None

    def loss(*given: torch.Tensor) -> torch.Tensor:
        hidden, weight, *rest = given
        chosen = None if weights is None else weights.to(hidden.dtype)
        logits = F.linear(hidden, weight, *rest)
        found = F.cross_entropy(logits, labels(), chosen, ignore_index=IGNORED, **parameters)
        return (found * factors.to(hidden.dtype)).sum() if found.dim() else found * 1.5

    exact = results(loss, [value.double() for value in values])
    found = results(compiled(loss, chunked_loss=16), values)
    for one, other in zip(found, exact, strict=True):
        assert one.dtype == dtype
        atol = TOLERANCES[dtype] * other.abs().max().item()
        torch.testing.assert_close(one.double(), other, rtol=TOLERANCES[dtype], atol=atol)


def shifted(hidden: torch.Tensor, weight: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """As a language model's loss is: in f32, of the next token, with the embedding's weights."""
    logits = F.linear(hidden + F.embedding(wanted, weight), weight).float()
    return F.cross_entropy(logits[..., :-1, :].reshape(-1, CLASSES), wanted[..., 1:].reshape(-1), ignore_index=IGNORED)


def test_tied_weights_under_autocast() -> None:
    values, wanted = [torch.randn(2, ROWS, WIDTH), torch.randn(CLASSES, WIDTH) * 0.3], labels(2 * ROWS).reshape(2, ROWS)
    exact = results(shifted, [value.double() for value in values], wanted)

    def call(*given: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return shifted(*given)

    for one, other in zip(results(compiled(call, chunked_loss=32), values, wanted), exact, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, other.float(), rtol=0, atol=3e-2 * other.abs().max().item())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_peak_is_what_was_predicted_and_logits_are_no_part_of_it(dtype: torch.dtype) -> None:
    rows, width, classes = 512, 64, 4096
    values = [torch.randn(rows, width).to(dtype), torch.randn(classes, width).to(dtype)]
    wanted = torch.randint(0, classes, (rows,))

    def loss(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(F.linear(hidden, weight).float(), wanted)

    call = compiled(loss, chunked_loss=64, memory_budget="1.0")
    given = [value.clone().requires_grad_() for value in values]
    with recording() as records:
        call(*given).backward()
    (predicted,) = (record.peak for record in records if record.peak is not None)
    for value in given:
        value.grad = None
    peak = allocated_peak(lambda: call(*given).backward())
    # Sums of narrow floats are the library's to keep: in matrix tiles it has blocks of them, fewer than are counted.
    in_tiles = dtype == torch.bfloat16 and host_target().capabilities.library_matrix_tiles
    uncertain = 64 * classes * 4 if in_tiles else 0
    assert 0.99 * predicted - uncertain <= peak <= 1.01 * predicted
    gradients = sum(value.numel() for value in values) * dtype.itemsize
    assert peak < 2.1 * gradients + 3 * 64 * classes * 4 < rows * classes * 4  # the logits alone are the last


def test_logits_that_something_else_reads_stay_and_that_is_said(caplog: pytest.LogCaptureFixture) -> None:
    def both(hidden: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = F.linear(hidden, weight)
        return F.cross_entropy(logits, labels()), logits

    forget()  # it is told once in a process
    loss, logits = compiled(both, chunked_loss=16)(*operands(torch.float32, bias=False))
    assert any("chunked_loss has no effect" in message for message in caplog.messages)
    assert logits.shape == (ROWS, CLASSES) and loss.dim() == 0


def test_a_number_of_rows_is_found_where_logits_are_large() -> None:
    auto, budget = Config(chunked_loss="auto"), Config(memory_budget="0.5")
    for config in (auto, budget):
        assert 0 < chunk_rows(config, 8192, 128256, 4096, "cuda") < 8192
        assert 0 < chunk_rows(config, 4096, 32000, 512, "cpu") < 4096
        assert chunk_rows(config, 64, 128256, 4096, "cpu") == chunk_rows(config, 4096, 10, 512, "cpu") == 0
    assert chunk_rows(Config(), 8192, 128256, 4096, "cuda") == 0
    assert chunk_rows(Config(memory_budget="0.5", chunked_loss="0"), 8192, 128256, 4096, "cuda") == 0


@pytest.mark.parametrize("value", ["many", "-1", True, 1.5])
def test_other_numbers_are_refused(value: Any) -> None:
    with pytest.raises(WeftError, match="chunked_loss"):
        Config(chunked_loss=value)
