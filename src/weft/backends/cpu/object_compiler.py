"""Tile kernels → object code: this thread writes LLVM IR, others compile what it has written.

One module of all kernels would keep one core busy. It is cut into parts as it grows (`llvm/module_parts.py`), and each
becomes an object file of its own; together they are one archive. Kernels come one by one, as soon as they are lowered:
the first parts are compiled while other groups still are not.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

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


class ObjectCompiler:
    """Takes kernels, and gives their code when all are there. Lines are stated in one module only, which is made then.

    with ObjectCompiler(target) as compiler:
        planned = build_plan(function, panel_form, machine, compiler.add)
        text, code = compiler.code()
    """

    def __init__(self, target: CpuTarget, *, debug_lines: bool = False) -> None:
        self.target = target
        self.debug_lines = debug_lines
        self.seconds = 0.0
        """How long kernels were written as LLVM IR, by the thread that added them."""
        self._kernels: dict[str, tile.KernelOp] = {}
        self._module = Module(target.triple)
        self._parts = ModuleParts(self._module)
        self._size = self._seen = 0
        self._made: list[Future[bytes]] = []
        self._pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)), thread_name_prefix="weft-compile")

    def __enter__(self) -> Self:
        COMPILING.acquire()  # whoever forks waits for the lock, and so for the threads
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._pool.shutdown(wait=True, cancel_futures=kind is not None)
        finally:
            COMPILING.release()

    def add(self, kernel: tile.KernelOp) -> None:
        """Take up a kernel, and let a part be compiled if that makes it long enough."""
        if self.debug_lines:
            self._kernels[kernel.sym_name.data] = kernel
            return
        start, module = time.perf_counter(), self._module
        emit_kernel(module, kernel, self.target)
        self._size += sum(map(len, module.functions[self._seen :]))
        self._seen = len(module.functions)
        if self._size > _PART:
            self._made.append(self._pool.submit(compile_part, self._parts.cut(), self.target))
            self._size = 0
        self.seconds += time.perf_counter() - start

    def code(self) -> tuple[str, bytes]:
        """The LLVM IR of the kernels, and their code."""
        if self.debug_lines:
            text = emit_kernels(self._kernels, self.target, debug_lines=True)
            return text, compile_object(text, self.target)
        text = str(self._module)
        if not self._made:
            return text, compile_part(text, self.target)
        last = [compile_part(self._parts.cut(), self.target)] if self._parts.uncut else []
        return text, archive_of([*(each.result() for each in self._made), *last])
