"""The shortest way from AOTAutograd's call of a program on a GPU to its launch.

What a small program takes on the GPU is less than what Python needs on the way there, so this looks at nothing that is
the same in every call, and goes a longer way where something is out of the ordinary.
"""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportPrivateUsage=false, reportUnknownVariableType=false
# pyright: reportAttributeAccessIssue=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from weft.frontends.torch.execution.device_checks import Watch, raise_found
from weft.frontends.torch.execution.returning import needs_arguments, output_of, picked_from, write_back
from weft.frontends.torch.execution.straight_call import straight_call
from weft.frontends.torch.execution.torch_executor import BoxedCall
from weft.frontends.torch.importer.imported_graph import Calling, Returned
from weft.runtime.cuda.device_executor import ALIGNMENT
from weft.runtime.cuda.device_program import DeviceTape
from weft.runtime.profile import active_profile

if TYPE_CHECKING:
    from weft.frontends.torch.execution.cuda_executor import CudaExecutor

Run = Callable[[list[torch.Tensor]], list[torch.Tensor]]


def direct_call(
    executor: CudaExecutor,
    calling: Calling,
    constants: Sequence[torch.Tensor],
    otherwise: BoxedCall,
    watch: Watch | None = None,
) -> BoxedCall | None:
    """The call of a program whose sizes are known, and whose verdict on its data nobody waits for."""
    if executor.symbols or (calling.checks and watch is None):
        return None
    places, mutated, outputs = calling.arguments, calling.mutated, calling.outputs
    straight = places == tuple(range(len(places))) and not constants
    count = len(executor.returned) - (0 if watch is None else 1)
    as_made = outputs == tuple(map(Returned, range(count)))
    graphs, device = executor.graphs, executor.index
    launch = _one_tape(executor) or _later_straight(executor)
    keeps = needs_arguments(calling)
    pick = None if as_made else picked_from(outputs)

    def call(arguments: list[Any]) -> list[Any]:
        if torch.cuda.current_device() != device:
            return otherwise(arguments)
        if watch is not None:
            raise_found()
        tensors = arguments[: len(places)] if straight else [*(arguments[place] for place in places), *constants]
        results = None if graphs is None or graphs.refusal is not None else graphs.call(tensors)
        if results is None:
            if not keeps:
                arguments.clear()
            results = launch(tensors)
        if watch is not None:
            watch.note(results[-1])
            results = results[:count] if as_made else results
        if mutated:
            write_back([(arguments[place], results[result]) for place, result in mutated])
        if pick is not None:
            results = pick(results, arguments)
        elif not as_made:
            results = [output_of(output, arguments, results, {}) for output in outputs]
        arguments.clear()
        return results

    call._boxed_call = True  # pyright: ignore[reportFunctionMemberAccess]
    return call


def _later_straight(executor: CudaExecutor) -> Run:
    """The executor's own way for the first call; where more come, a function is written that does what they do."""
    plain: Run = partial(executor.plain, symbols={})
    straight: Run | None = None
    is_first = True

    def run(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        nonlocal straight, is_first
        if straight is not None:
            return straight(tensors)
        # Before a program is captured, its calls show whether it can be.
        if is_first or (executor.graphs is not None and executor.graphs.refusal is None):
            is_first = False
            return plain(tensors)
        straight = straight_call(executor) or plain
        return straight(tensors)

    return run


def _one_tape(executor: CudaExecutor) -> Run | None:
    """What launches a program that is a single tape on plain tensors, and makes its results."""
    unique = [number for number, _ in executor.allocated] == list(executor.returned)
    binding = executor.executable.bind({})
    (tape, *others) = binding.segments or (None,)
    if others or not isinstance(tape, DeviceTape) or executor.has_constants or not unique:
        return None
    frames = executor.frames.setdefault((), [])
    numbers = executor.inputs
    # Of what tracing has guarded only numbers may lie elsewhere.
    numerals = [place for place, number in enumerate(numbers) if not executor.guarded or not binding.shapes[number]]
    watched = [] if executor.guarded else [(place, binding.strides[number]) for place, number in enumerate(numbers)]

    def run(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        if active_profile() is not None or torch.cuda.is_current_stream_capturing():
            return executor.plain(tensors, {})
        addresses = [tensor.data_ptr() for tensor in tensors]
        if (
            not all(addresses)  # none, or one of a tensor without memory
            or any([address % ALIGNMENT for address in addresses])
            or any([tensors[place].stride() != strides for place, strides in watched])
            or not all([executor._is_here(tensors[place]) for place in numerals])
        ):
            return executor.plain(tensors, {})
        try:
            frame = frames.pop()
        except IndexError:
            frame = executor._frame({})
        table = frame.table
        for number, address in zip(numbers, addresses, strict=True):
            table[number] = address
        executor._enter(frame)
        results: list[torch.Tensor] = []
        for number, make, shape, strides, dtype in frame.results:
            result = make(shape, strides, dtype)
            table[number] = result.data_ptr()
            results.append(result)
        executor._launch(tape, frame)
        frame.arena = None
        frames.append(frame)
        return results

    return run
