"""`weft explain kernel.py:name` and `weft bench FILE`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

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


MATMUL = """
import weft.triton as triton
import weft.triton.language as tl


@triton.jit
def matmul(a_ptr, b_ptr, c_ptr, M, N, K, a_rows, b_rows, c_rows, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        ks = k + tl.arange(0, BK)
        a = tl.load(a_ptr + rows[:, None] * a_rows + ks[None, :], (rows[:, None] < M) & (ks[None, :] < K), other=0.0)
        inside = (ks[:, None] < K) & (columns[None, :] < N)
        b = tl.load(b_ptr + ks[:, None] * b_rows + columns[None, :], inside, other=0.0)
        acc = tl.dot(a, b, acc)
    places = c_ptr + rows[:, None] * c_rows + columns[None, :]
    tl.store(places, acc.to(tl.bfloat16), (rows[:, None] < M) & (columns[None, :] < N))
"""
TILES = "BM=64,BN=64,BK=64"


def explained(script: Path, signature: str, *options: str, text: str = MATMUL) -> dict[str, Any]:
    script.write_text(text)
    line = ["explain", f"{script}:matmul", "--target", "sm_90a", "--signature", f"{signature},{TILES}", "--json"]
    result = CliRunner().invoke(app, [*line, *options])
    assert result.exit_code == 0, result.output
    return json.loads(result.output.splitlines()[-1])


def reasons(figures: dict[str, Any]) -> dict[str, str | None]:
    return {note["name"]: note["refused"] for note in figures["passes"] if len(note["inside"]) % 2}


def test_a_kernel_after_each_pass_in_the_dialect_of_its_gpu(script: Path, tmp_path: Path) -> None:
    folder = tmp_path / "programs"
    options = ("--save", str(folder), "--each-pass")
    figures = explained(script, "*bf16:16,*bf16,*bf16,i32,i32,i32,i32:16,i32:16,i32:16", *options)
    saved = {path.name: path.read_text() for path in folder.iterdir()}
    assert saved["matmul.nvidia"] == figures["nvidia"] and "nvidia.launch" in figures["nvidia"]
    (pipelined,) = (text for name, text in saved.items() if re.fullmatch(r"matmul\.nvidia-\d\d-pipeline_dots", name))
    assert "nvidia.wgmma" in pipelined and "nvidia.layout" not in pipelined
    said = reasons(figures)
    assert said["TMA brings operands of wgmma"] is None and said["each dot where it stands"] is None
    assert said["a dot an iteration later"] == "no loop has one dot that can wait, of what was made of another dot"


def test_rows_that_are_not_known_to_be_aligned_are_said_to_be_the_reason(script: Path) -> None:
    said = reasons(explained(script, "*bf16,*bf16,*bf16,i32,i32,i32,i32:16,i32,i32"))["TMA brings operands of wgmma"]
    assert said is not None and "argument 7 (from 0 on), of which they are computed, is not known" in said
    assert "multiples of 16 bytes" in said
    assert "`i32:16` in a --signature" in said


def test_addresses_out_of_memory_are_no_matter_of_alignment(script: Path) -> None:
    """As those of grouped products: no argument of the kernel says where rows begin."""
    read = "    a_ptr = tl.load(a_ptr).to(tl.pointer_type(tl.bfloat16))\n    rows = "
    figures = explained(
        script, "*i64,*bf16,*bf16,i32,i32,i32,i32,i32:16,i32", text=MATMUL.replace("    rows = ", read, 1)
    )
    assert reasons(figures)["TMA brings operands of wgmma"] == "TMA cannot bring the operands of its dots"


def test_programs_of_a_kernel_are_printed(script: Path) -> None:
    line = ["explain", f"{script}:double", "--ir"]
    assert "// double as llvm\n" in CliRunner().invoke(app, line).output
    result = CliRunner().invoke(app, [*line, "--target", "sm_90a", "--each-pass"])
    assert "// double as nvidia\n" in result.output and re.search(
        r"// double as nvidia-\d\d-assign_layouts\n", result.output
    )
    refused = CliRunner().invoke(app, [*line, "--each-pass"])
    assert refused.exit_code == 2 and "--target sm_90a" in refused.output
    alone = CliRunner().invoke(app, ["explain", f"{script}:double", "--each-pass", "--target", "sm_90a"])
    assert alone.exit_code == 2 and "--save FOLDER" in alone.output


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
        (":double", "*fp32,i32:8,BLOCK=32", "i32:8 is not a type"),
        (":double", "*fp32,fp32:16,BLOCK=32", "fp32:16 is not a type"),
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
