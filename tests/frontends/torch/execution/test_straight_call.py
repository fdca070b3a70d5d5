"""Calls of programs on a GPU without loops, with the processor in a GPU's place: they do what the executor's own do."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch

import weft
from weft.backends.nvidia.target import target_of_capability
from weft.errors import DeviceMemoryError
from weft.frontends.torch.execution import cuda_executor
from weft.frontends.torch.execution.returning import picked_from
from weft.frontends.torch.execution.straight_call import straight_call
from weft.frontends.torch.importer.imported_graph import Number, Passed, Returned
from weft.ir.expr import symbol

from .processor_as_gpu import (
    ExecutorHere,
    ProgramHere,
    called,
    chain,
    compiled,
)

pytestmark = pytest.mark.usefixtures("processor_as_gpu", "carried_out")

GPU = target_of_capability(9, 0, 132).capabilities


@pytest.fixture
def longer(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The programs of calls that go the executor's own way."""
    seen: list[str] = []
    plain = ExecutorHere.plain

    def noted(self: ExecutorHere, tensors: list[torch.Tensor], symbols: Any) -> list[torch.Tensor]:
        seen.append(self.executable.plan.name)
        return plain(self, tensors, symbols)

    monkeypatch.setattr(ExecutorHere, "plain", noted)
    return seen


@pytest.fixture(params=[False, True])
def either(request: pytest.FixtureRequest) -> None:
    """With one arena for the whole program, and with memory that is given back between segments."""
    if request.param:
        request.getfixturevalue("phases")


def mixed(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Kernels, products, operators that give new tensors, and others."""
    z = torch.nn.functional.conv2d(x.sin(), w * 2, padding=1)
    a = (z * y).relu()
    m = called(a.mean((2, 3)) @ y[:, :, 0, 0].t())
    g = torch.ops.aten.convolution_backward.default(
        a, x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False]
    )
    return m, a.sum(1), g[0].cos(), g[1] + 1, z


@pytest.mark.parametrize("channels_last", [False, True])
def test_kernels_and_calls_give_what_eager_gives(either: None, channels_last: bool, longer: list[str]) -> None:
    run, executors = compiled(mixed, cuda_graphs=False, guarded=True, capabilities=GPU)
    for turn in range(4):
        x, y, w = torch.randn(3, 4, 7, 5), torch.randn(3, 6, 7, 5), torch.randn(6, 4, 3, 3)
        if channels_last:
            x, y, w = (each.contiguous(memory_format=torch.channels_last) for each in (x, y, w))
        with torch.no_grad():
            expected = mixed(x.double(), y.double(), w.double())
            for found, exact in zip(run(x, y, w), expected, strict=True):
                torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-4)
        assert len(longer) == 1, "the first call alone goes the longer way"
        assert turn == 0 or len(executors[0].frames[()]) == 1
    targets = {getattr(segment, "target", "") for segment in executors[0].executable.bind({}).segments}
    assert {"aten::convolution", "aten::convolution_backward"} <= targets


def test_inputs_that_lie_otherwise_go_the_longer_way(either: None, longer: list[str]) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return called(x + 1) * y

    run, executors = compiled(f, cuda_graphs=False)  # as backward graphs are: nobody has guarded their inputs
    x, y = torch.randn(6, 5), torch.randn(6, 5)
    with torch.no_grad():
        for _ in range(2):
            run(x, y)
    (call,) = (straight_call(executor) for executor in executors)
    assert call is not None and len(longer) == 1

    def given(x: torch.Tensor) -> torch.Tensor:
        (found,) = call([x, y])
        torch.testing.assert_close(found, f(x, y))
        return found

    with torch.no_grad():
        given(x.clone())
        assert len(longer) == 1
        given(torch.randn(31)[1:].view(6, 5))
        assert len(longer) == 2, "it is not aligned"
        given(torch.randn(5, 6).t())
        assert len(longer) == 3, "it lies in other strides"


def test_strides_of_dimensions_of_size_one_may_be_any(longer: list[str]) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.conv2d(x * 2, w)

    run, executors = compiled(f, cuda_graphs=False, capabilities=GPU)
    x, w = torch.randn(2, 8, 3, 3), torch.randn(4, 8, 1, 1)
    with torch.no_grad():
        run(x, w)
        call = straight_call(executors[0])
        assert call is not None
        for strides in ((8, 1, 8, 8), (8, 1, 1, 1), (8, 1, 77, 5)):
            other = w.as_strided(w.shape, strides)
            torch.testing.assert_close(call([x, other]), [f(x, w)])
    assert len(longer) == 1


def test_what_nobody_reads_any_more_is_let_go_of(phases: None) -> None:
    alive: list[int] = []

    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return called(called(x.exp()).sin()) * y

    run, executors = compiled(f, cuda_graphs=False)
    x, y = torch.randn(8, 8), torch.randn(8, 8)
    with torch.no_grad():
        run(x, y)
    expected = f(x, y)
    executor, watching = executors[0], [weakref.ref(x), weakref.ref(y)]
    launch = executor.executable.launch

    def watched(*given: Any) -> None:
        alive.append(sum(each() is not None for each in watching))
        launch(*given)

    executor.executable.launch = watched  # type: ignore[method-assign]
    call, arguments = straight_call(executor), [x, y]
    assert call is not None
    del x, y
    (found,) = call(arguments)
    torch.testing.assert_close(found, expected)
    assert alive == [2, 1, 1] and not arguments and not any(each() for each in watching)


def test_results_have_no_gradients(either: None) -> None:
    run, executors = compiled(lambda x, w: called(x + w) * w, cuda_graphs=False)
    x, w = torch.randn(4, 4), torch.randn(4, 4)
    with torch.no_grad():
        run(x, w)
    call = straight_call(executors[0])
    assert call is not None and torch.is_grad_enabled()
    (found,) = call([x, w.requires_grad_()])
    assert not found.requires_grad and torch.is_grad_enabled()
    torch.testing.assert_close(found, (called(x + w) * w).detach())


def test_a_function_goes_with_its_last_reference() -> None:
    run, executors = compiled(chain, cuda_graphs=False)
    with torch.no_grad():
        run(torch.randn(8, 8))
    program = executors[0].executable

    def launch(*given: Any) -> None: ...

    program.launch, kept = launch, weakref.ref(launch)  # type: ignore[method-assign]
    call = straight_call(executors[0])
    assert call is not None
    del launch, program.launch
    gc.collect()
    gc.disable()
    try:
        assert kept() is not None
        del call
        assert kept() is None, "no collection of garbage is waited for"
    finally:
        gc.enable()


def test_memory_that_runs_out_is_torchs_error_and_the_next_call_works(monkeypatch: pytest.MonkeyPatch) -> None:
    executable_launch, is_full = ProgramHere.launch, [False]

    def launch(self: ProgramHere, *given: Any) -> None:
        if is_full[0]:
            raise DeviceMemoryError("the kernel k cannot be launched", result="CUDA_ERROR_OUT_OF_MEMORY", number=2)
        executable_launch(self, *given)

    monkeypatch.setattr(ProgramHere, "launch", launch)
    run, _ = compiled(chain, cuda_graphs=False)
    x = torch.randn(8, 8)
    with torch.no_grad():
        for is_full[0] in (False, False, True, False):
            if is_full[0]:
                with pytest.raises(torch.OutOfMemoryError, match="kernel k"):
                    run(x)
            else:
                torch.testing.assert_close(run(x), chain(x))


def test_profiled_calls_go_the_longer_way(longer: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_executor.TorchDevice, "time", lambda self, launch: launch() or 1)
    run, _ = compiled(chain, cuda_graphs=False)
    x = torch.randn(8, 8)
    with torch.no_grad():
        for _ in range(2):
            run(x)
        with weft.profile() as profile:
            torch.testing.assert_close(run(x), chain(x))
    assert len(longer) == 2 and len(profile.steps) > 5


def test_constants_of_the_program_are_there(either: None, longer: list[str]) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return called(x + 1) @ torch.arange(16.0).view(4, 4).sin()

    run, executors = compiled(f, cuda_graphs=False)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(4, 4)
            torch.testing.assert_close(run(x), f(x))
    assert executors[0].has_constants and len(longer) == 1


def test_outputs_are_found_where_they_stand() -> None:
    outputs = (Returned(1), Passed(0), Number(None), Number(3), Returned(0))
    pick = picked_from(outputs)
    first, second, passed = torch.zeros(1), torch.ones(1), torch.ones(2)
    assert pick is not None
    assert all(
        found is expected
        for found, expected in zip(pick([first, second], [passed]), [second, passed, None, 3, first], strict=True)
    )
    assert picked_from((Returned(0), Returned(1, True))) is None, "it has to be made of its parts"
    assert picked_from((Number(symbol("n")),)) is None, "it is another number in other calls"


def test_numbers_that_only_calls_read_stay_where_they_are(longer: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """As seeds of attention, which tracing takes for tensors on the GPU."""

    def f(x: torch.Tensor, seed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return called(x + scale) * called(seed) + 1

    run, executors = compiled(f, cuda_graphs=False)
    x, seed, scale = torch.randn(6, 5), torch.tensor(0.5), torch.tensor(2.0)
    here = {seed.data_ptr(): False}
    monkeypatch.setattr(ExecutorHere, "_is_here", lambda self, tensor: here.get(tensor.data_ptr(), True))
    monkeypatch.setattr(cuda_executor.TorchDevice, "moved", lambda self, array: pytest.fail("it is moved"))
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(run(x, seed, scale), f(x, seed, scale))
    assert len(longer) == 1, "the first call alone goes the longer way"
    assert len(executors[0].on_host) == 1
