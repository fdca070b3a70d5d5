"""Thousands of compilations and calls: memory, handles, mappings and files in the cache do not grow with them."""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import gc
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from weft.testing.faults.children import GOOD, WRONG, Outcome
from weft.testing.faults.programs import Program, use_cache
from weft.testing.faults.storage import entries, folder
from weft.testing.peak_memory import give_back

BLOCK = 50
"""Compilations, or loadings, between two looks; each is called as often."""
WARM = 4
"""Looks before the one that later ones are compared with: allocators and tables have their size by then."""
MOST_BYTES = 2000
"""Resident bytes that a compilation may leave, on average: what Python and LLVM keep of names, not a program."""
SLACK = 24 << 20


@dataclass(frozen=True)
class _Look:
    resident: int
    handles: int
    mappings: int
    files: int


def leaks(programs: Sequence[Program], draw: random.Random) -> Iterator[Outcome]:
    """A compilation, a loading or a call an outcome; what they leave is judged after each block of them."""
    with folder() as root:
        use_cache(str(root))
        first: _Look | None = None
        made = block = 0
        while True:
            for _ in range(BLOCK):
                program = draw.choice(programs)
                # One in ten is compiled; loading does all else that compiling does with memory that stays.
                call = program.compiled(cache=bool(draw.randrange(10)))
                trouble = program.trouble(call)
                for _ in range(BLOCK):
                    call([*program.draw()])
                made += 1
                yield Outcome(WRONG, trouble) if trouble else Outcome(GOOD)
                del call
            block += 1
            look = _look(root)
            if block == WARM:
                first, made = look, 0
            elif first is not None:
                yield _judged(first, look, made, len(programs))


def _look(root: Path) -> _Look:
    give_back()
    gc.collect()
    torch.compiler.reset()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    handles, mappings = len(os.listdir("/proc/self/fd")), len(Path("/proc/self/maps").read_text().splitlines())
    return _Look(resident, handles, mappings, len(entries(root)))


def _judged(first: _Look, look: _Look, made: int, programs: int) -> Outcome:
    grown = look.resident - first.resident
    if grown > SLACK + MOST_BYTES * made:
        return Outcome(WRONG, f"{grown >> 20} MiB more after {made} compilations")
    if look.handles > first.handles + 2:
        return Outcome(WRONG, f"{look.handles - first.handles} handles more after {made} compilations")
    if look.mappings > first.mappings + 100:
        return Outcome(WRONG, f"{look.mappings - first.mappings} mappings more after {made} compilations")
    if look.files > programs:
        return Outcome(WRONG, f"{look.files} files in the cache for {programs} programs")
    return Outcome(GOOD, f"{grown / 2**20:.1f} MiB after {made} compilations")
