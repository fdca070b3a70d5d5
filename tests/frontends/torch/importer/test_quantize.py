"""`quantize`: frozen products in 8 bits, by both ways to compile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import weft
from weft.backends.nvidia.target import target_named
from weft.config import Config
from weft.errors import WeftError
from weft.frontends.torch.importer.freezing import warn_of_quantization
from weft.runtime import stored_programs
from weft.runtime.cache import DiskCache
from weft.runtime.record import recording


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def model(inner: int = 160) -> nn.Module:
    return nn.Sequential(nn.Linear(66, inner), nn.GELU(), nn.Linear(inner, 67), nn.Softmax(-1)).eval()


def quantized(module: nn.Module, quantize: str, **options: Any) -> Any:
    given = {"freeze": True, "strict": True, "cache": False, "quantize": quantize, **options}
    return torch.compile(module, backend="weft", options=given)


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    return torch.nn.functional.cosine_similarity(a.double().flatten(), b.double().flatten(), dim=0).item()


@pytest.mark.parametrize(
    ("quantize", "rows"),
    [("int8_weights", 1), ("int8_weights", 8), ("int8_dynamic", 1), ("int8_dynamic", 3), ("int8_dynamic", 150)],
)
def test_results_are_near_and_not_equal(quantize: str, rows: int) -> None:
    module, x = model(), torch.randn(rows, 66)
    with torch.no_grad(), recording() as records:
        found, expected = quantized(module, quantize)(x), module(x)
    assert cosine(found, expected) > 0.9999
    assert not torch.equal(found, expected)
    assert not any(record.fallbacks for record in records)


def test_many_rows_are_left_in_f32_where_weights_alone_are_rounded() -> None:
    module, x = model(), torch.randn(9, 66)
    with torch.no_grad():
        assert torch.equal(quantized(module, "int8_weights")(x), quantized(module, "")(x))


def test_codes_of_a_gpu_leave_weights_of_a_cpu_and_say_so_once(caplog: pytest.LogCaptureFixture) -> None:
    module, x = model(), torch.randn(1, 66)
    with torch.no_grad():
        plain = quantized(module, "")(x)
        for _ in range(2):
            torch.compiler.reset()
            assert torch.equal(quantized(module, "int4")(x), plain)
    (said,) = (record.getMessage() for record in caplog.records if record.name == "weft.freeze")
    assert "'int4' has no effect" in said and "int8_weights, int8_dynamic" in said


def test_integers_of_a_cpu_leave_weights_of_a_gpu_and_say_so(caplog: pytest.LogCaptureFixture) -> None:
    for quantize in ("", "fp8", "int8_weights"):
        warn_of_quantization(quantize, "cuda", target_named("sm_90a").capabilities)
    (said,) = caplog.messages
    assert "'int8_weights' has no effect" in said and "nvfp4" in said


@pytest.mark.parametrize("quantize", ["int8_weights", "int8_dynamic"])
def test_rows_of_unknown_number(quantize: str) -> None:
    module = model()
    compiled = torch.compile(
        module, backend="weft", dynamic=True, options={"freeze": True, "cache": False, "quantize": quantize}
    )
    with torch.no_grad():
        for rows in (5, 2, 140):
            x = torch.randn(rows, 66)
            assert cosine(compiled(x), module(x)) > 0.9999


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(66, 80), nn.Linear(80, 66)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(x)))


def test_layers_by_weft_compile() -> None:
    layers = nn.Sequential(*(Layer() for _ in range(3))).eval()
    outer, x = nn.Sequential(layers), torch.randn(4, 66)
    with torch.no_grad(), recording() as records:
        expected = outer(x)
        found = weft.compile(outer, freeze=True, cache=False, quantize="int8_weights")(x)
    assert cosine(found, expected) > 0.9999
    assert not torch.equal(found, expected)
    assert records


def test_changed_weights_are_noticed() -> None:
    module, x = model(), torch.randn(2, 66)
    compiled = quantized(module, "int8_weights")
    with torch.no_grad():
        compiled(x)
        nn.init.normal_(module[0].weight)  # type: ignore[arg-type]
        assert cosine(compiled(x), module(x)) > 0.999


def test_a_tied_embedding_stays_exact() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(100, 64)

        def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            x = self.table(ids)
            return x, x @ self.table.weight.T

    module, ids = Tied().eval(), torch.tensor([3, 99])
    with torch.no_grad():
        rows, scores = quantized(module, "int8_weights")(ids)
        assert torch.equal(rows, module(ids)[0])
        assert cosine(scores, module(ids)[1]) > 0.9999


def test_it_needs_frozen_weights_and_a_name_that_is_known() -> None:
    with pytest.raises(WeftError, match="freeze=True"):
        Config.from_options({"quantize": "int8_weights"})
    with pytest.raises(WeftError, match="int8_weights"):
        weft.compile(model(), freeze=True, quantize="int3")


def test_the_environment_may_give_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_QUANTIZE", "int8_dynamic")
    config = Config.from_options({"freeze": True})
    assert config.quantize == "int8_dynamic"
    assert config.key() != Config(freeze=True).key()


def test_the_cache_holds_programs_of_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_programs, "disk_cache", lambda: DiskCache(tmp_path))
    module, x = model(), torch.randn(2, 66)
    sources: list[str] = []
    results: list[torch.Tensor] = []
    for quantize in ("int8_weights", "int8_weights", "int8_dynamic"):
        torch.compiler.reset()
        with torch.no_grad(), recording() as records:
            results.append(quantized(module, quantize, cache=True)(x))
        sources.extend(record.source for record in records)
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])
    assert "cache" in sources
