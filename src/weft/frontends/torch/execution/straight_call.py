"""A program's calls as Python without loops: what is the same in every call is decided when the function is written.

A program on a GPU whose sizes are known makes the same tensors, launches the same tapes and calls the same operators
in every call, and a training step has hundreds of each. Its function names each tensor, as a person would write it:

    b7 = new((128, 64), (64, 1), bf16)              a tensor that a segment is the first to touch
    t[7] = b7.data_ptr()
    launch(tape2, table, stream)
    b9 = call3(b7, i2, ...)                         what torch carries out, with operands as eager has them
    if b9.data_ptr() & 15 or b9.stride() != ...     its result, as the next kernel takes it
    del b7, i2                                      what nobody reads any more

It looks at its inputs first. A call with one that lies elsewhere, or otherwise, is left to the executor's own way, and
so is one that is profiled, or captured.
"""

# An executor and its calls are one thing in several files; torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportPrivateUsage=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from weft.errors import DeviceMemoryError
from weft.frontends.torch.importer.opaque import OpaqueCall
from weft.frontends.torch.importer.strides import restrided
from weft.ir.types import contiguous_strides, u8
from weft.lower.steps import CallStep
from weft.runtime.bound_calls import BoundCall, BoundPlace, bind_call
from weft.runtime.cuda.device_executor import ALIGNMENT
from weft.runtime.frame import Frame
from weft.runtime.memory import Phase
from weft.runtime.profile import active_profile
from weft.runtime.program import ControlSegment, Segment
from weft.runtime.tape import Tape

if TYPE_CHECKING:
    from weft.frontends.torch.execution.cuda_executor import CudaExecutor

Run = Callable[[list[torch.Tensor]], list[torch.Tensor]]

_UNALIGNED = ALIGNMENT - 1


def straight_call(executor: CudaExecutor) -> Run | None:
    """The calls of a program whose sizes are known and whose host decides on nothing, or None for another one."""
    binding = executor.executable.bind({})
    if executor.symbols or binding.deciding is not None or not executor.taken:
        return None
    if any(isinstance(segment, ControlSegment) for segment in binding.segments):
        return None
    body = _Writer(executor).function()
    frames, table_of = executor.frames.setdefault((), []), np.array(executor.inputs)
    inputs, taken, fixed = executor.inputs, executor.taken, executor.fixed
    # Tracing has guarded how arguments lie; of those only numbers may be in the processor's memory.
    known = _KnownStrides([(binding.shapes[number], binding.strides[number]) for number in inputs])
    fit = known.fit if not executor.guarded else None
    there = [(place, number) for place, number in enumerate(inputs) if place not in executor.on_host]
    numerals = [place for place, number in there if not executor.guarded or not binding.shapes[number]]
    address_of, is_here = torch.Tensor.data_ptr, executor._is_here

    def call(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        if active_profile() is not None or torch.cuda.is_current_stream_capturing():
            return executor.plain(tensors, {})
        given = [tensors[place] for place in taken] if fixed else tensors
        addresses = list(map(address_of, given))
        if (
            not all(addresses)  # none, or one of a tensor without memory
            or reduce(or_, addresses) & _UNALIGNED
            or (fit is not None and not fit(given))
            or not all([is_here(given[place]) for place in numerals])
        ):
            return executor.plain(tensors, {})
        try:
            frame = frames.pop()
        except IndexError:
            frame = executor._frame({})
        frame.words[table_of] = addresses
        constants = executor._place_constants(frame, [tensors[p] for p in fixed]) if executor.has_constants else None
        if given is not tensors:
            tensors.clear()
        try:
            if torch.is_grad_enabled():
                with torch.no_grad():
                    results = body(given, frame, constants)
            else:
                results = body(given, frame, constants)
        except DeviceMemoryError as error:
            raise torch.OutOfMemoryError(str(error)) from error
        executor._leave(frame)
        frames.append(frame)
        return results

    return call


class _KnownStrides:
    """Whether tensors have the strides of a program's inputs; those of dimensions of size 1 may be any."""

    def __init__(self, expected: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> None:
        self._expected = expected
        self._last = [strides for _, strides in expected]
        """Strides that fit: those of one call are mostly those of the next."""

    def fit(self, tensors: Sequence[torch.Tensor]) -> bool:
        found = list(map(torch.Tensor.stride, tensors))
        if found == self._last:
            return True
        for given, (shape, strides) in zip(found, self._expected, strict=True):
            if given != strides and any(n > 1 and a != b for n, a, b in zip(shape, given, strides, strict=True)):
                return False
        self._last = found
        return True


class _Writer:
    """The text of a function, and what it names."""

    def __init__(self, executor: CudaExecutor) -> None:
        self.executor = executor
        self.binding = executor.executable.bind({})
        self.frame = executor._frame({})
        self.lines: list[str] = []
        self.names: dict[str, Any] = {
            "restrided": restrided,
            "fit": executor._fitting,
            "clone": executor.arrays.cloned,
            "view": executor.arrays.view,
            "view_of_arena": executor.arrays.view_of_arena,
            "enter": executor._enter,
            "stream_of": executor.stream,
            "launch": executor.executable.launch,
        }
        self._known: dict[int, str] = {}
        self.made: set[int] = set()
        """Buffers whose tensors were made here, with the very strides that the program states."""
        self.tensors: set[int] = set()
        """Buffers that have a tensor."""

    def function(self) -> Callable[[list[torch.Tensor], Frame[torch.Tensor], Any], list[torch.Tensor]]:
        executor, binding = self.executor, self.binding
        plan = executor.executable.plan
        self.tensors.update(executor.inputs)
        self._write(f"({', '.join(f'b{number}' for number in executor.inputs)},) = given")
        self._write("given.clear()")
        self._write("t, table, stream = frame.table, frame.address, stream_of()")
        if executor.has_constants:
            self._write("constants = constants.tensors")
            self.tensors.update(n for n, buffer in enumerate(plan.buffers) if buffer.role == "constant")
        if binding.phases:
            self._write("frame.base = 0")  # the places of temporaries are overwritten
            makers = executor._makers(self.frame)
            for segment, phase in zip(binding.segments, binding.phases, strict=True):
                self._phase(segment, phase, makers)
        else:
            self._write("enter(frame)")
            self._write("arena = frame.arena")
            for number, *made in self.frame.results:
                self._make(number, made)
            for segment in binding.segments:
                self._segment(segment)
        results = [
            f"clone(b{number})" if position in executor.given else self._tensor(number)
            for position, number in enumerate(executor.returned)
        ]
        self._write(f"return [{', '.join(results)}]")
        text = "\n    ".join(("def run(given, frame, constants):", *self.lines))
        exec(compile(text, f"<calls of {plan.name}>", "exec"), self.names)
        # In its own globals it would wait for a collection of garbage, and the GPU's memory with it.
        return self.names.pop("run")

    def _write(self, line: str) -> None:
        self.lines.append(line)

    def _name(self, value: Any, kind: str) -> str:
        """The name of something that is the same in every call."""
        name = self._known.get(id(value))
        if name is None:
            name = self._known[id(value)] = f"{kind}{len(self._known)}"
            self.names[name] = value
        return name

    def _phase(self, segment: Segment, phase: Phase, makers: dict[int, Sequence[Any]]) -> None:
        for number in phase.makes:
            self._make(number, makers[number])
        if size := phase.arena.size:
            dtype = self.executor.tensors.dtype(u8)
            new = self._name(self.executor._maker((size,), (1,), dtype), "new")
            self._write(f"arena = {new}(({size},), (1,), {self._name(dtype, 'type')})")
            self._write("base = arena.data_ptr()")
            for number, offset in phase.arena.offsets.items():
                self._write(f"t[{number}] = base + {offset}")
        self._segment(segment)
        dropped = [f"b{number}" for number in phase.drops if number in self.tensors]
        self.tensors.difference_update(phase.drops)
        if dropped or size:
            self._write(f"del {', '.join([*dropped, *(['arena'] if size else [])])}")

    def _make(self, number: int, made: Sequence[Any]) -> None:
        make, shape, strides, dtype = made
        self._write(f"b{number} = {self._name(make, 'new')}({shape}, {strides}, {self._name(dtype, 'type')})")
        self._write(f"t[{number}] = b{number}.data_ptr()")
        self.made.add(number)
        self.tensors.add(number)

    def _segment(self, segment: Segment) -> None:
        if isinstance(segment, Tape):
            self._write(f"launch({self._name(segment, 'tape')}, table, stream)")
            return
        assert not isinstance(segment, ControlSegment)
        call = bind_call(segment, self.binding, self.executor.opaque, self.executor.arrays)
        function = call.function
        if isinstance(segment, CallStep) and isinstance(function, OpaqueCall) and function.is_plain:
            self._operator(call, function)
            return
        operands = [self._operand(place) for place in call.operands]
        self._write(f"results = {self._name(function, 'call')}([{', '.join(operands)}])")
        self._take([f"results[{place}]" for place in range(len(call.results))], call)
        self._write("del results")

    def _operator(self, call: BoundCall[torch.Tensor], function: OpaqueCall) -> None:
        """An operator of torch's that takes its operands as they are, and gives new tensors."""
        operands = [
            self._operand(place, function.strides.get(position), as_eager=True)
            for position, place in enumerate(call.operands)
        ]
        assert all(map(str.isidentifier, function.named)), "names of arguments become text"
        given = [self._name(value, "value") for value in function.args]
        for place, number in function.plain:
            given[place] = operands[number]
        given += [f"{name}={self._name(value, 'value')}" for name, value in function.named.items()]
        called = f"{self._name(function.function, 'call')}({', '.join(given)})"
        if function.gives_one:
            self._take([called for _ in function.results], call)
            return
        self._write(f"results = {called}")
        self._take([f"results[{place}]" for place in function.results], call)
        self._write("del results")

    def _take(self, results: Sequence[str], call: BoundCall[torch.Tensor]) -> None:
        """Let results of a call be the tensors of their buffers; what an operator leaves undefined nobody reads."""
        for (number, strides), result in zip(call.results, results, strict=True):
            name = f"b{number}"
            self._write(f"{name} = {result}")
            self._write(f"if {name} is not None:")
            self._write(f"    address = {name}.data_ptr()")
            self._write(f"    if address & {_UNALIGNED} or {name}.stride() != {strides}:")
            self._write(f"        {name} = fit({name}, {strides})")
            self._write(f"        address = {name}.data_ptr()")
            self._write(f"    t[{number}] = address")
            self.tensors.add(number)

    def _operand(self, place: BoundPlace, wanted: tuple[int, ...] | None = None, *, as_eager: bool = False) -> str:
        """A tensor as a call takes it: where it lies, and with the strides that eager gives it where it has to.

        They are row-major then, or those that are `wanted`. What tensors made here have is known, of others it is asked
        where it counts: strides of dimensions of size 1 may be any.
        """
        number, shape, strides = place.buffer, place.shape, place.strides
        name, is_made = self._tensor(number), number in self.made
        is_whole = not place.offset and (shape, strides) == (self.binding.shapes[number], self.binding.strides[number])
        if number not in self.tensors:
            start = self.binding.arena.offsets[number]
            dtype = self._name(place.dtype, "type")
            text = f"view_of_arena(arena, {start}, {dtype}, {shape}, {strides}, {place.offset})"
        elif not is_whole:
            text = f"view({name}, {shape}, {strides}, {place.offset})"
        elif is_made:
            text = name
        else:
            text = f"({name} if {name}.stride() == {strides} else {name}.as_strided({shape}, {strides}))"
        if not as_eager:
            return text
        if wanted is None:
            return text if _is_row_major(shape, strides) else f"{text}.contiguous()"
        if strides == wanted:
            return text
        fitted = f"restrided({text}, {wanted})"
        if is_made or not is_whole or number not in self.tensors:
            return fitted
        return f"({name} if {name}.stride() == {wanted} else {fitted})"

    def _tensor(self, number: int) -> str:
        """The tensor of a buffer; of constants not all have one of their own."""
        is_constant = self.executor.executable.plan.buffers[number].role == "constant"
        return f"constants[{number}]" if is_constant else f"b{number}"


def _is_row_major(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """As torch says it: strides of dimensions of size 1 do not count."""
    usual = contiguous_strides(shape)
    return 0 in shape or all(n == 1 or a == b for n, a, b in zip(shape, strides, usual, strict=True))
