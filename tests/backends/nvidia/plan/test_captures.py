"""The first kernel of a program starts early behind the last kernel of another one, and behind nothing else."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from weft.backends.nvidia.code import Launch
from weft.backends.nvidia.driver.launcher import HEAD_WORDS, PROGRAMMATIC
from weft.backends.nvidia.driver.libcuda import Driver
from weft.backends.nvidia.driver.modules import DeviceFunction
from weft.ir.types import Tensor, f32
from weft.lower.steps import Buffer, KernelStep, Plan
from weft.ops.layouts import StridedLayout, contiguous
from weft.runtime.cuda.captures import Captures, Early
from weft.runtime.cuda.device_program import DeviceTape, write_device_tape

from ..fakes import FakeLibrary

STREAM = 7
EARLY = Launch(128, 0, programmatic=True, asked=(1,), written=(2,))


class Capturing(FakeLibrary):
    """A driver whose stream is captured and waits for some nodes."""

    def __init__(self, nodes: list[int], capture: int = 1) -> None:
        super().__init__()
        self.nodes, self.capture = nodes, capture

    def do_cuStreamGetCaptureInfo_v3(
        self, stream: Any, status: Any, number: Any, graph: Any, nodes: Any, edges: Any, count: Any
    ) -> int:
        self.kept = (ctypes.c_void_p * len(self.nodes))(*self.nodes)
        status._obj.value, number._obj.value, count._obj.value = int(self.capture > 0), self.capture, len(self.nodes)
        ctypes.memmove(ctypes.addressof(nodes._obj), ctypes.byref(ctypes.c_void_p(ctypes.addressof(self.kept))), 8)
        return 0


def early(asked: int, written: int) -> tuple[Early, np.ndarray]:
    """A tape that reads and writes 64 bytes at two addresses, and its table."""
    return Early(np.zeros(1, np.int64), ((0, 0, 64),), ((1, 0, 64),)), np.array([asked, written], np.int64)


def follows(library: Capturing, captures: Captures, asked: int) -> bool:
    tape, table = early(asked, 4096)
    return captures.follows(tape, table.ctypes.data, STREAM)


def test_what_is_ahead_must_be_the_last_kernel_and_write_something_else() -> None:
    library = Capturing([100])
    captures = Captures(Driver(library))
    assert not follows(library, captures, 1024)  # nothing is known of that node
    tape, table = early(0, 4096)
    captures.note(tape, table.ctypes.data, STREAM)
    assert follows(library, captures, 1024) and follows(library, captures, 4096 - 64)
    assert not follows(library, captures, 4096) and not follows(library, captures, 4096 + 63)
    for nodes, capture in (([101], 1), ([100, 101], 1), ([], 1), ([100], 2), ([100], 0)):
        library.nodes, library.capture = nodes, capture
        assert not follows(library, captures, 1024)


def test_what_is_not_captured_is_not_remembered() -> None:
    library = Capturing([100], capture=0)
    captures = Captures(Driver(library))
    tape, table = early(0, 4096)
    captures.note(tape, table.ctypes.data, STREAM)
    library.capture = 1
    assert not follows(library, captures, 1024)


def tape_of(*names: str, launch: Launch = EARLY) -> DeviceTape:
    tensors = [Tensor(f32, (4, 8)), Tensor(f32, (16, 8)), Tensor(f32, (4, 16))]
    layouts = [contiguous(tensors[0]), StridedLayout((32, 1)), contiguous(tensors[2])]
    roles = ("input", "input", "output")
    buffers = tuple(Buffer(*each) for each in zip(roles, tensors, layouts, strict=True))
    steps = tuple(KernelStep(name, (0, 1, 2), (), 4, 1, False, name) for name in names)
    functions = {name: DeviceFunction(name, 9, launch, 32, 0, 0, 0) for name in names}
    return write_device_tape(Driver(FakeLibrary()), Plan("p", buffers, steps, (0, 1), (2,), ()), steps, {}, functions)


def test_a_tape_is_written_twice_where_its_first_kernel_asks_early() -> None:
    tape = tape_of("a", "b")
    assert tape.early is not None
    assert tape.early.asked == ((1, 0, (15 * 32 + 8) * 4),) and tape.early.written == ((2, 0, 4 * 16 * 4),) * 2
    (differing,) = np.flatnonzero(tape.words != tape.early.words)
    assert differing == HEAD_WORDS + PROGRAMMATIC
    assert tape.words[differing] == 0 and tape.early.words[differing] == 1


def test_other_tapes_are_written_once() -> None:
    tape = tape_of("a", launch=Launch(128, 0, programmatic=True, written=(2,)))
    assert tape.early is None and tape.words[HEAD_WORDS + PROGRAMMATIC] == 1
