"""NVIDIA's own tools, where they are installed: ptxas says what a kernel takes, a disassembler shows its instructions.

Weft needs neither, as the driver assembles what it loads; they serve `weft explain` and tests on machines without one.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
# Advice that means lost speed: wgmma made to wait, setmaxnreg left out.
_ADVICE = re.compile(r"\(C75\d\d\)|C75\d\d|warning")
_LIMIT_SECONDS = 600


@dataclass(frozen=True)
class Assembled:
    """What ptxas says of one kernel."""

    name: str
    arch: str
    registers: int
    stack: int
    spilled: int
    """Bytes stored to and loaded from memory because registers were not enough."""
    shared: int
    """Static shared memory; what is asked for at launch is not in it."""


@dataclass(frozen=True)
class Assembly:
    """A module of PTX after ptxas: its kernels, advice that means lost speed, or why it was refused."""

    kernels: dict[str, Assembled]
    advice: tuple[str, ...]
    error: str = ""
    cubin: bytes = b""


@cache
def tool(name: str) -> Path | None:
    """A tool of the wheel nvidia-cuda-nvcc (or another of NVIDIA's), else the one on the path; None without both."""
    found = importlib.util.find_spec("nvidia")
    for folder in found.submodule_search_locations or () if found is not None else ():
        for path in sorted(Path(folder).glob(f"cu*/bin/{name}")):
            return path
    on_path = shutil.which(name)
    return Path(on_path) if on_path else None


def assemble(ptx: str, arch: str) -> Assembly:
    """Assemble a module for an architecture."""
    ptxas = tool("ptxas")
    if ptxas is None:
        return Assembly({}, (), "there is no ptxas")
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "module.ptx", Path(folder) / "module.cubin"
        source.write_text(ptx)
        said, failed = _run([str(ptxas), "-v", f"-arch={arch}", str(source), "-o", str(target)])
        if failed:
            return Assembly({}, (), said.strip() or "ptxas refused it")
        advice = tuple(line for line in said.splitlines() if _ADVICE.search(line))
        return Assembly(parse(said), advice, cubin=target.read_bytes())


def parse(said: str) -> dict[str, Assembled]:
    """The kernels in the output of `ptxas -v`."""
    kernels: dict[str, Assembled] = {}
    parts = _ENTRY.split(said)
    for name, arch, text in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        stack, stores, loads = map(int, found.groups()) if (found := _STACK.search(text)) else (0, 0, 0)
        used, shared = _USED.search(text), _SHARED.search(text)
        registers, memory = int(used[1]) if used else 0, int(shared[1]) if shared else 0
        kernels[name] = Assembled(name, arch, registers, stack, stores + loads, memory)
    return kernels


def disassemble(cubin: bytes) -> str | None:
    """The instructions of a cubin (SASS); None where there is no disassembler, or it does not know the code."""
    for name, options in (("nvdisasm", ["-c"]), ("cuobjdump", ["-sass"])):
        if (found := tool(name)) is None:
            continue
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "module.cubin"
            source.write_bytes(cubin)
            said, failed = _run([str(found), *options, str(source)])
        if not failed:
            return said
    return None


def _run(command: list[str]) -> tuple[str, bool]:
    """What a tool says, and whether it failed."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_SECONDS)
    return done.stdout + done.stderr, done.returncode != 0
