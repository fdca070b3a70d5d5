"""Compiling and calling from many threads at once, and on both sides of a fork."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn

from weft.config import Config
from weft.frontends.torch.backend import compile_graph

T = torch.Tensor
THREADS = 8
GRAPHS = 20


def graph(number: int) -> Callable[[T], T]:
    """One of many functions that compile to different code."""
    scale, power = 1.0 + number / 7, number % 3 + 1

    def function(x: T) -> T:
        y = x * scale
        for _ in range(power):
            y = torch.tanh(y) + x
        return torch.softmax(y, -1) @ x.t() if number % 2 else y.sum(-1) / scale

    return function


def captured(function: Callable[..., Any], *arguments: Any) -> torch.fx.GraphModule:
    from torch.fx.experimental.proxy_tensor import make_fx

    return make_fx(lambda *given: [function(*given)], tracing_mode="fake")(*arguments)


def test_threads_compile_as_one_does() -> None:
    """The backend itself, without the lock under which torch.compile traces."""
    x = torch.randn(6, 6, dtype=torch.float64)
    config = Config(cache=False)
    modules = {n: captured(graph(n), x) for n in range(THREADS * GRAPHS)}

    def compiled(number: int) -> T:
        return compile_graph(modules[number], [x], name="inference", config=config)([x])[0]

    start = threading.Barrier(THREADS)

    def work(thread: int) -> list[T]:
        start.wait()
        return [compiled(thread * GRAPHS + n) for n in range(GRAPHS)]

    with ThreadPoolExecutor(THREADS) as pool:
        together = [result for results in pool.map(work, range(THREADS)) for result in results]
    for number, result in enumerate(together):
        torch.testing.assert_close(result, graph(number)(x))
    for number in range(0, THREADS * GRAPHS, 9):  # the same code, bit for bit
        assert torch.equal(compiled(number), together[number])


def test_threads_use_torch_compile_at_once() -> None:
    x = torch.randn(5, 5, dtype=torch.float64)

    def work(thread: int) -> list[T]:
        # Whether FX traces is a flag of the process: torch takes another thread's tracing for this one's, and refuses.
        with torch._dynamo.config.patch(error_on_nested_fx_trace=False):
            return [torch.compile(graph(thread * 3 + n), backend="weft", dynamic=False)(x) for n in range(3)]

    with ThreadPoolExecutor(THREADS) as pool:
        results = [result for each in pool.map(work, range(THREADS)) for result in each]
    for number, result in enumerate(results):
        torch.testing.assert_close(result, graph(number)(x))


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_one_compiled_function_in_many_threads(training: bool) -> None:
    """Every call has memory of its own; some calls are large enough to run in parallel themselves."""
    model = nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.LayerNorm(96), nn.Linear(96, 8)).double()
    run = torch.compile(model, backend="weft", dynamic=True)
    inputs = [torch.randn(300 + 10 * n, 64).double() for n in range(THREADS)]

    def step(function: Callable[[T], T], x: T) -> list[T]:
        with torch.set_grad_enabled(training):
            y = function(x)
            return list(torch.autograd.grad(y.square().mean(), list(model.parameters()))) if training else [y]

    expected = [step(model, x) for x in inputs]
    step(run, inputs[0])

    def work(thread: int) -> list[list[T]]:
        return [step(run, inputs[thread]) for _ in range(6)]

    with ThreadPoolExecutor(THREADS) as pool:
        for number, results in enumerate(pool.map(work, range(THREADS))):
            for result in results:
                torch.testing.assert_close(result, expected[number])


def in_child(work: Callable[[], None], seconds: int = 60) -> int:
    """The exit status of a forked child that does the work; a child that hangs is killed."""
    sys.stdout.flush()
    tracer = sys.gettrace()
    sys.settrace(None)  # a tool that measures coverage may hold a lock of its own in another thread
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(seconds)
            work()
            status = 0
        except BaseException as error:
            os.write(2, f"{error!r}\n".encode()[:2000])
        finally:
            os._exit(status)
    sys.settrace(tracer)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.fixture
def busy_pool() -> None:
    """The parent has used the pool of threads: that is what a child cannot inherit."""
    torch.randn(1 << 20).sum()
    torch.compile(lambda x: x.exp() + 1, backend="weft")(torch.randn(1 << 20))


@pytest.mark.usefixtures("busy_pool")
def test_a_forked_child_calls_and_compiles() -> None:
    x = torch.randn(400, 400)
    expected = (torch.softmax(x, -1) * 2 + 1).sum(0), (x.sin() + x.cos()).mean()
    run = torch.compile(lambda x: (torch.softmax(x, -1) * 2 + 1).sum(0), backend="weft")
    torch.testing.assert_close(run(x), expected[0])

    def work() -> None:
        torch.testing.assert_close(run(x), expected[0])
        fresh = torch.compile(lambda x: (x.sin() + x.cos()).mean(), backend="weft", options={"cache": False})
        torch.testing.assert_close(fresh(x), expected[1])

    assert in_child(work) == 0
    torch.testing.assert_close(run(x), expected[0])


@pytest.mark.usefixtures("busy_pool")
def test_a_forked_child_may_call_libraries() -> None:
    x = torch.randn(500, 500)
    x @ x  # the library's own threads are up
    run = torch.compile(lambda x: torch.linalg.vecdot(x @ x, x).relu() + x.sort(-1).values.sum(), backend="weft")
    expected = run(x)
    assert in_child(lambda: torch.testing.assert_close(run(x), expected)) == 0


@pytest.mark.usefixtures("busy_pool")
def test_a_forked_child_of_a_child() -> None:
    x = torch.randn(64)
    run = torch.compile(lambda x: x * 2 + 1, backend="weft")
    expected = run(x)
    assert in_child(lambda: in_child(lambda: torch.testing.assert_close(run(x), expected)) and 1 / 0) == 0


def test_fork_while_another_thread_compiles() -> None:
    """The child must not inherit a lock that nobody will release."""
    x = torch.randn(6, 6, dtype=torch.float64)
    config = Config(cache=False)
    modules = [captured(graph(n), x) for n in range(12)]
    stop = threading.Event()

    def compiling() -> None:
        number = 0
        while not stop.is_set():
            compile_graph(modules[number % 12], [x], name="inference", config=config)
            number += 1

    threads = [threading.Thread(target=compiling) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for number in range(6):
            time.sleep(0.03)

            def work(number: int = number) -> None:
                result = compile_graph(modules[number], [x], name="inference", config=config)([x])[0]
                torch.testing.assert_close(result, graph(number)(x))

            assert in_child(work) == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _doubled(run: Callable[[T], T], numbers: Any, results: Any) -> None:
    torch.set_num_threads(1)
    for number in iter(numbers.get, None):
        results.put((number, run(torch.full((8,), float(number))).sum().item()))


def test_worker_processes_share_a_compiled_function() -> None:
    run = torch.compile(lambda x: x * 2 + 1, backend="weft")
    run(torch.ones(8))
    context = multiprocessing.get_context("fork")
    numbers, results = context.SimpleQueue(), context.SimpleQueue()
    workers = [context.Process(target=_doubled, args=(run, numbers, results), daemon=True) for _ in range(3)]
    for worker in workers:
        worker.start()
    for number in [*range(20), *[None] * len(workers)]:
        numbers.put(number)
    found = dict(results.get() for _ in range(20))
    for worker in workers:
        worker.join(30)
    assert found == {number: 8 * (2.0 * number + 1) for number in range(20)}


class Squares(torch.utils.data.Dataset[T]):
    """Items made by a compiled function."""

    def __init__(self) -> None:
        self.square = torch.compile(lambda x: x * x, backend="weft")
        self.square(torch.ones(3))

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> T:
        return self.square(torch.full((3,), float(index)))


def test_a_data_loader_with_workers() -> None:
    loader = torch.utils.data.DataLoader(Squares(), batch_size=4, num_workers=2, multiprocessing_context="fork")
    run = torch.compile(lambda x: x.sum(1), backend="weft")
    sums = torch.cat([run(batch) for batch in loader])
    assert sums.tolist() == [3.0 * n * n for n in range(12)]


@pytest.fixture(autouse=True)
def same_threads() -> Generator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_the_number_of_threads_follows_torch() -> None:
    x = torch.randn(1 << 18)
    run = torch.compile(lambda x: torch.tanh(x) * 2, backend="weft")
    expected = run(x)
    for threads in (1, 3, 2):
        torch.set_num_threads(threads)
        assert torch.equal(run(x), expected)
