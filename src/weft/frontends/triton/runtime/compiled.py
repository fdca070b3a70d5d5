"""Kernels as machine code: built as tile IR, compiled for the CPU, and launched over a grid.

A launch writes the arguments into a table and hands it, with a tape of one step, to the launcher that all programs use.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.backends.cpu.compile import emit_kernels
from weft.backends.cpu.launcher import KERNEL
from weft.backends.cpu.target import CpuTarget, compile_object, host_target
from weft.config import truth
from weft.forks import COMPILING
from weft.frontends.triton.builders.builder import Handle, current
from weft.frontends.triton.builders.tile_builder import GRID, Argument, TileBuilder
from weft.frontends.triton.errors import DeviceAssertError
from weft.frontends.triton.runtime.kernel_handle import KernelHandle
from weft.frontends.triton.runtime.written_arguments import written_arguments
from weft.frontends.triton.target import Processor, compiled_for
from weft.runtime.executable import launcher
from weft.runtime.linking import link
from weft.runtime.openmp import can_use_threads, default_threads
from weft.tile import dialect as tile
from weft.tile.close_inductions import close_inductions

_FORMS = {"f32": "f4x", "f64": "d", "i1": "?7x", "i8": "b7x", "ui8": "B7x", "i16": "h6x", "ui16": "H6x"} | {
    "i32": "i4x",
    "ui32": "I4x",
    "i64": "q",
    "ui64": "Q",
}

_COUNT = 4
"""Where on the tape the number of programs stands."""


@dataclass(frozen=True)
class KernelCode:
    """What compiling a kernel gives: all of it can be stored."""

    name: str
    arguments: tuple[Argument, ...]
    checks: tuple[tuple[str, str], ...]
    code: bytes
    written: tuple[int, ...] = ()
    """The numbers of the arguments that it writes through."""


@dataclass
class _Frame:
    """The memory of one launch at a time. What a launch needs of it is looked up once: NumPy takes a while to tell."""

    tape: np.ndarray
    table: np.ndarray
    status: np.ndarray

    def __post_init__(self) -> None:
        self.steps: memoryview = self.tape.data
        self.buffer: memoryview = self.table.data
        self.tape_address: int = self.tape.ctypes.data
        self.table_address: int = self.table.ctypes.data
        self.status_address: int = self.status.ctypes.data


class CompiledKernel(KernelHandle):
    """A kernel in this process."""

    def __init__(self, code: KernelCode) -> None:
        self.code = code
        self._library = link(code.code, [code.name])
        self._address: int = self._library[code.name]
        self._pack = struct.Struct("<" + "".join(map(word_form, code.arguments)) + "q" * (1 + len(GRID))).pack_into
        self._frames: list[_Frame] = []
        self._run = launcher()

    def _frame(self) -> _Frame:
        count = len(self.code.arguments) + 1 + len(GRID)
        tape = np.array([1, count, KERNEL, self._address, 0, 1, count, *range(count)], np.int64)
        return _Frame(tape, np.zeros(2 * count, np.int64), np.zeros(1, np.int64))

    def launch(self, grid: tuple[int, int, int], words: Sequence[int | float]) -> None:
        """Run all programs of a grid; `words` are the arguments, pointers as addresses."""
        x, y, z = grid
        count = x * y * z
        if not count:
            return
        try:
            frame = self._frames.pop()
        except IndexError:
            frame = self._frame()
        frame.steps[_COUNT] = count
        self._pack(frame.buffer, 0, *words, frame.status_address, z, y, x)
        self._run(frame.tape_address, frame.table_address, threads() if count > 1 else 1)
        if self.code.checks and frame.status[0]:
            message, location = self.code.checks[int(frame.status[0]) - 1]
            raise DeviceAssertError(f"{self.code.name}: device_assert failed: {message}", location=location)
        self._frames.append(frame)


def threads() -> int:
    """How many threads a launch may use: as many as torch does, where it is loaded."""
    if not can_use_threads():
        return 1
    torch: Any = sys.modules.get("torch")
    return torch.get_num_threads() if torch is not None else default_threads()


def word_form(argument: Argument) -> str:
    """How an argument is written into its word."""
    if argument.pointer:
        return "Q"
    return "f4x" if argument.dtype.is_float and argument.dtype.bits < 32 else _FORMS[argument.dtype.name]


def build_kernel(
    build: Callable[[TileBuilder, list[Handle]], None], arguments: Sequence[Argument], name: str
) -> tuple[tile.KernelOp, tuple[tuple[str, str], ...]]:
    """The tile IR of a kernel, and the messages of its checks. `build` says what it does, on the current builder."""
    builder = TileBuilder(name, arguments)
    token = current.set(builder)
    try:
        build(builder, builder.arguments)
    finally:
        current.reset(token)
    kernel = builder.finish()
    close_inductions(kernel)
    return kernel, tuple(builder.checks)


def states_lines() -> bool:
    """Whether the code of kernels is to say which line of its source each instruction comes from."""
    return truth("WEFT_DEBUG_LINES")


def compile_kernel(
    build: Callable[[TileBuilder, list[Handle]], None],
    arguments: Sequence[Argument],
    name: str,
    target: CpuTarget | None = None,
) -> KernelCode:
    """Compile a kernel for this processor."""
    target = target or host_target()
    token = compiled_for.set(Processor())
    try:
        with COMPILING:
            kernel, checks = build_kernel(build, arguments, name)
            changed = written_arguments(kernel)
            code = compile_object(emit_kernels({name: kernel}, target, debug_lines=states_lines()), target)
    finally:
        compiled_for.reset(token)
    return KernelCode(name, tuple(arguments), checks, code, changed)
