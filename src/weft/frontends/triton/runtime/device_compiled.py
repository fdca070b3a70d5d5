"""Kernels on a GPU: compiled as device code, loaded on the device of their tensors, launched on torch's stream.

A launch writes the arguments into a table and hands it, with a tape of one step, to the launcher of GPU programs.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.backends.nvidia.code import DeviceCode, argument_name
from weft.backends.nvidia.compile import KernelHistory, Loads
from weft.backends.nvidia.driver.libcuda import device_facts, driver
from weft.backends.nvidia.driver.tensor_maps import encode_map, scratch_words
from weft.backends.nvidia.ir.dialect import MAX_REGISTERS, WARPS, set_integer
from weft.backends.nvidia.target import NvidiaTarget, target_of_capability
from weft.forks import COMPILING
from weft.frontends.triton.builders.builder import Handle
from weft.frontends.triton.builders.tile_builder import GRID, Argument, TileBuilder
from weft.frontends.triton.errors import DeviceAssertError, KernelValueError
from weft.frontends.triton.language.constants import unwrap
from weft.frontends.triton.runtime.built_kernels import BuiltKernel, BuiltKernels
from weft.frontends.triton.runtime.compiled import build_kernel, states_lines, word_form
from weft.frontends.triton.runtime.kernel_handle import KernelHandle
from weft.frontends.triton.target import Cuda, compiled_for
from weft.ir.expr import symbols_of
from weft.pipelines import compile_kernels
from weft.runtime.cache import DiskCache
from weft.runtime.cuda.cubins import load_code
from weft.runtime.cuda.device_program import MOST_BLOCKS, device_launcher, launch_failure, launched_again
from weft.tile.dialect import KernelOp

if TYPE_CHECKING:
    from weft.frontends.triton.listings.listing import Listing

DEFAULT_WARPS = 4
_BLOCKS = 3
"""Where on the tape the number of blocks stands."""
_MOST_SIZES = 64
"""Of tensors that TMA moves, for which maps are kept."""


_built = BuiltKernels()


@dataclass(frozen=True)
class DeviceKernelCode:
    """What compiling a kernel for a GPU gives: all of it can be stored."""

    name: str
    arguments: tuple[Argument, ...]
    checks: tuple[tuple[str, str], ...]
    code: DeviceCode


@dataclass
class _Frame:
    """The memory of one launch at a time: the driver has copied the arguments when it returns."""

    tape: np.ndarray
    table: np.ndarray

    def __post_init__(self) -> None:
        self.steps: memoryview = self.tape.data
        self.buffer: memoryview = self.table.data
        self.tape_address: int = self.tape.ctypes.data
        self.table_address: int = self.table.ctypes.data


class DeviceKernel(KernelHandle):
    """A kernel on one GPU."""

    def __init__(self, code: DeviceKernelCode, device: int, cache: DiskCache | None) -> None:
        self.code, self.device = code, device
        self._driver = driver()
        self._driver.use_if_none(device)
        with self._driver.within(device):
            self._loaded = load_code(self._driver, device_facts(device), code.code, cache)
        self._function = self._loaded.functions[code.name]
        self.n_regs, self.n_spills = self._function.registers, self._function.local_bytes // 4
        self.n_max_threads = self._function.launch.threads
        self._pack = struct.Struct("<" + "".join(map(word_form, code.arguments)) + "q" * (1 + len(GRID))).pack_into
        names = {argument_name(number): number for number in range(len(code.arguments))}
        described = [size for each in self._function.launch.maps for size in (*each.sizes, *each.strides)]
        symbols = set[str]().union(*map(symbols_of, described))
        self._sizing = sorted(names[name] for name in symbols if name in names)
        """The arguments that say how large tensors are which TMA moves."""
        self._by_grid = not symbols.isdisjoint(GRID)
        self._is_sized = self._by_grid or bool(self._sizing)
        self._frames: dict[tuple[int | float, ...], list[_Frame]] = {}
        self._run = device_launcher(self._driver)
        self._most = self._function.programs_launched(MOST_BLOCKS)
        self._names = (code.name,)
        torch: Any = sys.modules["torch"]
        self._current_device: Callable[[], int] = torch._C._cuda_getDevice
        self._stream: Callable[[int], int] = torch._C._cuda_getCurrentRawStream
        self._status: Any = torch.zeros(1, dtype=torch.int64, device=f"cuda:{device}") if code.checks else None

    @property
    def function(self) -> int:
        """The driver's handle."""
        return self._function.handle

    def _taken(self) -> dict[str, Any]:
        launch, target = self._function.launch, Cuda(device_target(self.device).capability).get_current_target()
        return {"shared": launch.shared, "num_warps": -(-launch.threads // 32), "target": target}

    def _binary(self) -> dict[str, Any]:
        return {"cubin": self._loaded.modules[0].cubin}

    def _listing(self) -> Listing:
        from weft.frontends.triton.listings.device_listing import device_listing_for

        origin = self._origin()
        target = device_target(self.device)
        return device_listing_for(origin.function, origin.described, origin.groups, target, origin.options)[0]

    def _frame(self, sizes: Sequence[int | float]) -> _Frame:
        count, launch = len(self.code.arguments) + 1 + len(GRID), self._function.launch
        head = [self._function.handle, 0, launch.threads, launch.shared, launch.cluster, int(launch.programmatic)]
        names = [*map(argument_name, self._sizing), *(reversed(GRID) if self._by_grid else ())]
        known = {name: int(size) for name, size in zip(names, sizes, strict=True)}
        maps = [word for each in launch.maps for word in (each.argument, *encode_map(self._driver, each, known))]
        tape = np.array([1, count, *head, count, len(launch.maps), *range(count), *maps], np.int64)
        return _Frame(tape, np.zeros(2 * count + scratch_words(len(launch.maps)), np.int64))

    def _sizes(self, words: Sequence[int | float], grid: tuple[int, int, int]) -> tuple[int | float, ...]:
        """What tensor maps depend on."""
        return (*[words[number] for number in self._sizing], *(grid if self._by_grid else ()))

    def launch(self, grid: tuple[int, int, int], words: Sequence[int | float], threads: int = 1) -> None:
        """Run all programs of a grid; `words` are the arguments, pointers as addresses."""
        if self._current_device() != self.device:
            torch: Any = sys.modules["torch"]
            with torch.cuda.device(self.device):
                self.launch(grid, words)
            return
        x, y, z = grid
        count = x * y * z
        if not 0 < count <= MOST_BLOCKS:
            if count:
                raise KernelValueError(f"{self.code.name}: a grid of {count} programs, a GPU takes {MOST_BLOCKS}")
            return
        sizes = self._sizes(words, grid) if self._is_sized else ()
        frames = self._frames.get(sizes)
        if frames is None:
            # A whole new one, as other threads may be here too: what one of them loses is made again.
            self._frames = {**dict(list(self._frames.items())[1 - _MOST_SIZES :]), sizes: (frames := [])}
        try:
            frame = frames.pop()
        except IndexError:  # another thread has it, or there was none
            frame = self._frame(sizes)
        frame.steps[_BLOCKS] = count if count < self._most else self._most
        status = 0 if self._status is None else self._status.data_ptr()
        self._pack(frame.buffer, 0, *words, status, z, y, x)
        call = frame.tape_address, frame.table_address, self._stream(self.device)
        result = self._run(*call)
        if result and (result := launched_again(self._driver, self.device, result, *call)):
            raise launch_failure(self._driver, self._names, result)
        self._driver.launched.append(self._names)
        frames.append(frame)
        if self._status is not None:
            self._check()

    def _check(self) -> None:
        """Wait for the kernel, and say which of its checks failed."""
        torch: Any = sys.modules["torch"]
        if torch.cuda.is_current_stream_capturing():
            return
        failed = int(self._status.item())
        if failed:
            self._status.zero_()
            message, location = self.code.checks[failed - 1]
            raise DeviceAssertError(f"{self.code.name}: device_assert failed: {message}", location=location)


@lru_cache
def device_target(device: int) -> NvidiaTarget:
    """What code for a device is made for."""
    facts = device_facts(device)
    return target_of_capability(*facts.capability, facts.multiprocessors)


def registers_of(options: Mapping[str, Any]) -> int | None:
    """How many registers a launch allows a thread, where it says so."""
    given = options.get("maxnreg")
    return None if given is None else index(unwrap(given))


def compile_device_kernel(
    build: Callable[[TileBuilder, list[Handle]], None],
    arguments: Sequence[Argument],
    name: str,
    target: NvidiaTarget,
    warps: int = DEFAULT_WARPS,
    history: KernelHistory | None = None,
    loads: Loads | None = None,
    tiles: str | None = None,
    registers: int | None = None,
) -> DeviceKernelCode:
    """Compile a kernel for a GPU; `history` takes what came of each pass over it.

    With `loads`, what LLVM has to do may still be under way in another thread, which then loads it. `tiles` is the key
    of its tile IR: kernels that differ in their warps and `registers` (of a thread, `maxnreg`) alone
    share it.
    """
    if warps < 1 or warps > 32 or warps & (warps - 1):
        raise KernelValueError(f"{name}: num_warps is a power of two up to 32, not {warps}")
    with COMPILING:
        kernel, checks = _built.get(tiles, lambda: _build(build, arguments, name, Cuda(target.capability, warps)))
        set_integer(kernel, WARPS, warps)  # of a kernel that others share: compiling it makes a copy first
        kernel.attributes.pop(MAX_REGISTERS, None)
        if registers is not None:
            set_integer(kernel, MAX_REGISTERS, registers)
        code = compile_kernels({name: kernel}, target, history, loads, debug_lines=states_lines())
    return DeviceKernelCode(name, tuple(arguments), checks, code)


def build_device_kernel(
    build: Callable[[TileBuilder, list[Handle]], None],
    arguments: Sequence[Argument],
    name: str,
    target: NvidiaTarget,
    warps: int = DEFAULT_WARPS,
) -> tuple[KernelOp, tuple[tuple[str, str], ...]]:
    """The tile IR of a kernel that is told that it is for a GPU, and the messages of its checks."""
    kernel, checks, _ = _build(build, arguments, name, Cuda(target.capability, warps))
    return kernel, checks


def _build(
    build: Callable[[TileBuilder, list[Handle]], None], arguments: Sequence[Argument], name: str, device: Cuda
) -> BuiltKernel:
    token = compiled_for.set(device)
    try:
        return *build_kernel(build, arguments, name), not device.was_asked_for_warps
    finally:
        compiled_for.reset(token)
