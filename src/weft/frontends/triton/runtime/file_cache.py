"""Files that users keep between runs by a key, as they do with Triton's cache: in a folder of Weft's own.

What Weft compiles is kept elsewhere (`runtime/cache.py`): these are the user's own files.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from weft.frontends.triton.errors import KernelValueError
from weft.runtime.cache import DiskCache

_SHORT = 100
"""Characters of a name that the name of an unfinished file has."""


def default_cache_dir() -> str:
    """The folder that all files are kept in."""
    root = DiskCache().root
    if root is None:
        raise KernelValueError("there is no folder to keep files in", hint="set WEFT_CACHE_DIR to one")
    return str(root / "files")


class FileCacheManager:
    """The files of one key."""

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        if not key or Path(key).name != key:
            raise KernelValueError(f"{key!r} is not a key", hint="use a digest")
        self.key = key
        self.cache_dir = str(Path(default_cache_dir()) / key)

    def _path(self, filename: str) -> Path:
        if Path(filename).name != filename:
            raise KernelValueError(f"{filename!r} is not the name of a file")
        return Path(self.cache_dir) / filename

    def has_file(self, filename: str) -> bool:
        return self._path(filename).exists()

    def get_file(self, filename: str) -> str | None:
        """Where the file is, if it is there."""
        return str(self._path(filename)) if self.has_file(filename) else None

    def put(self, data: bytes | str, filename: str, binary: bool = True) -> str:
        """Keep a file; others see all of it or nothing."""
        path = self._path(filename)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        number, unfinished = tempfile.mkstemp(prefix=f".{filename[:_SHORT]}.", dir=path.parent)
        try:
            with os.fdopen(number, "wb") as sink:
                sink.write(data if isinstance(data, bytes) else str(data).encode())
            os.replace(unfinished, path)
        except BaseException:
            Path(unfinished).unlink(missing_ok=True)
            raise
        return str(path)

    def put_group(self, filename: str, group: Mapping[str, str]) -> str:
        """Keep the names of files that belong together."""
        return self.put(json.dumps({"files": sorted(group)}), f"__grp__{filename}")

    def get_group(self, filename: str) -> dict[str, str] | None:
        """Where the files are that belong together; those that are gone are left out."""
        listed = self.get_file(f"__grp__{filename}")
        if listed is None:
            return None
        names: list[str] = json.loads(Path(listed).read_text())["files"]
        return {name: path for name in names if (path := self.get_file(name)) is not None}


def get_cache_manager(key: str) -> FileCacheManager:
    """The files of a key."""
    return FileCacheManager(key)
