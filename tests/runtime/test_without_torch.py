"""Models' graphs in a process without torch, BLAS and OpenMP: compiled from text, and as exact as eager."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from weft.testing.models import FULL_SIZE, SMALL, ModelCase  # noqa: E402
from weft.testing.without_torch import Elsewhere, export_graph  # noqa: E402


def _check(case: ModelCase, folder: Path) -> None:
    module, given = case.build(), case.inputs(0)
    export_graph(module, given, folder)
    with torch.no_grad():
        eager = module(**given)[0]
        exact = case.widen(module)(**given)[0].numpy()
    elsewhere = Elsewhere(folder)
    found = elsewhere.results(folder / "results.npz")[0]
    elsewhere.close()
    assert elsewhere.facts["libraries"] == [] and not elsewhere.facts["torch"]
    error, eagers = (np.abs(each - exact).max() for each in (found, eager.numpy()))
    assert found.shape == exact.shape and error <= 2 * eagers + 1e-7


def test_an_encoder(tmp_path: Path) -> None:
    _check(SMALL["bert"], tmp_path)


@pytest.mark.slow
def test_minilm(tmp_path: Path) -> None:
    _check(FULL_SIZE["minilm"], tmp_path)
