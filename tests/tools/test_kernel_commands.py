"""`weft explain kernel.py:name` and `weft bench FILE`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from weft.backends.nvidia.driver.assembler import tool
from weft.tools.cli import app

KERNEL = """
import numpy as np
import weft.triton as triton
import weft.triton.language as tl


@triton.jit
def double(x_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    tl.store(x_ptr + offsets, x * 2, mask=offsets < n)


@triton.testing.perf_report(
    triton.testing.Benchmark(
        x_names=["n"], x_vals=[16, 32], line_arg="provider", line_vals=["weft"], line_names=["Weft"],
        plot_name="double", args={}, ylabel="µs",
    )
)
def benchmark(n, provider):
    x = np.ones(n, np.float32)
    return 1e3 * triton.testing.do_bench(lambda: double[(1,)](x, n, BLOCK=32), warmup=0.1, rep=0.1)


if __name__ == "__main__":
    double[(1,)](np.ones(32, np.float32), 31, BLOCK=32)
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "kernels.py"
    path.write_text(KERNEL)
    return path


def test_a_kernel_is_explained_for_its_launch_or_for_a_signature(script: Path) -> None:
    for options in ([], ["--signature", "*fp32,i32,BLOCK=32"]):
        result = CliRunner().invoke(app, ["explain", f"{script}:double", *options])
        assert result.exit_code == 0, result.output
        lines = result.output.splitlines()
        loads = next(n for n, line in enumerate(lines) if "tl.load(x_ptr" in line)
        stores = next(n for n, line in enumerate(lines) if "tl.store(x_ptr" in line)
        assert any("tile.gather" in line or "tile.load" in line for line in lines[loads:stores])
    figures = json.loads(CliRunner().invoke(app, ["explain", f"{script}:double", "--json"]).output.splitlines()[-1])
    assert {"source", "tile", "llvm", "asm"} <= figures.keys()


def test_a_kernel_is_explained_for_a_gpu(script: Path, tmp_path: Path) -> None:
    line = ["explain", f"{script}:double", "--target", "sm_90a"]
    signature = "*fp32,i32,BLOCK=1024,num_warps=8"
    for options, warps in ([], 4), (["--signature", signature, "--save", str(tmp_path / "programs")], 8):
        result = CliRunner().invoke(app, [*line, *options, "--json"])
        assert result.exit_code == 0, result.output
        figures = json.loads(result.output.splitlines()[-1])
        assert ".target sm_90a" in figures["ptx"] and ".entry double" in figures["ptx"] and "llvm" not in figures
        (taken,) = figures["device_kernels"]
        assert taken["threads"] == 32 * warps
        if tool("ptxas") is not None:
            assert taken["registers"] > 0 and taken["spilled"] == 0 and taken["blocks"] == 64 // warps
    assert figures["ptx"] == (tmp_path / "programs" / "double.ptx").read_text()
    report = CliRunner().invoke(app, line).output
    assert "On the GPU" in report and "tl.load(x_ptr" in report and ".entry double" in report


def test_a_kernel_that_is_not_there_is_named(script: Path) -> None:
    result = CliRunner().invoke(app, ["explain", f"{script}:triple", "--json"])
    assert result.exit_code == 2
    assert "launched: double" in result.output


def test_the_benchmarks_of_a_file_are_measured(script: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["bench", str(script), "--reports", str(tmp_path / "reports"), "--json"])
    assert result.exit_code == 0, result.output
    (table,) = json.loads(result.output.splitlines()[-1])["benchmarks"]
    assert [row[0] for row in table["rows"]] == [16, 32]
    assert (tmp_path / "reports" / "double.svg").is_file()


@pytest.mark.parametrize(
    ("kernel", "signature", "said"),
    [
        (":double", "*fp32", "the signature does not fit"),
        (":double", "*fp33,i32,BLOCK=32", "fp33 is not a type"),
        (":double", "*fp32,i32,WIDTH=32", "the signature does not fit"),
        (":triple", "*fp32,i32,BLOCK=32", "no kernel called triple"),
        ("", "*fp32,i32,BLOCK=32", "a signature is for a kernel"),
    ],
)
def test_a_wrong_signature_is_a_mistake_of_use(script: Path, kernel: str, signature: str, said: str) -> None:
    result = CliRunner().invoke(app, ["explain", f"{script}{kernel}", "--signature", signature, "--json"])
    assert result.exit_code == 2 and said in result.output, result.output


def test_a_script_of_kernels_is_explained_without_a_name(script: Path) -> None:
    script.write_text(KERNEL.replace("weft.triton", "triton"))
    result = CliRunner().invoke(app, ["explain", str(script)])
    assert result.exit_code == 0 and "tl.load(x_ptr" in result.output and "Dynamo" not in result.output, result.output
    figures = json.loads(CliRunner().invoke(app, ["explain", str(script), "--json"]).output.splitlines()[-1])
    assert [each["kernel"] for each in figures["kernels"]] == ["double"]


def test_a_script_that_launches_no_kernel_says_how_to_name_one(script: Path) -> None:
    script.write_text(KERNEL.partition("if __name__")[0])
    result = CliRunner().invoke(app, ["explain", str(script)])
    assert result.exit_code == 2 and "double" in result.output and "--signature" in result.output


SCRIPT = """
import sys
import numpy as np
import triton
import triton.language as tl


@triton.jit
def double(x_ptr, BLOCK: tl.constexpr):
    tl.store(x_ptr + tl.arange(0, BLOCK), tl.load(x_ptr + tl.arange(0, BLOCK)) * 2)


if __name__ == "__main__":
    x = np.ones(16, np.float32)
    double[(1,)](x, BLOCK=16)
    print(triton.__name__, sys.argv[1:], x.sum())
    raise SystemExit(int(sys.argv[1]))
"""


@pytest.mark.parametrize("way", ["script", "module"])
def test_a_script_for_triton_runs_unmodified(tmp_path: Path, way: str) -> None:
    (tmp_path / "kernels.py").write_text(SCRIPT)
    started = ["kernels.py"] if way == "script" else ["-m", "kernels"]
    command = [sys.executable, "-m", "weft.triton", *started, "3", "--flag"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (3, "weft.triton ['3', '--flag'] 32.0"), done.stderr


def test_a_script_that_is_not_there_is_said_to_be() -> None:
    done = subprocess.run([sys.executable, "-m", "weft.triton", "gone.py"], capture_output=True, text=True)
    assert done.returncode == 2 and "there is no script gone.py" in done.stderr


def test_code_is_shown_below_the_lines_that_it_comes_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_DEBUG_LINES", "0")
    script = tmp_path / "kernels.py"
    script.write_text(KERNEL)
    for target, comment in ((["--target", "sm_90a"], "//"), ([], "#")):
        shown = (
            CliRunner(env={"COLUMNS": "200"}).invoke(app, ["explain", f"{script}:double", "--lines", *target]).output
        )
        for text in ("x = tl.load(x_ptr + offsets", "tl.store(x_ptr + offsets"):
            line = next(number for number, each in enumerate(KERNEL.splitlines(), 1) if text in each)
            assert f"{comment} kernels.py:{line}  {text}" in shown
