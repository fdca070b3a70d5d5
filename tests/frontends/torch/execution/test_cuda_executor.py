"""The executor for GPUs, with the processor in a GPU's place: memory, alignment, mutation, and captured calls."""

from __future__ import annotations

import json
import logging
import weakref
from typing import Any

import pytest
import torch
from torch._C._dynamo.guards import _empty_strided_cpu
from torch.fx.experimental.proxy_tensor import make_fx

import weft
from weft.backends.nvidia.code import DeviceCode, Launch, TensorMap
from weft.config import Config
from weft.errors import DeviceMemoryError, ParseError
from weft.frontends.torch import executors as torch_executors
from weft.frontends.torch.execution import cuda_executor, graph_pools
from weft.frontends.torch.execution.alignment import aligned, copied_whole
from weft.frontends.torch.execution.graph_services import TorchGraphs
from weft.frontends.torch.execution.returning import written_inputs
from weft.frontends.torch.importer.imported_graph import Calling, Returned
from weft.frontends.torch.importer.opaque import OpaqueRuntime
from weft.frontends.torch.importer.sizes import SymbolReader
from weft.ir.expr import symbol
from weft.lower.steps import CallStep, Plan
from weft.runtime.cuda import cuda_graphs
from weft.runtime.cuda.cubins import decode_code, encode_code
from weft.runtime.cuda.cuda_graphs import why_not_captured

from .processor_as_gpu import (
    ExecutorHere,
    GraphHere,
    ProgramHere,
    called,
    chain,
    compiled,
    graph_compiler,
)

pytestmark = pytest.mark.usefixtures("processor_as_gpu", "carried_out")


@pytest.fixture
def worthwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Capture whatever can be captured."""
    monkeypatch.setattr(cuda_graphs, "_REPLAY_US", -1e9)


def test_kernels_and_calls_give_what_eager_gives() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        z = (x * 2 + y).exp()
        return called(z) + z.sum(), z @ y.T

    run, (*_,) = compiled(f, cuda_graphs=False)
    x, y = torch.randn(8, 16), torch.randn(8, 16)
    with torch.no_grad():
        for _ in range(3):
            for found, expected in zip(run(x, y), f(x, y), strict=True):
                torch.testing.assert_close(found, expected)


def test_arenas_are_not_kept_between_calls() -> None:
    run, executors = compiled(lambda x: called(x.exp()).sum(0).softmax(0), cuda_graphs=False)
    with torch.no_grad():
        run(torch.randn(64, 64))
    (frame,) = executors[0].frames[()]
    assert frame.arena is None and not frame.views


class Allocations:
    """What an executor has asked memory for, and what of it is still there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[tuple[weakref.ref[torch.UntypedStorage], int]] = []
        self.peak = 0
        monkeypatch.setattr(cuda_executor, "_empty_strided_cuda", self.make)

    def make(self, *given: Any) -> torch.Tensor:
        made = _empty_strided_cpu(*given)
        self.note(made)
        return made

    def note(self, tensor: torch.Tensor) -> None:
        size = tensor.untyped_storage().nbytes()
        self.made.append((weakref.ref(tensor), size))
        self.peak = max(self.peak, self.live)

    @property
    def live(self) -> int:
        return sum(size for tensor, size in self.made if tensor() is not None)


@pytest.mark.parametrize("dynamic", [False, True])
def test_memory_that_nobody_needs_any_more_is_given_back(
    phases: None, dynamic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, executors = compiled(chain, dynamic, cuda_graphs=False)
    x = torch.randn(64, 64)
    with torch.no_grad():
        run(x)
        allocations = Allocations(monkeypatch)
        for _ in range(2):
            torch.testing.assert_close(run(x), chain(x))
    (binding,) = executors[0].executable.bindings.values()
    assert len(binding.phases) == len(binding.segments) > 5
    assert allocations.peak <= 4 * x.nbytes, "of five turns no more than one is there at a time"
    plan = executors[0].executable.plan
    assert sum(buffer.role in ("temporary", "external", "output") for buffer in plan.buffers) > 10


def test_a_profile_is_taken_of_the_same_program(phases: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_executor.TorchDevice, "time", lambda self, launch: launch() or 1)
    run, _ = compiled(chain, cuda_graphs=False)
    x = torch.randn(8, 8)
    with torch.no_grad():
        run(x)
        with weft.profile() as profile:
            torch.testing.assert_close(run(x), chain(x))
        torch.testing.assert_close(run(x), chain(x))
    assert len(profile.steps) > 5


def test_arguments_are_let_go_of_when_they_have_been_read(phases: None) -> None:
    seen: list[int] = []

    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return called(called(x.exp()).sin()) * y

    run, executors = compiled(f, cuda_graphs=False)
    with torch.no_grad():
        run(torch.randn(8, 8), torch.randn(8, 8))
    executor = executors[0]
    carry_out = executor._carry_out

    def watched(step: Any, frame: Any, held: dict[int, torch.Tensor]) -> None:
        seen.append(sum(given() is not None for given in watching))
        carry_out(step, frame, held)

    executor._carry_out = watched  # type: ignore[method-assign]
    arguments = [torch.randn(8, 8), torch.randn(8, 8)]
    x, y = arguments
    expected, watching = f(x, y), [weakref.ref(x), weakref.ref(y)]
    del x, y
    (found,) = executor.consume(arguments, {})
    torch.testing.assert_close(found, expected)
    assert seen == [1, 1] and not arguments and not any(given() for given in watching)


def test_inputs_that_are_not_aligned_are_copied() -> None:
    run, executors = compiled(lambda x: x * 2, cuda_graphs=False)
    x = torch.randn(65)[1:]
    assert x.data_ptr() % 16
    with torch.no_grad():
        torch.testing.assert_close(run(x), x * 2)
    fitted = executors[0]._input(x, x.stride())
    assert fitted.data_ptr() % 16 == 0 and torch.equal(fitted, x)


def test_copies_keep_strides_that_overlap_or_leave_gaps() -> None:
    memory = torch.randn(200)
    for view in (memory[1:].as_strided((3, 4), (10, 2)), memory[1:9].expand(5, 8), memory[1:1].reshape(0, 3)):
        copy = copied_whole(view)
        assert copy.stride() == view.stride() and torch.equal(copy, view)
    assert aligned(memory) is memory


@pytest.mark.parametrize("guarded", [True, False])
def test_one_kernel_is_launched_without_detours(guarded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    run, executors = compiled(lambda x, y: (x * y, x - 1), cuda_graphs=False, guarded=guarded)
    with torch.no_grad():
        run(torch.randn(8, 16), torch.tensor(2.0))
        longer: list[int] = []
        plain = ExecutorHere.plain
        monkeypatch.setattr(ExecutorHere, "plain", lambda self, *given: (longer.append(1), plain(self, *given))[1])
        for x in (torch.randn(8, 16), torch.randn(129)[1:].view(8, 16)):
            torch.testing.assert_close(run(x, torch.tensor(3.0)), (x * 3, x - 1))
        assert len(longer) == 1  # the one that is not aligned
        if not guarded:  # as gradients may come: in other strides than were traced
            calling = Calling((0, 1), (), SymbolReader(()), (Returned(0), Returned(1)), (), ())
            direct = executors[0].direct(calling, (), longer.append)
            x = torch.randn(16, 8).T
            torch.testing.assert_close(direct([x, torch.tensor(3.0)]), [x * 3, x - 1], check_stride=False)
            assert len(longer) == 2


def test_a_mutated_input_that_is_not_aligned_is_written_back() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x.sum()

    run, _ = compiled(f, cuda_graphs=False)
    with torch.no_grad():
        x = torch.zeros(65)[1:]
        total = run(x)
    assert total == 64 and torch.equal(x, torch.ones(64))


def test_memory_that_runs_out_is_torchs_error_and_the_next_call_works(monkeypatch: pytest.MonkeyPatch) -> None:
    run, _ = compiled(lambda x: x + 1, cuda_graphs=False)
    x = torch.ones(8)
    with torch.no_grad():
        with monkeypatch.context() as patch:

            def full(*arguments: Any) -> None:
                raise DeviceMemoryError("the kernel k cannot be launched", result="CUDA_ERROR_OUT_OF_MEMORY", number=2)

            patch.setattr(ProgramHere, "launch", full)
            with pytest.raises(torch.OutOfMemoryError, match="kernel k"):
                run(x)
        assert torch.equal(run(x), x + 1)


def test_a_static_call_is_captured_after_the_first(worthwhile: None) -> None:
    w = torch.nn.Parameter(torch.randn(16, 16))

    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = called((x @ w).relu())
        return y, y.sum(0)

    run, (*_,) = compiled(f)
    results = []
    with torch.no_grad():
        for _ in range(5):
            x = torch.randn(8, 16)
            found = run(x)
            results.append((found, f(x)))
    assert GraphHere.captures == 1
    for found, expected in results:  # all of them, at the end: no call may have changed an earlier one's results
        torch.testing.assert_close(found, expected)


def test_parameters_that_move_are_captured_again(worthwhile: None) -> None:
    w = torch.nn.Parameter(torch.randn(16))
    run, _ = compiled(lambda x: called(x * w))
    x = torch.randn(16)
    with torch.no_grad():
        for number in range(5):
            if number == 3:
                w.data = torch.randn(16)
            torch.testing.assert_close(run(x), called(x * w))
    assert GraphHere.captures == 2


def test_frozen_weights_that_change_are_captured_again(worthwhile: None, monkeypatch: pytest.MonkeyPatch) -> None:
    executors: list[ExecutorHere] = []

    def load(
        device: Any, plan: Plan, code: Any, prepare: Any, opaque: OpaqueRuntime, config: Config, calling: Calling
    ) -> ExecutorHere:
        executors.append(ExecutorHere(ProgramHere(plan, code, prepare), opaque, written=written_inputs(calling)))
        return executors[-1]

    monkeypatch.setattr(torch_executors, "_loaded_on", load)
    torch._dynamo.reset()
    module = torch.nn.Linear(16, 16)
    run = torch.compile(module, backend="weft", options={"cache": False, "freeze": True})
    x = torch.randn(4, 16)

    def change(number: int) -> None:
        match number:
            case 4:
                module.weight.mul_(2)
            case 8:
                module.weight.data = torch.randn(16, 16)
            case 12:
                module.bias.add_(1)
            case _:
                pass

    with torch.no_grad():
        for number in range(16):
            change(number)
            torch.testing.assert_close(run(x), module(x))
    assert executors[0].fixed and GraphHere.captures == 4


def test_a_captured_call_writes_over_the_users_memory(worthwhile: None) -> None:
    def f(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        cache.mul_(2).add_(x)
        return called(cache + 1)

    run, _ = compiled(f)
    still, expected = torch.zeros(32), torch.zeros(32)
    with torch.no_grad():
        for _ in range(4):  # where it lies, it stays
            x = torch.randn(32)
            torch.testing.assert_close(run(still, x), f(expected, x))
            torch.testing.assert_close(still, expected)
        for _ in range(3):  # and elsewhere each time
            moved = torch.randn(64)[:32].clone()
            copy, x = moved.clone(), torch.randn(32)
            torch.testing.assert_close(run(moved, x), f(copy, x))
            torch.testing.assert_close(moved, copy)
    assert GraphHere.captures == 2


def test_a_graph_writes_what_replaces_an_input_to_where_it_lies(worthwhile: None) -> None:
    """Statistics of a batch are not made in place: other programs of their kernel may still read the old ones."""

    def f(mean: torch.Tensor, total: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        mean.mul_(0.9).add_(called(x).mean(0), alpha=0.1)
        total.copy_(called(x.sum(0)))
        return called(x - mean)

    run, executors = compiled(f)
    kept, expected = [torch.zeros(16), torch.zeros(16)], [torch.zeros(16), torch.zeros(16)]
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(8, 16)
            version = kept[1]._version
            torch.testing.assert_close(run(*kept, x), f(*expected, x))
            torch.testing.assert_close(kept, expected)
            assert kept[1]._version > version
        (stream,) = executors[0].graphs.streams.values()
        assert executors[0].graphs.written and not stream.captured.changed
        for _ in range(2):  # and elsewhere
            kept = [tensor.clone() for tensor in kept]
            torch.testing.assert_close(run(*kept, x), f(*expected, x))
            torch.testing.assert_close(kept, expected)
    assert GraphHere.captures == 2


def test_a_graph_gives_the_old_value_of_what_it_writes_over(worthwhile: None) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        old = x.clone()
        x.copy_(called(x + y))
        return old, y.clone(), called(y)

    run, _ = compiled(f)
    kept, expected = torch.rand(16), torch.zeros(16)
    expected.copy_(kept)
    with torch.no_grad():
        for _ in range(5):
            y = torch.rand(16)
            torch.testing.assert_close(run(kept, y), f(expected, y))
            torch.testing.assert_close(kept, expected)
    assert GraphHere.captures >= 1


def test_sizes_that_change_are_not_captured(worthwhile: None) -> None:
    run, executors = compiled(lambda x: called(x + 1), dynamic=True)
    with torch.no_grad():
        for size in (4, 7, 4, 9):
            x = torch.randn(size)
            torch.testing.assert_close(run(x), called(x + 1))
    assert "change" in (executors[0].graphs.refusal or "") and GraphHere.captures == 0


@pytest.mark.parametrize("how", ["expanded", "gaps", "unaligned"])
def test_inputs_of_any_strides_are_captured(worthwhile: None, how: str) -> None:
    def given() -> torch.Tensor:
        match how:
            case "expanded":
                return torch.randn(1, 16).expand(8, 16)
            case "gaps":
                return torch.randn(8, 32)[:, ::2]
            case _:
                return torch.randn(129)[1:].view(8, 16)

    run, _ = compiled(lambda x: (called(x + 1), x.T.exp()))
    with torch.no_grad():
        for _ in range(4):
            x = given()
            torch.testing.assert_close(run(x), (called(x + 1), x.T.exp()))
    assert GraphHere.captures >= 1


def test_layers_that_share_a_program_have_graphs_of_their_own(
    worthwhile: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = [torch.nn.Parameter(torch.randn(16), requires_grad=False) for _ in range(4)]
    run, executors = compiled(lambda w, x: called(x * w))
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(16)
            for w in weights[:3]:
                torch.testing.assert_close(run(w, x), called(x * w))
        assert GraphHere.captures == 3 and executors[0].graphs.refusal is None
        monkeypatch.setattr(cuda_graphs, "_MOST_STREAMS", 3)
        torch.testing.assert_close(run(weights[3], x), called(x * weights[3]))
    assert "3 sets of weights" in (executors[0].graphs.refusal or "")


def test_streams_have_graphs_of_their_own(worthwhile: None) -> None:
    run, executors = compiled(lambda x: called(x + 1))
    x = torch.randn(16)
    with torch.no_grad():
        run(x)
        for stream in (1, 2, 1, 2, 1):
            executors[0].current = stream
            torch.testing.assert_close(run(x), called(x + 1))
    assert GraphHere.captures == 2


def test_results_of_inference_mode_do_not_bind_later_calls(worthwhile: None) -> None:
    run, _ = compiled(lambda x: called(x + 1))
    for mode in (True, True, True, False, False):
        with torch.inference_mode(mode), torch.no_grad():
            x = torch.randn(16)
            torch.testing.assert_close(run(x), called(x + 1))


def test_a_user_who_captures_gets_plain_launches(worthwhile: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    run, _ = compiled(lambda x: called(x + 1))
    with torch.no_grad():
        for _ in range(3):
            run(torch.randn(16))
    assert GraphHere.captures == 0


def test_a_graph_is_not_released_while_a_user_captures(worthwhile: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch waits for the device when a graph goes, which ends a capture; garbage is collected at any time."""
    graph = GraphHere()
    gone = weakref.ref(graph)
    kept = graph_pools.ReleasedGraph(graph)
    del graph
    with monkeypatch.context() as patch:
        patch.setattr(GraphHere, "capturing", GraphHere())
        del kept
        assert gone() is not None
    graph_pools.ReleasedGraph(GraphHere())
    assert gone() is None


def test_what_cannot_be_captured_is_logged_and_runs(
    worthwhile: None, caplog: pytest.LogCaptureFixture, monkeypatch
) -> None:
    def refuse(self: Any, **options: Any) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(GraphHere, "capture_begin", refuse)
    run, executors = compiled(lambda x: called(x + 1))
    x = torch.randn(16)
    with torch.no_grad(), caplog.at_level(logging.INFO, logger="weft"):
        for _ in range(3):
            torch.testing.assert_close(run(x), called(x + 1))
    assert "not permitted" in (executors[0].graphs.refusal or "") and "not permitted" in caplog.text


def test_after_an_invalid_capture_torchs_allocator_and_generators_are_as_before(
    worthwhile: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A capture that goes well ends what torch's generators have begun; that of new memory is such a one."""

    def invalid(self: GraphHere) -> None:
        GraphHere.capturing = None
        raise RuntimeError("operation failed due to a previous error during capture")

    given_back: list[Any] = []
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", lambda *pool: given_back.append(pool), raising=False)
    monkeypatch.setattr(torch._C, "_cuda_releasePool", lambda *pool: given_back.append(pool), raising=False)
    first, executors = compiled(lambda x: called(x + 1))
    x = torch.randn(16)
    with torch.no_grad():
        first(x)
        (stream,) = executors[0].graphs.streams.values()
        handle = stream.pool.handle
        with monkeypatch.context() as patch:
            patch.setattr(GraphHere, "capture_end", invalid)
            torch.testing.assert_close(first(x), called(x + 1))
        assert given_back == [(0, handle)] * 2 and stream.pool.handle is not handle
        assert "previous error" in (executors[0].graphs.refusal or "")
        second, executors = compiled(lambda x: called(x + 2))
        for _ in range(3):
            torch.testing.assert_close(second(x), called(x + 2))
    assert executors[0].graphs.refusal is None and GraphHere.captures == 2


def test_one_kernel_with_large_results_is_not_worth_a_graph() -> None:
    run, executors = compiled(lambda x: x + 1)
    with torch.no_grad():
        for _ in range(3):
            run(torch.randn(1 << 16))
    assert GraphHere.captures == 0 and "copies" in (executors[0].graphs.refusal or "")


def test_many_calls_with_small_results_are_worth_one() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        for _ in range(8):
            x = called(x * 2 - 1)
        return x

    run, _ = compiled(f)
    given = [torch.randn(64) for _ in range(4)]  # none lies where another one did
    with torch.no_grad():
        for x in given:
            run(x)
    assert GraphHere.captures == 1


@pytest.mark.parametrize(
    ("target", "arguments", "reason"),
    [
        ("aten::nonzero", ["#0"], "dynamic_output_shape"),
        ("aten::mul.Scalar", ["#0", {"item": "#1"}], "a number that the GPU computes"),
        ("aten::_to_copy", [{"device": "cpu"}], "another device"),
        ("higher_order::cond", [], "may do anything"),
        ("aten::rand", [[4], {"device": "cuda:0"}], None),
    ],
)
def test_calls_that_cannot_be_captured_are_found_ahead(target: str, arguments: Any, reason: str | None) -> None:
    text = json.dumps({"args": arguments, "kwargs": {}, "results": [0]})
    plan = Plan("p", (), (CallStep(target, text, (), (), target),), (), (), ())
    found = why_not_captured(plan, TorchGraphs().why_not_called)
    assert found is None if reason is None else found is not None and reason in found


def test_device_code_is_kept_as_plain_data() -> None:
    maps = (TensorMap(1, "bf16", (64, symbol("n")), (symbol("n") * 8,), (64, 128)),)
    launches = {"k": Launch(128, 1024, cluster=2, persistent=True, maps=maps), "l": Launch(32, 0)}
    code = DeviceCode("sm_90a", {"k": ".version 8.6", "l": ".version 8.7"}, launches)
    meta, blobs = encode_code(code)
    meta = json.loads(json.dumps(meta))
    assert decode_code(meta, blobs) == code
    meta["launches"][0][1]["threads"] = -1
    with pytest.raises(ParseError, match="k"):
        decode_code(meta, blobs)


@pytest.mark.parametrize(("device", "captured"), [("cuda:0", True), ("cpu", False)])
def test_seeds_are_drawn_anew_by_replays(device: str, captured: bool) -> None:
    step = CallStep("weft::seeds", json.dumps({"args": [3, {"device": device}], "kwargs": {}}), (), (0, 1, 2), "seeds")
    assert (TorchGraphs().why_not_called(step) is None) == captured


def test_what_lies_in_the_hosts_memory_is_left_there_for_the_call_that_copies_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ops: Any = torch.ops.weft

    def back(on_host: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor]:
        begun = ops.reload(on_host, x.device)
        y = x.exp()
        return (ops.reloaded(begun, on_host) * y,)

    def out(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x.exp()
        begun = ops.offload(y)
        z = y.sin()
        return z, ops.offloaded(begun, y)

    moved: list[torch.Tensor] = []
    monkeypatch.setattr(cuda_executor.TorchDevice, "moved", lambda self, array: moved.append(array) or array)
    x, on_host = torch.randn(8, 16), torch.randn(8, 16)
    monkeypatch.setattr(ExecutorHere, "_is_here", lambda self, array: array.data_ptr() != on_host.data_ptr())
    executors: list[ExecutorHere] = []
    forward = graph_compiler([])(make_fx(out)(x), [x])
    backward = graph_compiler(executors)(make_fx(back)(on_host, x), [on_host, x])
    for _ in range(3):
        for found, expected in zip(forward([x]), (x.exp().sin(), x.exp()), strict=True):
            torch.testing.assert_close(found, expected)
        torch.testing.assert_close(backward([on_host, x])[0], on_host * x.exp())
    assert not moved
    (place,) = executors[0].on_host
    assert executors[0].executable.plan.buffers[executors[0].inputs[place]].role == "input"
    assert executors[0].graphs is not None and executors[0].graphs.refusal is not None
