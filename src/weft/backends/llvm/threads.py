"""LLVM in several threads at once.

llvmlite lets one thread into LLVM at a time. LLVM itself only asks that threads share no context and no target machine:
the calls here that take long go past the lock, and whoever makes them keeps to that.
"""

# llvmlite has no types, and its functions are found by their names.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false, reportUnknownVariableType=false
# pyright: reportPrivateUsage=false, reportUnknownArgumentType=false

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import llvmlite.binding as llvm
from llvmlite.binding import ffi

from weft.errors import CompilationError


@cache
def _unlocked(name: str) -> Any:
    """A function of llvmlite's library without the lock around it."""
    locked: Any = getattr(ffi.lib, name)
    function: Any = getattr(ctypes.CDLL(ffi.lib._name), name)
    function.argtypes, function.restype = locked.argtypes, locked.restype
    return function


def parse(text: str, context: llvm.ContextRef) -> llvm.ModuleRef:
    """The module that a text is, in a context of the thread's own."""
    with ffi.OutputString() as said:
        module = llvm.ModuleRef(_unlocked("LLVMPY_ParseAssembly")(context, text.encode(), said), context)
        if said:
            module.close()
            raise _refusal(said)
    with ffi.OutputString() as said:
        if _unlocked("LLVMPY_VerifyModule")(module, said):
            module.close()  # before its context is: nothing says in which order they would go
            raise _refusal(said)
    return module


def run_passes(manager: llvm.ModulePassManager, module: llvm.ModuleRef, builder: llvm.PassBuilder) -> None:
    """Run a manager's passes over a module."""
    _unlocked("LLVMPY_RunNewModulePassManager")(manager, module, builder)


def emit_assembly(machine: llvm.TargetMachine, module: llvm.ModuleRef) -> str:
    """A module as a target's assembly; the target machine is the thread's own."""
    return _emitted(machine, module, 0).decode()


def emit_object(machine: llvm.TargetMachine, module: llvm.ModuleRef) -> bytes:
    """A module as an object file; the target machine is the thread's own."""
    return _emitted(machine, module, 1)


def _emitted(machine: llvm.TargetMachine, module: llvm.ModuleRef, form: int) -> bytes:
    with ffi.OutputString() as said:
        buffer = _unlocked("LLVMPY_TargetMachineEmitToMemory")(machine, module, form, said)
        if not buffer:
            raise _refusal(said)
    try:
        return ctypes.string_at(ffi.lib.LLVMPY_GetBufferStart(buffer), ffi.lib.LLVMPY_GetBufferSize(buffer))
    finally:
        ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)


def _refusal(said: Any) -> CompilationError:
    return CompilationError(f"LLVM refused a kernel: {said}", hint="report it with the output of `weft explain`")
