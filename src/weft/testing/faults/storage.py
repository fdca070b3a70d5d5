"""Faults of the disk cache: writers that are killed, files that change, disks that are full, and hostile neighbours."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from weft.runtime.cache import DiskCache, cache_key
from weft.testing.faults.children import GOOD, WRONG, Forked, Outcome, in_child
from weft.testing.faults.programs import Program, check_all, sources, use_cache

NOBODY = 65534


@contextmanager
def folder() -> Generator[Path]:
    """A cache of its own, gone afterwards."""
    root = Path(tempfile.mkdtemp(prefix="weft-faults-")) / "cache"
    try:
        yield root
    finally:
        shutil.rmtree(root.parent, ignore_errors=True)


def _checked(programs: Sequence[Program], root: Path) -> str | None:
    use_cache(str(root))
    return check_all(programs)


def entries(root: Path) -> list[Path]:
    return sorted(root.glob("*.weft"))


def kills(programs: Sequence[Program], draw: random.Random) -> Iterator[Outcome]:
    """SIGKILL at a random moment of compiling, storing, loading and calling; what is left must be sound."""
    with folder() as root:
        began = time.monotonic()
        yield in_child(lambda: _checked(programs, root))
        longest = time.monotonic() - began
        for number in range(1, 1 << 30):
            empty = number % 3 != 0
            if empty:  # most of what can go wrong goes wrong while an entry is written
                for path in entries(root):
                    path.unlink()
            several = [draw.choice(programs)] if number % 2 else draw.sample(programs, len(programs))
            child = Forked(lambda several=several: _checked(several, root))
            wait = draw.uniform(0, longest * len(several) / len(programs) * (1.1 if empty else 0.3))
            outcome = child.outcome(120, killed_after=wait)
            if outcome.is_bad:
                yield outcome
                continue
            yield _aftermath(programs, root, number, outcome)


def _aftermath(programs: Sequence[Program], root: Path, number: int, outcome: Outcome) -> Outcome:
    """Whether the folder is sound: no bad entry, no lock that nobody holds, and now and then right results."""
    bad = DiskCache(root).verify()
    if bad:
        return Outcome(WRONG, f"an entry is bad after a kill: {bad[0].reason}")
    flight, _ = DiskCache(root).lead(cache_key("aftermath", number), lambda: None)
    flight.release()
    return in_child(lambda: _checked(programs, root)) if number % 25 == 0 else outcome


def flips(programs: Sequence[Program], draw: random.Random) -> Iterator[Outcome]:
    """Bits that flip, files that are cut, longer, swapped or empty: never a wrong result, never a crash."""
    with folder() as root:
        stored: list[tuple[Program, Path, bytes]] = []
        for program in programs:
            before = set(entries(root))
            yield in_child(lambda program=program: _checked([program], root))
            stored += [(program, path, path.read_bytes()) for path in set(entries(root)) - before]
        while True:
            seed = draw.random()
            outcome = in_child(lambda seed=seed: _flipped(stored, root, random.Random(seed)), 300)
            yield from [Outcome(GOOD)] * (FLIPS - 1 if not outcome.is_bad else 0)
            yield outcome


FLIPS = 20
"""Files that are damaged one after the other in one process."""


def _flipped(stored: Sequence[tuple[Program, Path, bytes]], root: Path, draw: random.Random) -> str | None:
    """Damage files and look whether they are refused, or as good as before; the first is compiled again."""
    for number in range(FLIPS):
        program, path, content = draw.choice(stored)
        _damage(path, content, [other for _, _, other in stored], draw)
        use_cache(str(root))
        call = program.loaded() if number else program.compiled()
        trouble = None if call is None else program.trouble(call)
        path.write_bytes(content)
        path.chmod(0o600)
        if trouble is not None:
            return trouble
    return None


def _damage(path: Path, content: bytes, others: Sequence[bytes], draw: random.Random) -> None:
    changed = bytearray(content)
    match draw.randrange(8):
        case 0:
            changed = changed[: draw.randrange(len(changed))]
        case 1:
            changed += draw.randbytes(draw.randint(1, 64))
        case 2:
            changed = bytearray(draw.choice(others))
        case 3:
            start = draw.randrange(len(changed))
            stop = min(len(changed), start + draw.randint(1, 4096))
            changed[start:stop] = bytes(stop - start)
        case _:
            for _ in range(draw.choice((1, 1, 1, 8))):
                # The head of a file says how the rest is read: it gets a share of its own.
                place = draw.randrange(draw.choice((100, 2000, len(changed))) % len(changed) or len(changed))
                changed[place] ^= 1 << draw.randrange(8)
    path.write_bytes(changed)


def cold_starts(programs: Sequence[Program], draw: random.Random, processes: int = 64) -> Iterator[Outcome]:
    """Many processes that start at the same moment with an empty cache: at most 1.1 compilations a key."""
    while True:
        with folder() as root:
            counts = root.parent / "counts"
            counts.mkdir()
            gate_read, gate_write = os.pipe()

            def work(
                root: Path = root, counts: Path = counts, gate: int = gate_read, other: int = gate_write
            ) -> str | None:
                os.close(other)
                os.read(gate, 1)  # at its end when the parent closes it
                use_cache(str(root))
                found, trouble = sources(random.Random(os.getpid()).sample(programs, len(programs)))
                (counts / str(os.getpid())).write_text(" ".join(found))
                return trouble

            children = [Forked(work) for _ in range(processes)]
            os.close(gate_read)
            os.close(gate_write)
            bad = [outcome for outcome in (child.outcome(600) for child in children) if outcome.is_bad]
            compiled = sum(path.read_text().split().count("compiled") for path in counts.iterdir())
            a_key = compiled / len(programs)
            if bad:
                yield bad[0]
            elif a_key > 1.1:
                yield Outcome(WRONG, f"{a_key:.2f} compilations a key with {processes} processes")
            else:
                yield Outcome(GOOD, f"{a_key:.2f} compilations a key with {processes} processes")


def disks(programs: Sequence[Program], draw: random.Random) -> Iterator[Outcome]:
    """Files that may not grow, folders that may only be read, disks that are full."""
    while True:
        with folder() as root:

            def limited(root: Path = root) -> str | None:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                most = draw.choice((0, 100, 4096, 20000))
                resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
                return _checked(programs, root)

            yield in_child(limited)
            yield in_child(lambda: _checked(programs, root))
        with folder() as root:
            if draw.randrange(2):
                root.mkdir(mode=0o700)
            else:
                in_child(lambda: _checked(programs, root))

            def read_only(root: Path = root) -> str | None:
                if os.geteuid() == 0:  # who may write everywhere
                    for path in (root.parent, root, *root.iterdir()):
                        os.chown(path, NOBODY, NOBODY)
                    os.setgroups([])
                    os.setgid(NOBODY)
                    os.setuid(NOBODY)
                root.chmod(0o500)
                return _checked(programs, root)

            yield in_child(read_only)
        yield _full_disk(programs, draw.choice((16, 64, 200)))


def _full_disk(programs: Sequence[Program], kilobytes: int) -> Outcome:
    with folder() as root:
        root.mkdir(mode=0o700)
        command = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k,mode=700", "none", str(root)]
        mounted = os.geteuid() == 0 and subprocess.run(command, capture_output=True).returncode == 0
        if not mounted:
            return Outcome(GOOD, "no file system can be mounted here: a full disk was not tried")
        try:
            return in_child(lambda: _checked(programs, root))
        finally:
            subprocess.run(["umount", "-l", str(root)], capture_output=True)


def hostile(programs: Sequence[Program], draw: random.Random) -> Iterator[Outcome]:
    """What other users, and scripts, leave in a cache: it is not followed, not run and not waited for."""
    while True:
        for deed in _DEEDS:
            with folder() as root:
                in_child(lambda root=root: _checked(programs, root))
                elsewhere = root.parent / "elsewhere"
                elsewhere.write_bytes(b"not for you")
                deed(root, elsewhere, draw)
                outcome = in_child(lambda root=root: _checked(programs, root), 60)
                if not outcome.is_bad and elsewhere.read_bytes() != b"not for you":
                    outcome = Outcome(WRONG, "a file outside the cache was written")
                yield Outcome(outcome.kind, f"{deed.__name__}: {outcome.said}" if outcome.said else "")
                root.chmod(0o700)


def _replaced(make: Callable[[Path, Path], object]) -> Callable[[Path, Path, random.Random], None]:
    def deed(root: Path, elsewhere: Path, draw: random.Random) -> None:
        for path in [*entries(root), root / ".lock"]:
            path.unlink(missing_ok=True)
            make(path, elsewhere)

    deed.__name__ = getattr(make, "__name__", "replaced")
    return deed


def _linked(path: Path, elsewhere: Path) -> None:
    path.symlink_to(elsewhere)


def _linked_to_itself(path: Path, elsewhere: Path) -> None:
    path.symlink_to(path)


def _endless(path: Path, elsewhere: Path) -> None:
    path.symlink_to("/dev/zero")


def _pipe(path: Path, elsewhere: Path) -> None:
    os.mkfifo(path)


def _directory(path: Path, elsewhere: Path) -> None:
    path.mkdir()
    (path / "full").touch()


def _socket(path: Path, elsewhere: Path) -> None:
    here = os.open(".", os.O_RDONLY)
    try:
        os.chdir(path.parent)  # the path of a socket must be short
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.fchdir(here)
        os.close(here)


def _huge(path: Path, elsewhere: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


def _of_nobody(root: Path, elsewhere: Path, draw: random.Random) -> None:
    if os.geteuid() == 0:
        for path in draw.choice(([root], entries(root))):
            os.chown(path, NOBODY, NOBODY)


def _open_to_all(root: Path, elsewhere: Path, draw: random.Random) -> None:
    for path in draw.choice(([root], entries(root), [root, *entries(root)])):
        path.chmod(0o777)


def _forged(root: Path, elsewhere: Path, draw: random.Random) -> None:
    """Entries of other programs' under each name, whole and valid."""
    paths = entries(root)
    contents = [path.read_bytes() for path in paths]
    for path, content in zip(paths, [*contents[1:], *contents[:1]], strict=True):
        path.write_bytes(content)


_DEEDS: Sequence[Callable[[Path, Path, random.Random], None]] = (
    *map(_replaced, (_linked, _linked_to_itself, _endless, _pipe, _directory, _socket, _huge)),
    *(_of_nobody, _open_to_all, _forged),
)
