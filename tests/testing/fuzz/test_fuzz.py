"""The fuzzer: a few seeds of each kind are right, what is wrong is found, and failures become small scripts."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from weft.testing.conformance.journal import Journal
from weft.testing.fuzz.graph_judge import judge_graph, run_on_cpu
from weft.testing.fuzz.graph_programs import GraphCase, draw_graph
from weft.testing.fuzz.kinds import NAMES, kind_named
from weft.testing.fuzz.module_case import ModuleCase
from weft.testing.fuzz.module_judge import ModuleRuns, judge_module, module_case_of, shrink_module
from weft.testing.fuzz.module_programs import draw_module
from weft.testing.fuzz.runner import FuzzRun, FuzzSettings
from weft.testing.fuzz.shrink import shrink
from weft.testing.fuzz.torch_case import TorchCase
from weft.testing.fuzz.torch_judge import TorchRuns, case_of, judge
from weft.testing.fuzz.torch_programs import draw_case
from weft.testing.fuzz.triton_judge import judge_kernel
from weft.testing.fuzz.triton_programs import TritonCase, draw_kernel
from weft.testing.fuzz.verdict import Verdict

SIMPLE = TorchCase(
    ("x0 = draw((A, B), torch.float32)", "x1 = draw((B,), torch.float32)"),
    ("v0 = x0 * 2", "v1 = v0 + x1", "v2 = v1.exp()", "v3 = x1.sin()"),
    ("v2", "v3"),
    ({"A": 3, "B": 5},),
)


def test_programs_of_torch_are_right() -> None:
    for seed in range(7000, 7004):
        verdict = judge(draw_case(seed))
        assert not verdict.failed, f"torch {seed}: {verdict}"


def test_modules_are_right() -> None:
    for seed in (7001, 7002):
        verdict = judge_module(draw_module(seed))
        assert not verdict.failed, f"module {seed}: {verdict}"


def test_programs_over_the_registry_are_right() -> None:
    for seed in range(7000, 7015):
        verdict = judge_graph(draw_graph(seed))
        assert not verdict.failed, f"graph {seed}: {verdict}"


def test_kernels_of_triton_are_right() -> None:
    for seed in range(7000, 7004):
        verdict = judge_kernel(draw_kernel(seed))
        assert not verdict.failed, f"triton {seed}: {verdict}"


@pytest.mark.parametrize("name", [name for name in NAMES if name != "nnsmith"])
def test_a_seed_is_a_program_and_travels_as_json(name: str) -> None:
    kind = kind_named(name)
    case = kind.draw(11, "cpu")
    assert case == kind.draw(11, "cpu")
    assert kind.read(json.loads(json.dumps(case.to_json()))) == case


def wrong_backend(module: Any, inputs: Any) -> Any:
    """Adds a little where it must not."""

    def call(*args: Any) -> Any:
        return tuple(result + 0.01 if result.is_floating_point() else result for result in module(*args))

    return call


def test_wrong_results_are_found() -> None:
    verdict = judge(SIMPLE, wrong_backend)
    assert verdict.status == "wrong" and "beyond" in verdict.reason


def test_errors_are_found() -> None:
    def refusing(module: Any, inputs: Any) -> Any:
        raise RuntimeError("no")

    verdict = judge(SIMPLE, refusing)
    assert verdict.status == "raises" and "no" in verdict.reason


def test_results_that_should_share_memory_are_found() -> None:
    def copying(module: Any, inputs: Any) -> Any:
        return lambda *args: tuple(result.clone() for result in module(*args))

    case = replace(SIMPLE, body=("v0 = x0[1:]",), outputs=("v0",)).live()
    verdict = judge(case, copying)
    assert verdict.status == "wrong" and "shared" in verdict.reason


def test_what_has_no_elements_shares_no_memory() -> None:
    nothing = replace(SIMPLE, body=("v0 = F.dropout(x0[:, 5:], 0.3)",), outputs=("v0",)).live()
    assert judge(nothing).status == "right", "eager gives dropout's argument back if it is empty"


def test_wide_floats_that_are_made_of_narrow_ones_are_off_as_these_are() -> None:
    body = ("v0 = (x1 * x1).tanh().acos().mean()", "v1 = torch.addcmul(x0, v0, v0, value=0.5)")
    arguments = ("x0 = draw((C, 2), torch.float64)", "x1 = draw((4, B), torch.float16)")
    for seed in (970239, 3, 4):
        case = TorchCase(arguments, body, ("v1",), ({"B": 63, "C": 3},), "no_grad", seed=seed)
        assert judge(case).status == "right"
        assert judge(case, wrong_backend).status == "wrong"


def test_what_eager_refuses_must_be_refused() -> None:
    case = replace(SIMPLE, body=("v0 = x0.view(-1, 1000)",), outputs=("v0",)).live()
    assert judge(case).status == "refused"


def test_what_rounding_decides_is_not_held_against_anyone() -> None:
    body = ("v0 = x0.sum(0)", "v1 = (v0 - x0.double().sum(0).to(torch.float32)) * 1e6", "v2 = v1 > 0")
    case = replace(SIMPLE, body=body, outputs=("v1", "v2"), calls=({"A": 300, "B": 5},)).live()
    assert not judge(case).failed


NEAR_A_ROOT = """"graph.func"() ({
^bb0(%x0: tensor<f64>):
  %0 = "graph.lgamma"(%x0) : (tensor<f64>) -> tensor<f64>
  "graph.return"(%0) : (tensor<f64>) -> ()
}) {sym_name = "fuzzed", arg_names = ["x0"]} : () -> ()
"""


ROUNDED_TWICE = TritonCase(
    (
        "pid = tl.program_id(0)",
        "v0 = tl.load(x0 + pid * 32 + tl.arange(0, 32), mask=(pid * 32 + tl.arange(0, 32)) < n0, other=1)",
        "v1 = tl.load(x1 + pid * 128 + tl.arange(0, 4)[:, None] * 32 + tl.arange(0, 32)[None, :], m"
        "ask=(pid * 128 + tl.arange(0, 4)[:, None] * 32 + tl.arange(0, 32)[None, :]) < n1, other=0)",
        "v2 = v1 % 5",
        "v3 = v0[:, None] + v0[None, :]",
        "v4 = v2 % 5",
        "v5 = tl.clamp(v3 + v3, -100.0, 100.0)",
        'v6 = tl.dot(tl.trans(v5), v5, input_precision="ieee") * 0.05',
        "v7 = v0[:, None] + v0[None, :]",
        "v8 = tl.sum(v6, axis=1)",
        "v9 = tl.clamp(tl.cos(v8), -100.0, 100.0)",
        "v10 = tl.clamp(tl.maximum(v9, v8), -100.0, 100.0)",
        "v11 = tl.min(v0, axis=0)",
        "tl.store(o0 + pid * 1024 + tl.arange(0, 32)[:, None] * 32 + tl.arange(0, 32)[None, :], v7)",
        "tl.store(o1 + pid * 32 + tl.arange(0, 32), v8)",
        "tl.store(o2 + pid * 32 + tl.arange(0, 32), v9, mask=(pid * 32 + tl.arange(0, 32)) % 3 != 0)",
        "tl.store(o3 + pid * 32 + tl.arange(0, 32), v10, mask=(pid * 32 + tl.arange(0, 32)) % 3 != 0)",
        "tl.store(o4 + pid, v11)",
    ),
    (("fp32", 15), ("i32", 63)),
    (("fp32", 3072), ("fp32", 96), ("fp32", 96), ("fp32", 96), ("fp32", 3)),
    3,
    {"n0": 15, "n1": 63},
    810075,
)


def test_what_the_last_place_of_inputs_decides_is_not_either() -> None:
    graph = GraphCase(NEAR_A_ROOT, {"x0": (1.9999, 2.0001)}, 810452, "cpu")
    for judged in (judge_graph(graph), judge_kernel(ROUNDED_TWICE)):
        assert judged.status == "undecided", judged


def test_a_number_where_16_bits_leave_eager_none_has_to_be_that_of_float64() -> None:
    steep = TorchCase(
        ("x0 = draw((A,), torch.bfloat16)",),
        ("v0 = (x0 * 0 + 4).tanh()", "v1 = v0.acos()"),
        ("v1",),
        ({"A": 4},),
        "train",
    )
    assert torch.isnan(TorchRuns(steep).run()[0][0]["gradients"][0]).all()
    assert judge(steep).status == "right"

    def no_slope(graph: torch.fx.GraphModule, _: Any) -> Any:
        return lambda x: ((x * 0.3).float().sin().bfloat16(),)

    assert judge(steep, no_slope).status == "wrong"


def test_a_number_where_32_bits_leave_eager_none_has_to_be_that_of_float64() -> None:
    quotient = TorchCase(
        ("x0 = draw((A,), torch.float32)",),
        ("v0 = torch.nn.functional.gelu(x0 * 0 - 5.7)", "v1 = v0 / v0"),
        ("v1",),
        ({"A": 4},),
        "no_grad",
    )
    assert torch.isnan(TorchRuns(quotient).run()[0][0]["outputs"][0]).all()
    assert judge(quotient).status == "right"

    def always(number: float) -> Any:
        return lambda graph, _: lambda x: (torch.full_like(x, number),)

    assert judge(quotient, always(1.0)).status == "right"
    assert judge(quotient, always(1.1)).status == "wrong"


def test_the_oracle_draws_the_numbers_of_the_program() -> None:
    body = ("v0 = torch.bernoulli(x0.sigmoid())", "v1 = torch.rand_like(x0) * v0", "v2 = v1.exp().sum(0)")
    case = replace(SIMPLE, inputs=("x0 = draw((A, B), torch.float16)",), body=body, outputs=("v1", "v2")).live()
    assert case.draws
    runs = TorchRuns(case)
    (narrow,), (wide,) = runs.run()[0], runs.run(wide=True)[0]
    assert torch.equal(narrow["outputs"][0].double(), wide["outputs"][0])
    assert not torch.equal(narrow["outputs"][1].double(), wide["outputs"][1])
    drawing = replace(SIMPLE, body=("v0 = torch.rand_like(x0) * x1",), outputs=("v0",)).live()
    assert judge(drawing, wrong_backend).status == "wrong"
    assert judge(draw_case(60024)).status == "right", "eager's loss in bf16 is 0, and was taken for the truth"


def test_a_failure_shrinks_to_what_matters() -> None:
    def interesting(case: TorchCase) -> bool:
        return any("exp()" in line for line in case.body) and "v2" in case.outputs

    small = shrink(SIMPLE, interesting, 30)
    assert small.body == ("v2 = x0.exp()",)
    assert small.outputs == ("v2",)
    assert small.calls == ({"A": 1, "B": 1},)


def test_the_script_of_a_failure_states_the_same_case(tmp_path: Path) -> None:
    path = tmp_path / "found.py"
    path.write_text(SIMPLE.script("wrong, by 3"))
    scope: dict[str, Any] = {"__name__": "found"}
    import linecache

    linecache.checkcache(str(path))
    exec(compile(path.read_text(), str(path), "exec"), scope)
    assert case_of(scope["inputs"], scope["program"], scope["CALLS"], SIMPLE.mode) == SIMPLE


def test_wrong_graphs_are_found() -> None:
    case = GraphCase(
        '"graph.func"() ({\n^bb0(%x0: tensor<5xf32>):\n  %0 = "graph.exp"(%x0) : (tensor<5xf32>) -> tensor<5xf32>\n'
        '  "graph.return"(%0) : (tensor<5xf32>) -> ()\n}) {sym_name = "f", arg_names = ["x0"]} : () -> ()',
        {"x0": (-1.0, 1.0)},
    )
    assert judge_graph(case).status == "right"
    wrong = judge_graph(case, lambda *given: [result * np.float32(1.01) for result in run_on_cpu(*given)])
    assert wrong.status == "wrong"


def test_a_run_is_resumed_and_a_crash_costs_one_program(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "fuzz.jsonl")
    journal.add("graph 1", Verdict("right").to_json())
    seen: list[int] = []
    settings = FuzzSettings("graph", 0, 4, jobs=1, kept=tmp_path, shrinking=0)
    assert FuzzRun(settings, journal, lambda seed, verdict: seen.append(seed)).run() == []
    assert seen == [0, 2, 3]
    assert {name: record["status"] for name, record in journal.results().items()} == {
        f"graph {seed}": "right" for seed in range(4)
    }


TRAINED = ModuleCase(
    ("x0 = draw((A, 6), torch.float32)", "x1 = draw((A, 6), torch.float32).detach()"),
    ("v0 = self.l0(x0)", "v1 = self.l1(v0)", "v2 = nn.MSELoss()(v1, x1)"),
    ("v1", "v2"),
    ({"A": 4}, {"A": 4}),
    "train",
    layers=("self.l0 = nn.Linear(6, 6)", "self.l1 = nn.BatchNorm1d(6)", "self.l2 = nn.Linear(2, 2)"),
    training=True,
    optimizer="torch.optim.SGD(parameters, lr=0.1, momentum=0.9)",
)


def test_what_a_call_leaves_in_a_module_is_judged() -> None:
    """Its gradients, its buffers, and what the optimizer makes of its parameters."""

    def forgetful(module: Any, inputs: Any) -> Any:
        """Copies what it is given, so that no buffer changes."""
        return lambda *args: module(*(each.clone() if isinstance(each, torch.Tensor) else each for each in args))

    case = TRAINED.live()
    assert len(case.layers) == 2, "nothing uses the last"
    assert judge_module(case).status == "right"
    assert judge_module(case, wrong_backend).status == "wrong"
    verdict = judge_module(replace(case, mode="no_grad", optimizer=""), forgetful)
    assert verdict.status == "wrong" and "['inputs']" in verdict.reason


@pytest.mark.parametrize("way", ["fullgraph", "method", "copied", "loaded", "weft"])
def test_a_module_is_compiled_in_each_way(way: Any) -> None:
    case = replace(TRAINED.live(), mode="no_grad", optimizer="", way=way, calls=({"A": 4}, {"A": 5}))
    assert judge_module(case).status == "right"


def test_the_oracle_of_a_module_has_its_weights_and_draws() -> None:
    dropped = replace(TRAINED, layers=("self.l0 = nn.Dropout()", TRAINED.layers[1]), dtype="bfloat16", optimizer="")
    dropped = replace(dropped, inputs=tuple(line.replace("float32", "bfloat16") for line in dropped.inputs))
    assert dropped.draws and not TRAINED.draws
    narrow, _ = ModuleRuns(dropped).run()
    wide, _ = ModuleRuns(dropped).run(wide=True)
    for mine, oracle in zip(narrow, wide, strict=True):
        torch.testing.assert_close(mine["outputs"][0].double(), oracle["outputs"][0], rtol=0.05, atol=0.05)
        torch.testing.assert_close(mine["inputs"][0].double(), oracle["inputs"][0], rtol=0, atol=0)


def test_a_module_shrinks_with_its_layers() -> None:
    def interesting(case: ModuleCase) -> bool:
        return "v1" in case.outputs and any("BatchNorm" in line for line in case.layers)

    small = shrink_module(TRAINED, interesting, 30)
    assert small.layers == ("self.l1 = nn.BatchNorm1d(6)",)
    assert small.body == ("v1 = self.l1(x0)",)
    assert (small.mode, small.optimizer, small.training, len(small.calls)) == ("no_grad", "", False, 1)


def test_the_script_of_a_module_states_the_same_case(tmp_path: Path) -> None:
    path = tmp_path / "found_module.py"
    path.write_text(TRAINED.script("wrong, by 3"))
    spec = importlib.util.spec_from_file_location("found_module", path)
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    assert module_case_of(found.inputs, found.Program, found.CALLS, **found.SETTINGS) == TRAINED


@pytest.mark.slow
def test_the_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "weft", "fuzz", "--kind", "torch", "--kind", "graph", "--count", "40", "--json"]
    done = subprocess.run([*command, "--reports", str(tmp_path)], capture_output=True, text=True, timeout=1200)
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["ok"], figures["failures"]
    assert sum(figures["all"].values()) == 80


def test_without_nnsmith_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    from weft.errors import WeftError
    from weft.testing.fuzz import nnsmith_models

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "nnsmith" else find(name))
    nnsmith_models._generator.cache_clear()
    for needs_it in (nnsmith_models.check_installed, lambda: nnsmith_models.judge_model(nnsmith_models.draw_model(0))):
        with pytest.raises(WeftError, match="NNSmith is not installed"):
            needs_it()
