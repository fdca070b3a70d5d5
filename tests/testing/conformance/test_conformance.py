"""The conformance run: each verdict comes out where it should, and neither an abort nor a hang ends the run."""

import json
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func

from weft.errors import WeftError
from weft.testing.conformance import conformance, opinfo_cases
from weft.testing.conformance.conformance import run_opinfo
from weft.testing.conformance.identity import WHOLE_GRAPH, identity_backend, is_core, record_identity_targets

FAULTY = """
import os, time
import torch

def aborts_on_sin(graph_module, inputs):
    if any(node.target in (torch.sin, torch.Tensor.sin) for node in graph_module.graph.nodes):
        print("LLVM ERROR: Cannot select", file=__import__("sys").stderr, flush=True)
        os.abort()
    return graph_module.forward

def hangs(graph_module, inputs):
    time.sleep(600)
"""


def changed_by(change):
    """An AOT backend that runs graphs as they are, and then changes the results."""

    def compiler(graph_module, inputs):
        return make_boxed_func(lambda *args: change(graph_module(*args)))

    return aot_autograd(fw_compiler=compiler)


def off_by_a_bit(results):
    return [r * (1 + 1e-4) if isinstance(r, torch.Tensor) and r.is_floating_point() else r for r in results]


def statuses(report):
    return {result.status for result in report.results}


def test_a_right_backend_passes():
    seen = []
    report = run_opinfo(
        "aot_eager", ops=["sin", "nn.functional.dropout"], jobs=0, on_progress=lambda *step: seen.append(step)
    )
    assert report.ok
    assert statuses(report) == {"passed"}
    assert len(report.results) == len(seen) == 3
    assert seen[-1][1:] == (2, 2)
    assert "3 cases, 3 passed, 0 wrong" in str(report)


@pytest.mark.parametrize("op", ["sin", "matmul", "softmax"])
def test_a_small_error_is_wrong(op):
    report = run_opinfo(changed_by(off_by_a_bit), ops=[op], samples=1, jobs=0)
    assert statuses(report) == {"wrong"}
    assert "inference: " in report.to_json()["wrong_cases"][0]
    assert not report.ok


def test_a_wrong_gradient_is_wrong():
    backend = aot_autograd(
        fw_compiler=lambda graph_module, _: make_boxed_func(graph_module.forward),
        bw_compiler=lambda graph_module, _: make_boxed_func(lambda *args: off_by_a_bit(graph_module(*args))),
    )
    report = run_opinfo(backend, ops=["sin"], samples=1, jobs=0)
    assert report.results[0].status == "wrong"
    assert report.results[0].reason.startswith("training: ")
    assert run_opinfo(backend, ops=["sin"], samples=1, gradients=False, jobs=0).ok


def test_a_changed_input_is_wrong():
    def backend(graph_module, inputs):
        def run(*args):
            results = graph_module(*args)
            for arg in args:
                arg.detach().zero_()
            return results

        return run

    assert statuses(run_opinfo(backend, ops=["sin"], samples=1, gradients=False, jobs=0)) == {"wrong"}


def in_float32(factor=1.0):
    """An AOT backend that computes in float32 what is given in half precision, and rounds once."""

    def compiler(graph_module, inputs):
        def run(*args):
            results = graph_module(*(a.float() if a.dtype == torch.bfloat16 else a for a in args))
            return [(r * factor).bfloat16() if r.dtype == torch.float32 else r for r in results]

        return make_boxed_func(run)

    return aot_autograd(fw_compiler=compiler)


@pytest.mark.parametrize(("factor", "status"), [(1.0, "passed"), (1.19, "wrong")])
def test_where_eager_is_far_off_two_ulp_of_float64_are_right_and_twice_its_error_is_not(factor, status):
    # Eager rounds the coordinates of grid sampling to bfloat16: its own error is 6 to 10 % of the result.
    report = run_opinfo(in_float32(factor), ["bfloat16"], ops=["grid_sampler_2d"], samples=1, gradients=False, jobs=0)
    assert statuses(report) == {status}


def test_where_eager_is_far_off_two_ulp_of_eager_are_right():
    def off_by(ulps):
        def change(results):
            step = ulps * torch.finfo(torch.bfloat16).eps
            return [r + (step * r.abs().max()).to(r.dtype) * (r.abs() < r.abs().max() / 2) for r in results]

        return aot_autograd(
            fw_compiler=lambda graph_module, _: make_boxed_func(graph_module.forward),
            bw_compiler=lambda graph_module, _: make_boxed_func(lambda *args: change(graph_module(*args))),
        )

    for ulps, status in ((1, "passed"), (8, "wrong")):
        report = run_opinfo(off_by(ulps), ["bfloat16"], ops=["logcumsumexp"], samples=2, jobs=0)
        assert report.results[1].status == status


def test_random_numbers_must_be_eagers():
    assert run_opinfo("aot_eager", ops=["bernoulli"], samples=1, jobs=0).ok
    backend = changed_by(lambda results: [torch.bernoulli(torch.full_like(r, 0.5)) for r in results])
    for dtype in ("float32", "bfloat16"):
        assert statuses(run_opinfo(backend, [dtype], ops=["bernoulli"], samples=1, jobs=0)) == {"wrong"}


@pytest.mark.parametrize(("ulps", "status"), [(1, "passed"), (16, "wrong")])
def test_what_is_made_of_random_numbers_in_half_precision_is_judged_by_float32(ulps, status):
    def change(results):
        step = ulps * torch.finfo(torch.bfloat16).eps
        return [r + (step * r.abs().max()).to(r.dtype) * (r.abs() < r.abs().max() / 4) for r in results]

    op = "nn.functional.feature_alpha_dropout"
    report = run_opinfo(changed_by(change), ["bfloat16"], ops=[op], gradients=False, jobs=0)
    assert {r.status for r in report.results if "with_train" in r.op and r.sample == 1} == {status}


def test_values_that_are_not_defined_are_not_compared():
    report = run_opinfo(changed_by(lambda results: [torch.rand_like(r) for r in results]), ops=["empty_like"], jobs=0)
    assert report.ok


def test_an_exception_is_an_error_and_a_failure_of_eager_is_skipped():
    def backend(graph_module, inputs):
        raise NotImplementedError("no such kernel")

    report = run_opinfo(backend, ops=["sin", "jiterator_unary"], samples=1, jobs=0)
    assert [(result.op, result.status) for result in report.results] == [
        ("jiterator_unary", "skipped"),
        ("sin", "error"),
    ]
    assert "no such kernel" in report.to_json()["error_cases"][0]


def test_what_the_identity_backend_cannot_do_does_not_count(monkeypatch):
    monkeypatch.setattr(opinfo_cases, "identity_backend", lambda: changed_by(off_by_a_bit))
    assert statuses(run_opinfo(changed_by(off_by_a_bit), ops=["sin"], jobs=0)) == {"skipped"}
    assert statuses(run_opinfo("aot_eager", ops=["sin"], jobs=0)) == {"passed"}


def refusing_backend(graph_module, inputs, *, options=None):
    """A backend that has every core op but sin: it runs that one as it is, or refuses it when strict."""

    def compiler(aten, _):
        seen = {str(node.target) for node in aten.graph.nodes if node.op == "call_function"}
        refusing_backend.record.seen |= seen
        refusing_backend.record.opaque |= seen & {"aten.sin.default"}
        if options and options["strict"] and "aten.sin.default" in seen:
            raise NotImplementedError("sin")
        return make_boxed_func(aten.forward)

    return aot_autograd(fw_compiler=compiler)(graph_module, inputs)


@contextmanager
def record_targets():
    refusing_backend.record = SimpleNamespace(seen=set(), opaque=set())
    yield refusing_backend.record


@pytest.mark.parametrize(("strict", "refused"), [(False, 0), (True, 1)])
def test_native_targets_are_those_never_opaque(monkeypatch, strict, refused):
    monkeypatch.setattr(opinfo_cases, "resolve", lambda name: record_targets)
    report = run_opinfo(
        refusing_backend, ops=["sin", "cos"], samples=1, gradients=False, strict=strict, jobs=0, recorder="x"
    )
    assert report.core_targets == ("aten.cos.default", "aten.sin.default")
    assert report.native_targets == ("aten.cos.default",)
    assert report.other_targets == ("aten.sin.default",)
    assert report.ok
    figures = report.to_json()
    assert (figures["cases"], figures["refused"], figures["native_targets"], figures["core_targets"]) == (
        2,
        refused,
        1,
        2,
    )
    assert figures["not_native"] == ["aten.sin.default"]
    assert report.target_counts()["aten.cos.default"] == 1


def test_a_graph_left_to_torch_has_no_native_targets(monkeypatch):
    @contextmanager
    def leaves_all_to_torch():
        yield SimpleNamespace(seen={"aten.sin.default"}, opaque={WHOLE_GRAPH})

    monkeypatch.setattr(opinfo_cases, "resolve", lambda name: leaves_all_to_torch)
    report = run_opinfo("aot_eager", ops=["sin"], samples=1, gradients=False, jobs=0, recorder="x")
    assert (report.core_targets, report.native_targets) == (("aten.sin.default",), ())


def test_strides_that_differ_are_told():
    report = run_opinfo(
        changed_by(lambda results: [r.t().contiguous().t() if r.dim() == 2 else r for r in results]),
        ops=["sin"],
        gradients=False,
        jobs=0,
    )
    assert report.ok
    assert report.to_json()["stride_differences"] == ["sin[float32, 0]"]


def test_the_identity_backend_records_core_targets():
    with record_identity_targets() as record:
        torch.compile(lambda x: x.sin().cumsum(0), backend=identity_backend())(torch.ones(3))
    assert record.seen == {"aten.sin.default", "aten.cumsum.default"}
    assert not record.opaque
    assert is_core("aten.sin.default")
    assert not is_core("aten.sinc.default")
    assert not is_core("aten.no_such_op.default")
    assert not is_core("getitem")


def test_operators_can_be_chosen_by_shard_and_dtype():
    whole = conformance.units(("float32", "int64"), ["sin", "cos", "add"])
    assert [(unit.op, unit.dtype) for unit in whole[:2]] == [("add", "float32"), ("cos", "float32")]
    assert len(whole) == 6
    report = run_opinfo("identity", dtypes=("int64",), ops=["sin", "cos", "add"], shard=(1, 2), samples=1, jobs=0)
    assert [(result.op, result.dtype) for result in report.results] == [("cos", "int64")]


def test_a_callable_needs_this_process():
    with pytest.raises(WeftError, match="jobs=0"):
        run_opinfo(lambda graph_module, inputs: graph_module, jobs=2)


@pytest.fixture
def faulty_backends(tmp_path, monkeypatch):
    (tmp_path / "faulty_backends.py").write_text(FAULTY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    return tmp_path


def test_an_abort_costs_one_case(faulty_backends):
    log = faulty_backends / "results.jsonl"
    report = run_opinfo(
        "faulty_backends:aborts_on_sin", ops=["cos", "sin"], samples=1, gradients=False, jobs=1, log=log
    )
    assert [(result.op, result.status) for result in report.results] == [("cos", "passed"), ("sin", "error")]
    assert report.results[1].reason == "the process ended with signal SIGABRT: LLVM ERROR: Cannot select"
    assert sorted(json.loads(line)["op"] for line in log.read_text().splitlines()) == ["cos", "sin"]


def test_a_hang_is_ended(faulty_backends):
    report = run_opinfo("faulty_backends:hangs", ops=["cos"], samples=1, gradients=False, jobs=1, time_limit=10)
    assert [(result.status, result.reason) for result in report.results] == [("error", "ended after 10 s")]
