"""Whole calls as CUDA graphs: one launch for all kernels and library calls of a program whose sizes are known.

The first call on a stream runs as usual: libraries set themselves up. The second is captured, and it and all later ones
are replays. A replay works on fixed memory:

- an input that lies where it lay at capture (parameters, caches) is read and written there; one that has moved is
  copied into memory of the graph's, and back if the program writes over it;
- results are copied out of the graph's memory into fresh tensors, so no two calls' results share memory, and torch's
  allocator knows about each, also where another stream uses it. The graphs of a stream share one pool of memory: a
  result is copied before the next of them may run.

Copies take time, so a program is captured only if it has more launches to save than bytes to copy. Random numbers are
drawn anew in each replay: torch enters its generators into the graph.
"""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportPrivateUsage=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import json
import logging
import threading
import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from weft.frontends.torch.alignment import copied_whole, span, spanned
from weft.frontends.torch.collection import without_collection
from weft.frontends.torch.encoding import operator_named
from weft.frontends.torch.frozen import ConstantSet
from weft.lower.steps import CallStep, KernelStep, Plan
from weft.runtime.profile import active_profile

if TYPE_CHECKING:
    from weft.frontends.torch.cuda_executor import CudaExecutor

log = logging.getLogger("weft")

_MOST_CAPTURES = 4
"""Captures of one program on one stream: after that, too many of its inputs move."""

# What launches take on the processor and copies on the GPU, in microseconds: of the order of what an H200 shows.
_KERNEL_US, _CALL_US, _REPLAY_US = 1.0, 12.0, 12.0
_COPIED_BYTES_PER_US = 1.5e6

_CAPTURING = threading.Lock()
"""One capture at a time: they share a stream."""

_UNSAFE_TAGS = ("cudagraph_unsafe", "data_dependent_output", "dynamic_output_shape")


class _Pool:
    """Memory that the graphs of one stream share; the lock is held while one of them runs and is copied from.

    torch gives a pool back with its last graph, and takes its handle for no other: one of nothing keeps it.
    """

    def __init__(self, device: int) -> None:
        self.device = device
        self.lock = threading.Lock()
        self.handle, self.keeper = _new_memory(device)

    @contextmanager
    def capture(self, graph: Any) -> Generator[None]:
        """Let a graph record what is launched on the side stream, with memory of the pool's."""
        with _CAPTURING, without_collection():
            torch.cuda.synchronize(self.device)
            side = _side_stream(self.device)
            side.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(side):
                graph.capture_begin(pool=self.handle, capture_error_mode="thread_local")
                try:
                    yield
                finally:
                    try:
                        graph.capture_end()
                    except BaseException:
                        self._recover(graph)
                        raise

    def _recover(self, graph: Any) -> None:
        """Do what torch leaves undone where a capture was invalid: it gives up half-way.

        Its allocator still waits for the capture's memory, and its generators take every random number for one of the
        capture's. A capture that goes well, as that of new memory, ends this for the generators.
        """
        _FAILED.append(graph)  # torch's allocators may still ask it whether a stream is its own
        with suppress(RuntimeError):
            torch._C._cuda_endAllocateToPool(self.device, self.handle)
            torch._C._cuda_releasePool(self.device, self.handle)
        self.handle, self.keeper = _new_memory(self.device)


_FAILED: list[Any] = []
"""Graphs whose capture was invalid."""


@dataclass
class _Captured:
    """A graph, and the memory it works on."""

    graph: Any
    weights: tuple[list[int], list[int | None]]
    """Places of parameters among the arguments, and the addresses of all arguments that are such."""
    weights_at: frozenset[int]
    """Their positions among the inputs."""
    still: list[tuple[int, int]]
    """Other inputs, by position, that are read where they lie: at these addresses."""
    moving: dict[int, torch.Tensor]
    """Inputs, by position, that are copied to memory of the graph's."""
    made: list[torch.Tensor | None]
    """Results in the graph's memory; None where one is an input."""
    constants: ConstantSet | None

    def has_weights(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether all parameters are where they were. Those keep shape and strides, which tracing has guarded."""
        places, addresses = self.weights
        return _lie_at(list(tensors), addresses, places)


@dataclass
class _Stream:
    """What is known of a program's calls on one stream."""

    pool: _Pool
    pointers: list[int] | None = None
    """Where the inputs lay in the first call."""
    moving: set[int] = field(default_factory=set[int])
    captured: _Captured | None = None
    captures: int = 0


class GraphedCalls:
    """The captured calls of one program."""

    def __init__(self, executor: CudaExecutor) -> None:
        self.executor = executor
        plan = executor.executable.plan
        self.refusal: str | None = None
        self.streams: dict[int, _Stream] = {}
        self.places = {number: position for position, number in enumerate(plan.inputs)}
        self.replaced = {plan.outputs[position] for position in plan.replacing}
        if (reason := why_not_captured(plan)) is not None:
            self.refuse(reason)
            return
        binding = executor.executable.bind({})
        self.strides = [binding.strides[number] for number in plan.inputs]

    def refuse(self, reason: str) -> None:
        """Capture nothing of this program from now on."""
        if self.refusal is None:
            log.info("%s is not captured as a CUDA graph: %s", self.executor.executable.plan.name, reason)
            self.refusal = reason

    def release(self) -> None:
        """Drop all graphs and their memory."""
        self.streams = {}

    def call(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
        """The results of a replay, or None where the call has to run as usual."""
        if self.refusal is not None or active_profile() is not None or torch.cuda.is_current_stream_capturing():
            return None
        executor = self.executor
        handle = executor.stream()
        stream = self.streams.get(handle)
        if stream is None:
            stream = self.streams.setdefault(handle, _Stream(_pool(executor.index, handle)))
        with torch.no_grad(), stream.pool.lock:
            constants = executor.constants([tensors[p] for p in executor.fixed]) if executor.has_constants else None
            captured = stream.captured
            if captured is not None and captured.constants is constants and captured.has_weights(tensors):
                skipped = captured.weights_at
            else:
                captured, skipped = None, frozenset[int]()
            given = [tensors[place] for place in executor.taken]
            fitting = [
                tensor if position in skipped else executor._input(tensor, strides)
                for position, (tensor, strides) in enumerate(zip(given, self.strides, strict=True))
            ]
            if stream.pointers is None:
                stream.pointers = [tensor.data_ptr() for tensor in fitting]
                return None
            moved = self._moved(captured, stream.pointers, fitting)
            if captured is None or moved:
                stream.moving.update(moved)
                stream.captured = captured = self._capture_again(stream, tensors, fitting, constants)
            return None if captured is None else self._replay(captured, given, fitting)

    def _moved(self, captured: _Captured | None, pointers: Sequence[int], fitting: Sequence[torch.Tensor]) -> list[int]:
        """The inputs that are not where they were at capture or, without one, in the first call."""
        still = enumerate(pointers) if captured is None else captured.still
        return [position for position, pointer in still if fitting[position].data_ptr() != pointer]

    def _capture_again(
        self,
        stream: _Stream,
        tensors: Sequence[torch.Tensor],
        fitting: Sequence[torch.Tensor],
        constants: ConstantSet | None,
    ) -> _Captured | None:
        """A graph for these inputs, if it is worth its while."""
        if stream.captures >= _MOST_CAPTURES:
            self.refuse(f"its inputs have moved after {stream.captures} captures")
        elif not self._is_worthwhile([fitting[position] for position in stream.moving]):
            self.refuse("copies would take longer than launches")
        else:
            stream.captures += 1
            return self._capture(stream, tensors, fitting, constants)
        return None

    def _is_worthwhile(self, moving: Sequence[torch.Tensor]) -> bool:
        """Whether a replay, with its copies, is quicker than the launches that it stands for."""
        executable = self.executor.executable
        steps = executable.plan.steps
        kernels = sum(isinstance(step, KernelStep) for step in steps)
        saved = _KERNEL_US * kernels + _CALL_US * (len(steps) - kernels)
        binding = executable.bind({})
        made = [number for number in executable.plan.outputs if number not in self.places]
        results = sum(
            executable.plan.buffers[n].tensor.dtype.bytes * span(binding.shapes[n], binding.strides[n]) for n in made
        )
        copied = results + sum(span(tensor.shape, tensor.stride()) * tensor.itemsize for tensor in moving)
        return saved > _REPLAY_US + copied / _COPIED_BYTES_PER_US

    def _capture(
        self,
        stream: _Stream,
        tensors: Sequence[torch.Tensor],
        fitting: Sequence[torch.Tensor],
        constants: ConstantSet | None,
    ) -> _Captured | None:
        executor = self.executor
        # Memory of inference mode could not be written outside of it, where a later call may be.
        with torch.inference_mode(False), torch.no_grad():
            moving = {position: copied_whole(fitting[position]) for position in sorted(stream.moving)}
            arguments = list(tensors)
            for position, place in enumerate(executor.taken):
                arguments[place] = moving.get(position, fitting[position])
            frame = executor._frame({})
            graph = torch.cuda.CUDAGraph()
            try:
                with stream.pool.capture(graph):
                    held = executor._run(frame, arguments)
            except Exception as error:  # whatever a library does not allow while it is captured, it does when it runs
                log.warning("a CUDA graph could not be captured: %r", error)
                self.refuse(f"{type(error).__name__}: {error}")
                return None
            made = [None if number in self.places else held[number] for number in executor.returned]
            executor._leave(frame)
        unmoved = [position for position in range(len(fitting)) if position not in moving]
        given = [tensors[place] for place in executor.taken]
        weights = [n for n in unmoved if isinstance(given[n], torch.nn.Parameter) and fitting[n] is given[n]]
        places = [executor.taken[n] for n in weights]
        others = [n for n in unmoved if n not in set(weights)]
        return _Captured(
            graph,
            (places, [tensor.data_ptr() if n in set(places) else None for n, tensor in enumerate(tensors)]),
            frozenset(weights),
            [(n, fitting[n].data_ptr()) for n in others],
            moving,
            made,
            constants,
        )

    def _replay(
        self, captured: _Captured, given: Sequence[torch.Tensor], fitting: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        _copy_all([(static, fitting[position]) for position, static in captured.moving.items()])
        captured.graph.replay()
        results: list[torch.Tensor] = []
        fresh: list[tuple[torch.Tensor, torch.Tensor]] = []
        for number, static in zip(self.executor.returned, captured.made, strict=True):
            if static is not None:
                result = torch.empty_strided(static.shape, static.stride(), dtype=static.dtype, device=static.device)
                fresh.append((result, static))
            elif number in self.replaced:
                position = self.places[number]
                result, new = given[position], captured.moving.get(position, fitting[position])
                if new is not result:
                    result.copy_(new)
            else:
                result = fitting[self.places[number]].clone()
            results.append(result)
        _copy_all(fresh)
        return results


def _addresses_equal(tensors: list[torch.Tensor], addresses: list[int | None], places: list[int]) -> bool:
    return all(tensors[place].data_ptr() == addresses[place] for place in places)


# torch's own is there where it is built for CUDA; it takes a tenth of the time.
_lie_at: Any = getattr(torch._C, "_tensors_data_ptrs_at_indices_equal", _addresses_equal)


def _copy_all(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Copy tensors to others of the same strides, those of one type by one kernel."""
    by_type: dict[torch.dtype, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
    for target, source in pairs:
        targets, sources = by_type.setdefault(target.dtype, ([], []))
        targets.append(spanned(target))
        sources.append(spanned(source))
    for targets, sources in by_type.values():
        torch._foreach_copy_(targets, sources)  # pyright: ignore[reportPrivateImportUsage]


def why_not_captured(plan: Plan) -> str | None:
    """What in a program cannot be in a CUDA graph, if anything."""
    if plan.symbols:
        return f"the sizes {', '.join(plan.symbols)} change"
    for step in plan.steps:
        if isinstance(step, CallStep) and (reason := _why_not_called(step)) is not None:
            return f"{step.target} {reason}"
    return None


def _why_not_called(step: CallStep) -> str | None:
    if step.target.partition("::")[0] not in ("aten", "prims"):
        return "may do anything on the processor"
    arguments = json.loads(step.arguments)
    if _mentions(arguments, "item"):
        return "takes a number that the GPU computes"
    if _mentions(arguments, "object"):
        return "takes an object of Python's"
    if any(not device.startswith("cuda") for device in _mentions(arguments, "device")):
        return "works on another device"
    tags: Any = getattr(operator_named(step.target), "tags", ())
    unsafe = [name for name in _UNSAFE_TAGS if getattr(torch.Tag, name, None) in tags]
    return f"is {unsafe[0]}" if unsafe else None


def _mentions(value: Any, kind: str) -> list[Any]:
    """What encoded arguments hold of a kind."""
    if isinstance(value, list):
        return [found for item in value for found in _mentions(item, kind)]
    if isinstance(value, dict):
        here = [value[kind]] if kind in value else []
        return here + [found for item in value.values() for found in _mentions(item, kind)]
    return []


@lru_cache
def _side_stream(device: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


@lru_cache
def _pool(device: int, stream: int) -> _Pool:
    """The memory of all graphs of a stream; graphs of different streams may run at once, so they share none."""
    with _CAPTURING:
        return _Pool(device)


def _new_memory(device: int) -> tuple[Any, Any]:
    """The handle of a pool of memory, and the graph of nothing that keeps it."""
    handle, keeper = torch.cuda.graph_pool_handle(), torch.cuda.CUDAGraph()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*CUDA Graph is empty.*")
        with torch.cuda.graph(keeper, pool=handle, stream=_side_stream(device), capture_error_mode="thread_local"):
            pass
    return handle, keeper
