"""The GPU's driver, `libcuda.so.1`, through ctypes: devices, contexts, and every result code as a typed error.

Nothing of CUDA needs to be installed but the driver. The contexts are the primary ones, which torch uses as well:
memory and streams of torch's are valid in Weft's launches.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from weft.errors import (
    DeviceError,
    DeviceMemoryError,
    KernelFaultError,
    NoDeviceError,
    OldDriverError,
    UnsupportedDeviceError,
)

LIBRARY = "libcuda.so.1"
OLDEST_DRIVER = 12000
"""The oldest driver, as it numbers itself: with CUDA 12 came launches with attributes, and PTX for Hopper."""
OLDEST_CAPABILITY = (8, 0)

_HINTS = {
    2: "free memory: drop tensors, call torch.cuda.empty_cache(), or use smaller batches",
    3: "a process forked after CUDA was initialised cannot use it: start workers with the `spawn` method",
    100: "run `nvidia-smi`; in a container, start it with access to the GPUs; check CUDA_VISIBLE_DEVICES",
    46: "another process has the GPU for itself: see its compute mode in `nvidia-smi`",
    222: "update the GPU's driver",
    803: "the driver's library and kernel module do not fit: reboot, or install the driver again",
    804: "the driver's forward compatibility does not serve this GPU: update the driver itself",
}
_KINDS: dict[int, type[DeviceError]] = {
    2: DeviceMemoryError,
    34: NoDeviceError,
    46: NoDeviceError,
    100: NoDeviceError,
    101: NoDeviceError,
    209: UnsupportedDeviceError,
    222: OldDriverError,
    803: OldDriverError,
    804: OldDriverError,
}
FAULTS = frozenset((700, 702, 710, 714, 715, 716, 717, 718, 719))
"""Results that a kernel brings about while it runs; the context cannot be used after them."""

_REMEMBERED = 4
_ATTRIBUTES = {
    "threads_per_block": 1,
    "multiprocessors": 16,
    "l2_bytes": 38,
    "major": 75,
    "minor": 76,
    "shared_per_multiprocessor": 81,
    "shared_per_block": 97,
    "registers_per_block": 12,
    "clock_khz": 13,
    "memory_clock_khz": 36,
    "memory_bus_bits": 37,
}


@dataclass(frozen=True)
class DeviceFacts:
    """What a GPU is."""

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    shared_per_block: int
    shared_per_multiprocessor: int
    threads_per_block: int
    l2_bytes: int
    memory_bytes: int
    registers_per_block: int = 1 << 16
    clock_khz: int = 0
    memory_clock_khz: int = 0
    memory_bus_bits: int = 0

    @property
    def arch(self) -> str:
        """The name that LLVM and ptxas have for it, with all that only this generation can where it has such things."""
        major, minor = self.capability
        return f"sm_{major}{minor}{'a' if major >= 9 else ''}"

    @property
    def is_supported(self) -> bool:
        return self.capability >= OLDEST_CAPABILITY

    def runs(self, arch: str) -> bool:
        """Whether PTX for an architecture runs here: that with a letter only on the very same one."""
        digits = arch.removeprefix("sm_").rstrip("af")
        made_for = (int(digits[:-1]), int(digits[-1]))
        if arch.endswith("a"):
            return made_for == self.capability
        if arch.endswith("f"):
            return made_for[0] == self.capability[0] and made_for <= self.capability
        return made_for <= self.capability


class Driver:
    """The driver's functions; `library` is what ctypes loads, or stands in for it."""

    def __init__(self, library: Any) -> None:
        self.library = library
        self._contexts: dict[int, int] = {}
        self.launched: deque[tuple[str, ...]] = deque(maxlen=_REMEMBERED)
        """The kernels of the last tapes: a fault shows only after the kernel that did it was launched."""
        try:
            self.check(library.cuInit(0), "CUDA cannot be used")
        except AttributeError as error:
            raise NoDeviceError(f"{LIBRARY} is not a driver: {error}", hint="install the GPU's driver") from error
        self.version = self.number("cuDriverGetVersion")
        if self.version < OLDEST_DRIVER:
            raise OldDriverError(
                f"the GPU's driver is of CUDA {version_text(self.version)}, Weft needs {version_text(OLDEST_DRIVER)}",
                hint="update the GPU's driver",
            )

    def check(self, result: int, doing: str) -> None:
        """Raise what a result code means, unless it means success."""
        if result:
            raise self.error(result, doing)

    def error(self, result: int, doing: str, hint: str | None = None) -> DeviceError:
        """What a result code means; `doing` says what failed."""
        kind = KernelFaultError if result in FAULTS else _KINDS.get(result, DeviceError)
        name, text = self._text("cuGetErrorName", result), self._text("cuGetErrorString", result)
        message = f"{doing}: {text}" if text else doing
        return kind(message, result=name or "unknown CUDA error", number=result, hint=hint or _HINTS.get(result))

    def _text(self, function: str, result: int) -> str:
        text = ctypes.c_char_p()
        if getattr(self.library, function)(result, ctypes.byref(text)) or text.value is None:
            return ""
        return text.value.decode()

    def call(self, function: str, *arguments: Any, doing: str | None = None) -> None:
        """Call a function of the driver by name."""
        self.check(getattr(self.library, function)(*arguments), doing or f"{function} failed")

    def number(self, function: str, *arguments: Any) -> int:
        """An int that a function of the driver writes to its first argument."""
        value = ctypes.c_int()
        self.call(function, ctypes.byref(value), *arguments)
        return value.value

    def handle(self, function: str, *arguments: Any, doing: str | None = None) -> int:
        """A pointer that a function of the driver writes to its first argument."""
        value = ctypes.c_void_p()
        self.call(function, ctypes.byref(value), *arguments, doing=doing)
        return value.value or 0

    def address(self, function: str) -> int:
        """Where a function of the driver lies: machine code calls it there."""
        return ctypes.cast(getattr(self.library, function), ctypes.c_void_p).value or 0

    def device_count(self) -> int:
        return self.number("cuDeviceGetCount")

    def facts(self, device: int) -> DeviceFacts:
        """What the device of this number is."""
        handle = ctypes.c_int(self.number("cuDeviceGet", ctypes.c_int(device)))
        name = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", name, ctypes.c_int(len(name)), handle)
        found = {key: self.number("cuDeviceGetAttribute", ctypes.c_int(n), handle) for key, n in _ATTRIBUTES.items()}
        memory = ctypes.c_size_t()
        self.call("cuDeviceTotalMem_v2", ctypes.byref(memory), handle)
        capability = (found.pop("major"), found.pop("minor"))
        return DeviceFacts(name.value.decode(), capability, memory_bytes=memory.value, **found)

    def context(self, device: int) -> int:
        """The device's primary context."""
        context = self._contexts.get(device)
        if context is None:
            handle = ctypes.c_int(self.number("cuDeviceGet", ctypes.c_int(device)))
            # It is never released: torch keeps it for as long as the process lives.
            context = self._contexts[device] = self.handle("cuDevicePrimaryCtxRetain", handle)
        return context

    def use(self, device: int) -> None:
        """Make the device's primary context that of this thread, as torch does for its own threads."""
        context = self.context(device)
        if self.handle("cuCtxGetCurrent") != context:
            self.call("cuCtxSetCurrent", ctypes.c_void_p(context))

    def use_if_none(self, device: int) -> None:
        """Make the device's primary context that of a thread that has met no CUDA yet; any other stays current."""
        if not self.handle("cuCtxGetCurrent"):
            self.use(device)

    @contextmanager
    def within(self, device: int) -> Generator[None]:
        """Let the device's primary context be that of this thread for a while, and then again what was before."""
        context = self.context(device)
        if self.handle("cuCtxGetCurrent") == context:
            yield
            return
        self.call("cuCtxPushCurrent_v2", ctypes.c_void_p(context))
        try:
            yield
        finally:  # after a fault this fails as well, but what failed first is what counts
            self.library.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))


def version_text(version: int) -> str:
    """12080 → `12.8`."""
    return f"{version // 1000}.{version % 1000 // 10}"


def load_driver(load: Callable[[str], Any] = ctypes.CDLL) -> Driver:
    """The driver of this machine, or an error that says why there is none."""
    try:
        library = load(LIBRARY)
    except OSError as error:
        raise NoDeviceError(
            f"there is no driver for NVIDIA GPUs: {error}", hint="install the GPU's driver, or compile for the CPU"
        ) from error
    return Driver(library)


@lru_cache(maxsize=1)
def driver() -> Driver:
    """The driver of this machine, loaded once in a process."""
    return load_driver()


@lru_cache
def device_facts(device: int) -> DeviceFacts:
    """What the device of this number is; one that Weft does not support is an error."""
    facts = driver().facts(device)
    if not facts.is_supported:
        oldest = ".".join(map(str, OLDEST_CAPABILITY))
        raise UnsupportedDeviceError(
            f"{facts.name} has compute capability {'.'.join(map(str, facts.capability))}, Weft needs {oldest} or newer",
            hint="compile for the CPU, or use an Ampere GPU or a newer one",
        )
    return facts
