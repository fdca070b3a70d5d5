"""Assembles PTX with ptxas and says what each kernel takes: nothing runs, so that this needs no GPU."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

_ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
# Advice that means lost speed: wgmma made to wait, setmaxnreg left out.
_ADVICE = re.compile(r"\(C75\d\d\)|C75\d\d|warning")


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


@cache
def ptxas() -> Path | None:
    """ptxas of the wheel nvidia-cuda-nvcc, else that on the path; None where there is neither."""
    found = importlib.util.find_spec("nvidia")
    for folder in found.submodule_search_locations or () if found is not None else ():
        for path in sorted(Path(folder).glob("cu*/bin/ptxas")):
            return path
    on_path = shutil.which("ptxas")
    return Path(on_path) if on_path else None


needs_ptxas = pytest.mark.skipif(ptxas() is None, reason="no ptxas: pip install nvidia-cuda-nvcc, or put it on PATH")


def assemble(ptx: str, arch: str) -> Assembly:
    """Assemble a module for an architecture."""
    tool = ptxas()
    assert tool is not None
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "module.ptx"
        source.write_text(ptx)
        command = [str(tool), "-v", f"-arch={arch}", str(source), "-o", str(Path(folder) / "module.cubin")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    said = done.stdout + done.stderr
    if done.returncode != 0:
        return Assembly({}, (), said.strip() or f"ptxas ended with {done.returncode}")
    return Assembly(parse(said), tuple(line for line in said.splitlines() if _ADVICE.search(line)))


def parse(said: str) -> dict[str, Assembled]:
    """The kernels in the output of `ptxas -v`."""
    kernels: dict[str, Assembled] = {}
    parts = _ENTRY.split(said)
    for name, arch, text in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        stack, stores, loads = map(int, found.groups()) if (found := _STACK.search(text)) else (0, 0, 0)
        used, shared = _USED.search(text), _SHARED.search(text)
        assert used is not None, text
        registers, memory = int(used[1]), int(shared[1]) if shared else 0
        kernels[name] = Assembled(name, arch, registers, stack, stores + loads, memory)
    return kernels
