"""The processor in a GPU's place: programs, executors and graphs that work on its memory, and what tests share of them.

A module that tests it marks itself with `processor_as_gpu` and `carried_out`, fixtures by `conftest.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch._C._dynamo.guards import _empty_strided_cpu
from torch._dynamo.backends.common import aot_autograd

from weft.config import Config
from weft.frontends.torch.capture import decompositions as known_parts
from weft.frontends.torch.capture.decompositions import decompositions
from weft.frontends.torch.compiled_graph import CompiledGraph
from weft.frontends.torch.execution import cuda_executor, graph_pools, graph_services
from weft.frontends.torch.execution.copies import copy_all
from weft.frontends.torch.execution.cuda_executor import CudaExecutor
from weft.frontends.torch.execution.returning import written_inputs
from weft.frontends.torch.importer.import_graph import import_graph
from weft.frontends.torch.importer.opaque import OpaqueRuntime
from weft.lower.steps import CallStep, DotStep, Step
from weft.pipelines import compile_cpu
from weft.runtime import memory
from weft.runtime.cuda.device_program import DeviceTape
from weft.runtime.executable import Executable, launcher

called = torch.special.airy_ai
"""A function that torch carries out here."""


@pytest.fixture
def carried_out(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Weft has a form of it, which nobody may take."""
    monkeypatch.delitem(known_parts._OWN, torch.ops.aten.special_airy_ai.default)
    known_parts.decomposition_of.cache_clear()
    yield
    known_parts.decomposition_of.cache_clear()


class ProgramHere(Executable):
    """A program of the processor's that looks like a GPU's."""

    device = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        del self.launch  # the launcher's own; that of the class takes a tape

    def is_apart(self, step: Step) -> bool:
        return isinstance(step, CallStep | DotStep)

    def write_tape(self, steps: Sequence[Step], sizes: Mapping[str, int]) -> DeviceTape:
        tape = super().write_tape(steps, sizes)
        return DeviceTape(tape.words, tape.steps, tape.alone, ("k",) * len(steps))

    def launch(self, tape: DeviceTape, table: int, stream: int) -> None:  # type: ignore[override]
        launcher()(tape.address, table, 1)


class ExecutorHere(CudaExecutor):
    def __init__(self, executable: Any, opaque: OpaqueRuntime, **options: Any) -> None:
        super().__init__(executable, opaque, **options)
        self.device = self.tensors.device = torch.device("cpu")
        self.current = 0

    def stream(self) -> int:
        return self.current

    def _is_here(self, tensor: torch.Tensor) -> bool:
        return True


class GraphHere:
    """A graph that runs again what ran while it was captured."""

    capturing: GraphHere | None = None
    captures = 0

    def capture_begin(self, pool: Any, capture_error_mode: str) -> None:
        GraphHere.capturing, self.work = self, []
        GraphHere.captures += 1

    def capture_end(self) -> None:
        GraphHere.capturing = None

    def replay(self) -> None:
        for work in self.work:
            work()


@pytest.fixture
def processor_as_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def nothing(*arguments: Any):
        yield

    class Stream:
        def wait_stream(self, other: Any) -> None: ...

    monkeypatch.setattr(cuda_executor, "_empty_strided_cuda", _empty_strided_cpu)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *arguments: Stream())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: GraphHere.capturing is not None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *arguments: None)
    monkeypatch.setattr(torch.cuda, "stream", nothing)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", GraphHere)
    monkeypatch.setattr(graph_pools, "_side_stream", lambda device: Stream())
    monkeypatch.setattr(graph_pools, "_new_memory", lambda device: (object(), None))
    run_segments = ExecutorHere._run_segments

    def recorded(self: ExecutorHere, frame: Any, held: dict[int, torch.Tensor]) -> None:
        graph = GraphHere.capturing
        if graph is None:
            run_segments(self, frame, held)
            return
        arena, kept, table = frame.arena, dict(held), frame.words

        def again() -> None:
            frame.arena = arena
            run_segments(self, frame, held)
            for number, tensor in kept.items():
                if held[number] is not tensor:
                    tensor.copy_(held[number])
                    held[number] = tensor
                    table[number] = tensor.data_ptr()

        arguments = {number: tensor.clone() for number, tensor in held.items()}
        run_segments(self, frame, held)
        kept.update(held)
        for number, tensor in arguments.items():  # what is captured is not carried out
            held[number].copy_(tensor)
        graph.work.append(again)

    def copied(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        assert GraphHere.capturing is not None
        GraphHere.capturing.work.append(lambda: copy_all(pairs))

    monkeypatch.setattr(ExecutorHere, "_run_segments", recorded)
    monkeypatch.setattr(graph_services, "copy_all", copied)
    GraphHere.captures = 0


def compiled(
    function: Callable[..., Any], dynamic: bool | None = None, **options: Any
) -> tuple[Callable[..., Any], list[ExecutorHere]]:
    """A function as torch calls it, and the executors that run it.

    With `capabilities` of a GPU, torch's libraries get what they would get there.
    """
    executors: list[ExecutorHere] = []
    torch._dynamo.reset()
    backend = aot_autograd(
        fw_compiler=graph_compiler(executors, **options),
        decompositions=decompositions(),
        keep_inference_input_mutations=True,
    )
    return torch.compile(function, backend=backend, dynamic=dynamic), executors


def graph_compiler(executors: list[ExecutorHere], **options: Any) -> Callable[[Any, Any], Any]:
    """What compiles a graph, as AOTAutograd leaves it, and appends what runs it."""
    config = Config(cache=False)
    capabilities = options.pop("capabilities", None)

    def compile_graph(module: Any, inputs: Any) -> Any:
        imported = import_graph(module, "inference", config, {}, capabilities)
        made = compile_cpu(imported.function, config)
        program = ProgramHere(made.plan, made.code, made.prepare)
        written = written_inputs(imported.calling)
        executors.append(ExecutorHere(program, OpaqueRuntime(imported.objects), written=written, **options))
        return CompiledGraph(imported.calling, imported.constants, executors[-1]).shortest()

    return compile_graph


@pytest.fixture(name="phases")
def phased(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give memory back between segments, however little it is."""
    monkeypatch.setattr(memory, "_WORTH", 0)
    monkeypatch.setattr(memory, "_WORTH_SHARE", 0.0)
    monkeypatch.setattr(ProgramHere, "by_phases", True)


def chain(x: torch.Tensor) -> torch.Tensor:
    """Calls that torch carries out, with kernels between them: what each gives is read once."""
    for _ in range(5):
        x = called(x.cos() + 1) * 2 + x.sin()
    return x
