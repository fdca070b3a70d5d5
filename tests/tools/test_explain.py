"""`weft explain` and `weft.explain` say what was compiled, by whom, and what was not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import weft as public
from weft.backends.nvidia.driver.assembler import tool
from weft.backends.nvidia.ir.dialect import LAUNCH
from weft.backends.nvidia.ir.registry import parse_kernels
from weft.backends.nvidia.target import target_named
from weft.runtime.profile import StepEvent
from weft.runtime.record import Resources
from weft.tile.text import kernels_of
from weft.tools.explain.explain import explain_program
from weft.tools.explain.report import Explanation
from weft.tools.opt.opt import read_source

from .conftest import SOFTMAX, last_json

torch = pytest.importorskip("torch")

SCRIPT = """\
import sys
import torch

def f(x, w):
    y = (x @ w).softmax(-1)
    return y + torch.linalg.svdvals(y).sum()

print("arguments:", sys.argv[1:])
compiled = torch.compile(f, backend="weft")
x = torch.randn(8, 16)
torch._dynamo.mark_dynamic(x, 0)
with torch.no_grad():
    compiled(x, torch.randn(16, 32))
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("WEFT_CACHE", "0")  # also puts back what the command sets
    torch._dynamo.reset()
    path = tmp_path / "user.py"
    path.write_text(SCRIPT)
    return str(path)


def test_a_script_is_run_and_explained(weft, script: str) -> None:
    result = weft("explain", script, "--json", "--rate", "3")
    assert "arguments: ['--rate', '3']" in result.stdout
    figures = last_json(result)
    assert result.exit_code == 0 and figures["ok"]
    (graph,) = figures["graphs"]
    assert graph["source"] == "compiled" and graph["kernels"] and graph["ops"] > 3
    assert any(claim["op"] == "dot" for claim in graph["claims"]) or any("dot" in k["label"] for k in graph["kernels"])
    assert {"import", "simplify", "group_into_kernels", "lower_to_tile", "llvm", "link"} <= set(graph["seconds"])
    (fallback,) = graph["fallbacks"]
    assert "svd" in fallback["target"] and fallback["line"].endswith("user.py:6")
    assert graph["symbols"]
    assert len(graph["arenas"]) == 1


def test_the_report_never_hides_a_fallback(weft, script: str) -> None:
    report = weft("explain", script).stdout
    assert "Left to torch" in report and "svd" in report and "user.py:6" in report
    assert "Time by stage" in report and "Kernels" in report


def test_programs_at_each_level(weft, script: str, tmp_path: Path) -> None:
    folder = tmp_path / "programs"
    report = weft("explain", script, "--ir", "--save", str(folder)).stdout
    for level in ("graph", "grouped", "tile", "llvm"):
        assert f"// graph 1 (inference) as {level}" in report
    assert weft("opt", str(folder / "1-inference-graph.mlir"), "-p", "cpu").exit_code == 0
    assert weft("opt", str(folder / "1-inference-tile.mlir"), "--level", "llvm").exit_code == 0


def test_programs_after_each_pass(weft, softmax: str, tmp_path: Path) -> None:
    folder = tmp_path / "programs"
    report = weft("explain", softmax, "--ir", "--save", str(folder), "--each-pass").stdout
    (grouped,) = folder.glob("1-softmax-graph-*-group_into_kernels.mlir")
    assert "graph.group" in grouped.read_text() and f"as {grouped.stem.removeprefix('1-softmax-')}" in report
    texts = [path.read_text() for path in sorted(folder.glob("1-softmax-graph*.mlir"))]
    assert len(set(texts)) == len(texts), "what a pass did not change is not printed again"
    assert weft("opt", str(grouped), "--level", "tile").exit_code == 0
    alone = weft("explain", softmax, "--each-pass")
    assert alone.exit_code == 2 and "--save FOLDER" in alone.stderr


def test_kernels_of_a_gpu_after_each_pass(weft, softmax: str, tmp_path: Path) -> None:
    folder = tmp_path / "programs"
    weft("explain", softmax, "--target", "sm_90a", "--save", str(folder), "--each-pass")
    saved = sorted(path.name for path in folder.glob("1-softmax-nvidia-*.mlir"))
    assert any(re.fullmatch(r"1-softmax-nvidia-\w+-\d\d-assign_layouts\.mlir", name) for name in saved), saved
    texts = [(folder / name).read_text() for name in saved]
    assert len(set(texts)) == len(texts), "what a pass did not change is not written again"
    assert "nvidia.launch" in texts[-1] and "nvidia.launch" not in texts[0]
    assert weft("opt", str(folder / saved[0])).exit_code == 0


def test_a_failing_script_is_still_explained(weft, script: str) -> None:
    Path(script).write_text(SCRIPT + "raise RuntimeError('the end')\n")
    result = weft("explain", script, "--json")
    assert result.exit_code == 1 and len(last_json(result)["graphs"]) == 1
    assert "the end" in result.stderr


def test_a_script_without_weft(weft, tmp_path: Path) -> None:
    path = tmp_path / "plain.py"
    path.write_text("print(1)")
    assert "No graph reached Weft" in weft("explain", str(path)).stdout
    assert weft("explain", str(tmp_path / "missing.py")).exit_code == 2


def test_graph_text(weft, softmax: str) -> None:
    figures = last_json(weft("explain", softmax, "--json"))
    (graph,) = figures["graphs"]
    assert graph["name"] == "softmax" and graph["ops"] == 6
    assert [kernel["uses"] for kernel in graph["kernels"]] == [1]
    assert "softmax" in weft("explain", softmax, "--ir").stdout


def test_kernels_of_a_gpu_and_what_they_take(weft, softmax: str, tmp_path: Path) -> None:
    folder = tmp_path / "programs"
    figures = last_json(weft("explain", softmax, "--target", "sm_90a", "--save", str(folder), "--json"))
    (kernel,) = figures["graphs"][0]["device_kernels"]
    assert kernel["bytes"] == 2 * 6 * 33 * 4 and kernel["operations"] >= 5 * 6 * 33
    assert kernel["threads"] % 32 == 0 and 0 < kernel["limit"] < 1e-6
    assert kernel["seconds"] is None and kernel["share"] is None
    if tool("ptxas") is not None:
        assert kernel["registers"] > 0 and kernel["spilled"] == 0 and 1 <= kernel["blocks"] <= 32
    assert ".entry" in (folder / "1-softmax-ptx.ptx").read_text()
    report = weft("explain", softmax, "--target", "sm_90a").stdout
    assert "On the GPU" in report and "blocks/SM" in report


def test_a_gpu_that_there_is_not(weft, softmax: str, script: str) -> None:
    unknown = weft("explain", softmax, "--target", "sm_90", "--json")
    assert unknown.exit_code == 2 and "did you mean sm_90a? Weft knows sm_80" in last_json(unknown)["hint"]
    assert weft("explain", softmax, "--target", "v100").exit_code == 2
    assert weft("explain", script, "--target", "sm_90a").exit_code == 2


def test_times_of_a_gpu_are_set_against_its_limit() -> None:
    explanation = explain_program(SOFTMAX, "text", programs=False, target=target_named("sm_90a"))
    (record,) = explanation.records
    assert record.plan is not None
    record.loaded = {name: Resources(40, 16) for name in record.tiles}
    steps = [StepEvent(step, record.plan, {}, 0, 0, 2000) for step in record.plan.steps]
    found = Explanation((record,), steps=steps)
    (kernel,) = found.device_kernels[1]
    assert kernel.seconds == 2e-6 and kernel.limit is not None and kernel.share == kernel.limit / 2e-6
    assert kernel.registers == 40 and "spilled" in str(found) and "2.0 µs" in str(found)


def test_a_program_that_fails_is_reported(weft, tmp_path: Path) -> None:
    path = tmp_path / "tile.mlir"
    path.write_text("builtin.module {\n}\n")
    result = weft("explain", str(path))
    assert result.exit_code == 1 and "no graph.func" in result.stderr


def test_symbols_of_graph_text() -> None:
    text = SOFTMAX.replace("tensor<6x", "tensor<?x").replace("x33xf32>", 'x33xf32, #graph.sizes<["s0", "33"]>>')
    text = text.replace("x1xf32>", 'x1xf32, #graph.sizes<["s0", "1"]>>')
    (record,) = explain_program(text, "text", programs=False).records
    assert record.error is None and record.symbols == {"s0": "0 ≤ s0"}
    assert record.programs == {}


def test_explain_from_python(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x):
        return torch.relu(x).sum(-1)

    found = public.explain(f, torch.randn(4, 5))
    assert isinstance(found, Explanation) and len(found.records) == 1
    assert found.fallbacks == [] and "Nothing is left to torch" in str(found)
    # A second time nothing is compiled for Dynamo's own cache, and everything is explained again.
    assert len(public.explain(f, torch.randn(4, 5)).records) == 1
    assert "graph.relu" in found.programs() or "graph.max" in found.programs()


@pytest.mark.parametrize("given", [3, None, "model.py"])
def test_what_cannot_be_called_is_refused_by_name(given: object) -> None:
    with pytest.raises(public.WeftError, match=f"takes a module or a function, got {type(given).__name__}"):
        public.explain(given, 1)  # type: ignore[arg-type]


def test_what_torch_compile_takes_does_not_go_to_the_function(tmp_path: Path) -> None:
    found = public.explain(lambda x, *, scale: x * scale, torch.randn(4, 5), dynamic=True, fullgraph=True, scale=3.0)
    assert found.records[0].symbols
    assert all(path.is_file() for path in found.save(str(tmp_path / "programs")))
    with pytest.raises(public.WeftError, match="no mode is called"):
        public.explain(torch.sin, torch.randn(3), mode="fastest")


def test_the_backward_graph_of_a_module_is_explained() -> None:
    model, x = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh()), torch.randn(2, 4)
    assert [record.name for record in public.explain(model, x).records] == ["forward", "backward"]
    assert all(parameter.grad is None for parameter in model.parameters())
    with torch.no_grad():
        assert [record.name for record in public.explain(model, x).records] == ["inference"]
    weight = torch.randn(4, requires_grad=True)
    assert [record.name for record in public.explain(lambda: (weight * 2).sum()).records] == ["forward", "backward"]


def test_a_report_leaves_out_what_says_nothing() -> None:
    report = str(public.explain(lambda x: x.sin() + 1, torch.randn(4)))
    assert "others" in report and "Config(" not in report and "options:" not in report
    quiet = public.explain(lambda x: x.sin() + 2, torch.randn(4), options={"fallback": "quiet"})
    assert "options: fallback='quiet'" in str(quiet)


def test_graph_breaks_are_counted() -> None:
    def f(x):
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos()

    found = public.explain(f, torch.randn(4))
    assert len(found.records) == 2 and sum(found.graph_breaks.values()) == 1
    assert "Graph breaks" in str(found)


def test_graph_breaks_at_branches_on_data_are_counted() -> None:
    def branched(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        if y.sum() > 0:
            return y + 1
        return y - 1

    found = public.explain(branched, torch.ones(8))
    ((reason, count),) = found.graph_breaks.items()
    line = branched.__code__.co_firstlineno + 2
    assert count == 1 and reason.startswith(f"Data-dependent branching at {__file__}:{line}\n")
    assert len(found.records) == 2 and "Data-dependent branching" in str(found)


def test_read_source_takes_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO("text"))
    assert read_source("-") == ("text", "<stdin>")


def test_the_programs_of_a_gpu_have_the_nvidia_level_between_tile_and_llvm() -> None:
    explanation = explain_program(SOFTMAX, "softmax.mlir", programs=True, target=target_named("sm_90a"))
    (record,) = explanation.records
    assert list(record.programs) == ["graph", "grouped", "tile", "nvidia", "llvm", "ptx"]
    kernels = parse_kernels(record.programs["nvidia"])
    assert all(LAUNCH in kernel.attributes for kernel in kernels_of(kernels))
    assert " as nvidia\n" in explanation.programs()
