"""A program on a GPU: its kernels loaded there, its tapes, and the host function that launches them."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, TypeAlias

import numpy as np

from weft.backends.cpu.target import compile_object, host_target
from weft.backends.nvidia.code import DeviceCode
from weft.backends.nvidia.driver.launcher import DEVICE_LAUNCHER, HEAD_WORDS, PROGRAMMATIC, device_launcher_module
from weft.backends.nvidia.driver.libcuda import FAULTS, Driver, device_facts, driver
from weft.backends.nvidia.driver.modules import DeviceFunction
from weft.backends.nvidia.driver.tensor_maps import encode_map, scratch_words
from weft.errors import DeviceError, GuardError, LoweringError
from weft.forks import compiled_once
from weft.ir.expr import evaluate
from weft.lower.steps import CallStep, DotStep, IfStep, KernelStep, LoopStep, Plan, Step, all_steps
from weft.runtime.cache import DiskCache
from weft.runtime.cuda.captures import Captures, Early, Span
from weft.runtime.cuda.cubins import load_code
from weft.runtime.linking import link
from weft.runtime.program import Program
from weft.runtime.record import Resources, note_loaded
from weft.runtime.tape import Tape, size_place, table_words

MOST_BLOCKS = (1 << 31) - 1
_MOST_NAMED = 8
"""Kernels that the report of a fault names."""

_NO_CONTEXT = 201

Launcher: TypeAlias = Callable[[int, int, int], int]
"""The host function: tape, table and stream to 0, or the driver's result for a kernel, with the kernel's number."""


@dataclass(frozen=True)
class DeviceTape(Tape):
    """Kernels that are launched without Python between them, and their names."""

    kernels: tuple[str, ...] = ()
    early: Early | None = None
    """The same with a first kernel that starts before what is ahead has ended, where that is allowed."""


@dataclass
class DeviceProgram(Program):
    """A program whose `code` is a `DeviceCode`, loaded on the device of this number."""

    by_phases: ClassVar[bool] = True

    device: int = 0
    cache: DiskCache | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        code: DeviceCode = self.code
        maps = max((len(launch.maps) for launch in code.launches.values()), default=0)
        self.scratch += scratch_words(maps)
        names = {step.function for step in all_steps(self.plan.steps) if isinstance(step, KernelStep)}
        if missing := names - code.launches.keys():
            raise LoweringError(f"a program without its kernels {', '.join(sorted(missing))}")
        self.driver = driver()
        self.facts = device_facts(self.device)
        self.driver.use_if_none(self.device)
        self.functions: Mapping[str, DeviceFunction] = {}
        if names:
            with self.driver.within(self.device):
                self._loaded = load_code(self.driver, self.facts, code, self.cache)
            self.functions = self._loaded.functions
            taken = {name: Resources(each.registers, each.local_bytes) for name, each in self.functions.items()}
            note_loaded(self.plan, taken)
        self._run = device_launcher(self.driver)
        self.captures = captures_of(self.driver)

    def is_apart(self, step: Step) -> bool:
        return isinstance(step, CallStep | DotStep | LoopStep | IfStep)

    def write_tape(self, steps: Sequence[Step], sizes: Mapping[str, int]) -> Tape:
        return write_device_tape(self.driver, self.plan, steps, sizes, self.functions)

    def launch(self, tape: DeviceTape, table: int, stream: int) -> None:
        """Launch the kernels of a tape on a stream of the device; `table` is the table's address."""
        address, early = tape.address, tape.early
        if early is not None and self.captures.follows(early, table, stream):
            address = early.address
        result = self._run(address, table, stream)
        if result and (result := launched_again(self.driver, self.device, result, address, table, stream)):
            raise launch_failure(self.driver, tape.kernels, result)
        if early is not None:
            self.captures.note(early, table, stream)
        self.driver.launched.append(tape.kernels)


def launched_again(driver: Driver, device: int, result: int, tape: int, table: int, stream: int) -> int:
    """The result of a launch that failed: a thread that has met no CUDA yet gets the device's context, and launches."""
    if result != _NO_CONTEXT:  # of the first kernel: none has run
        return result
    driver.use(device)
    return device_launcher(driver)(tape, table, stream)


def launch_failure(driver: Driver, kernels: Sequence[str], result: int) -> DeviceError:
    """What the launcher's result means for the kernels of a tape."""
    number, code = result >> 32, result & 0xFFFFFFFF
    kernel = kernels[number]
    if code not in FAULTS:
        return driver.error(code, f"the kernel {kernel} cannot be launched")
    # A fault shows when something else is launched, unless every launch waits for its kernel.
    waits = os.environ.get("CUDA_LAUNCH_BLOCKING") == "1"
    earlier = [name for names in (*driver.launched, kernels[:number]) for name in names]
    names = [kernel] if waits else list(dict.fromkeys(reversed(earlier)))[:_MOST_NAMED]
    match names:
        case []:
            return driver.error(code, f"a kernel that ran before {kernel}, and is not Weft's, failed")
        case [name]:
            return driver.error(code, f"the kernel {name} failed")
        case _:
            doing = f"a kernel failed; the last ones launched are {', '.join(names)}"
            return driver.error(code, doing, "set CUDA_LAUNCH_BLOCKING=1 to learn which")


def write_device_tape(
    driver: Driver,
    plan: Plan,
    steps: Sequence[Step],
    sizes: Mapping[str, int],
    functions: Mapping[str, DeviceFunction],
) -> DeviceTape:
    """The tape of a run of kernels."""
    written: list[list[int]] = []
    launched: list[KernelStep] = []
    for step in steps:
        assert isinstance(step, KernelStep)
        programs = evaluate(step.grid, sizes)
        if programs <= 0:
            continue
        function = functions[step.function]
        launch = function.launch
        blocks = (1 if step.serial else function.programs_launched(programs)) * launch.blocks_per_program
        if blocks > MOST_BLOCKS:
            raise GuardError(f"{step.label or step.function} has {blocks} programs, a GPU takes {MOST_BLOCKS}")
        places = [*step.buffers, *(size_place(plan, name) for name in step.symbols)]
        head = [function.handle, blocks, launch.threads, launch.shared, launch.cluster, int(launch.programmatic)]
        maps = [[step.buffers[each.argument], *encode_map(driver, each, sizes)] for each in launch.maps]
        written.append([*head, len(places), len(maps), *places, *(word for each in maps for word in each)])
        launched.append(step)
    words = np.array([len(written), table_words(plan), *(word for each in written for word in each)], np.int64)
    early = _early(plan, launched, sizes, functions, words)
    if early is not None:
        words = words.copy()
        words[HEAD_WORDS + PROGRAMMATIC] = 0
    return DeviceTape(words, tuple(steps), True, (), tuple(step.function for step in launched), early)


def _early(
    plan: Plan,
    launched: Sequence[KernelStep],
    sizes: Mapping[str, int],
    functions: Mapping[str, DeviceFunction],
    words: np.ndarray,
) -> Early | None:
    """The tape with a first kernel that starts early, if it is the program's first and asks for anything early."""
    kernels = (step for step in plan.steps if isinstance(step, KernelStep))
    first = next((step for step in kernels if evaluate(step.grid, sizes) > 0), None)
    if first is None or not launched or launched[0] is not first:
        return None
    asked = functions[first.function].launch.asked
    if not asked:
        return None
    # Kernels may let the next one come before they wait, all but the first: any of them may still write then.
    each = [_memory(plan, step, functions[step.function].launch.written, sizes) for step in launched]
    return Early(words, _memory(plan, first, asked, sizes), tuple(part for parts in each for part in parts))


def _memory(plan: Plan, step: KernelStep, which: Sequence[int], sizes: Mapping[str, int]) -> tuple[Span, ...]:
    """Some of a kernel's pointers: their places in the table, and from where to where what they point to reaches."""
    found: list[Span] = []
    for number in (step.buffers[argument] for argument in which):
        buffer = plan.buffers[number]
        shape = [evaluate(size, sizes) for size in buffer.tensor.shape]
        strides = [evaluate(stride, sizes) for stride in buffer.layout.strides]
        start, size = evaluate(buffer.layout.offset, sizes), buffer.tensor.dtype.bytes
        steps = [max(extent - 1, 0) * stride for extent, stride in zip(shape, strides, strict=True)]
        first, last = (start + sum(pick(step, 0) for step in steps) for pick in (min, max))
        found.append((number, first * size, (last + 1) * size if all(shape) else first * size))
    return tuple(found)


@lru_cache
def captures_of(driver: Driver) -> Captures:
    """What programs of a process have captured last."""
    return Captures(driver)


@compiled_once
def device_launcher(driver: Driver) -> Launcher:
    """The function that launches tapes, compiled once in a process."""
    target = host_target()
    entries = [driver.address(name) for name in ("cuLaunchKernelEx", "cuTensorMapReplaceAddress")]
    library = link(compile_object(device_launcher_module(target.triple, *entries), target), [DEVICE_LAUNCHER])
    word = ctypes.c_int64
    function: Any = ctypes.CFUNCTYPE(word, word, word, word)(library[DEVICE_LAUNCHER])
    # The function lives as long as the library that holds it.
    function.library = library
    return function
