"""Formats that tensor cores lack, and folders that hold no tables."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from weft import planner
from weft.planner.errors import TableError
from weft.planner.expert_costs import expert_curve
from weft.planner.formats import held, lacks
from weft.planner.hardware import find_gpu
from weft.planner.model import find_model
from weft.planner.op_costs import ROWS
from weft.planner.program import Experts, Gemm
from weft.planner.search import open_costs
from weft.tools.cli import app

TABLES = Path(planner.__file__).parent / "data" / "kernel_tables"


@pytest.mark.parametrize(
    ("gpu", "weights", "lacking"),
    [
        ("a100", "fp8", True), ("a100", "fp8_block", True), ("a100", "nvfp4", True), ("a100", "bf16", False),
        ("h100", "fp8", False), ("h200", "nvfp4", True), ("h200", "mxfp4", False), ("b200", "nvfp4", False),
        ("a100", "int4", False),
    ],
)  # fmt: skip
def test_the_catalogue_says_which_formats_there_are(gpu: str, weights: str, lacking: bool) -> None:
    assert lacks(find_gpu(gpu), weights) == lacking
    model = held(find_model("Llama-3.1-8B").with_precision(weights), find_gpu(gpu))
    assert len(model.assumptions) == lacking
    assert all(f"no tensor cores for {weights}" in each for each in model.assumptions)
    assert held(model, find_gpu(gpu)) == model


@pytest.mark.parametrize(
    ("gpu", "kept", "lacking"), [("a100", "fp8_weights", "fp8"), ("h200", "nvfp4_weights", "nvfp4")]
)
def test_weights_in_a_lacking_format_save_memory_and_no_compute(gpu: str, kept: str, lacking: str) -> None:
    costs = open_costs(find_gpu(gpu), None, "weft")
    few, many = ROWS <= 8, ROWS >= 8192
    narrow, wide = costs.gemm(Gemm("", 8192, 8192, kept)).seconds, costs.gemm(Gemm("", 8192, 8192)).seconds
    assert (narrow[few] < 0.75 * wide[few]).all()
    np.testing.assert_allclose(narrow[many], wide[many], rtol=0.02)
    experts = [expert_curve(costs, Experts("", 4096, 1536, 8, 128, 1, 8, each)).seconds for each in (kept, "bf16")]
    assert (experts[0] <= experts[1] * (1 + 1e-9)).all() and experts[0][0] < 0.75 * experts[1][0]


def test_a_plan_in_a_lacking_format_says_so_once() -> None:
    given = ["plan", "Llama-3.1-8B", "--gpu", "a100", "--precision", "fp8", "--kv", "fp8", "--max-gpus", "1", "--json"]
    told = json.loads(CliRunner().invoke(app, given).stdout.splitlines()[-1])
    assert [each for each in told["assumptions"] if "tensor cores" in each] == told["assumptions"]
    assert len(told["assumptions"]) == 2  # the weights', and the cache's


@pytest.mark.parametrize("command", [["Llama-3.1-8B"], ["Llama-3.1-8B", "--train", "gpus=8,batch=8,seq=128"]])
def test_a_folder_without_tables_is_refused_with_what_is_expected(tmp_path: Path, command: list[str]) -> None:
    done = CliRunner().invoke(app, ["plan", *command, "--tables", str(tmp_path), "--json"])
    assert done.exit_code == 1
    assert "holds no kernel tables" in json.loads(done.stdout.splitlines()[-1])["message"]
    with pytest.raises(TableError) as refused:
        open_costs(find_gpu("h200"), tmp_path, "weft")
    assert "gemm__ENGINE__VERSION" in str(refused.value.hint)


def test_a_folder_beside_the_tables_is_told_which_is_meant(tmp_path: Path) -> None:
    shutil.copytree(TABLES, tmp_path / "kernel_tables")
    for folder, meant in ((tmp_path, "kernel_tables"), (tmp_path / "kernel_tables" / "h200_sxm", "kernel_tables")):
        with pytest.raises(TableError) as refused:
            open_costs(find_gpu("h200"), folder, "weft")
        assert f"--tables {tmp_path / meant}" in str(refused.value.hint)
    (tmp_path / "kernel_tables" / "h200_sxm" / "system.json").unlink()
    with pytest.raises(TableError, match=r"system\.json"):
        open_costs(find_gpu("h200"), tmp_path / "kernel_tables", "weft")
