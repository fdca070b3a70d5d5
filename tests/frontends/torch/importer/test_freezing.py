"""`freeze`: weights as constants of inference graphs, and what happens when they change after all."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import weft
from weft.backends.cpu.target import host_target
from weft.lower.steps import DotStep, KernelStep
from weft.runtime import stored_programs
from weft.runtime.cache import DiskCache
from weft.runtime.memory_samples import MemorySamples, sampled_addresses
from weft.runtime.record import CompilationRecord, recording


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def convolutions() -> nn.Module:
    model = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.Conv2d(8, 6, 3, groups=2), nn.BatchNorm2d(6), nn.Flatten()),
        *(nn.Linear(216, 32), nn.BatchNorm1d(32), nn.GELU(), nn.Linear(32, 10)),
    )
    for part in model:
        if isinstance(part, nn.BatchNorm2d | nn.BatchNorm1d):
            for tensor in (part.weight, part.bias, part.running_mean):
                nn.init.normal_(tensor)  # type: ignore[arg-type]
            nn.init.uniform_(part.running_var, 0.5, 2.0)  # type: ignore[arg-type]
    return model.eval()


def frozen(model: Any, **options: Any) -> Any:
    return torch.compile(model, backend="weft", options={"freeze": True, "cache": False, **options})


def check(compiled: Any, model: nn.Module, *inputs: torch.Tensor) -> None:
    wide = copy.deepcopy(model).double()
    with torch.no_grad():
        found, expected = compiled(*inputs), wide(*(x.double() for x in inputs))
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)


def compiled_with(model: nn.Module, x: torch.Tensor, **options: Any) -> tuple[Any, CompilationRecord]:
    compiled = frozen(model, **options)
    with recording() as records:
        check(compiled, model, x)
    (record,) = records
    return compiled, record


def test_batch_norm_is_folded_and_products_are_packed() -> None:
    model, x = convolutions(), torch.randn(4, 3, 8, 8)
    _, record = compiled_with(model, x)
    assert record.plan is not None
    assert [step.label for step in record.plan.steps] == [
        *("pad", "copy", "dot_add_relu", "aten::convolution", "dot_add_gelu", "dot_add")
    ]
    assert len(record.plan.inputs) == 1
    assert sum(constant.packing is not None for constant in record.plan.constants) == 3


@pytest.mark.parametrize(("rows", "few"), [(8, True), (256, False)])
def test_products_with_many_rows_are_left_to_blas_but_where_vectors_have_256_bits(rows: int, few: bool) -> None:
    target = host_target()
    step = KernelStep if few or (target.is_x86 and target.vector_bits == 256) else DotStep
    _, record = compiled_with(nn.Linear(16, 100).eval(), torch.randn(rows, 16))
    assert record.plan is not None and isinstance(record.plan.steps[0], step)


def test_products_with_small_weights_are_not() -> None:
    _, record = compiled_with(nn.Linear(16, 24).eval(), torch.randn(256, 16))
    assert record.plan is not None and isinstance(record.plan.steps[0], KernelStep)


def test_changed_weights_are_noticed() -> None:
    model, x = convolutions(), torch.randn(4, 3, 8, 8)
    compiled, _ = compiled_with(model, x)
    with torch.no_grad():
        model[0].weight.mul_(2)  # type: ignore[operator]
        model[9].weight.add_(1)  # type: ignore[operator]
    check(compiled, model, x)
    model.load_state_dict(convolutions().state_dict())
    check(compiled, model, x)


def test_one_program_serves_several_sets_of_weights() -> None:
    models, x = [nn.Linear(16, 24).eval() for _ in range(3)], torch.randn(8, 16)
    # Dynamo finds one code for all of them: it guards on the types of parameters.
    with recording() as records:
        for model in (*models, *models):
            check(frozen(model), model, x)
    assert len(records) == 1


def test_several_batch_sizes() -> None:
    model = convolutions()
    compiled = frozen(model, cache=False)
    for batch in (2, 5, 9):
        check(compiled, model, torch.randn(batch, 3, 8, 8))


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(3))
        self.register_buffer("calls", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)  # type: ignore[operator]
        return x * self.scale.exp() + self.calls


def test_buffers_that_a_graph_writes_are_not_frozen() -> None:
    model, eager = Counting(), Counting()
    eager.load_state_dict(model.state_dict())
    compiled, x = frozen(model), torch.randn(2, 3)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(x), eager(x))
    torch.testing.assert_close(model.calls, eager.calls)


def test_weights_that_are_trained_are_not_frozen(caplog: pytest.LogCaptureFixture) -> None:
    model, x = nn.Linear(4, 3), torch.randn(5, 4)
    compiled = frozen(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with caplog.at_level(logging.WARNING, logger="weft"):
        for _ in range(3):
            expected = nn.functional.linear(x, model.weight, model.bias)
            result = compiled(x)
            torch.testing.assert_close(result, expected)
            optimizer.zero_grad()
            result.square().sum().backward()
            optimizer.step()
    assert "not frozen" in caplog.text


def test_frozen_programs_are_kept_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without their weights: what was stored for one model serves another with the same graph."""
    monkeypatch.setattr(stored_programs, "disk_cache", lambda: DiskCache(tmp_path))
    x = torch.randn(4, 3, 8, 8)
    sources: list[str] = []
    for _ in range(2):
        torch.compiler.reset()
        _, record = compiled_with(convolutions(), x, cache=True)
        sources.append(record.source)
    assert sources == ["compiled", "cache"]
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) < 1 << 20


def test_narrow_and_strided_weights() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(24, 16).t().contiguous().t())
            self.narrow = nn.Parameter(torch.randn(24, 24, dtype=torch.bfloat16))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x @ self.weight.t()).bfloat16() @ self.narrow.exp()

    model, x = Model(), torch.randn(3, 16)
    compiled = frozen(model)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), rtol=0.05, atol=0.5)


def _other_data(model: nn.Linear) -> None:
    model.weight.data = torch.randn_like(model.weight)


def _other_data_twice(model: nn.Linear) -> None:
    _other_data(model)
    _other_data(model)


def _fused_step(model: nn.Linear) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0, fused=True)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()


def _written_through_data(model: nn.Linear) -> None:
    for parameter in model.parameters():
        parameter.data.copy_(torch.randn_like(parameter))


def _averaged(model: nn.Linear) -> None:
    model.weight.data.mul_(0.5).add_(torch.randn_like(model.weight), alpha=0.5)


def _written_by_numpy(model: nn.Linear) -> None:
    model.bias.detach().numpy()[:] = 1.0


def _one_element_and_told(model: nn.Linear) -> None:
    model.weight.data[3, 7] += 5
    weft.refreeze()


@pytest.mark.parametrize(
    "change",
    [
        *(_other_data, _other_data_twice, _fused_step),
        *(_written_through_data, _averaged, _written_by_numpy, _one_element_and_told),
    ],
)
def test_changes_of_frozen_weights_are_noticed(change: Callable[[nn.Linear], None]) -> None:
    torch.compiler.reset()
    model = nn.Linear(16, 8)
    compiled = torch.compile(model, backend="weft", options={"freeze": True, "cache": False})
    x = torch.randn(3, 16)
    for _ in range(3):
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), model(x))
        change(model)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("shape", [(), (1,), (7,), (5, 3), (4, 1, 6)])
def test_samples_of_memory_tell_that_it_was_written_over(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensors = [torch.zeros(shape, dtype=dtype), torch.zeros(*shape, 2, dtype=dtype)[..., 0]]
    addresses = [
        address
        for each in tensors
        for address in sampled_addresses(each.data_ptr(), each.shape, each.stride(), each.element_size())
    ]
    samples = MemorySamples(addresses)
    assert samples.are_unchanged()
    for each in tensors:
        each.data.fill_(1)
        assert not samples.are_unchanged()
        each.data.zero_()
        assert samples.are_unchanged()
    assert sampled_addresses(8, (0, 3), (3, 1), 4) == []
