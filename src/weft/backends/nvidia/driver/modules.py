"""Code on the GPU: PTX becomes a cubin by the driver's own compiler, a cubin becomes functions that can be launched."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping
from dataclasses import dataclass

from weft.backends.nvidia.code import Launch
from weft.backends.nvidia.driver.libcuda import DeviceFacts, Driver
from weft.backends.nvidia.target import SYSTEM_SHARED
from weft.errors import CompilationError, DeviceError, UnsupportedDeviceError

_INFO_LOG, _INFO_SIZE, _ERROR_LOG, _ERROR_SIZE = 3, 4, 5, 6
_PTX = 1
_LOG_BYTES = 1 << 14

_SHARED_BYTES, _LOCAL_BYTES, _REGISTERS = 1, 3, 4
_MOST_DYNAMIC_SHARED, _SHARED_PERCENT, _ANY_CLUSTER = 8, 9, 14
_PORTABLE_CLUSTER = 8
_DEFAULT_SHARED = 48 << 10
"""Dynamic shared memory that a kernel may have without asking."""
_HALF, _IN_HALF = 50, 100 << 10
"""Percent of a multiprocessor's memory that kernels whose threads read codes ahead have as shared memory, and how many
bytes that is at least."""

_RELAXED_CAPTURE = 2

_REFUSALS = (200, 218, 221, 300, 301)
"""Results that say that a program is wrong, not that the machine is: invalid image, invalid PTX and the like."""


class LaunchAttribute(ctypes.Structure):
    """`CUlaunchAttribute`: what it is, and a union of 64 bytes."""

    _fields_ = [("id", ctypes.c_int), ("padding", ctypes.c_int), ("value", ctypes.c_uint32 * 16)]


class LaunchConfig(ctypes.Structure):
    """`CUlaunchConfig`."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("attribute_count", ctypes.c_uint),
    ]


CLUSTER_DIMENSION, PROGRAMMATIC_SERIALIZATION = 4, 6
"""The ids of launch attributes: the size of clusters, and that a kernel may start before the one before it ends."""


@dataclass(frozen=True)
class DeviceFunction:
    """A kernel that was loaded: the driver's handle, and what it takes."""

    name: str
    handle: int
    launch: Launch
    registers: int
    local_bytes: int
    """Of a thread: what did not fit in registers."""
    static_shared: int
    resident: int
    """How many programs run on the whole device at once, for kernels that loop over programs; else 0."""

    def programs_launched(self, count: int) -> int:
        """How many of so many programs get blocks of their own."""
        return min(count, max(self.resident, 1)) if self.launch.persistent else count


@dataclass(frozen=True)
class LoadedModule:
    """Functions on one device; they are unloaded with it."""

    cubin: bytes
    functions: Mapping[str, DeviceFunction]


class _JitLog:
    """The options that make the driver's compiler say what it did not like."""

    def __init__(self) -> None:
        self.errors = ctypes.create_string_buffer(_LOG_BYTES)
        self.infos = ctypes.create_string_buffer(_LOG_BYTES)
        self.keys = (ctypes.c_int * 4)(_INFO_LOG, _INFO_SIZE, _ERROR_LOG, _ERROR_SIZE)
        addresses = [ctypes.addressof(self.infos), _LOG_BYTES, ctypes.addressof(self.errors), _LOG_BYTES]
        self.values = (ctypes.c_void_p * 4)(*addresses)

    def refusal(self, error: DeviceError) -> Exception:
        """The error with what the compiler said, as a mistake in the program if it is one."""
        said = (self.errors.value or self.infos.value).decode(errors="replace").strip()
        if error.number not in _REFUSALS:
            return error
        return CompilationError(
            f"{error.message}\n{said}" if said else error.message, hint="report it with the output of `weft doctor`"
        )


def ptx_to_cubin(driver: Driver, ptx: str) -> bytes:
    """The cubin that the driver makes of PTX, for the device of the current context."""
    log = _JitLog()
    state = ctypes.c_void_p()
    options = (ctypes.c_uint(len(log.keys)), log.keys, log.values)
    driver.call("cuLinkCreate_v2", *options, ctypes.byref(state), doing="PTX cannot be compiled")
    try:
        text = ptx.encode() + b"\0"
        source = (
            state,
            ctypes.c_int(_PTX),
            text,
            ctypes.c_size_t(len(text)),
            b"weft.ptx",
            ctypes.c_uint(0),
            None,
            None,
        )
        cubin, size = ctypes.c_void_p(), ctypes.c_size_t()
        try:
            driver.call("cuLinkAddData_v2", *source, doing="the driver refused PTX")
            driver.call(
                "cuLinkComplete", state, ctypes.byref(cubin), ctypes.byref(size), doing="the driver refused PTX"
            )
        except DeviceError as error:
            raise log.refusal(error) from error
        return ctypes.string_at(cubin, size.value)  # the link state owns the memory
    finally:
        driver.call("cuLinkDestroy", state)


def load_module(driver: Driver, facts: DeviceFacts, image: bytes, launches: Mapping[str, Launch]) -> LoadedModule:
    """Load a cubin, or PTX that ends with a zero byte, for the current context, with the kernels that are named.

    It is loaded as a library: of modules the driver compiles one at a time, whichever threads they come from.
    """
    log = _JitLog()
    library, count = ctypes.c_void_p(), ctypes.c_uint(len(log.keys))
    nothing = (None, None, ctypes.c_uint(0))
    try:
        arguments = (ctypes.byref(library), image, log.keys, log.values, count, *nothing)
        driver.call("cuLibraryLoadData", *arguments, doing="code cannot be loaded to the GPU")
        functions = {name: _function(driver, facts, library, name, launch) for name, launch in launches.items()}
    except BaseException as error:
        if library:
            driver.call("cuLibraryUnload", library)
        if isinstance(error, DeviceError):
            raise log.refusal(error) from error
        raise
    loaded = LoadedModule(image, functions)
    context = ctypes.c_void_p(driver.handle("cuCtxGetCurrent"))
    # The driver may write to the log until the library is gone.
    weakref.finalize(loaded, _unload, driver, context, library, log).atexit = False
    return loaded


def _unload(driver: Driver, context: ctypes.c_void_p, code: ctypes.c_void_p, log: _JitLog) -> None:
    """Unload a library where it was loaded.

    It may come at any time: in a thread that has another device's context or none, while a stream of the thread's is
    captured, which an unloading would otherwise end, or after a kernel's fault. There is no one to tell of results.
    """
    library = driver.library
    if library.cuCtxPushCurrent_v2(context):
        return
    mode = ctypes.c_int(_RELAXED_CAPTURE)
    library.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    library.cuLibraryUnload(code)
    library.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    library.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))


def _function(
    driver: Driver, facts: DeviceFacts, library: ctypes.c_void_p, name: str, launch: Launch
) -> DeviceFunction:
    kernel = driver.handle("cuLibraryGetKernel", library, name.encode(), doing=f"there is no kernel {name}")
    handle = driver.handle("cuKernelGetFunction", ctypes.c_void_p(kernel), doing=f"{name} cannot be loaded to the GPU")
    function = ctypes.c_void_p(handle)

    def attribute(which: int) -> int:
        return driver.number("cuFuncGetAttribute", ctypes.c_int(which), function)

    static = attribute(_SHARED_BYTES)
    if launch.shared + static > facts.shared_per_block or launch.threads > facts.threads_per_block:
        raise UnsupportedDeviceError(
            f"the kernel {name} takes {launch.threads} threads and {launch.shared + static} bytes of shared memory, "
            f"{facts.name} has {facts.threads_per_block} and {facts.shared_per_block} for a block"
        )
    if launch.shared + static > _DEFAULT_SHARED:
        wanted = (function, ctypes.c_int(_MOST_DYNAMIC_SHARED), ctypes.c_int(launch.shared))
        driver.call("cuFuncSetAttribute", *wanted, doing=f"the kernel {name} takes too much shared memory")
    if launch.ahead and launch.programmatic and _fits_half(driver, facts, function, launch):
        wanted = (function, ctypes.c_int(_SHARED_PERCENT), ctypes.c_int(_HALF))
        driver.call("cuFuncSetAttribute", *wanted, doing=f"the kernel {name} cannot have half of the memory")
    if launch.cluster > _PORTABLE_CLUSTER:
        wanted = (function, ctypes.c_int(_ANY_CLUSTER), ctypes.c_int(1))
        driver.call("cuFuncSetAttribute", *wanted, doing=f"the kernel {name} takes clusters of {launch.cluster}")
    resident = (
        _resident_blocks(driver, facts, function, launch) // launch.blocks_per_program if launch.persistent else 0
    )
    registers, local = attribute(_REGISTERS), attribute(_LOCAL_BYTES)
    return DeviceFunction(name, handle, launch, registers, local, static, resident)


def _fits_half(driver: Driver, facts: DeviceFacts, function: ctypes.c_void_p, launch: Launch) -> bool:
    """Whether half of a multiprocessor's memory is enough for all blocks of a kernel that it runs at once.

    What is not shared memory is a cache, in which all is under way that threads read: of the eighth that a kernel ahead
    with a ring leaves to it too few loads fit, and the memory is not divided anew while one runs.
    """
    blocks = _resident_blocks(driver, facts, function, launch) // facts.multiprocessors
    return blocks * (launch.shared + SYSTEM_SHARED) <= _IN_HALF


def _resident_blocks(driver: Driver, facts: DeviceFacts, function: ctypes.c_void_p, launch: Launch) -> int:
    """How many blocks of a kernel the device runs at once."""
    if launch.cluster == 1:
        block = (ctypes.c_int(launch.threads), ctypes.c_size_t(launch.shared))
        return facts.multiprocessors * driver.number("cuOccupancyMaxActiveBlocksPerMultiprocessor", function, *block)
    attributes = (LaunchAttribute * 1)(LaunchAttribute(CLUSTER_DIMENSION, 0, (launch.cluster, 1, 1)))
    config = LaunchConfig((launch.cluster, 1, 1), (launch.threads, 1, 1), launch.shared, None, attributes, 1)
    return launch.cluster * driver.number("cuOccupancyMaxActiveClusters", function, ctypes.byref(config))
