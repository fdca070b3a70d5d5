"""The quick digest of large data tells of words that are others, or elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

from weft.runtime.paged_data import PAGE, PagedData, digest_of_pages

WORDS = np.random.default_rng(0).integers(0, 1 << 63, 3 * PAGE // 8, np.uint64)


def digest(words: np.ndarray) -> str:
    return digest_of_pages(memoryview(words.tobytes()))


@pytest.mark.parametrize(("one", "other"), [(0, 1), (3, 259), (511, 512), (7, 1030)])
def test_words_that_changed_places_are_seen(one: int, other: int) -> None:
    words = WORDS.copy()
    words[[one, other]] = words[[other, one]]
    assert digest(words) != digest(WORDS)


@pytest.mark.parametrize("bit", [0, 17, 63])
def test_bits_that_flipped_are_seen(bit: int) -> None:
    words = WORDS.copy()
    words[700] ^= np.uint64(1 << bit)
    assert digest(words) != digest(WORDS)


def test_what_is_read_back_has_the_digest_of_what_was_written() -> None:
    data = PagedData([WORDS.view(np.uint8), WORDS.view(np.uint8)[:100]])
    assert digest_of_pages(memoryview(b"".join(data.pieces()))) == data.digest()
