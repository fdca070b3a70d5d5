"""Device code in this process: the driver compiles PTX once for a device, and the disk cache keeps the cubin."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from typing import Any

from weft.backends.nvidia.code import DeviceCode, Launch, TensorMap
from weft.backends.nvidia.driver import DeviceFacts, Driver
from weft.backends.nvidia.modules import LoadedModule, compile_ptx, load_module
from weft.errors import CompilationError, ParseError, UnsupportedDeviceError
from weft.ir.types import DTYPES
from weft.runtime.cache import DiskCache, cache_key
from weft.runtime.codec import decode, encode, table

log = logging.getLogger("weft")

_MOVES_REGISTERS = "setmaxnreg"
_CLASSES = table(Launch, TensorMap)


def load_code(driver: Driver, facts: DeviceFacts, code: DeviceCode, cache: DiskCache | None) -> LoadedModule:
    """Load code into the current context, whose device is the one described."""
    if not facts.runs(code.arch):
        raise UnsupportedDeviceError(
            f"code for {code.arch} does not run on {facts.name}, which is {facts.arch}",
            hint="compile it for this GPU, without naming an architecture",
        )
    if _MOVES_REGISTERS in code.ptx:
        # What the driver links it compiles as if others might call it, and leaves registers where they are: roles then
        # lack them. What it loads as PTX it compiles whole, and keeps in a cache of its own.
        return load_module(driver, facts, code.ptx.encode() + b"\0", code.launches)
    key = cubin_key(driver, facts, code)
    entry = cache.get(key) if cache is not None else None
    if entry is not None and "cubin" in entry.blobs:
        try:
            return load_module(driver, facts, entry.blobs["cubin"], code.launches)
        except (CompilationError, UnsupportedDeviceError) as error:
            log.warning("a cubin from the cache is not used: %s", error)
    cubin = compile_ptx(driver, code.ptx)
    loaded = load_module(driver, facts, cubin, code.launches)
    if cache is not None:
        cache.put(key, {"arch": facts.arch}, {"cubin": cubin})
    return loaded


def cubin_key(driver: Driver, facts: DeviceFacts, code: DeviceCode) -> str:
    """Everything that changes a cubin: the PTX, the device that it is compiled for, and the driver that compiles it."""
    text = hashlib.sha256(code.ptx.encode()).hexdigest()
    return cache_key("cubin", text, code.arch, facts.capability, driver.version)


def encode_code(code: DeviceCode) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Device code as what a cache entry holds: JSON-able data, and blobs."""
    launches = [[name, encode(launch)] for name, launch in code.launches.items()]
    return {"arch": code.arch, "launches": launches}, {"ptx": code.ptx.encode()}


def decode_code(meta: Any, blobs: Mapping[str, bytes]) -> DeviceCode:
    """The device code that `encode_code` made data of; raises `ParseError` where it is none."""
    arch, pairs = decode([meta["arch"], meta["launches"]], _CLASSES)
    launches: dict[Any, Any] = dict(pairs)
    for name, launch in launches.items():
        if not isinstance(name, str) or not isinstance(launch, Launch) or not _is_sound(launch):
            raise ParseError(f"a stored kernel does not fit: {name} {str(launch)[:80]}")
    if not isinstance(arch, str):
        raise ParseError(f"a stored program for the architecture {arch}")
    return DeviceCode(arch, blobs["ptx"].decode(), launches)


def _is_sound(launch: Launch) -> bool:
    counts = (launch.threads, launch.cluster, launch.blocks_per_program)
    return min(counts) >= 1 and launch.shared >= 0 and all(map(_is_sound_map, launch.maps))


def _is_sound_map(described: TensorMap) -> bool:
    rank = len(described.sizes)
    fits = 1 <= rank <= 5 and len(described.strides) == rank - 1 and len(described.box) == rank
    return fits and described.argument >= 0 and described.dtype in DTYPES
