"""Reads the files of schedules and streams: what is damaged in one is an error with its name, not a fault."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from weft.errors import ParseError


def read_text(path: Path) -> str:
    """The text of a program."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ParseError(f"{path} is not text in UTF-8", hint="`weft spatial compile` writes programs") from error


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """All arrays of an .npz file, by name."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (BadZipFile, OSError, EOFError, ValueError, KeyError, AttributeError, MemoryError, zlib.error) as error:
        raise ParseError(f"{path} is no .npz file of arrays, or is damaged", hint="write it again") from error


def read_json(text: str, what: str) -> Any:
    """What an attribute holds as JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ParseError(f"{what} is not JSON: {error}") from error
