"""Which processors code is for: baselines by name, the flags that each needs, and what this machine's has.

Flags are those of `/proc/cpuinfo`, which the system itself has cleared of what it does not let programs use. Under an
emulator of another architecture that file is about the machine below it, so an AArch64 program asks what it was started
with instead. Code for the host needs every flag that the host has, whatever LLVM makes of it; it runs nowhere else by
mistake.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

_V2 = ("cx16", "lahf_lm", "pni", "popcnt", "sse4_1", "sse4_2", "ssse3")
_V3 = (*_V2, "abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave")
_V4 = (*_V3, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")
BASELINES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "x86-64-v2": ("x86_64-unknown-linux-gnu", "x86-64-v2", _V2),
    "x86-64-v3": ("x86_64-unknown-linux-gnu", "x86-64-v3", _V3),
    "x86-64-v4": ("x86_64-unknown-linux-gnu", "x86-64-v4", _V4),
    "aarch64": ("aarch64-unknown-linux-gnu", "generic", ("asimd", "fp")),
}
"""Names of targets: triple, LLVM's name of the processor, and the flags that it needs."""
HOST = "host"


_LINE = {"x86_64": "flags", "aarch64": "Features"}
"""What a processor's line of flags in `/proc/cpuinfo` begins with."""
_AT_HWCAP = 16
_FEATURES = (
    *("fp", "asimd", "evtstrm", "aes", "pmull", "sha1", "sha2", "crc32", "atomics", "fphp", "asimdhp", "cpuid"),
    *("asimdrdm", "jscvt", "fcma", "lrcpc", "dcpop", "sha3", "sm3", "sm4", "asimddp", "sha512", "sve", "asimdfhm"),
    *("dit", "uscat", "ilrcpc", "flagm", "ssbs", "sb", "paca", "pacg"),
)
"""Linux' names of the bits that `AT_HWCAP` has on AArch64, as it writes them after `Features`."""


@lru_cache(maxsize=1)
def flags_here() -> frozenset[str]:
    """The flags that all processors of this machine have; none where the system does not tell."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    machine = platform.machine()
    found = flags_of(text, machine)
    return _started_with() if not found and machine == "aarch64" else found


def flags_of(text: str, machine: str) -> frozenset[str]:
    """The flags that all processors of a kind have by the text of `/proc/cpuinfo`."""
    word = _LINE.get(machine)
    lines = [line.partition(":") for line in text.splitlines()]
    found = [frozenset(flags.split()) for name, _, flags in lines if name.strip() == word]
    return found[0].intersection(*found[1:]) if found else frozenset()


def features_of(bits: int) -> frozenset[str]:
    """What the bits of AArch64's `AT_HWCAP` stand for."""
    return frozenset(name for place, name in enumerate(_FEATURES) if bits >> place & 1)


def _started_with() -> frozenset[str]:
    """The features that this process was told of when it began."""
    try:
        ask = ctypes.CDLL(None).getauxval
    except (OSError, AttributeError):
        return frozenset()
    ask.restype, ask.argtypes = ctypes.c_ulong, [ctypes.c_ulong]
    return features_of(ask(_AT_HWCAP))


def architecture(triple: str) -> str:
    return triple.partition("-")[0]


def runs_here(triple: str, requires: Sequence[str]) -> bool:
    """Whether this machine has what code needs; code that says of nothing what it needs runs nowhere."""
    same = platform.machine() == architecture(triple) and platform.system() == "Linux" and "linux" in triple
    return same and bool(requires) and flags_here().issuperset(requires)
