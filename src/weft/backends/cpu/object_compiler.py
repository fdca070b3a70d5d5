"""Tile kernels → object code: this thread writes LLVM IR, others compile what it has written.

One module of all kernels would keep one core busy. It is cut into parts as it grows (`llvm/module_parts.py`), and each
becomes an object file of its own; together they are one archive.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from weft.backends.cpu.codegen import emit_kernel
from weft.backends.cpu.compile import emit_kernels
from weft.backends.cpu.objects.archive import archive_of
from weft.backends.cpu.target import CpuTarget, compile_object, compile_part
from weft.backends.llvm.builder import Module
from weft.backends.llvm.module_parts import ModuleParts
from weft.forks import COMPILING
from weft.tile import dialect as tile

_PART = 100_000
"""Characters of LLVM IR that make a part: some 0.1 s of a core's time."""


def compile_kernels(
    kernels: Mapping[str, tile.KernelOp], target: CpuTarget, *, debug_lines: bool = False
) -> tuple[str, bytes]:
    """The LLVM IR of kernels, and their code. Lines are stated in one module only."""
    if debug_lines:
        text = emit_kernels(kernels, target, debug_lines=True)
        return text, compile_object(text, target)
    module = Module(target.triple)
    parts, made = ModuleParts(module), list[Future[bytes]]()
    size, seen = 0, 0
    # Whoever forks waits for the lock, and so for the threads.
    with COMPILING, ThreadPoolExecutor(len(os.sched_getaffinity(0)), thread_name_prefix="weft-compile") as pool:
        try:
            for kernel in kernels.values():
                emit_kernel(module, kernel, target)
                size += sum(map(len, module.functions[seen:]))
                seen = len(module.functions)
                if size > _PART:
                    made.append(pool.submit(compile_part, parts.cut(), target))
                    size = 0
            if not made:
                return str(module), compile_part(str(module), target)
            last = [compile_part(parts.cut(), target)] if parts.uncut else []
            return str(module), archive_of([*(each.result() for each in made), *last])
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
