"""Files that appear whole or not at all: what stood under the name before stays until all is written."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from weft.errors import ArtifactError


@contextmanager
def whole_file(path: Path) -> Generator[BinaryIO]:
    """A file to write, which takes its name when the block has ended without an error."""
    unfinished = _beside(path)
    try:
        with open(unfinished, "xb") as file:
            yield file
        os.replace(unfinished, path)
    except OSError as error:
        raise ArtifactError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            unfinished.unlink()


def write_together(contents: Mapping[Path, bytes]) -> None:
    """Write several files, all of them or none: what stood under their names comes back where one cannot be written."""
    unfinished = {path: _beside(path) for path in contents}
    former = {path: _beside(path) for path in contents}
    done: list[Path] = []
    place = next(iter(contents))
    try:
        for place, content in contents.items():
            unfinished[place].write_bytes(content)
        for place in contents:
            with suppress(OSError):  # nothing is there, or the file system has no second names
                os.link(place, former[place], follow_symlinks=False)
        for place in contents:
            os.replace(unfinished[place], place)
            done.append(place)
    except OSError as error:
        for each in done:
            if former[each].exists():
                os.replace(former[each], each)
            else:
                each.unlink()
        raise ArtifactError(f"{place} cannot be written: {error.strerror or error}") from error
    finally:
        for each in (*unfinished.values(), *former.values()):
            with suppress(OSError):
                each.unlink()


def _beside(path: Path) -> Path:
    return path.parent / f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}.tmp"
