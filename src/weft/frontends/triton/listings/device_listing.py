"""A kernel at every level for a GPU, which need not be there: source, tile and nvidia IR, PTX, for people to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from weft.backends.nvidia.code import DeviceCode
from weft.backends.nvidia.compile import KernelHistory
from weft.backends.nvidia.target import NvidiaTarget
from weft.forks import COMPILING
from weft.frontends.triton.compiler.compile_function import framed
from weft.frontends.triton.listings.listing import Listing, listed
from weft.frontends.triton.runtime.compiling import arguments_of, builder_of, name_of
from weft.frontends.triton.runtime.device_compiled import (
    DEFAULT_WARPS,
    build_device_kernel,
    compile_device_kernel,
    registers_of,
)
from weft.frontends.triton.runtime.jit import JITFunction
from weft.frontends.triton.runtime.specialise import Described
from weft.tile.text import print_program


def device_listing_of(
    kernel: JITFunction,
    args: Sequence[Any],
    keywords: Mapping[str, Any],
    target: NvidiaTarget,
    *,
    each_pass: bool = False,
) -> tuple[Listing, DeviceCode]:
    """The kernel compiled for a GPU and arguments like these; nothing is run, and nothing is taken from the cache.

    With `each_pass`, the listing has the kernel after each pass that changed it, too.
    """
    described, groups = kernel.launcher.describe(args, dict(keywords))
    return device_listing_for(kernel, described, groups, target, keywords, each_pass=each_pass)


def device_listing_for(
    kernel: JITFunction,
    described: Sequence[Described],
    groups: tuple[int, ...] | None,
    target: NvidiaTarget,
    options: Mapping[str, Any],
    *,
    each_pass: bool = False,
) -> tuple[Listing, DeviceCode]:
    """The kernel compiled for a GPU and arguments like the described, by the options of a launch."""
    given = options.get("num_warps")
    warps = DEFAULT_WARPS if given is None else int(given)
    build, arguments, name = builder_of(kernel, described), arguments_of(described, groups), name_of(kernel)
    with COMPILING, framed(kernel):
        located = print_program(build_device_kernel(build, arguments, name, target, warps)[0], locations=True)
    history = KernelHistory(keeps_kernels=True, keeps_passes=each_pass)
    with framed(kernel):
        registers = registers_of(options)
        code = compile_device_kernel(build, arguments, name, target, warps, history, registers=registers).code
    between = {f"nvidia-{made}": text for made, text in history.after_passes.get(name, {}).items()}
    between["nvidia"] = print_program(history.annotated[name])
    found = listed(kernel, described, located, {"ptx": code.ptx})
    return replace(found, between=between, passes=tuple(history.notes[name])), code
