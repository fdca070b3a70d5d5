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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from weft.diagnostics import warn
from weft.frontends.torch.alignment import copied_whole, span, spanned
from weft.frontends.torch.copies import CopiesIn, CopiesOut, copy_all, lies_dense
from weft.frontends.torch.encoding import operator_named
from weft.frontends.torch.graph_pools import GraphPool, pool_of
from weft.lower.steps import CallStep, KernelStep, Plan
from weft.runtime.constant_sets import ConstantSet
from weft.runtime.profile import active_profile

if TYPE_CHECKING:
    from weft.frontends.torch.cuda_executor import CudaExecutor

log = logging.getLogger("weft")

_MOST_CAPTURES = 4
"""Captures of one program on one stream with one set of weights: after that, too many of its inputs move."""
_MOST_STREAMS = 256
"""Streams, and sets of weights, that a program is captured for."""

# What launches take on the processor and copies on the GPU, in microseconds: of the order of what an H200 shows.
_KERNEL_US, _CALL_US, _REPLAY_US = 1.0, 12.0, 12.0
_COPIED_BYTES_PER_US = 1.5e6

_UNSAFE_TAGS = ("cudagraph_unsafe", "data_dependent_output", "dynamic_output_shape")


@dataclass
class _Captured:
    """A graph, and the memory it works on. `place` is where a tensor stands among the arguments."""

    graph: Any
    places: list[int]
    """The arguments that are read where they lie, and the weights that constants were made of,"""
    addresses: list[int | None]
    """and the addresses of all arguments that are such."""
    strides: list[tuple[int, tuple[int, ...]]]
    """Of those among them that tracing has not guarded, by place."""
    moving: dict[int, torch.Tensor]
    """The graph's memory for inputs that are copied there, by place."""
    copies_in: CopiesIn
    """These copies, where no two elements of an input share memory,"""
    overlapping: list[tuple[int, tuple[int, ...]]]
    """and the places of the others, with the strides that the program takes them with."""
    copies_out: CopiesOut
    """Copies of the results in the graph's memory."""
    results: list[int | None]
    """The results in their order: None for one in the graph's memory, or the place of the argument that it is,"""
    cloned: set[int]
    """of which such results get copies."""
    changed: list[int]
    """Places of moving inputs that get their new values."""
    constants: ConstantSet[torch.Tensor] | None
    fixed: list[int]
    """The places of the weights that these were made of."""

    def has(self, tensors: list[torch.Tensor]) -> bool:
        """Whether all inputs that are read where they lie are there, as they were, and no weight has changed."""
        return (
            _lie_at(tensors, self.addresses, self.places)
            and all([tensors[place].stride() == strides for place, strides in self.strides])
            and (self.constants is None or self.constants.is_fresh([tensors[place] for place in self.fixed]))
        )


@dataclass
class _Stream:
    """What is known of a program's calls on one stream, with one set of weights."""

    pool: GraphPool
    pointers: list[int] | None = None
    """Where the inputs lay in the first call."""
    moving: set[int] = field(default_factory=set[int])
    captured: _Captured | None = None
    captures: int = 0


class GraphedCalls:
    """The captured calls of one program.

    `written` are the results that replace an argument and are nothing else, with its place: the graph itself copies
    them there. Where tracing has `guarded` the inputs, they have the same strides in every call.
    """

    def __init__(self, executor: CudaExecutor, written: Mapping[int, int], guarded: bool) -> None:
        self.executor = executor
        self.guarded = guarded
        plan = executor.executable.plan
        self.refusal: str | None = None
        self.streams: dict[tuple[int, int], _Stream] = {}
        """By the stream, and where the first weight lies: layers of a model may share the program."""
        self.weight: int | None = None
        self.positions = {number: position for position, number in enumerate(plan.inputs)}
        self.replacing = frozenset(plan.replacing)
        self.given = {n: self.positions[number] for n, number in enumerate(plan.outputs) if number in self.positions}
        self.written: dict[int, int] = {}
        if (reason := why_not_captured(plan)) is not None:
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

    def call(self, tensors: list[torch.Tensor]) -> list[torch.Tensor] | None:
        """The results of a replay, or None where the call has to run as usual."""
        if self.refusal is not None or active_profile() is not None or torch.cuda.is_current_stream_capturing():
            return None
        executor = self.executor
        handle = executor.stream()
        if self.weight is None:
            self.weight = next(
                (place for place in executor.taken if isinstance(tensors[place], torch.nn.Parameter)), -1
            )
        key = handle, tensors[self.weight].data_ptr() if self.weight >= 0 else 0
        stream = self.streams.get(key)
        if stream is None:
            if len(self.streams) >= _MOST_STREAMS:
                self.refuse(f"it is called with {len(self.streams)} sets of weights")
                return None
            stream = self.streams.setdefault(key, _Stream(pool_of(executor.index, handle)))
        captured, pool = stream.captured, stream.pool
        with pool.lock:
            if pool.is_in_use:
                return None
            try:
                pool.is_in_use = True
                if captured is None or not captured.has(tensors):
                    captured = self._captured(stream, tensors)
                return None if captured is None else self._replay(captured, tensors)
            finally:
                pool.is_in_use = False

    def _captured(self, stream: _Stream, tensors: list[torch.Tensor]) -> _Captured | None:
        """A graph for these inputs, unless it is the first call, or not worth its while."""
        executor = self.executor
        constants = executor.constants([tensors[p] for p in executor.fixed]) if executor.has_constants else None
        given = [tensors[place] for place in executor.taken]
        with torch.no_grad():
            fitting = [executor._input(tensor, strides) for tensor, strides in zip(given, self.strides, strict=True)]
        # What does not fit is copied in every call, to where there is memory.
        stream.moving |= {n for n, (one, other) in enumerate(zip(given, fitting, strict=True)) if one is not other}
        known, stream.pointers = stream.pointers, [tensor.data_ptr() for tensor in given]
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

    def _is_worthwhile(self, moving: Sequence[torch.Tensor]) -> bool:
        """Whether a replay, with its copies, is quicker than the launches that it stands for."""
        executable = self.executor.executable
        plan = executable.plan
        kernels = sum(isinstance(step, KernelStep) for step in plan.steps)
        saved = _KERNEL_US * kernels + _CALL_US * (len(plan.steps) - kernels)
        binding = executable.bind({})
        made = [number for n, number in enumerate(plan.outputs) if n not in self.given and n not in self.written]
        results = sum(plan.buffers[n].tensor.dtype.bytes * span(binding.shapes[n], binding.strides[n]) for n in made)
        copied = results + sum(span(tensor.shape, tensor.stride()) * tensor.itemsize for tensor in moving)
        return saved > _REPLAY_US + copied / _COPIED_BYTES_PER_US

    def _capture(
        self,
        stream: _Stream,
        tensors: list[torch.Tensor],
        fitting: Sequence[torch.Tensor],
        constants: ConstantSet[torch.Tensor] | None,
    ) -> _Captured | None:
        executor = self.executor
        # Memory of inference mode could not be written outside of it, where a later call may be.
        with torch.inference_mode(False), torch.no_grad():
            frame = executor._frame({})
            graph = torch.cuda.CUDAGraph()
            try:
                moving = {executor.taken[n]: copied_whole(fitting[n]) for n in sorted(stream.moving)}
                arguments = [moving.get(place, tensor) for place, tensor in enumerate(tensors)]
                with stream.pool.capture(graph):
                    held = executor._run(frame, arguments)
                    made = [held[number] for number in executor.returned]
                    copy_all([(arguments[executor.taken[n]], made[result]) for result, n in self.written.items()])
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
            addresses[place] = tensors[place].data_ptr()
        watched = [] if self.guarded else [p for p in read if not isinstance(tensors[p], torch.nn.Parameter)]
        dense = {place: static for place, static in moving.items() if lies_dense(static)}
        sources = {n: executor.taken[position] for n, position in {**self.given, **self.written}.items()}
        return _Captured(
            graph,
            read + fixed,
            addresses,
            [(place, tensors[place].stride()) for place in watched],
            moving,
            CopiesIn(dense),
            [(place, static.stride()) for place, static in moving.items() if place not in dense],
            CopiesOut([value for n, value in enumerate(made) if n not in sources]),
            [sources.get(n) for n in range(len(made))],
            self.given.keys() - self.replacing,
            [place for n, place in sources.items() if place in moving and (n in self.replacing or n in self.written)],
            constants,
            fixed,
        )

    def _replay(self, captured: _Captured, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Run a graph, whose pool's lock is held, on these inputs."""
        executor = self.executor
        captured.copies_in(tensors)
        for place, strides in captured.overlapping:
            spanned(captured.moving[place]).copy_(spanned(executor._input(tensors[place], strides)))
        captured.graph.replay()
        results = captured.copies_out(executor.new_tensor)
        for n, place in enumerate(captured.results):
            if place is not None:
                results.insert(n, tensors[place] if n not in captured.cloned else self._clone(captured, place, tensors))
        for place in captured.changed:
            tensors[place].copy_(captured.moving[place])
        return results

    def _clone(self, captured: _Captured, place: int, tensors: list[torch.Tensor]) -> torch.Tensor:
        return captured.moving.get(place, tensors[place]).clone()


def _addresses_equal(tensors: list[torch.Tensor], addresses: list[int | None], places: list[int]) -> bool:
    return all(tensors[place].data_ptr() == addresses[place] for place in places)


# torch's own is there where it is built for CUDA; it takes a tenth of the time.
_lie_at: Any = getattr(torch._C, "_tensors_data_ptrs_at_indices_equal", _addresses_equal)


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
        here = [value[kind]] if isinstance(value.get(kind), str) else []  # not an argument of that name
        return here + [found for item in value.values() for found in _mentions(item, kind)]
    return []
