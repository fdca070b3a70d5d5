"""The glossary is true: what it names is in the tree."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")


def test_every_file_of_the_glossary_exists() -> None:
    named = re.findall(r"`([\w/]+\.py)`", TEXT)
    assert named
    assert [name for name in named if not (ROOT / "src/weft" / name).is_file()] == []


def test_every_term_has_a_meaning_and_a_place_and_stands_once() -> None:
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in TEXT.splitlines() if line.startswith("| ")
    ]
    rows = [row for row in rows if row[0] not in ("term", "---")]
    assert [row for row in rows if len(row) != 3 or not all(row)] == []
    terms = [row[0] for row in rows]
    assert sorted(terms) == sorted(set(terms))
