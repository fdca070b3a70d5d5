"""Which processors code is for: baselines by name, the flags that each needs, and what this machine's has.

Flags are those of `/proc/cpuinfo`, which the system itself has cleared of what it does not let programs use. Code for
the host needs every flag that the host has, whatever LLVM makes of it; it runs nowhere else by mistake.
"""

from __future__ import annotations

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


@lru_cache(maxsize=1)
def flags_here() -> frozenset[str]:
    """The flags that all processors of this machine have; none where the system does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    found = [frozenset(line.partition(":")[2].split()) for line in lines if line.startswith(("flags", "Features"))]
    return found[0].intersection(*found[1:]) if found else frozenset()


def architecture(triple: str) -> str:
    return triple.partition("-")[0]


def runs_here(triple: str, requires: Sequence[str]) -> bool:
    """Whether this machine has what code needs; code that says of nothing what it needs runs nowhere."""
    same = platform.machine() == architecture(triple) and platform.system() == "Linux" and "linux" in triple
    return same and bool(requires) and flags_here().issuperset(requires)
