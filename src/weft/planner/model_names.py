"""Which entry of the catalogue a checkpoint's name stands for.

Publishers add words to a model's name that change none of its sizes (`-Instruct`, `-2507`), and the format of its
weights (`-FP8`). Both are taken off; a word that is neither makes it another model.
"""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass

_RELEASES = {"instruct", "chat", "hf", "it", "base", "thinking", "dynamic", "quantized"}
"""Words for how a model was trained on, or packed: its sizes stay as they are."""
_DATED = re.compile(r"\d{4}|v\d+(\.\d+)*")
_FORMATS = {
    "bf16": "bf16",
    "fp8": "fp8",
    "fp4": "nvfp4",
    "nvfp4": "nvfp4",
    "mxfp4": "mxfp4",
    "awq": "int4",
    "gptq": "int4",
    "int4": "int4",
    "w4a16": "int4",
}
_BLOCKED = "qwen"
"""Whose checkpoints in fp8 have a scale for each block of 128 × 128 weights."""


@dataclass(frozen=True)
class Named:
    """An entry of the catalogue, and the format that the name says its weights are in; none where it says nothing."""

    entry: str
    precision: str = ""
    exact: bool = True


def entry_of(name: str, known: Container[str]) -> Named | None:
    """The entry that a name stands for, in small letters or large, with or without its owner."""
    whole = name.lower()
    short = whole.rsplit("/", 1)[-1]
    for key in (whole, short):
        if key in known:
            return Named(key)
    words = short.removeprefix("meta-").split("-")
    precision = ""
    while words:
        key = "-".join(words)
        if key in known:
            if precision == "fp8" and key.startswith(_BLOCKED):
                precision = "fp8_block"
            return Named(key, precision, exact=False)
        last = words.pop()
        if last in _FORMATS:
            precision = precision or _FORMATS[last]
        elif last not in _RELEASES and not _DATED.fullmatch(last):
            return None
    return None
