"""A call that is one launch, with all worked out that arrays of known types and shapes leave open: their addresses.

What a call asks of any program (which constants, which strides, who carries out a step, is a profile on) has one answer
for a program whose only segment is a tape, on arrays as it takes them. A plan has these answers; a call makes results,
writes addresses and launches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from weft.runtime.array_address import address_of
from weft.runtime.frame import Frame
from weft.runtime.numpy_arrays import HostExecutor, new_row_major
from weft.runtime.profile import active_profile
from weft.runtime.tape import Tape


class LaunchPlan:
    """What is left of a call. Calls may be made from several threads at once."""

    def __init__(self, executor: HostExecutor, sizes: tuple[int, ...], frame: Frame[np.ndarray]) -> None:
        self._executor = executor
        self._sizes = sizes
        self._binding = frame.binding
        self._constants = frame.constants
        self._inputs = [number for number, _ in frame.inputs]
        self._results = [(number, shape, dtype) for number, _, shape, _, dtype in frame.results]
        made = [number for number, _, _ in self._results]
        self._returned = [made.index(number) for number in executor.returned]

    @classmethod
    def of(cls, executor: object, symbols: Mapping[str, int]) -> LaunchPlan | None:
        """The plan for calls at some sizes, one of which has been made; None where there is more to a call."""
        if not isinstance(executor, HostExecutor) or executor.given or executor.donated:
            return None
        if executor.executable.plan.replacing or (executor.has_constants and executor.frozen is None):
            return None
        sizes = tuple(symbols[name] for name in executor.symbols)
        pool = executor.frames.get(sizes)
        frame = pool[-1] if pool else None
        if frame is None or frame.binding.phases or frame.binding.deciding is not None:
            return None
        if len(frame.binding.segments) != 1 or not isinstance(frame.binding.segments[0], Tape):
            return None
        numbers = [number for number, *_ in frame.results]
        plain = all(maker is new_row_major for _, maker, *_ in frame.results)
        return cls(executor, sizes, frame) if plain and set(executor.returned) <= set(numbers) else None

    def __call__(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray] | None:
        """The results; None where the call has to be made by the executor: no memory is ready, or a profile is on."""
        pool = self._executor.frames.get(self._sizes)
        if not pool or active_profile() is not None:
            return None
        try:
            frame = pool.pop()
        except IndexError:  # another thread has taken it
            return None
        if frame.binding is not self._binding or frame.arena is None or frame.constants is not self._constants:
            pool.append(frame)
            return None
        table = frame.table
        for number, array in zip(self._inputs, arrays, strict=True):
            table[number] = address_of(array)
        made: list[np.ndarray] = []
        for number, shape, dtype in self._results:
            out = np.empty(shape, dtype)
            made.append(out)
            table[number] = address_of(out)
        self._executor.launch(self._binding.segments[0], frame)
        pool.append(frame)
        return [made[place] for place in self._returned]
