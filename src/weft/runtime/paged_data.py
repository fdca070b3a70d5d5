"""Large data of cache entries: arrays at the borders of pages, mapped where they lie, with a digest that is quick.

A digest by cryptography would take longer than what it saves. The sums of pages, each word weighted by its place, tell
of accidents as well: of bits that flipped, of pages that were never written, and of words that changed places, but for
those that differ in their highest few bits alone. Whoever could forge them can write to the cache, and is its owner.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

PAGE = 4096
_WORDS = PAGE // 8
_PREFIX = "pages:"
_SPREAD = np.arange(1, _WORDS + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
_WEIGHTS = ((_SPREAD ^ (_SPREAD >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)) | np.uint64(1)
"""Odd, so that no change of a single word is lost, and without an order that numbers in files could have too."""


@dataclass(frozen=True)
class PagedData:
    """Arrays of bytes that follow one another in a file, each from the border of a page on."""

    arrays: Sequence[np.ndarray]

    def __len__(self) -> int:
        return sum(_padded(each.size) for each in self.arrays)

    def pieces(self) -> list[memoryview | bytes]:
        """What is written: arrays, and zeros up to the next page."""
        pieces: list[memoryview | bytes] = []
        for each in self.arrays:
            pieces += [memoryview(cast(Any, each)), bytes(_padded(each.size) - each.size)]
        return pieces

    def offsets(self) -> list[int]:
        """Where each array begins."""
        found, at = list[int](), 0
        for each in self.arrays:
            found.append(at)
            at += _padded(each.size)
        return found

    def digest(self) -> str:
        return _digest(self.arrays)


def is_paged(digest: str) -> bool:
    """Whether a digest is one of pages."""
    return digest.startswith(_PREFIX)


def digest_of_pages(content: memoryview) -> str:
    """The digest of data that was read back."""
    return _digest([np.frombuffer(content, np.uint8)])


def _padded(size: int) -> int:
    return -(-size // PAGE) * PAGE


def _digest(arrays: Sequence[np.ndarray]) -> str:
    digest = hashlib.sha256()
    for each in arrays:
        whole = each.size // PAGE * PAGE
        digest.update(_sums(each[:whole]))
        if each.size > whole:
            last = np.zeros(PAGE, np.uint8)
            last[: each.size - whole] = each[whole:]
            digest.update(_sums(last))
    return _PREFIX + digest.hexdigest()


def _sums(pages: np.ndarray) -> bytes:
    return np.einsum("pw,w->p", pages.view(np.uint64).reshape(-1, _WORDS), _WEIGHTS).tobytes()
