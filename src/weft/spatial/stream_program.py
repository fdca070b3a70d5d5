"""A program of streams with the arrays it names, and its files: text in the `stream` dialect, an `.npz` beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from xdsl.dialects.builtin import ModuleOp

from weft.errors import ParseError
from weft.spatial.read_files import read_arrays, read_text
from weft.spatial.stream_dialect import ProgramOp, Streams
from weft.tile.text import parse_program, print_program


@dataclass(frozen=True)
class StreamProgram:
    """What the mapping makes of a graph, and all that the scheduler knows of it."""

    op: ProgramOp
    tiles: Sequence[np.ndarray]
    """Weights, padded to the plane."""
    constants: Sequence[np.ndarray]
    """A number for each channel, in f32."""
    data: Sequence[np.ndarray]
    """What constant tensors hold."""

    @property
    def text(self) -> str:
        return print_program(self.op)


_ARRAYS = ("tiles", "constants", "data")


def save_streams(program: StreamProgram, path: Path) -> None:
    """Write a program to a file, and its arrays to an `.npz` beside it."""
    path.write_text(program.text, encoding="utf-8")
    arrays = {f"{kind}{number}": each for kind in _ARRAYS for number, each in enumerate(getattr(program, kind))}
    np.savez_compressed(path.with_suffix(".npz"), **cast(Any, arrays))


def load_streams(path: Path) -> StreamProgram:
    """A program that `save_streams` wrote, perhaps changed since."""
    head = streams_in(parse_program(read_text(path), str(path), [Streams]), str(path))
    beside = path.with_suffix(".npz")
    if not beside.is_file():
        raise ParseError(f"there is no {beside}", hint="it lies beside the streams, with weights and constants")
    found: dict[str, list[np.ndarray]] = {kind: [] for kind in _ARRAYS}
    arrays = read_arrays(beside)
    for kind, those in found.items():
        while f"{kind}{len(those)}" in arrays:
            those.append(arrays[f"{kind}{len(those)}"])
    return StreamProgram(head, **found)


def streams_in(module: ModuleOp, place: str) -> ProgramOp:
    """The one program of a module."""
    found = [op for op in module.ops if isinstance(op, ProgramOp)]
    if len(found) != 1:
        raise ParseError(
            f"{place} is not one program of streams", hint="`weft spatial compile --emit stream` writes them"
        )
    found[0].detach()
    return found[0]
