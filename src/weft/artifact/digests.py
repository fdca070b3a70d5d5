"""Digests of members: sha512 of the sha512 of every 8 MiB, so that all cores share the work of a large one."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from weft.runtime.cores import available_cores

_CHUNK = 8 << 20
_MOST_THREADS = 8


def digest_of(data: bytes | memoryview) -> str:
    """The digest of a member, in hexadecimal."""
    view = memoryview(data)
    chunks = [view[at : at + _CHUNK] for at in range(0, len(view), _CHUNK)] or [view]
    return hashlib.sha512(b"".join(_each(chunks))).hexdigest()


def _each(chunks: Sequence[memoryview]) -> list[bytes]:
    threads = min(len(chunks), available_cores(), _MOST_THREADS)
    if threads == 1:
        return [_sha512(chunk) for chunk in chunks]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(threads) as pool:  # hashing does not hold the interpreter
        return list(pool.map(_sha512, chunks))


def _sha512(chunk: memoryview) -> bytes:
    return hashlib.sha512(chunk).digest()
