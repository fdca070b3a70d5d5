"""Programs that torch exported, as artifacts: what eager computes, in a process that has no torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import weft
from weft.artifact.sources import read_source
from weft.artifact.write import write_artifact
from weft.errors import ArtifactError, PlaceError, ShapeError, UnsupportedError


@pytest.fixture(autouse=True)
def _own_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    monkeypatch.setenv("WEFT_CONFIG_DIR", str(tmp_path / "config"))


def exported(
    module: nn.Module, given: tuple[torch.Tensor, ...], path: Path, **options: object
) -> weft.artifact.read.Model:
    torch.export.save(torch.export.export(module.eval(), given, **options), path.with_suffix(".pt2"))
    write_artifact(path, read_source(path.with_suffix(".pt2")))
    return weft.load(path)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.layer(self.table(tokens)) * self.scale
        return hidden, hidden.mean(1).T


def test_a_model_gives_what_eager_gives(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, tokens = Encoder().eval(), torch.randint(0, 50, (2, 7))
    model = exported(module, (tokens,), tmp_path / "m.weft")
    assert model.how == "machine code for host" and model.inputs == ("tokens",)
    with torch.no_grad():
        wanted = module(tokens)
    for found, one in zip(model(tokens), wanted, strict=True):
        np.testing.assert_allclose(found, one.numpy(), rtol=1e-4, atol=1e-5)
    with pytest.raises(PlaceError, match=r"embedding: .*out of range"):
        model(torch.full_like(tokens, 99))


def test_dynamic_sizes_stay_symbolic(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 4), nn.GELU(), nn.Linear(4, 3))
    batch = torch.export.Dim("batch", max=512)
    model = exported(module, (torch.randn(5, 8),), tmp_path / "m.weft", dynamic_shapes=({0: batch},))
    for rows in (2, 100):
        x = torch.randn(rows, 8)
        with torch.no_grad():
            np.testing.assert_allclose(model(x)[0], module(x).numpy(), rtol=1e-4, atol=1e-6)
    with pytest.raises((ShapeError, weft.GuardError)):
        model(torch.randn(513, 8))


def test_weights_of_16_bits_travel(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, x = nn.Linear(8, 4).bfloat16(), torch.randn(3, 8).bfloat16()
    model = exported(module, (x,), tmp_path / "m.weft")
    import ml_dtypes

    (found,) = model(x.view(torch.int16).numpy().view(ml_dtypes.bfloat16))
    with torch.no_grad():
        np.testing.assert_allclose(found.astype(np.float32), module(x).float().numpy(), rtol=2e-2, atol=1e-2)


class Coded(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("codes", torch.randn(8, 4).to(dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.codes.float()


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_weights_of_8_bits_travel(dtype: torch.dtype, tmp_path: Path) -> None:
    module, x = Coded(dtype), torch.randn(3, 8)
    model = exported(module, (x,), tmp_path / "m.weft")
    np.testing.assert_allclose(model(x)[0], module(x).numpy(), rtol=1e-4, atol=1e-5)


def test_a_program_that_keeps_state_is_refused(tmp_path: Path) -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls.add_(1)
            return x + self.calls

    with pytest.raises(UnsupportedError, match="writes to calls"):
        exported(Counter(), (torch.ones(3),), tmp_path / "m.weft")


def test_files_that_are_no_programs_are_refused(tmp_path: Path) -> None:
    (tmp_path / "m.pt2").write_bytes(b"nothing")
    with pytest.raises(ArtifactError, match="not a program that"):
        read_source(tmp_path / "m.pt2")
    with pytest.raises(ArtifactError, match="not a file"):
        read_source(tmp_path / "none.pt2")
    with pytest.raises(ArtifactError, match="end in"):
        read_source(tmp_path / "m.tflite")


def test_sizes_go_as_far_down_as_the_program_says(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    """Tracing takes a size for 2 at least once another depends on it; what the program states counts."""

    class Both(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"scores": x * 2 + y.sum(), "pair": (x + 1).sum(1)}

    batch, length = torch.export.Dim("batch", min=1, max=64), torch.export.Dim("length", max=512)
    module = Both()
    model = exported(
        module,
        (torch.randn(3, 5, 8), torch.ones(5)),
        tmp_path / "m.weft",
        dynamic_shapes=({0: batch, 1: length}, {0: length}),
    )
    recwarn.clear()
    read_source(tmp_path / "m.pt2")
    assert not [each for each in recwarn if issubclass(each.category, FutureWarning)]
    assert [each.name for each in model.outputs] == ["scores", "pair"]
    assert [(each.least, each.most) for each in model.artifact.manifest.ranges] == [(1, 64), (0, 512)]
    assert "from 1 to 64" in str(model.signature)
    for rows, columns in ((1, 1), (1, 5), (3, 1), (2, 0), (64, 9)):
        x, y = torch.randn(rows, columns, 8), torch.randn(columns)
        wanted = module(x, y)
        for found, name in zip(model(x, y), ("scores", "pair"), strict=True):
            np.testing.assert_allclose(found, wanted[name].numpy(), rtol=1e-4, atol=1e-5)
