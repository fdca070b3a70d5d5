"""A kernel for arguments of known kinds as code for a GPU: from the disk cache, else through the tile dialect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.errors import ParseError
from weft.frontends.triton.builders.tile_builder import Argument
from weft.frontends.triton.compiler.compile_function import framed
from weft.frontends.triton.runtime.compiling import arguments_of, builder_of, disk_cache, kernel_key, name_of
from weft.frontends.triton.runtime.device_compiled import (
    DEFAULT_WARPS,
    DeviceKernel,
    DeviceKernelCode,
    compile_device_kernel,
    device_target,
    registers_of,
)
from weft.frontends.triton.runtime.jit import JITFunction
from weft.frontends.triton.runtime.specialise import Described
from weft.ir.types import DTYPES
from weft.runtime.cache import CacheEntry
from weft.runtime.cuda.cubins import EarlyLoader, decode_code, encode_code


def compile_for_device(
    function: JITFunction,
    described: Sequence[Described],
    groups: tuple[int, ...] | None,
    device: int,
    options: dict[str, Any],
) -> DeviceKernel:
    """The kernel on a device, for arguments like the described."""
    arguments = arguments_of(described, groups)
    given = options.get("num_warps")
    warps, debug = DEFAULT_WARPS if given is None else int(given), bool(options.get("debug", function.debug))
    registers = registers_of(options)
    limit = "" if registers is None else f" registers {registers}"
    target, cache = device_target(device), disk_cache()
    key = kernel_key(function, described, arguments, debug, f"{target!r} warps {warps}{limit}")
    if key is not None and (entry := cache.get(key)) is not None and (stored := _decode(entry)) is not None:
        return DeviceKernel(stored, device, cache)
    loads = EarlyLoader(device, cache)
    with framed(function):
        build = builder_of(function, described)
        tiles = kernel_key(function, described, arguments, debug, f"{target!r} tiles")
        name = name_of(function)
        code = compile_device_kernel(
            build, arguments, name, target, warps, loads=loads, tiles=tiles, registers=registers
        )
    if key is not None:
        meta, blobs = encode_code(code.code)
        names = [[each.dtype.name, each.pointer, each.group] for each in code.arguments]
        cache.put(key, {"name": code.name, "arguments": names, "checks": [list(c) for c in code.checks], **meta}, blobs)
    return DeviceKernel(code, device, cache)


def _decode(entry: CacheEntry) -> DeviceKernelCode | None:
    try:
        meta = entry.meta
        arguments = tuple(Argument(DTYPES[str(n)], bool(p), int(g)) for n, p, g in meta["arguments"])
        checks = tuple((str(message), str(location)) for message, location in meta["checks"])
        return DeviceKernelCode(str(meta["name"]), arguments, checks, decode_code(meta, entry.blobs))
    except (KeyError, TypeError, ValueError, ParseError):  # the file is whole, but was not written by this code
        return None
