"""Runs compiled programs on torch tensors in the processor's memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._C import _len_torch_dispatch_stack as _modes  # pyright: ignore[reportPrivateUsage]
from torch._subclasses.fake_tensor import FakeTensor

from weft.frontends.torch.execution.device_checks import Watch
from weft.frontends.torch.execution.outputs import ResultMemory
from weft.frontends.torch.execution.returning import picked_from
from weft.frontends.torch.execution.torch_executor import BoxedCall, TorchExecutor
from weft.frontends.torch.execution.traced_steps import is_traced
from weft.frontends.torch.importer.checks import failure
from weft.frontends.torch.importer.imported_graph import Calling, Returned
from weft.frontends.torch.importer.opaque import OpaqueRuntime
from weft.runtime.executable import Executable, FrugalExecutable
from weft.runtime.frame import Frame
from weft.runtime.huge_pages import use_huge_pages
from weft.runtime.openmp import in_forked_child, pool_symbols, uses_own_pool
from weft.runtime.profile import active_profile
from weft.runtime.tape import Tape

_ALIGNMENT = 64


class CpuExecutor(TorchExecutor[Executable]):
    """A function compiled for the processor. Arenas and the memory of large results are kept between calls, unless
    there is a budget of memory."""

    def __init__(self, executable: Executable, opaque: OpaqueRuntime) -> None:
        super().__init__(executable, opaque, torch.device("cpu"))
        self.launch = executable.launch
        self.is_frugal = isinstance(executable, FrugalExecutable)
        self.memory = ResultMemory(keeps=not self.is_frugal)

    def release(self) -> None:
        super().release()
        self.memory.release()

    def _maker(self, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> Callable[..., torch.Tensor]:
        return self.memory.maker(shape, strides, dtype)

    def _enter(self, frame: Frame[torch.Tensor]) -> None:
        if frame.arena is not None:
            return
        arena = torch.empty(frame.binding.arena.size + _ALIGNMENT, dtype=torch.uint8)
        if isinstance(arena, FakeTensor):
            self.arrays.in_memory(arena)
        frame.place_arena(arena, -(-arena.data_ptr() // _ALIGNMENT) * _ALIGNMENT)
        use_huge_pages(arena.data_ptr(), arena.numel())

    def _leave(self, frame: Frame[torch.Tensor]) -> None:
        if self.is_frugal:
            frame.arena = None
            frame.views.clear()

    def _launch(self, tape: Tape, frame: Frame[torch.Tensor]) -> None:
        self.launch(tape.address, frame.address, _threads())

    def direct(
        self,
        calling: Calling,
        constants: Sequence[torch.Tensor],
        otherwise: BoxedCall,
        watch: Watch | None = None,
    ) -> BoxedCall | None:
        """A call of nothing but the launcher, for a program of known sizes that is one tape and gives new tensors.

        What small graphs compute takes less time than the way to it.
        """
        places, outputs, checks = calling.arguments, calling.outputs, calling.checks
        unique = [number for number, _ in self.allocated] == list(self.returned)
        pick = picked_from(outputs)
        if self.symbols or calling.mutated or constants or not unique or pick is None:
            return None
        (tape, *others) = self.executable.bind({}).segments or (None,)
        if others or self.is_frugal or not isinstance(tape, Tape):
            return None
        start, frames, launch = tape.address, self.frames.setdefault((), []), self.launch
        has_constants = self.has_constants
        fixed = [places[number] for number in self.fixed]
        taken = [places[number] for number in self.taken]
        count = len(self.returned) - (1 if checks else 0)
        as_made = outputs == tuple(map(Returned, range(count)))
        verdict = self.executable.words + self.executable.scratch

        def call(arguments: list[Any]) -> list[Any]:
            if active_profile() is not None or _modes() or is_traced():
                return otherwise(arguments)
            try:
                frame = frames.pop()
            except IndexError:
                frame = self._frame({})
            self._enter(frame)
            table = frame.table
            constants = self._place_constants(frame, [arguments[place] for place in fixed]) if has_constants else None
            for place, (number, strides) in zip(taken, frame.inputs, strict=True):
                tensor = arguments[place]
                address = tensor.data_ptr()
                if tensor.stride() != strides or not address:
                    frames.append(frame)
                    return otherwise(arguments)
                table[number] = address
            results: list[torch.Tensor] = []
            for number, make, shape, strides, dtype in frame.results[:count]:
                result = make(shape, strides, dtype)
                table[number] = result.data_ptr()
                results.append(result)
            if checks:
                table[frame.results[count][0]] = frame.address + 8 * verdict
            launch(start, frame.address, 1 if tape.alone else _threads())
            del constants  # another thread may have put newer ones in their place: they had to live until here
            code = table[verdict] if checks else 0
            frames.append(frame)
            if code:
                raise failure(checks, code)
            outputs = results if as_made else pick(results, arguments)
            arguments.clear()
            return outputs

        call._boxed_call = True  # pyright: ignore[reportFunctionMemberAccess]
        return call


def _threads() -> int:
    if not in_forked_child():
        return torch.get_num_threads() if pool_symbols() or uses_own_pool() else 1
    if torch.get_num_threads() > 1:
        # The libraries that programs call cannot use the parent's pool either: they would wait for it for ever.
        torch.set_num_threads(1)
    return 1
