"""`make test-matrix`: which versions it pairs, and what it installs of a torch that is built for CUDA."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

FILE = Path(__file__).parent.parent / "requirements" / "matrix.py"


@pytest.fixture(scope="module")
def matrix():
    spec = importlib.util.spec_from_file_location("matrix", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["matrix"] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["matrix"]


def test_one_thing_changes_at_a_time(matrix, tmp_path):
    found = matrix.pairs(["3.11", "3.12"], ["2.11.0", "2.13.0"], tmp_path)
    assert [str(pair) for pair in found] == [
        "Python 3.11, torch 2.11.0",
        "Python 3.11, torch 2.13.0",
        "Python 3.12, torch 2.13.0",
    ]


def test_of_what_torch_requires_only_cudas_libraries_are_installed(matrix, tmp_path):
    pair = matrix.Pair("3.12", "2.15.0", tmp_path)
    folder = pair.folder / "lib" / "python3.12" / "site-packages" / "torch-2.15.0.dist-info"
    folder.mkdir(parents=True)
    requires = [
        "sympy>=1.13",
        'nvidia-nccl-cu13==2.30; platform_system == "Linux"',
        "triton~=3.9",
        "cuda-toolkit[cudart]==13.2",
    ]
    lines = [
        "Metadata-Version: 2.1",
        "Name: torch",
        "Version: 2.15.0",
        *(f"Requires-Dist: {each}" for each in requires),
    ]
    (folder / "METADATA").write_text("\n".join(lines) + "\n")
    assert matrix.libraries_of_torch(pair) == ["nvidia-nccl-cu13==2.30", "cuda-toolkit[cudart]==13.2"]


def test_a_python_that_is_not_there_is_said(matrix, tmp_path):
    with pytest.raises(LookupError, match=r"no python9\.9 on PATH"):
        matrix.make_environment(matrix.Pair("9.9", "2.13.0", tmp_path))
