"""Files that appear whole or not at all: what stood under the name before stays until all is written."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from weft.errors import ArtifactError


@contextmanager
def whole_file(path: Path) -> Generator[BinaryIO]:
    """A file to write, which takes its name when the block has ended without an error."""
    unfinished = path.parent / f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}.tmp"
    try:
        with open(unfinished, "xb") as file:
            yield file
        os.replace(unfinished, path)
    except OSError as error:
        raise ArtifactError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            unfinished.unlink()
