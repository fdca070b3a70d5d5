"""Reduction keeps what fails and drops the rest, whatever the failure is."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import numpy as np
import pytest

from weft.errors import WeftError
from weft.ir.expr import symbol
from weft.ir.types import Tensor, bf16, f32, i64
from weft.ops.base import REGISTRY
from weft.ops.graph import FuncOp, GraphBuilder, OpaqueOp, ReturnOp
from weft.testing.reduce import failure as failure_module
from weft.testing.reduce.editable import function_of, program_of
from weft.testing.reduce.failure import Failure, examine, examine_apart, random_inputs, run_apart
from weft.testing.reduce.reduce import reduce_function


def network(dtype=f32, rows=None) -> FuncOp:
    """Two layers, a softmax, and some of everything around."""
    rows = symbol("s0") if rows is None else rows
    function = FuncOp.make(
        "network", {"x": Tensor(dtype, (rows, 32)), "w": Tensor(dtype, (32, 48)), "b": Tensor(dtype, (48,))}
    )
    b = GraphBuilder(function.block)
    x, w, bias = function.block.args
    h = b.add(b.dot(x, w), bias)
    h = b.mul(b.tanh(h), b.sigmoid(h))
    folded = b.reshape(h, shape=(rows, 6, 8))
    turned = b.permute(folded, dims=(0, 2, 1))
    top = b.max(turned, dims=(2,), keep=True)
    e = b.exp(b.sub(turned, top))
    s = b.sum(e, dims=(2,), keep=True)
    b.insert(ReturnOp.make([b.div(e, s), h, b.neg(bias)]))
    return function


def names(function: FuncOp) -> list[str]:
    return [op.name.removeprefix("graph.") for op in function.block.ops]


def test_one_bad_op_is_found() -> None:
    small = reduce_function(network(), lambda f: "tanh" in names(f))
    assert names(small) == ["tanh", "return"]
    (argument,) = small.block.args
    assert program_of(small).arguments[0] == Tensor(f32, (1, 1)), argument.type


def test_a_bad_pair_of_ops_is_found() -> None:
    def interesting(function: FuncOp) -> bool:
        return any(op.name == "graph.sub" and op.operands[1].owner.name == "graph.max" for op in producers(function))

    def producers(function: FuncOp):
        return [op for op in function.block.ops if all(hasattr(v.owner, "operands") for v in op.operands[1:])]

    small = reduce_function(network(), interesting)
    assert names(small) == ["max", "sub", "return"]


def test_outputs_strides_and_types_are_simplified() -> None:
    function = network(bf16, 4)
    from weft.ir.attributes import to_attribute

    function.attributes["arg_strides"] = to_attribute(((1, 4), None, None))
    small = reduce_function(function, lambda f: "exp" in names(f))
    assert names(small) == ["exp", "return"] and "strides" not in str(small)
    assert program_of(small).arguments[0].dtype == f32


def test_sizes_that_matter_are_kept() -> None:
    def interesting(function: FuncOp) -> bool:
        shapes = [node.params["shape"] for node in program_of(function).nodes if node.name == "graph.reshape"]
        return any(size >= 5 for shape in shapes for size in shape)

    small = reduce_function(network(rows=4), interesting)
    assert names(small) == ["reshape", "return"]
    assert 5 in program_of(small).nodes[0].params["shape"]


def test_what_does_not_fail_is_refused() -> None:
    with pytest.raises(WeftError, match="does not fail"):
        reduce_function(network(), lambda f: False)


def test_opaque_calls_and_groups_survive_the_round_trip() -> None:
    function = FuncOp.make("f", {"x": Tensor(f32, (2, 3))})
    b = GraphBuilder(function.block)
    call = b.insert(
        OpaqueOp.make("aten::sort", [function.block.args[0]], "{}", [Tensor(f32, (2, 3)), Tensor(i64, (2, 3))])
    )
    b.insert(ReturnOp.make([b.neg(call.results[0]), call.results[1]]))
    again = function_of(program_of(function))
    assert names(again) == ["opaque", "neg", "return"]
    again.verify()
    from weft.config import Config
    from weft.pipelines import compile_cpu

    grouped = network(rows=4)
    compile_cpu(grouped, Config())
    assert "group" in names(grouped)
    opened = function_of(program_of(grouped))
    opened.verify()
    assert "group" not in names(opened) and "exp" in names(opened)


def test_a_right_program_has_no_failure() -> None:
    assert examine(network()) is None
    assert examine(network(), seed=3) is None


@pytest.fixture
def broken_tanh(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler is right and the reference is not: as good as the other way round."""
    monkeypatch.setattr(REGISTRY["tanh"].cls, "reference", staticmethod(lambda x: np.tanh(x) * 1.5))


def test_a_wrong_result_is_reduced(broken_tanh: None) -> None:
    whole = examine(network())
    assert whole is not None and whole.kind == "wrong"

    def interesting(function: FuncOp) -> bool:
        found = examine(function)
        return found is not None and found.kind == "wrong"

    small = reduce_function(network(), interesting)
    assert names(small) == ["tanh", "return"]


def test_an_exception_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise KeyError("s27")

    monkeypatch.setattr(failure_module, "compile_cpu", refuse)
    found = examine(network())
    assert found == Failure("raises", "KeyError s", "KeyError: 's27'")


def test_a_crash_and_a_hang_are_contained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure_module, "compile_cpu", lambda *_: os.abort())
    assert examine_apart(network()) == Failure("crashes", "SIGABRT", "the process ends with SIGABRT")
    monkeypatch.setattr(failure_module, "compile_cpu", lambda *_: time.sleep(60))
    found = examine_apart(network(), seconds=0.5)
    assert found is not None and found.kind == "hangs"


def test_results_and_refusals_come_back_from_the_child(broken_tanh: None) -> None:
    found = examine_apart(network())
    assert found is not None and found.kind == "wrong" and "off by" in found.text

    def refuse() -> dict[str, object]:
        raise WeftError("not this one")

    assert run_apart(refuse, 10) == {"refused": "not this one"}


def test_random_inputs_fit_the_types() -> None:
    tensors = [Tensor(f32, (symbol("n"), 4)), Tensor(i64, (symbol("n"),)), Tensor(bf16, ())]
    arrays, symbols = random_inputs(tensors, 1)
    assert [array.shape for array in arrays] == [(symbols["n"], 4), (symbols["n"],), ()]
    assert arrays[1].min() >= 0 and arrays[1].max() < 4


def test_the_script_that_is_written_reproduces(tmp_path) -> None:
    from weft.tile.text import print_program
    from weft.tools.reduce import script

    function = network(rows=4)
    path = tmp_path / "again.py"
    path.write_text(script(print_program(function), Failure("wrong", "", "off by a lot"), 0, {}))
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and "it works" in done.stdout, done.stderr
