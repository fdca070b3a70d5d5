"""Digests of members: sha512 of the sha512 of every 8 MiB, so that all cores share the work of a large one."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from weft.runtime.cores import available_cores

_CHUNK = 8 << 20
_MOST_THREADS = 8


def digest_of(data: bytes | memoryview, head: bytes = b"") -> str:
    """The digest of a member, in hexadecimal; its first bytes are those of `head`, a copy that was made of them."""
    view, start = memoryview(data), memoryview(head)
    chunks = [_pieces(start, view, at) for at in range(0, len(view), _CHUNK)] or [(view,)]
    return hashlib.sha512(b"".join(_each(chunks))).hexdigest()


def _pieces(head: memoryview, view: memoryview, at: int) -> tuple[memoryview, ...]:
    """A chunk of `view`, as far as `head` goes from there."""
    return head[at : at + _CHUNK], view[max(at, min(len(head), at + _CHUNK)) : at + _CHUNK]


def _each(chunks: Sequence[Sequence[memoryview]]) -> list[bytes]:
    threads = min(len(chunks), available_cores(), _MOST_THREADS)
    if threads == 1:
        return [_sha512(chunk) for chunk in chunks]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(threads) as pool:  # hashing does not hold the interpreter
        return list(pool.map(_sha512, chunks))


def _sha512(pieces: Sequence[memoryview]) -> bytes:
    found = hashlib.sha512()
    for piece in pieces:
        found.update(piece)
    return found.digest()
