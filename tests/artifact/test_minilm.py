"""A real model as an artifact: hardly larger than its weights, the same bits, and none of the compiler is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from weft.artifact.sources import read_source
from weft.artifact.write import Request, write_artifact
from weft.config import Config
from weft.frontends.text import compile_text
from weft.testing.without_torch import ARRAYS, GRAPH, export_graph

RUN = """
import sys
import numpy as np
import weft
model = weft.load("m.weft")
with np.load("given.npz") as given:
    np.savez("found.npz", *model(*(given[name] for name in given.files)))
assert not {"torch", "xdsl", "llvmlite"} & set(sys.modules), model.how
"""


@pytest.mark.slow
def test_minilm_runs_from_a_file_with_the_same_bits(tmp_path: Path) -> None:
    from weft.testing.models import FULL_SIZE, padded_tokens

    export_graph(FULL_SIZE["minilm"].build(), padded_tokens(1, 128, 30522)(0), tmp_path)
    source = read_source(tmp_path / GRAPH, tmp_path / ARRAYS)
    write_artifact(tmp_path / "m.weft", source, Request(("host", "x86-64-v3", "aarch64")))
    size = sum(array.nbytes for array in source.weights.values())
    assert (tmp_path / "m.weft").stat().st_size <= 1.1 * size
    function = compile_text(source.text, constants=source.weights, config=Config(strict=True))
    with np.load(tmp_path / ARRAYS) as arrays:
        places = [n for n in range(len(function.signature.names)) if n not in function.signature.constants]
        given = [arrays[f"arr_{n}"] for n in places]
    np.savez(tmp_path / "given.npz", *given)
    subprocess.run([sys.executable, "-c", RUN], check=True, cwd=tmp_path)
    with np.load(tmp_path / "found.npz") as found:
        for name, wanted in zip(found.files, function(*given), strict=True):
            np.testing.assert_array_equal(found[name], wanted)
