"""Keys of these tests are their own; one artifact is made for all, by a user whose keys each test has a copy of."""

from __future__ import annotations

import shutil
from collections.abc import Generator
from pathlib import Path

import pytest

from weft.artifact.write import Request, write_artifact
from weft.testing.hostile_artifacts import layer_source


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Generator[Path]:
    """A folder with an artifact for several targets, and the keys of who made it."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEFT_CONFIG_DIR", str(folder / "config"))
        request = Request(("host", "x86-64-v2", "x86-64-v3", "aarch64"), "Apache-2.0")
        write_artifact(folder / "layer.weft", layer_source(), request)
        yield folder


@pytest.fixture(autouse=True)
def own_keys(tmp_path: Path, made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "config"
    shutil.copytree(made / "config", folder)
    monkeypatch.setenv("WEFT_CONFIG_DIR", str(folder))
    return folder


@pytest.fixture
def layer(tmp_path: Path, made: Path) -> Path:
    return Path(shutil.copy(made / "layer.weft", tmp_path / "layer.weft"))
