"""JSON from a file that nobody vouches for: one object, no key twice, no number that is none."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from weft.errors import CorruptArtifactError


def parse_json(text: bytes, where: str) -> dict[str, Any]:
    """The object that a text is; the parser itself refuses what is nested without end."""
    try:
        found: Any = json.loads(text.decode(), object_pairs_hook=_distinct, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise CorruptArtifactError(f"{where} is not JSON: {str(error)[:120]}") from None
    if not isinstance(found, dict):
        raise CorruptArtifactError(f"{where} is not a JSON object")
    return found  # pyright: ignore[reportUnknownVariableType]


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key occurs twice")
    return found


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")
