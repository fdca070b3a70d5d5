"""A kernel for arguments of known kinds as machine code: from the disk cache, else through the tile dialect.

The key holds all that shapes the code: the kernel's text, the functions it calls and globals it uses, the types and
facts of the arguments, known values, which tensors share memory, Weft's own sources, and the processor.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from weft.backends.cpu.target import host_target
from weft.frontends.triton.builders.builder import Handle
from weft.frontends.triton.builders.tile_builder import Argument, TileBuilder
from weft.frontends.triton.compiler.compile_function import build_kernel, framed
from weft.frontends.triton.language.constants import base_type, constexpr_type, unwrap
from weft.frontends.triton.language.types import dtype, tuple_type
from weft.frontends.triton.runtime.compiled import CompiledKernel, KernelCode, compile_kernel, states_lines
from weft.frontends.triton.runtime.jit import JITCallable, JITFunction
from weft.frontends.triton.runtime.specialise import Described
from weft.ir.types import DTYPES
from weft.runtime.cache import CacheEntry, DiskCache, cache_key
from weft.runtime.sources import source_digest, versions

_CODE = "code"


@lru_cache(maxsize=1)
def disk_cache() -> DiskCache:
    return DiskCache()


def compile_for(
    function: JITFunction, described: Sequence[Described], groups: tuple[int, ...] | None, debug: bool
) -> CompiledKernel:
    """The kernel in this process, for arguments like the described."""
    return CompiledKernel(kernel_code(function, described, groups, debug))


def kernel_code(
    function: JITFunction, described: Sequence[Described], groups: tuple[int, ...] | None, debug: bool
) -> KernelCode:
    """The machine code of a kernel for arguments like the described."""
    arguments = arguments_of(described, groups)
    key = kernel_key(function, described, arguments, debug, repr(host_target()))

    def compiled() -> KernelCode:
        with framed(function):
            return compile_kernel(builder_of(function, described), arguments, name_of(function))

    if key is None:
        return compiled()
    cache = disk_cache()

    def look_up() -> KernelCode | None:
        entry = cache.get(key)
        return None if entry is None else _decode(entry)

    if (stored := look_up()) is not None:
        return stored
    flight, stored = cache.lead(key, look_up)
    with flight:
        if stored is not None:
            return stored
        code = compiled()
        cache.put(key, _encode(code), {_CODE: code.code})
        return code


def name_of(function: JITFunction) -> str:
    """The name of a kernel as a symbol."""
    return "".join(each if each.isalnum() and each.isascii() else "_" for each in function.__name__)


def arguments_of(described: Sequence[Described], groups: tuple[int, ...] | None) -> list[Argument]:
    """The words that a kernel takes; pointers into one tensor's memory are of one group."""
    words = [word for each in described for word in each.words]
    numbers = iter(groups if groups is not None else range(len(words)))
    return [
        Argument(word.dtype, word.pointer, next(numbers) if word.pointer else 0, word.divisibility) for word in words
    ]


def builder_of(function: JITFunction, described: Sequence[Described]) -> Callable[[TileBuilder, list[Handle]], None]:
    """What calls the builder for all that a kernel does with its arguments."""

    def build(builder: TileBuilder, handles: list[Handle]) -> None:
        values: dict[str, Any] = {}
        cursor = 0
        for name, each in zip(function.arg_names, described, strict=True):
            values[name], cursor = each.type.unflatten(handles, cursor)
        build_kernel(function, values)

    return build


# -- on disk -------------------------------------------------------------------------------------------------------


def kernel_key(
    function: JITFunction, described: Sequence[Described], arguments: Sequence[Argument], debug: bool, target: str
) -> str | None:
    """The key on disk, or None where something has no text that is the same in another process.

    The text of a kernel does not say where it stands: code that states lines is not kept.
    """
    if states_lines():
        return None
    origin = function.fingerprint()
    types = [_type_text(each.type) for each in described]
    if not origin.stable or None in types:
        return None
    facts = [repr(each.words) for each in described]
    places = [str((argument.dtype.name, argument.pointer, argument.group)) for argument in arguments]
    text = "\n".join([origin.digest, *map(str, types), *facts, *places, f"debug {debug}"])
    return cache_key("triton kernel", text, versions(), target, source_digest())


def _type_text(type_: base_type) -> str | None:
    match type_:
        case constexpr_type():
            return _value_text(type_.value)
        case tuple_type():
            parts = [_type_text(each) for each in type_.types]
            return None if None in parts else f"tuple {type_.fields} {parts}"
        case _:
            padding = getattr(type_, "padding", "")
            return f"{type(type_).__name__} {type_} {padding}"


def _value_text(value: Any) -> str | None:
    value = unwrap(value)
    if isinstance(value, JITCallable):
        origin = value.fingerprint()
        return f"function {origin.digest}" if origin.stable else None
    if isinstance(value, tuple | list):
        parts = [_value_text(each) for each in value]  # pyright: ignore[reportUnknownVariableType]
        return None if None in parts else f"{type(value).__name__} {parts}"  # pyright: ignore[reportUnknownArgumentType]
    if value is None or isinstance(value, bool | int | float | str | enum.Enum | dtype):
        return f"{type(value).__qualname__} {value!r}"
    return None


def _encode(code: KernelCode) -> dict[str, Any]:
    return {
        "name": code.name,
        "arguments": [[each.dtype.name, each.pointer, each.group] for each in code.arguments],
        "checks": [list(check) for check in code.checks],
        "written": list(code.written),
    }


def _decode(entry: CacheEntry) -> KernelCode | None:
    try:
        meta = entry.meta
        arguments = tuple(Argument(DTYPES[str(n)], bool(p), int(g)) for n, p, g in meta["arguments"])
        checks = tuple((str(message), str(location)) for message, location in meta["checks"])
        written = tuple(map(int, meta["written"]))
        return KernelCode(str(meta["name"]), arguments, checks, entry.blobs[_CODE], written)
    except (KeyError, TypeError, ValueError):  # the file is whole, but was not written by this code
        return None
