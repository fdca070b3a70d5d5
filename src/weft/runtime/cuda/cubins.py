"""Device code in this process: the driver compiles PTX once for a device, and the disk cache keeps the cubin."""

from __future__ import annotations

import ctypes
import hashlib
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

from weft.backends.nvidia.code import DeviceCode, Launch, TensorMap
from weft.backends.nvidia.driver.libcuda import DeviceFacts, Driver, device_facts, driver
from weft.backends.nvidia.driver.modules import DeviceFunction, LoadedModule, load_module, ptx_to_cubin
from weft.diagnostics import warn
from weft.errors import CompilationError, ParseError, UnsupportedDeviceError, WeftError
from weft.ir.types import DTYPES
from weft.runtime.cache import DiskCache, cache_key
from weft.runtime.codec import decode, encode, table
from weft.runtime.cores import available_cores

_MOVES_REGISTERS = "setmaxnreg"
_CLASSES = table(Launch, TensorMap)


@dataclass(frozen=True)
class LoadedCode:
    """The kernels of a program in one context, and the modules that they live in."""

    modules: tuple[LoadedModule, ...]

    @property
    def functions(self) -> dict[str, DeviceFunction]:
        return {name: function for module in self.modules for name, function in module.functions.items()}


Place: TypeAlias = tuple[int, str, tuple[tuple[str, Launch], ...]]
"""A context, a module's text, and its kernels."""

_lock = threading.Lock()
_resident: WeakValueDictionary[Place, LoadedModule] = WeakValueDictionary()
"""What is loaded in this process: programs share kernels that are equal."""
_loading: dict[Place, Future[LoadedModule]] = {}
"""What threads are loading."""


def load_code(driver: Driver, facts: DeviceFacts, code: DeviceCode, cache: DiskCache | None) -> LoadedCode:
    """Load code into the current context, whose device is the one described; modules are compiled side by side."""
    if not facts.runs(code.arch):
        raise UnsupportedDeviceError(
            f"code for {code.arch} does not run on {facts.name}, which is {facts.arch}",
            hint="compile it for this GPU, without naming an architecture",
        )
    modules: dict[str, dict[str, Launch]] = {}
    for name, launch in code.launches.items():
        modules.setdefault(code.modules[name], {})[name] = launch
    context = driver.handle("cuCtxGetCurrent")

    def load(item: tuple[str, Mapping[str, Launch]]) -> LoadedModule:
        driver.call("cuCtxSetCurrent", ctypes.c_void_p(context))
        return _load(driver, facts, *item, cache)

    if len(modules) == 1:
        return LoadedCode(tuple(map(load, modules.items())))
    with ThreadPoolExecutor(available_cores()) as pool:
        return LoadedCode(tuple(pool.map(load, modules.items())))


class EarlyLoader:
    """Loads kernels while others are still compiled; whoever loads the whole program finds them loaded.

    Errors are left to that, which meets them again. What is loaded stays so for as long as this object lives.
    """

    def __init__(self, device: int, cache: DiskCache | None) -> None:
        self._device, self._cache = device, cache
        self._kept: list[LoadedModule] = []

    def __call__(self, name: str, ptx: str, launch: Launch) -> None:
        with suppress(WeftError):
            found = driver()
            with found.within(self._device):
                self._kept.append(_load(found, device_facts(self._device), ptx, {name: launch}, self._cache))


def _load(
    driver: Driver, facts: DeviceFacts, ptx: str, launches: Mapping[str, Launch], cache: DiskCache | None
) -> LoadedModule:
    """A module in the current context; one that is there already, or that another thread loads, is not loaded again."""
    place = (driver.handle("cuCtxGetCurrent"), ptx, tuple(launches.items()))
    with _lock:
        if (loaded := _resident.get(place)) is not None:
            return loaded
        others = _loading.get(place)
        if others is None:
            _loading[place] = Future()
    if others is not None:
        return others.result()
    try:
        loaded = _load_new(driver, facts, ptx, launches, cache)
    except BaseException as error:
        with _lock:
            _loading.pop(place).set_exception(error)
        raise
    with _lock:
        _resident[place] = loaded
        _loading.pop(place).set_result(loaded)
    return loaded


def _load_new(
    driver: Driver, facts: DeviceFacts, ptx: str, launches: Mapping[str, Launch], cache: DiskCache | None
) -> LoadedModule:
    if _MOVES_REGISTERS in ptx:
        # What the driver links it compiles as if others might call it, and leaves registers where they are: roles then
        # lack them. What it loads as PTX it compiles whole, and keeps in a cache of its own.
        return load_module(driver, facts, ptx.encode() + b"\0", launches)
    key = cubin_key(driver, facts, ptx)
    entry = cache.get(key) if cache is not None else None
    if entry is not None and "cubin" in entry.blobs:
        try:
            return load_module(driver, facts, entry.blobs["cubin"], launches)
        except (CompilationError, UnsupportedDeviceError) as error:
            warn("cache", "a cubin from the cache is not used", str(error), "the driver compiles the kernels again")
    cubin = ptx_to_cubin(driver, ptx)
    loaded = load_module(driver, facts, cubin, launches)
    if cache is not None:
        cache.put(key, {"arch": facts.arch}, {"cubin": cubin})
    return loaded


def cubin_key(driver: Driver, facts: DeviceFacts, ptx: str) -> str:
    """Everything that changes a cubin: the PTX, the device that it is compiled for, and the driver that compiles it."""
    text = hashlib.sha256(ptx.encode()).hexdigest()
    return cache_key("cubin", text, facts.capability, driver.version)


def encode_code(code: DeviceCode) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Device code as what a cache entry holds: JSON-able data, and blobs."""
    launches = [[name, encode(launch)] for name, launch in code.launches.items()]
    return {"arch": code.arch, "launches": launches}, {name: ptx.encode() for name, ptx in code.modules.items()}


def decode_code(meta: Any, blobs: Mapping[str, bytes]) -> DeviceCode:
    """The device code that `encode_code` made data of; raises `ParseError` where it is none."""
    arch, pairs = decode([meta["arch"], meta["launches"]], _CLASSES)
    launches: dict[Any, Any] = dict(pairs)
    for name, launch in launches.items():
        if not isinstance(name, str) or not isinstance(launch, Launch) or not _is_sound(launch):
            raise ParseError(f"a stored kernel does not fit: {name} {str(launch)[:80]}")
    if not isinstance(arch, str):
        raise ParseError(f"a stored program for the architecture {arch}")
    return DeviceCode(arch, {name: blobs[name].decode() for name in launches}, launches)


def _is_sound(launch: Launch) -> bool:
    counts = (launch.threads, launch.cluster, launch.blocks_per_program)
    return min(counts) >= 1 and launch.shared >= 0 and all(map(_is_sound_map, launch.maps))


def _is_sound_map(described: TensorMap) -> bool:
    rank = len(described.sizes)
    fits = 1 <= rank <= 5 and len(described.strides) == rank - 1 and len(described.box) == rank
    return fits and described.argument >= 0 and described.dtype in DTYPES
