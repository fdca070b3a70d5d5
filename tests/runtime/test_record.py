"""Records of compilations: one for each, on any thread, and only programs where someone asks."""

from __future__ import annotations

import threading

import pytest

from weft.config import Config
from weft.errors import LoweringError
from weft.ir.types import Tensor, f32
from weft.ops.graph import FuncOp, GraphBuilder, ReturnOp
from weft.pipelines import compile_cpu
from weft.runtime.record import Fallback, compilation, is_recording, note_fallback_here, recording


def function(name: str = "twice") -> FuncOp:
    made = FuncOp.make(name, {"x": Tensor(f32, (4, 8))})
    b = GraphBuilder(made.block)
    b.insert(ReturnOp.make([b.exp(b.exp(made.block.args[0]))]))
    return made


def test_stages_and_kernels() -> None:
    with recording() as records:
        compiled = compile_cpu(function(), Config())
    assert records == [compiled.report]
    (record,) = records
    assert record.name == "twice" and record.ops == 2 and record.arguments == {"x": "4x8xf32"}
    assert [(kernel.label, kernel.uses) for kernel in record.kernels] == [("exp_exp", 1)]
    assert record.launches == 1 and record.kernels[0].schedule.startswith("#pointwise")
    assert "llvm" in record.seconds and record.programs == {}
    assert "plan" not in record.figures()


def test_programs_are_kept_where_asked() -> None:
    with recording() as plain, recording(programs=True) as full:
        compile_cpu(function(), Config())
    assert plain == full
    assert list(full[0].programs) == ["graph", "grouped", "tile", "llvm"]
    assert "graph.group" not in full[0].programs["graph"] and "graph.group" in full[0].programs["grouped"]


def test_nothing_is_kept_outside() -> None:
    assert not is_recording()
    with recording() as records:
        assert is_recording()
    compile_cpu(function(), Config())
    assert records == [] and not is_recording()


def test_compilations_inside_another_add_to_its_record() -> None:
    with recording() as records, compilation("outer") as outer:
        outer.measure("import", 0.0)
        note_fallback_here(Fallback("aten.svd", "a.py:1", "no converter"))
        compile_cpu(function(), Config())
    assert records == [outer]
    assert outer.fallbacks[0].target == "aten.svd" and {"import", "llvm"} <= set(outer.seconds)


def test_a_failure_is_recorded() -> None:
    with recording() as records, pytest.raises(LoweringError), compilation("broken"):
        raise LoweringError("no kernel for this")
    assert records[0].error is not None and "no kernel for this" in records[0].error


def test_other_threads_are_recorded_too() -> None:
    with recording() as records:
        threads = [threading.Thread(target=compile_cpu, args=(function(name), Config())) for name in ("a", "b")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(record.name for record in records) == ["a", "b"]
