"""Whole calls as CUDA graphs: one launch for all kernels and library calls of a program whose sizes are known.

The first call on a stream runs as usual: libraries set themselves up. The second is captured, and it and all later ones
are replays. A replay works on fixed memory:

- an input that lies where it lay at capture (parameters, caches) is read and written there; one that has moved is
  copied into memory of the graph's, and back if the program writes over it;
- results are copied out of the graph's memory into fresh arrays, so no two calls' results share memory, and the
  allocator knows about each, also where another stream uses it. The graphs of a stream share one pool of memory: a
  result is copied before the next of them may run.

Copies take time, so a program is captured only if it has more launches to save than bytes to copy. How a graph is
captured, with memory of which allocator, and what of a framework's calls cannot be, `GraphServices` says: torch enters
its generators into a graph, so that random numbers are drawn anew in each replay.
"""

# An executor and its graphs are one thing in two files.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol

from weft.diagnostics import warn
from weft.lower.steps import CallStep, KernelStep, Plan, inner_steps
from weft.runtime.array_adapter import ArrayT
from weft.runtime.constant_sets import ConstantSet
from weft.runtime.cuda.device_executor import DeviceExecutor
from weft.runtime.profile import active_profile
from weft.runtime.strides import lies_dense, span

log = logging.getLogger("weft")

_MOST_CAPTURES = 4
"""Captures of one program on one stream with one set of weights: after that, too many of its inputs move."""
_MOST_STREAMS = 256
"""Streams, and sets of weights, that a program is captured for."""

# What launches take on the processor and copies on the GPU, in microseconds: of the order of what an H200 shows.
_KERNEL_US, _CALL_US, _REPLAY_US = 1.0, 12.0, 12.0
_COPIED_BYTES_PER_US = 1.5e6


class CudaGraph(Protocol):
    """What was captured, to be run again."""

    def replay(self) -> object: ...


class GraphPool(Protocol):
    """Memory that the graphs of one stream share; the lock is held while one of them runs and is copied from."""

    is_in_use: bool

    @property
    def lock(self) -> AbstractContextManager[Any]: ...

    def capture(self, graph: Any) -> AbstractContextManager[None]:
        """Let a graph record what is launched meanwhile, with memory of the pool's."""
        ...


class GraphServices(Protocol[ArrayT]):
    """Whoever captures graphs of launches on arrays of its own."""

    def pool(self, device: int, stream: int) -> GraphPool:
        """The memory of all graphs of a stream."""
        ...

    def new_graph(self) -> CudaGraph: ...

    def unwatched(self) -> AbstractContextManager[None]:
        """In which arrays are copied without gradients, to memory that may be written to at any time."""
        ...

    def is_weight(self, array: ArrayT) -> bool:
        """Whether an array is a parameter, which stays where it is, as it is, for most of its life."""
        ...

    def lie_at(self, arrays: list[ArrayT], addresses: list[int | None], places: list[int]) -> bool:
        """Whether the arrays at some places lie at these addresses."""
        ...

    def copied_whole(self, array: ArrayT) -> ArrayT:
        """A copy with the same strides, also where they overlap or leave gaps."""
        ...

    def copy_whole(self, target: ArrayT, source: ArrayT) -> None:
        """Copy all memory from an array's first element to its last to that of another with its strides."""
        ...

    def copy(self, target: ArrayT, source: ArrayT) -> None: ...

    def copy_all(self, pairs: Sequence[tuple[ArrayT, ArrayT]]) -> None:
        """Copy arrays to others of their shapes, which are the first of each pair."""
        ...

    def copies_in(self, statics: Mapping[int, ArrayT]) -> Callable[[Sequence[ArrayT]], None]:
        """Copies of arguments, by their places, into memory that stays."""
        ...

    def copies_out(self, statics: Sequence[ArrayT]) -> Callable[[Callable[..., ArrayT]], list[ArrayT]]:
        """Fresh copies, by what makes arrays, of arrays in memory that stays."""
        ...

    def why_not_called(self, step: CallStep) -> str | None:
        """What in a call of the framework's cannot be in a graph, if anything."""
        ...


@dataclass
class _Captured(Generic[ArrayT]):
    """A graph, and the memory it works on. `place` is where a tensor stands among the arguments."""

    graph: CudaGraph
    places: list[int]
    """The arguments that are read where they lie, and the weights that constants were made of,"""
    addresses: list[int | None]
    """and the addresses of all arguments that are such."""
    strides: list[tuple[int, tuple[int, ...]]]
    """Of those among them that tracing has not guarded, by place."""
    moving: dict[int, ArrayT]
    """The graph's memory for inputs that are copied there, by place."""
    copies_in: Callable[[Sequence[ArrayT]], None]
    """These copies, where no two elements of an input share memory,"""
    overlapping: list[tuple[int, tuple[int, ...]]]
    """and the places of the others, with the strides that the program takes them with."""
    copies_out: Callable[[Callable[..., ArrayT]], list[ArrayT]]
    """Copies of the results in the graph's memory."""
    results: list[int | None]
    """The results in their order: None for one in the graph's memory, or the place of the argument that it is,"""
    cloned: set[int]
    """of which such results get copies."""
    changed: list[int]
    """Places of moving inputs that get their new values."""
    constants: ConstantSet[ArrayT] | None
    fixed: list[int]
    """The places of the weights that these were made of."""


@dataclass
class _Stream(Generic[ArrayT]):
    """What is known of a program's calls on one stream, with one set of weights."""

    pool: GraphPool
    pointers: list[int] | None = None
    """Where the inputs lay in the first call."""
    moving: set[int] = field(default_factory=set[int])
    captured: _Captured[ArrayT] | None = None
    captures: int = 0


class GraphedCalls(Generic[ArrayT]):
    """The captured calls of one program.

    `written` are the results that replace an argument and are nothing else, with its place: the graph itself copies
    them there. Where tracing has `guarded` the inputs, they have the same strides in every call.
    """

    def __init__(
        self,
        executor: DeviceExecutor[ArrayT],
        services: GraphServices[ArrayT],
        written: Mapping[int, int],
        guarded: bool,
    ) -> None:
        self.executor = executor
        self.services = services
        self._address, self._strides = executor.arrays.address, executor.arrays.strides
        self.guarded = guarded
        plan = executor.executable.plan
        self.refusal: str | None = None
        self.streams: dict[tuple[int, int], _Stream[ArrayT]] = {}
        """By the stream, and where the first weight lies: layers of a model may share the program."""
        self.weight: int | None = None
        self.positions = {number: position for position, number in enumerate(plan.inputs)}
        self.replacing = frozenset(plan.replacing)
        self.given = {n: self.positions[number] for n, number in enumerate(plan.outputs) if number in self.positions}
        self.written: dict[int, int] = {}
        if (reason := why_not_captured(plan, services.why_not_called)) is not None:
            self.refuse(reason)
            return
        binding = executor.executable.bind({})
        self.strides = [binding.strides[number] for number in plan.inputs]
        taken = {place: position for position, place in enumerate(executor.taken)}
        for result, place in written.items():
            position, number = taken[place], plan.outputs[result]
            # What is a result itself keeps its value until it has been copied.
            fits = binding.shapes[number] == binding.shapes[plan.inputs[position]]
            if fits and result not in self.given and position not in self.given.values():
                self.written[result] = position

    def refuse(self, reason: str) -> None:
        """Capture nothing of this program from now on."""
        if self.refusal is None:
            log.info("%s is not captured as a CUDA graph: %s", self.executor.executable.plan.name, reason)
            self.refusal = reason

    def release(self) -> None:
        """Drop all graphs and their memory."""
        self.streams = {}

    def call(self, tensors: list[ArrayT]) -> list[ArrayT] | None:
        """The results of a replay, or None where the call has to run as usual."""
        executor = self.executor
        if self.refusal is not None or active_profile() is not None or executor.services.is_capturing():
            return None
        handle = executor.stream()
        if self.weight is None:
            self.weight = next((place for place in executor.taken if self.services.is_weight(tensors[place])), -1)
        key = handle, self._address(tensors[self.weight]) if self.weight >= 0 else 0
        stream = self.streams.get(key)
        if stream is None:
            if len(self.streams) >= _MOST_STREAMS:
                self.refuse(f"it is called with {len(self.streams)} sets of weights")
                return None
            stream = self.streams.setdefault(key, _Stream(self.services.pool(executor.executable.device, handle)))
        captured, pool = stream.captured, stream.pool
        with pool.lock:
            if pool.is_in_use:
                return None
            try:
                pool.is_in_use = True
                if captured is None or not self._has(captured, tensors):
                    captured = self._captured(stream, tensors)
                return None if captured is None else self._replay(captured, tensors)
            finally:
                pool.is_in_use = False

    def _captured(self, stream: _Stream[ArrayT], tensors: list[ArrayT]) -> _Captured[ArrayT] | None:
        """A graph for these inputs, unless it is the first call, or not worth its while."""
        executor = self.executor
        constants = executor.constants([tensors[p] for p in executor.fixed]) if executor.has_constants else None
        given = [tensors[place] for place in executor.taken]
        with self.services.unwatched():
            fitting = [executor._input(tensor, strides) for tensor, strides in zip(given, self.strides, strict=True)]
        # What does not fit is copied in every call, to where there is memory.
        stream.moving |= {n for n, (one, other) in enumerate(zip(given, fitting, strict=True)) if one is not other}
        known, stream.pointers = stream.pointers, [self._address(tensor) for tensor in given]
        if known is None:
            return None
        stream.moving |= {n for n, (one, other) in enumerate(zip(known, stream.pointers, strict=True)) if one != other}
        stream.captured = None
        if stream.captures >= _MOST_CAPTURES:
            self.refuse(f"its inputs have moved after {stream.captures} captures")
        elif not self._is_worthwhile([fitting[position] for position in stream.moving]):
            self.refuse("copies would take longer than launches")
        else:
            stream.captures += 1
            stream.captured = self._capture(stream, tensors, fitting, constants)
        return stream.captured

    def _is_worthwhile(self, moving: Sequence[ArrayT]) -> bool:
        """Whether a replay, with its copies, is quicker than the launches that it stands for."""
        executable = self.executor.executable
        plan = executable.plan
        kernels = sum(isinstance(step, KernelStep) for step in plan.steps)
        saved = _KERNEL_US * kernels + _CALL_US * (len(plan.steps) - kernels)
        binding = executable.bind({})
        made = [number for n, number in enumerate(plan.outputs) if n not in self.given and n not in self.written]
        results = sum(plan.buffers[n].tensor.dtype.bytes * span(binding.shapes[n], binding.strides[n]) for n in made)
        arrays = self.executor.arrays
        copied = results + sum(span(arrays.shape(a), arrays.strides(a)) * arrays.itemsize(a) for a in moving)
        return saved > _REPLAY_US + copied / _COPIED_BYTES_PER_US

    def _capture(
        self,
        stream: _Stream[ArrayT],
        tensors: list[ArrayT],
        fitting: Sequence[ArrayT],
        constants: ConstantSet[ArrayT] | None,
    ) -> _Captured[ArrayT] | None:
        executor, services = self.executor, self.services
        with services.unwatched():
            frame = executor._frame({})
            graph = services.new_graph()
            try:
                moving = {executor.taken[n]: services.copied_whole(fitting[n]) for n in sorted(stream.moving)}
                arguments = [moving.get(place, tensor) for place, tensor in enumerate(tensors)]
                with stream.pool.capture(graph):
                    held = executor._run(frame, arguments)
                    made = [held[number] for number in executor.returned]
                    services.copy_all(
                        [(arguments[executor.taken[n]], made[result]) for result, n in self.written.items()]
                    )
            except Exception as error:  # whatever a library does not allow while it is captured, it does when it runs
                what = "a call is not captured as a CUDA graph"
                warn("cuda_graphs", what, repr(error), 'options={"cuda_graphs": False} does not try')
                self.refuse(f"{type(error).__name__}: {error}")
                return None
            executor._leave(frame)
        read = [place for place in executor.taken if place not in moving]
        fixed = list(executor.fixed)
        addresses: list[int | None] = [None] * len(tensors)
        for place in (*read, *fixed):
            addresses[place] = self._address(tensors[place])
        watched = [] if self.guarded else [p for p in read if not services.is_weight(tensors[p])]
        shape = executor.arrays.shape
        dense = {place: one for place, one in moving.items() if lies_dense(shape(one), self._strides(one))}
        sources = {n: executor.taken[position] for n, position in {**self.given, **self.written}.items()}
        return _Captured(
            graph,
            read + fixed,
            addresses,
            [(place, self._strides(tensors[place])) for place in watched],
            moving,
            services.copies_in(dense),
            [(place, self._strides(static)) for place, static in moving.items() if place not in dense],
            services.copies_out([value for n, value in enumerate(made) if n not in sources]),
            [sources.get(n) for n in range(len(made))],
            self.given.keys() - self.replacing,
            [place for n, place in sources.items() if place in moving and (n in self.replacing or n in self.written)],
            constants,
            fixed,
        )

    def _has(self, captured: _Captured[ArrayT], tensors: list[ArrayT]) -> bool:
        """Whether all inputs that are read where they lie are there, as they were, and no weight has changed."""
        strides_of, constants = self._strides, captured.constants
        return (
            self.services.lie_at(tensors, captured.addresses, captured.places)
            and all([strides_of(tensors[place]) == strides for place, strides in captured.strides])
            and (constants is None or constants.is_fresh([tensors[place] for place in captured.fixed]))
        )

    def _replay(self, captured: _Captured[ArrayT], tensors: list[ArrayT]) -> list[ArrayT]:
        """Run a graph, whose pool's lock is held, on these inputs."""
        executor, services = self.executor, self.services
        captured.copies_in(tensors)
        for place, strides in captured.overlapping:
            services.copy_whole(captured.moving[place], executor._input(tensors[place], strides))
        captured.graph.replay()
        results = captured.copies_out(executor.services.new)
        for n, place in enumerate(captured.results):
            if place is not None:
                results.insert(n, tensors[place] if n not in captured.cloned else self._clone(captured, place, tensors))
        for place in captured.changed:
            services.copy(tensors[place], captured.moving[place])
        return results

    def _clone(self, captured: _Captured[ArrayT], place: int, tensors: list[ArrayT]) -> ArrayT:
        return self.executor.arrays.cloned(captured.moving.get(place, tensors[place]))


def why_not_captured(plan: Plan, why_not_called: Callable[[CallStep], str | None]) -> str | None:
    """What in a program cannot be in a CUDA graph, if anything."""
    if plan.symbols:
        return f"the sizes {', '.join(plan.symbols)} change"
    for step in plan.steps:
        if inner_steps(step):
            return f"the host decides what a {step.label} runs"
        if isinstance(step, CallStep) and (reason := why_not_called(step)) is not None:
            return f"{step.target} {reason}"
    return None
